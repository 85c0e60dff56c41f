"""The HTTP interface over an engine with known answers."""

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

import tokentrail
from collector.otlp.exposition import read_exposition

from .server_support import MODEL, script, served, tiny_loader
from .support import byte_tokenizer, request_span

ANSWERS = script(hello="naïve 漢字 answer", stops="one two STOP three")


@pytest.fixture(scope="module")
def server():
    with served(tiny_loader(script=ANSWERS)) as running:
        running.until(lambda: running.service.ready)
        yield running


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def complete(client, prompt, **options):
    return client.completions.create(model=MODEL, prompt=prompt, **{"max_tokens": 60, "temperature": 0, **options})


def refusal(client, **body):
    with pytest.raises(openai.APIStatusError) as raised:
        client.post("/completions", body={"model": MODEL, "prompt": "hello", **body}, cast_to=dict)
    return raised.value.status_code, raised.value.body


def test_completion(server, client):
    answer = complete(client, "hello")
    assert answer.choices[0].text == "naïve 漢字 answer"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == 5
    assert answer.usage.completion_tokens == len("naïve 漢字 answer".encode()) + 1
    request = request_span(server.trail, answer.id)
    assert answer.id.startswith("cmpl-")
    assert request.name == f"text_completion {MODEL}"
    assert request.attributes["gen_ai.usage.input_tokens"] == 5
    assert request.attributes["gen_ai.usage.output_tokens"] == answer.usage.completion_tokens
    assert request.attributes["gen_ai.request.max_tokens"] == 60


def test_completion_of_token_ids(server, client):
    ids = server.service.loaded.tokenizer.encode("hello")
    assert complete(client, ids).choices[0].text == "naïve 漢字 answer"
    assert complete(client, [ids]).choices[0].text == "naïve 漢字 answer"
    assert complete(client, ["hello"]).choices[0].text == "naïve 漢字 answer"


def test_chat(server, client):
    # The template is "role: content\n", so the engine sees another prompt, and the rule gives its answer.
    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": [{"type": "text", "text": "brief"}]}]
    answer = client.chat.completions.create(model=MODEL, messages=messages, max_completion_tokens=7, temperature=0)
    plain = complete(client, "system: be\nuser: brief\n", max_tokens=7)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == plain.choices[0].text
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 7)
    assert answer.id.startswith("chatcmpl-")
    assert request_span(server.trail, answer.id).attributes["gen_ai.operation.name"] == "chat"


def test_chat_without_a_limit_goes_to_the_end_of_the_context(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "go"}], extra_body={"ignore_eos": True}, temperature=0
    )
    assert answer.usage.total_tokens == 120


def test_streamed_completion(client):
    chunks = list(complete(client, "hello", stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == "naïve 漢字 answer"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert (chunks[-1].choices, chunks[-1].usage.prompt_tokens) == ([], 5)
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_streamed_chat(client):
    messages = [{"role": "user", "content": "hi"}]
    whole = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=20, temperature=0)
    chunks = list(
        client.chat.completions.create(model=MODEL, messages=messages, max_tokens=20, temperature=0, stream=True)
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "length"


def test_stop_strings(client):
    for stream in (False, True):
        answer = complete(client, "stops", stop=["STOP", "nowhere"], stream=stream)
        pieces = [chunk.choices[0] for chunk in answer] if stream else [answer.choices[0]]
        assert "".join(piece.text for piece in pieces) == "one two "
        assert pieces[-1].finish_reason == "stop"


def test_a_seed_repeats_itself(client):
    texts = {complete(client, "dice", temperature=1.5, seed=9, max_tokens=20).choices[0].text for _ in range(3)}
    assert len(texts) == 1


def test_models(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


@pytest.mark.parametrize(
    ("body", "status", "code", "param", "message"),
    [
        ({"model": "gpt-4"}, 404, "model_not_found", None, "model 'gpt-4' does not exist; this server has 'tiny'"),
        ({"temperature": -1}, 400, "invalid_value", "temperature", "temperature: Input should be greater than"),
        ({"temperature": "hot"}, 400, "invalid_value", "temperature", "temperature: Input should be a valid number"),
        ({"top_p": 0}, 400, "invalid_value", "top_p", "top_p: Input should be greater than 0"),
        ({"max_tokens": 0}, 400, "invalid_value", "max_tokens", "max_tokens: Input should be greater than"),
        ({"max_tokens": 1.5}, 400, "invalid_value", "max_tokens", "max_tokens: Input should be a valid integer"),
        ({"repetition_penalty": 1e-40}, 400, "invalid_value", "repetition_penalty", "greater than or equal to 0.01"),
        ({"best_of": 2}, 400, "invalid_value", "best_of", "best_of=2 is not supported by this server"),
        ({"best_of": True}, 400, "invalid_value", "best_of", "best_of=True is not supported"),
        ({"n": 0}, 400, "invalid_value", "n", "n: Input should be greater than or equal to 1"),
        ({"n": True}, 400, "invalid_value", "n", "n: Input should be a valid integer"),
        ({"logprobs": 21}, 400, "invalid_value", "logprobs", "logprobs: Input should be less than or equal to 20"),
        ({"logit_bias": {"x": 1}}, 400, "invalid_value", "logit_bias", "logit_bias maps token ids to numbers"),
        ({"logit_bias": {"5": 1, "05": 2}}, 400, "invalid_value", "logit_bias", "logit_bias names a token twice"),
        ({"logit_bias": {"257": 1}}, 400, "invalid_value", "logit_bias", "token ids must be between 0 and 256"),
        ({"stop_token_ids": [-1]}, 400, "invalid_value", "stop_token_ids", "token ids must be between 0 and 256"),
        ({"prompt": ["a"] * 129, "n": 2}, 400, "invalid_value", "prompt", "at most 256 answers per request"),
        ({"stop": 5}, 400, "invalid_value", "stop", "stop: Input should be a valid string"),
        ({"prompt": 5}, 400, "invalid_value", "prompt", "prompt: Input should be a valid string"),
        ({"list[x]": 1}, 400, "unknown_parameter", "list[x]", "Unrecognized request argument: list[x]"),
        ({"stop": [""]}, 400, "invalid_value", "stop", "stop: at most 16 strings of 1 to 1024 characters"),
        ({"tempreature": 1}, 400, "unknown_parameter", "tempreature", "Unrecognized request argument: tempreature"),
        ({"stream_options": {}}, 400, "invalid_value", "stream_options", "only allowed with stream=true"),
        ({"prompt": ""}, 400, "invalid_value", "prompt", "the prompt is empty"),
        ({"prompt": ["a", ""]}, 400, "invalid_value", "prompt", "the prompt is empty"),
        ({"prompt": [5, 257]}, 400, "invalid_value", "prompt", "token ids must be between 0 and 256"),
        ({"prompt": None}, 400, "invalid_value", "prompt", "prompt"),
        ({"prompt": "x" * 100, "max_tokens": 21}, 400, "context_length_exceeded", "prompt", "121 tokens (100 in the"),
        ({"prompt": "x" * 5000}, 400, "context_length_exceeded", "prompt", "maximum context length is 120 tokens"),
    ],
)  # fmt: skip
def test_refusals(client, body, status, code, param, message):
    found, error = refusal(client, **body)
    assert (found, error["code"], error["param"]) == (status, code, param)
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"


def test_what_asks_for_nothing_is_accepted(client):
    neutral = {"n": 1, "best_of": 1, "logprobs": None, "presence_penalty": 0.0, "logit_bias": {}, "user": "me"}
    assert complete(client, "hello", extra_body=neutral).choices[0].text == "naïve 漢字 answer"


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "code"),
    [
        ("POST", "/v1/completions", b"{not json", 400, "invalid_json"),
        ("POST", "/v1/completions", b"[]", 400, "invalid_value"),
        ("POST", "/v1/completions", b'{"model": "tiny", "prompt": "\\ud800"}', 400, "invalid_value"),
        ("POST", "/v1/completions", b'{"model": "\\ud800", "prompt": "a"}', 400, "invalid_value"),
        ("POST", "/v1/completions", b'{"model": "tiny", "prompt": "a", "\\ud800": 1}', 400, "invalid_value"),
        ("POST", "/v1/completions", b'{"model": "tiny", "prompt": "a", "n": "\\ud800"}', 400, "invalid_value"),
        ("POST", "/v1/completions", b'{"model": "tiny", "prompt": "a", "seed": NaN}', 400, "invalid_value"),
        ("POST", "/v1/completions", b'{"model": "tiny", "prompt": "a", "temperature": NaN}', 400, "invalid_value"),
        ("POST", "/v1/completions", b"", 400, "invalid_value"),
        ("POST", "/v1/completions", b'{"a": "' + b"x" * (9 << 20) + b'"}', 413, "request_too_large"),
        ("POST", "/v1/nothing", b"{}", 404, "not_found"),
        ("GET", "/v1/completions", b"", 405, "method_not_allowed"),
    ],
)
def test_errors_have_openais_shape(server, method, path, content, status, code):
    before = server.service.error_answers[code]
    answer = httpx.request(method, server.url + path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == status
    counted = f'tokentrail_engine_error_answers_total{{code="{code}"}} {before + 1}.0'
    assert counted in httpx.get(f"{server.url}/metrics").text.splitlines()
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert answer.json()["error"]["code"] == code


def test_too_long_prompts_end_their_trace_as_errors(server, client):
    with pytest.raises(openai.BadRequestError):
        complete(client, "x" * 500, extra_headers={"x-request-id": "too-long"})
    request = request_span(server.trail, "cmpl-too-long")
    assert (request.attributes["tokentrail.status"], request.attributes["error.type"]) == (
        "error",
        "context_length_exceeded",
    )


def test_headers_that_telemetry_reads(server, client):
    headers = {
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "x-request-id": "mine-42",
        "x-tokentrail-tenant": "acme",
        "x-tokentrail-slo-class": "chat",
    }
    answer = client.completions.with_raw_response.create(
        model=MODEL, prompt="hello", max_tokens=3, extra_headers=headers
    )
    assert answer.parse().id == answer.headers["x-request-id"] == "cmpl-mine-42"
    request = request_span(server.trail, "cmpl-mine-42")
    assert (request.attributes["tokentrail.tenant"], request.attributes["tokentrail.slo_class"]) == ("acme", "chat")
    assert request.parent_id == 0xB7AD6B7169203331
    assert answer.headers["traceparent"] == f"00-0af7651916cd43dd8448eb211c80319c-{request.span_id:016x}-01"


def test_an_unusable_request_id_is_replaced(client):
    answer = complete(client, "hello", extra_headers={"x-request-id": "no spaces, please"})
    assert len(answer.id) == len("cmpl-") + 32


def test_probes(server):
    assert httpx.get(f"{server.url}/healthz").json() == {"status": "ok"}
    for path in ("/readyz", "/health", "/ping"):
        assert httpx.get(server.url + path).status_code == 200
    assert httpx.get(f"{server.url}/version").json() == {"version": tokentrail.__version__, "threads": 3}
    assert 'tokentrail_engine_start_info{threads="3"} 1.0' in httpx.get(f"{server.url}/metrics").text


def scraped(server):
    """{(name, labels that differ): value} of a scrape."""
    text = httpx.get(f"{server.url}/metrics").text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(s.name, s.labels.get("le") or s.labels.get("finished_reason") or ""): s.value for s in samples}


def test_metrics_have_vllms_names(server, client):
    before = scraped(server)
    answer = complete(client, "hello")
    after = scraped(server)
    grown = {key: value - before.get(key, 0) for key, value in after.items()}
    assert after["tokentrail_engine_ready", ""] == 1
    assert after["tokentrail_engine_kv_cache_blocks", ""] == 64
    assert after["vllm:num_requests_running", ""] == after["vllm:num_requests_waiting", ""] == 0
    assert after["vllm:kv_cache_usage_perc", ""] == 0
    assert grown["tokentrail_engine_steps_total", ""] == grown["vllm:generation_tokens_total", ""]
    assert grown["vllm:generation_tokens_total", ""] == answer.usage.completion_tokens
    assert (grown["vllm:prompt_tokens_total", ""], grown["vllm:num_preemptions_total", ""]) == (5, 0)
    assert (grown["vllm:request_success_total", "stop"], grown["vllm:request_success_total", "length"]) == (1, 0)
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_time_per_output_token"):
        assert grown[f"vllm:{name}_seconds_count", ""] == 1
        assert grown[f"vllm:{name}_seconds_bucket", "+Inf"] == 1
    assert grown["vllm:inter_token_latency_seconds_count", ""] == answer.usage.completion_tokens - 1
    parts = sum(after[f"vllm:request_{part}_time_seconds_sum", ""] for part in ("queue", "prefill", "decode"))
    assert parts == pytest.approx(after["vllm:e2e_request_latency_seconds_sum", ""])


def test_several_prompts_and_answers(server, client):
    answer = complete(client, ["hello", "stops"], n=2, max_tokens=100)
    texts = ["naïve 漢字 answer"] * 2 + ["one two STOP three"] * 2
    assert [(choice.index, choice.text) for choice in answer.choices] == list(enumerate(texts))
    assert answer.usage.prompt_tokens == 10
    chunks = list(complete(client, ["hello", "stops"], n=2, max_tokens=100, stream=True))
    streamed = {i: "".join(c.choices[0].text for c in chunks if c.choices[0].index == i) for i in range(4)}
    assert list(streamed.values()) == texts
    request = request_span(server.trail, answer.id)
    assert request.attributes["tokentrail.choices"] == 4
    assert request.attributes["gen_ai.usage.output_tokens"] == answer.usage.completion_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_completions(client, stream):
    answer = complete(client, "hello", max_tokens=6, logprobs=1, echo=True, stream=stream)
    parts = [part.choices[0] for part in answer] if stream else answer.choices
    told = [part.logprobs for part in parts if part.logprobs]
    names = [name for part in told for name in part.tokens]
    assert "".join(part.text for part in parts) == "hellonaïve"
    assert names == [*"hellona", "bytes:\\xc3", "bytes:\\xaf", "v", "e"]
    values = [value for part in told for value in part.token_logprobs]
    assert (values[0], told[0].top_logprobs[0]) == (None, None)
    ids = byte_tokenizer().encode("hellonaïve")
    assert values[1:] == [pytest.approx(-token / 100) for token in ids[1:]]
    entropies = [value for part in told for value in part.token_entropies]
    assert entropies == [None, *(pytest.approx(token / 50) for token in ids[1:])]
    assert told[0].top_logprobs[1] == {"f": -0.001, "e": pytest.approx(-ids[1] / 100)}
    offsets = [offset for part in told for offset in part.text_offset]
    assert offsets[:7] == list(range(7))


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_chats(client, stream):
    options = {"logprobs": True, "top_logprobs": 1, "max_tokens": 3, "temperature": 0, "stream": stream}
    answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}], **options)
    parts = [part.choices[0] for part in answer] if stream else answer.choices
    told = [item for part in parts if part.logprobs for item in part.logprobs.content]
    assert len(told) == 3
    assert all(bytes(item.bytes).decode() == item.token for item in told)
    assert all(len(item.top_logprobs) == 1 for item in told)
    assert [item.entropy for item in told] == [pytest.approx(-2 * item.logprob) for item in told]


def test_top_logprobs_need_logprobs(client):
    with pytest.raises(openai.BadRequestError, match="only allowed with logprobs=true"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}], top_logprobs=1)


def test_usage_with_every_chunk(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(complete(client, "hello", stream=True, stream_options=options))
    text, counted = "", []
    for chunk in chunks:
        text += chunk.choices[0].text if chunk.choices else ""
        counted.append((chunk.usage.completion_tokens, len(text.encode())))
    assert text == "naïve 漢字 answer"
    *while_sending, last, total = counted
    assert all(tokens == sent for tokens, sent in while_sending)  # the engine is ahead of what it has sent
    assert last == total == (len(text.encode()) + 1, len(text.encode()))


def test_usage_of_a_stream_counts_all_tokens_of_a_step():
    with (
        served(tiny_loader(script=ANSWERS, burst=4)) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        chunks = list(complete(client, "hello", stream=True, stream_options={"include_usage": True}))
    assert len(chunks) < 12
    assert chunks[-1].usage.completion_tokens == len("naïve 漢字 answer".encode()) + 1


def test_stop_token_ids_end_an_answer_without_their_text(client):
    stop = byte_tokenizer().encode("w")
    answer = complete(client, "stops", extra_body={"stop_token_ids": stop})
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("one t", "stop")
    assert answer.usage.completion_tokens == 6


def test_nested_nulls_count_as_absent(client):
    messages = [
        {"role": "user", "content": "hi", "name": None},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": None,
            "refusal": None,
            "function_call": None,
            "audio": None,
        },
        {"role": "user", "content": [{"type": "text", "text": "go", "cache_control": None}]},
    ]
    body = {"model": MODEL, "messages": messages, "max_tokens": 3, "n": None, "stream": True, "stop": None}
    body["stream_options"] = {"include_usage": None}
    answer = httpx.post(f"{client.base_url}chat/completions", json=body)
    assert (answer.status_code, answer.text[-14:]) == (200, "data: [DONE]\n\n")


def test_tokenize_and_back(server):
    def post(path, **body):
        return httpx.post(server.url + path, json=body)

    told = post("/tokenize", model=MODEL, prompt="naïve", return_token_strs=True).json()
    assert (told["count"], told["max_model_len"]) == (6, 120)
    assert told["token_strs"] == ["n", "a", "bytes:\\xc3", "bytes:\\xaf", "v", "e"]
    assert post("/detokenize", tokens=told["tokens"]).json() == {"prompt": "naïve"}
    chat = post("/tokenize", messages=[{"role": "user", "content": "a"}]).json()
    assert post("/detokenize", tokens=chat["tokens"]).json() == {"prompt": "user: a\n"}
    assert [post("/tokenize", **body).status_code for body in ({}, {"prompt": "a", "model": "x"})] == [400, 404]
    assert post("/detokenize", tokens=[999]).status_code == 400


def test_a_name_that_a_page_rebound_is_refused(server):
    for path in ("/v1/models", "/metrics", "/healthz"):
        assert httpx.get(server.url + path, headers={"Host": "rebound.test"}).status_code == 421
        assert httpx.get(server.url + path, headers={"Host": "localhost"}).status_code == 200


def test_a_page_of_another_origin_puts_no_engine_to_sleep(server):
    for path in ("/sleep", "/wake_up", "/v1/completions"):
        answer = httpx.post(server.url + path, headers={"Sec-Fetch-Site": "cross-site"}, content=b"{}")
        assert answer.status_code == 403
    assert httpx.get(f"{server.url}/readyz").json() == {"status": "ok"}


def test_a_collector_that_scrapes_it_knows_the_engine(server):
    """Most of its metrics have vLLM's names."""
    text = httpx.get(f"{server.url}/metrics").text
    page = read_exposition(text, time_ns=7, all_names=False, most_series=1000)
    assert page.engine == "tokentrail"
    assert {"vllm:num_requests_running", "tokentrail_engine_steps_total"} <= {metric.name for metric in page.metrics}
