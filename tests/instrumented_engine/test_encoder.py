"""A tiny random BERT: vectors as transformers', behind the API of OpenAI's client."""

import base64
import json
from types import SimpleNamespace

import httpx
import numpy as np
import openai
import pytest
import tokenizers
import torch
import transformers

from instrumented_engine.core.plan import Plan, Scheduled
from instrumented_engine.model.bert import EncoderRunner, is_encoder, load_bert
from instrumented_engine.model.errors import ModelError
from instrumented_engine.settings import Settings
from instrumented_engine.startup import load
from tokentrail.testing import MemoryTrail

from .server_support import MODEL, served, tiny_loader
from .support import make_sequence, request_span

CPU = torch.device("cpu")
TINY = {
    "vocab_size": 60,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 40,
    "initializer_range": 0.2,
}
TEXTS = [[2, 7, 3], [5], list(range(40)), [9] * 17]


def save(folder, **changes):
    torch.manual_seed(3)
    model = transformers.BertModel(transformers.BertConfig(**TINY | changes), add_pooling_layer=False).eval()
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(folder with a tokenizer of letters, the model in transformers)."""
    folder = tmp_path_factory.mktemp("bert")
    model = save(folder)
    letters = {"[CLS]": 0, "[SEP]": 1, "[UNK]": 2, "[PAD]": 3} | {chr(97 + i): 4 + i for i in range(26)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(letters, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    backend.enable_truncation(4)
    backend.enable_padding(length=9)
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]").save_pretrained(folder)
    return folder, model


def expected(model, ids, *, first=False):
    with torch.inference_mode():
        states = model(torch.tensor([ids])).last_hidden_state[0]
    return torch.nn.functional.normalize(states[0] if first else states.mean(0), dim=-1)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
@pytest.mark.parametrize("first", [False, True])
def test_vectors_as_transformers(tmp_path, activation, first):
    reference = save(tmp_path, hidden_act=activation)
    (tmp_path / "1_Pooling").mkdir()
    pooling = {"pooling_mode_cls_token": first, "pooling_mode_mean_tokens": not first}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    assert is_encoder(tmp_path)
    model = load_bert(tmp_path, torch.float32, CPU)
    together = model.embed(TEXTS)
    for text, vector in zip(TEXTS, together, strict=True):
        torch.testing.assert_close(vector, expected(reference, text, first=first), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(vector, model.embed([text])[0], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(together.norm(dim=-1), torch.ones(len(TEXTS)))


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", {"hidden_act": "tanh"}, "hidden_act"),
        ("config.json", "{", r"config\.json cannot be read: Expecting"),
        ("1_Pooling/config.json", "[]", r"config\.json must hold a JSON object"),
        ("config.json", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("config.json", {"num_hidden_layers": 4}, "encoder.layer.3.attention.self.query.weight"),
        ("config.json", {"num_attention_heads": 0}, "num_attention_heads"),
        ("config.json", {"vocab_size": 61}, "another shape"),
        ("config.json", {"max_position_embeddings": 41}, "another shape"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "first token are supported"),
        ("model.safetensors", "", "no usable model.safetensors"),
    ],
)
def test_models_that_are_refused(tmp_path, file, change, message):
    save(tmp_path)
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    if isinstance(change, dict):
        change = json.dumps((json.loads(path.read_text()) if path.exists() else {}) | change)
    path.write_text(change)
    with pytest.raises(ModelError, match=message):
        load_bert(tmp_path, torch.float32, CPU)


def test_a_shorter_limit_of_sentence_transformers(tmp_path):
    save(tmp_path)
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 12}')
    assert load_bert(tmp_path, torch.float32, CPU).config.max_position == 12


def test_a_text_is_not_encoded_in_parts(tmp_path):
    save(tmp_path)
    runner = EncoderRunner(load_bert(tmp_path, torch.float32, CPU))
    sequence = make_sequence(MemoryTrail(), [1, 2, 3])
    with pytest.raises(MemoryError):
        runner.run(Plan([Scheduled(sequence, 2)]))
    assert len(runner.run(Plan([Scheduled(sequence, 3)])).embeddings[sequence]) == 48


@pytest.mark.parametrize("coded", [{}, {"encoding_format": "base64"}])
def test_a_vector_that_is_no_vector_is_an_error_of_its_request_alone(tiny, coded):
    with served(load, model=str(tiny[0]), device="cpu", threads=1) as server:
        server.until(lambda: server.service.ready)
        server.engine._runner._model._tensors["embeddings.word_embeddings.weight"][9] = float("nan")

        def post(name, *texts):
            body = {"model": MODEL, "input": texts, **coded}
            return httpx.post(f"{server.url}/v1/embeddings", json=body, headers={"x-request-id": name}, timeout=120)

        answer = post("bad", [4, 5], [9], [6])
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_error")
        assert "infinite or none (NaN)" in answer.json()["error"]["message"]
        assert request_span(server.trail, "embd-bad").attributes["tokentrail.status"] == "error"
        assert post("good", [4, 5], [6]).status_code == 200
        assert server.service.ready


@pytest.fixture(scope="module")
def server(tiny):
    settings = {"model": str(tiny[0]), "device": "cpu", "threads": 1, "max_seqs": 2, "max_batched_tokens": 64}
    with served(load, **settings) as running:
        running.until(lambda: running.service.ready)
        yield running


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_embeddings(server, client, tiny):
    texts = ["abc", "hello", "a" * 20]
    answer = client.embeddings.create(model=MODEL, input=texts, extra_headers={"x-request-id": "e"})
    plain = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    for text, item, other in zip(texts, answer.data, plain.data, strict=True):
        ids = [0, *(ord(letter) - 93 for letter in text), 1]
        assert other.embedding == pytest.approx(expected(tiny[1], ids).tolist(), abs=1e-5)
        assert item.embedding == pytest.approx(other.embedding, abs=1e-6), "base64, which OpenAI's client asks for"
    assert [item.index for item in answer.data] == [0, 1, 2]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 5 + 7 + 22, "no truncation, no padding"
    by_ids = client.embeddings.create(model=MODEL, input=[0, 4, 5, 6, 1], dimensions=48)
    assert by_ids.data[0].embedding == pytest.approx(answer.data[0].embedding, abs=1e-6)


def test_base64_is_little_endian_floats(server):
    body = {"model": MODEL, "input": "abc"}
    plain, coded = (
        httpx.post(f"{server.url}/v1/embeddings", json=body | {"encoding_format": form}).json()["data"][0]["embedding"]
        for form in ("float", "base64")
    )
    assert np.frombuffer(base64.b64decode(coded), "<f4").tolist() == pytest.approx(plain, abs=1e-7)


def test_the_trace_has_no_tokens(server, client):
    client.embeddings.create(model=MODEL, input=["abc"] * 3, extra_headers={"x-request-id": "traced"})
    request = request_span(server.trail, "embd-traced")
    assert request.name == f"embeddings {MODEL}"
    assert request.attributes["gen_ai.operation.name"] == "embeddings"
    assert request.attributes["gen_ai.usage.input_tokens"] == 15
    assert request.attributes["tokentrail.status"] == "ok"
    absent = ("gen_ai.usage.output_tokens", "tokentrail.time_to_first_token", "tokentrail.finish_reason")
    assert not [name for name in absent if name in request.attributes]
    assert server.trail.spans("tokentrail.token", parent=request) == []
    phases = server.trail.spans("tokentrail.phase", parent=request)
    assert {phase.attributes["tokentrail.phase.name"] for phase in phases} == {"queued", "prefill"}
    assert sum(phase.duration_ns for phase in phases) == request.duration_ns
    steps = server.trail.spans("tokentrail.step")
    assert max(step.attributes["tokentrail.step.prefill_tokens"] for step in steps) <= 64
    assert not [step for step in steps if "tokentrail.step.kv_blocks_used" in step.attributes]
    text = httpx.get(f"{server.url}/metrics").text
    assert "vllm:kv_cache_usage_perc" not in text
    assert 'vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"} 0.0' in text
    assert 'vllm:request_decode_time_seconds_count{engine="0",model_name="tiny"} 0.0' in text


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        ({"dimensions": 12}, "dimensions", "have 48 dimensions and cannot be shortened"),
        ({"input": ["a"] * 2049}, "input", "at most 2048"),
        ({"input": []}, "input", "is empty"),
        ({"input": ["a", []]}, "input", ""),
        ({"input": [60]}, "input", "between 0 and 59"),
        ({"input": [5] * 41}, "input", "maximum context length is 40"),
        ({"encoding_format": "hex"}, "encoding_format", "float"),
        ({"truncate": 3}, "truncate", "Unrecognized"),
        ({"priority": 2**31}, "priority", "less than 2147483648"),
        ({"model": "m" * 1025}, "model", "at most 1024 characters"),
    ],
)
def test_refusals(client, change, param, message):
    with pytest.raises(openai.BadRequestError) as raised:
        client.post("/embeddings", body={"model": MODEL, "input": "a"} | change, cast_to=dict)
    assert raised.value.param == param
    assert message in raised.value.body["message"]


def test_a_text_of_the_longest_length(client):
    assert client.embeddings.create(model=MODEL, input=[5] * 40).usage.prompt_tokens == 40


def test_an_encoder_writes_no_text_and_a_decoder_makes_no_vectors(client):
    with pytest.raises(openai.BadRequestError, match="use /v1/embeddings"):
        client.completions.create(model=MODEL, prompt="a")
    with served(tiny_loader()) as server:
        server.until(lambda: server.service.ready)
        answer = httpx.post(f"{server.url}/v1/embeddings", json={"model": MODEL, "input": "a"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")


@pytest.mark.parametrize("flags", [{"quantization": "int8"}, {"kv_role": "kv_producer"}, {"max_model_len": 41}])
def test_flags_that_an_encoder_does_not_have(tiny, flags):
    cold = SimpleNamespace(cold_start=lambda _: MemoryTrail().cold_start("m"))
    with pytest.raises(ModelError, match=r"an encoder has no|own limit is 40"):
        load(Settings(model=str(tiny[0]), device="cpu", threads=1, **flags), cold)


LABELS = ["O", "B-PER", "I-PER", "B-LOC"]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory, tiny):
    """(folder with the tokenizer of letters, a token classifier in transformers)."""
    folder = tmp_path_factory.mktemp("classifier")
    for file in tiny[0].glob("tokenizer*"):
        (folder / file.name).write_bytes(file.read_bytes())
    torch.manual_seed(4)
    config = transformers.BertConfig(**TINY, id2label=dict(enumerate(LABELS)))
    model = transformers.BertForTokenClassification(config).eval()
    model.save_pretrained(folder)
    return folder, model


def test_labels_as_transformers(classifier):
    folder, reference = classifier
    model = load_bert(folder, torch.float32, CPU)
    assert model.config.labels == tuple(LABELS)
    for text, found in zip(TEXTS, model.classify(TEXTS), strict=True):
        with torch.inference_mode():
            expected = reference(torch.tensor([text])).logits[0].softmax(-1)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_labels_of_tokens_over_http(classifier):
    folder, reference = classifier
    settings = {"model": str(folder), "device": "cpu", "threads": 1, "max_seqs": 2, "max_batched_tokens": 64}
    with served(load, **settings) as server:
        server.until(lambda: server.service.ready)

        def post(path, **body):
            return httpx.post(f"{server.url}/{path}", json={"model": MODEL, "input": ["abc", "z"]} | body)

        answer = post("pooling", task="token_classify").json()
        assert answer["labels"] == LABELS
        assert [(item["index"], len(item["data"])) for item in answer["data"]] == [(0, 5), (1, 3)]
        with torch.inference_mode():
            expected = reference(torch.tensor([[0, 4, 5, 6, 1]])).logits[0].softmax(-1).tolist()
        for found, row in zip(answer["data"][0]["data"], expected, strict=True):
            assert found == pytest.approx(row, abs=1e-5)
        assert answer["usage"] == {"prompt_tokens": 8, "total_tokens": 8}
        assert "makes labels and no embeddings" in post("v1/embeddings").json()["error"]["message"]
        assert post("pooling", task="embed").status_code == 400
        assert (
            "use /pooling"
            in httpx.post(f"{server.url}/v1/completions", json={"model": MODEL, "prompt": "a"}).json()["error"][
                "message"
            ]
        )


def test_an_encoder_without_labels_has_none(server):
    answer = httpx.post(f"{server.url}/pooling", json={"model": MODEL, "input": "a"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        400, "this model makes embeddings and no labels",
    )  # fmt: skip


@pytest.mark.parametrize("names", [{}, {"1": "a"}, {"0": "a", "2": "b"}, {"0": "a", "1": "b"}])
def test_labels_that_are_refused(classifier, tmp_path, names):
    for file in classifier[0].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"id2label": names}))
    with pytest.raises(ModelError, match=r"id2label must name the labels|for each of 2 labels"):
        load_bert(tmp_path, torch.float32, CPU)
