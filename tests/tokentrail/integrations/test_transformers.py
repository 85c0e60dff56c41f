"""transformers for real, with a tiny random model on the CPU."""

import logging
import threading
import time
from types import SimpleNamespace

import pytest

from tokentrail import now_ns, semconv
from tokentrail.integrations import transformers as module
from tokentrail.testing import MemoryTrail

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=1, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def trail():
    return MemoryTrail(clock=now_ns)


class Inner:
    def __init__(self):
        self.tokens, self.ended = 0, False

    def put(self, value):
        self.tokens += value.numel()

    def end(self):
        self.ended = True


def test_generate_is_a_request_with_every_token(model, trail):
    inner = Inner()
    with module.RequestStreamer(trail, model="tiny", request_id="r-1", tenant="acme", inner=inner) as streamer:
        answer = model.generate(
            torch.tensor([[1, 5, 9]]),
            attention_mask=torch.ones(1, 3),
            max_new_tokens=6,
            do_sample=False,
            streamer=streamer,
        )
    [row] = trail.spans("text_completion tiny")
    assert answer.shape[1] == 9
    assert (row.attributes[semconv.INPUT_TOKENS], row.attributes[semconv.OUTPUT_TOKENS]) == (3, 6)
    assert (row.attributes[semconv.STATUS], row.attributes[semconv.RESPONSE_ID], row.attributes[semconv.TENANT]) == (
        "ok",
        "r-1",
        "acme",
    )
    assert row.attributes[semconv.PROVIDER_NAME] == "transformers"
    tokens = trail.spans(semconv.TOKEN_SPAN)
    assert len(tokens) == 6
    assert sum(token.duration_ns for token in tokens) <= row.duration_ns
    assert (inner.tokens, inner.ended) == (9, True)


def test_a_generate_that_fails_is_an_error(model, trail):
    with pytest.raises(ValueError, match="mine"), module.RequestStreamer(trail, model="tiny"):
        raise ValueError("mine")
    [row] = trail.spans("text_completion tiny")
    assert (row.attributes[semconv.STATUS], row.attributes[semconv.ERROR_TYPE]) == ("error", "ValueError")


def test_a_batch_is_said_to_be_counted_as_one(model, trail, caplog):
    with caplog.at_level(logging.WARNING), module.RequestStreamer(trail, model="tiny") as streamer:
        model.generate(
            torch.tensor([[1, 5], [1, 6]]), attention_mask=torch.ones(2, 2), max_new_tokens=2, streamer=streamer
        )
    assert "one prompt" in caplog.text


@pytest.fixture
def hooked(monkeypatch, trail):
    from transformers.generation.continuous_batching import continuous_api, scheduler

    for owner, names in (
        (continuous_api.ContinuousBatchProcessor, ("update_batch", "_handle_request_error")),
        (scheduler.Scheduler, ("add_waiting_request", "clear_cancelled_requests")),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, getattr(owner, name))  # the originals come back afterwards
    return module.record_continuous_batching("tiny", trail)


def generate_batch(model, prompts, tokens):
    from transformers import GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    config = GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    # Without a size, the cache takes nine tenths of the machine's memory, and each page of it is touched.
    cache = ContinuousBatchingConfig(num_blocks=8, max_batch_tokens=64)
    options = {"continuous_batching_config": cache, "progress_bar": False}
    return model.generate_batch(prompts, generation_config=config, **options)


def test_continuous_batching_records_every_token_and_step(model, hooked, trail):
    before = now_ns()
    answers = generate_batch(model, [[1, 5, 9, 4], [1, 7], [1, 2, 3]], 5)
    rows = trail.spans("text_completion tiny")
    assert len(rows) == len(answers) == 3
    assert sorted(row.attributes[semconv.INPUT_TOKENS] for row in rows) == [2, 3, 4]
    assert {row.attributes[semconv.OUTPUT_TOKENS] for row in rows} == {5}
    assert {(row.attributes[semconv.STATUS], row.attributes[semconv.FINISH_REASON]) for row in rows} == {
        ("ok", "length")
    }
    assert {row.attributes[semconv.RESPONSE_ID] for row in rows} == set(answers)
    assert all(before <= row.start_ns <= row.end_ns <= now_ns() for row in rows)
    steps = trail.spans(semconv.STEP_SPAN)
    assert len(steps) >= 5
    assert max(step.attributes[semconv.STEP_DECODE_TOKENS] for step in steps) <= 3
    assert sum(step.attributes[semconv.STEP_DECODE_TOKENS] for step in steps) == 3 * 4
    names = {span.attributes[semconv.PHASE_NAME] for span in trail.spans(semconv.PHASE_SPAN)}
    assert names == {"queued", "prefill", "decode"}
    assert hooked.on


def test_requests_that_are_put_back_cancelled_or_fail(hooked, trail):
    """transformers' own methods, on a scheduler of which only the queue exists."""
    from transformers.generation.continuous_batching import continuous_api, scheduler

    class Queue(scheduler.Scheduler):
        def __init__(self):
            self.active_requests, self.waiting_requests, self.waiting_requests_order = {}, {}, []
            self._requests_to_cancel, self._cancellation_lock = {"left"}, threading.Lock()
            self.cache = SimpleNamespace(free_blocks=lambda _: None)

        schedule_batch = get_active_request_static_outputs = lambda *_: []

    queue = Queue()
    states = [
        SimpleNamespace(request_id=name, created_time=time.perf_counter(), initial_tokens=[1, 2])
        for name in ("left", "fell")
    ]
    for state in (*states, states[0]):  # its cache was given to another
        queue.add_waiting_request(state)
    queue.clear_cancelled_requests()
    processor = SimpleNamespace(scheduler=queue, output_router=SimpleNamespace(fail_and_deliver=lambda *_: None))
    continuous_api.ContinuousBatchProcessor._handle_request_error(processor, MemoryError(), states[1])
    rows = {row.attributes[semconv.RESPONSE_ID]: row for row in trail.spans("text_completion tiny")}
    assert {name: row.attributes[semconv.STATUS] for name, row in rows.items()} == {
        "left": "cancelled",
        "fell": "error",
    }
    assert rows["fell"].attributes[semconv.ERROR_TYPE] == "MemoryError"
    names = [span.attributes[semconv.PHASE_NAME] for span in trail.spans(semconv.PHASE_SPAN)]
    assert sorted(names) == ["preempted", "queued", "queued"]


@pytest.mark.parametrize("when", ["before a step", "after it"])
def test_a_fault_in_the_hooks_harms_no_answer(when, model, hooked, trail, monkeypatch, caplog):
    broken = (hooked, "stepped") if when == "after it" else (module, "_progress")
    monkeypatch.setattr(*broken, lambda *_, **__: 1 / 0)
    answers = generate_batch(model, [[1, 5, 9, 4], [1, 7]], 4)
    assert [len(answer.generated_tokens) for answer in answers.values()] == [4, 4]
    assert not hooked.on
    assert {row.attributes[semconv.STATUS] for row in trail.spans("text_completion tiny")} <= {"ok", "cancelled"}


def test_another_signature_is_one_warning_and_nothing_is_patched(monkeypatch, trail, caplog):
    from transformers.generation.continuous_batching import continuous_api, scheduler

    monkeypatch.setattr(scheduler.Scheduler, "add_waiting_request", lambda self, request: None)
    before = continuous_api.ContinuousBatchProcessor.update_batch
    assert module.record_continuous_batching("tiny", trail) is None
    assert continuous_api.ContinuousBatchProcessor.update_batch is before
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "Scheduler.add_waiting_request(state)" in caplog.text
