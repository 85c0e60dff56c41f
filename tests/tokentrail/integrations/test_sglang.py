"""The hooks in SGLang, on fakes that were made from its source."""

import logging
from types import SimpleNamespace

import pytest

from tests.tokentrail.integrations import fake_sglang
from tests.tokentrail.integrations.fake_sglang import Mode, Reason, Req
from tests.tokentrail.support import MS, T0
from tokentrail import semconv
from tokentrail.integrations import recorder
from tokentrail.integrations import sglang as module
from tokentrail.testing import MemoryTrail

ZERO_S = 500.0
"""The scheduler's `time.perf_counter()` at `T0`."""


class Sglang:
    """An SGLang of fakes with the hooks. Times are milliseconds after `T0`."""

    def __init__(self, fake, monkeypatch, clock):
        self.fake, self.clock, self.trails = fake, clock, []
        counter = SimpleNamespace(perf_counter_ns=lambda: int(ZERO_S * 1e9) + clock.now - T0)
        monkeypatch.setattr(module, "now_ns", clock)
        monkeypatch.setattr(module, "time", counter)
        monkeypatch.setattr(module, "engine_trail", self._trail)
        monkeypatch.setattr(module, "EngineRecorder", lambda *given: recorder.EngineRecorder(*given, clock=clock))
        module.register()
        fake.HookRegistry.apply_hooks()
        self.scheduler = fake.Scheduler()
        self.reqs = {}

    def _trail(self, engine, index):
        self.trails.append(MemoryTrail(clock=self.clock, resource={semconv.ENGINE: engine}))
        return self.trails[-1]

    def at(self, ms):
        self.clock.now = T0 + int(ms * MS)

    def add(self, rid="r-1", at=0.0, created=None, **given):
        self.at(at)
        self.reqs[rid] = Req(rid, created=0.0 if created is None else ZERO_S + created / 1e3, **given)
        self.scheduler._add_request_to_queue(self.reqs[rid])
        return self.reqs[rid]

    def prefill(self, at, began, **tokens):
        for rid in self._named(tokens):
            self.reqs[rid].time_stats.last_forward_entry_time = ZERO_S + began / 1e3
        return self.step(Mode.EXTEND, at, **tokens)

    def step(self, mode, at, **tokens):
        self.at(at)
        given = self._named(tokens)
        batch = SimpleNamespace(reqs=[self.reqs[rid] for rid in given], forward_mode=mode, extend_num_tokens=5)
        result = {rid: one if isinstance(one, tuple) else (one, None) for rid, one in given.items()}
        return self.scheduler.process_batch_result(batch, result)

    @staticmethod
    def _named(tokens):
        return {name.replace("_", "-"): one for name, one in tokens.items()}

    def spans(self, name):
        return [span for trail in self.trails for span in trail.spans(name)]

    def rows(self):
        return self.spans("generate_content m")

    def phases(self, row):
        found = sorted(self.spans(semconv.PHASE_SPAN), key=lambda span: span.start_ns)
        return [(s.attributes[semconv.PHASE_NAME], s.duration_ns / MS) for s in found if s.parent_id == row.span_id]


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.invalid")
    monkeypatch.delenv("TOKENTRAIL_SGLANG", raising=False)
    yield lambda **given: fake_sglang.install(monkeypatch, **given)
    recorder.activate(None)


@pytest.fixture
def sglang(installed, monkeypatch, clock):
    return Sglang(installed(), monkeypatch, clock)


def ended(kind="stop", **more):
    return Reason(type=kind, **more)


def test_every_token_and_phase_of_a_request(sglang):
    sglang.add(at=2, created=1)
    assert sglang.prefill(20, began=5, r_1=1) == "done"
    sglang.step(Mode.DECODE, 30, r_1=1)
    sglang.step(Mode.DECODE, 45, r_1=(1, ended("length")))
    [row] = sglang.rows()
    assert row.resource[semconv.ENGINE] == "sglang"
    assert (row.start_ns, row.duration_ns) == (T0 + MS, 44 * MS)
    said = [row.attributes[key] for key in (semconv.INPUT_TOKENS, semconv.OUTPUT_TOKENS, semconv.CACHED_TOKENS)]
    assert said == [7, 3, 2]
    assert row.attributes[semconv.RESPONSE_ID] == "r-1"
    assert row.attributes[semconv.STATUS] == "ok"
    assert list(row.attributes[semconv.FINISH_REASONS]) == ["length"]
    assert [s.duration_ns / MS for s in sglang.spans(semconv.TOKEN_SPAN)] == [19, 10, 15]
    assert sglang.phases(row) == [("queued", 4), ("prefill", 15), ("decode", 25)]


def test_a_step_says_what_the_scheduler_knows(sglang):
    for rid in ("r-1", "r-2"):
        sglang.add(rid)
    sglang.scheduler.running_batch.reqs = [1, 2, 3]
    sglang.prefill(20, began=5, r_1=1, r_2=1)
    sglang.step(Mode.DECODE, 30, r_1=1, r_2=2)
    sglang.step(Mode.IDLE, 31)
    first, second = sglang.spans(semconv.STEP_SPAN)
    names = (semconv.STEP_PREFILL_TOKENS, semconv.STEP_DECODE_TOKENS, semconv.STEP_RUNNING, semconv.STEP_WAITING)
    assert [first.attributes[name] for name in names] == [5, 0, 3, 2]
    assert [second.attributes[name] for name in names] == [0, 3, 3, 2]
    assert [first.attributes[name] for name in (semconv.STEP_KV_USED, semconv.STEP_KV_TOTAL)] == [3, 10]
    assert (second.start_ns, second.end_ns) == (T0 + 20 * MS, T0 + 30 * MS)


def test_chunks_of_a_prefill_are_one_phase_without_tokens(sglang):
    sglang.add()
    sglang.prefill(20, began=5, r_1=0)
    sglang.prefill(40, began=21, r_1=1)
    sglang.step(Mode.DECODE, 50, r_1=(1, ended()))
    [row] = sglang.rows()
    assert sglang.phases(row) == [("queued", 5), ("prefill", 35), ("decode", 10)]


@pytest.mark.parametrize("said", [{"is_retracted": True}, {}], ids=["retracted", "paused"])
def test_a_retraction_is_a_preemption(sglang, said):
    req = sglang.add()
    sglang.prefill(20, began=5, r_1=1)
    sglang.at(30)
    sglang.scheduler._add_request_to_queue(req, **said)
    sglang.prefill(60, began=50, r_1=1)
    sglang.step(Mode.DECODE, 70, r_1=(1, ended()))
    [row] = sglang.rows()
    assert row.attributes[semconv.PREEMPTIONS] == 1
    assert row.attributes[semconv.OUTPUT_TOKENS] == 3
    assert sglang.phases(row) == [
        ("queued", 5), ("prefill", 15), ("decode", 10), ("preempted", 20), ("prefill", 10), ("decode", 10)
    ]  # fmt: skip


def test_tokens_behind_the_end_of_an_answer_are_not_counted(sglang):
    req = sglang.add()
    sglang.prefill(20, began=5, r_1=1)
    req.finished_len = 3
    sglang.step(Mode.DECODE, 30, r_1=(4, ended()))
    assert sglang.rows()[0].attributes[semconv.OUTPUT_TOKENS] == 3


@pytest.mark.parametrize(
    ("reason", "status", "error"),
    [(None, "cancelled", None), ({"status_code": None}, "cancelled", None), ({"status_code": 503}, "error", "503")],
)
def test_an_abort_in_the_queue_is_the_client_s_or_the_server_s(sglang, reason, status, error):
    req = sglang.add()
    sglang.at(9)
    sglang.scheduler.send_abort_output(SimpleNamespace(finished_reason=reason), req)
    [row] = sglang.rows()
    assert sglang.scheduler.sent == ["r-1"]
    assert (row.attributes[semconv.STATUS], row.attributes.get(semconv.ERROR_TYPE)) == (status, error)
    assert row.duration_ns == 9 * MS


def test_an_abort_while_it_runs_ends_with_the_step(sglang):
    sglang.add()
    sglang.prefill(20, began=5, r_1=1)
    sglang.step(Mode.DECODE, 30, r_1=(1, ended("abort", status_code=None)))
    [row] = sglang.rows()
    assert row.attributes[semconv.STATUS] == "cancelled"
    assert row.attributes[semconv.OUTPUT_TOKENS] == 2


def test_sglang_s_own_requests_are_no_rows(sglang):
    sglang.add("HEALTH-CHECK-1".replace("-", "_"))
    sglang.add("shared", max_new_tokens=0)
    sglang.prefill(20, began=5, shared=(0, ended("length")))
    assert sglang.rows() == []


def test_the_api_server_hands_the_arrival_on(sglang):
    stats = sglang.fake.Stats()
    stats.created_time = 12.5
    assert stats.__getstate__() == {"diff_realtime_monotonic": 1.0, "created_time": 12.5}


@pytest.mark.parametrize("rank", ["attn_tp_rank", "attn_cp_rank", "pp_rank"])
def test_one_rank_records(sglang, rank, caplog):
    setattr(sglang.fake.parallel, rank, 1)
    sglang.add()
    sglang.prefill(20, began=5, r_1=(1, ended()))
    assert (sglang.trails, caplog.messages) == ([], [])


@pytest.mark.parametrize("what", ["trace", "divided"])
def test_what_would_be_two_rows_is_not_recorded(sglang, what, caplog):
    sglang.fake.observability.enable_trace = what == "trace"
    sglang.scheduler.disaggregation_mode.value = "decode" if what == "divided" else "null"
    sglang.add()
    sglang.prefill(20, began=5, r_1=(1, ended()))
    assert sglang.trails == []
    assert [text.partition(":")[0] for text in caplog.messages] == [
        "tokentrail does not record this SGLang from inside"
    ]


class Unlike(list):
    """Tokens of another SGLang, which have no number."""

    def __len__(self):
        raise TypeError


@pytest.mark.parametrize("when", ["before a step", "after it"])
def test_a_fault_harms_no_answer_and_ends_open_requests(when, sglang, caplog):
    request = sglang.add()
    sglang.prefill(20, began=5, r_1=1)
    if when == "after it":
        sglang.scheduler.pool_stats_observer = None
    else:
        request.output_ids = Unlike()
    assert sglang.step(Mode.DECODE, 30, r_1=1) == "done"
    assert sglang.step(Mode.DECODE, 40, r_1=(1, ended())) == "done"
    [row] = sglang.rows()
    assert row.attributes[semconv.STATUS] == "cancelled"
    assert len([one for one in caplog.records if one.levelno == logging.ERROR]) == 1


def test_a_scheduler_that_is_not_the_known_one_harms_no_answer(sglang, caplog):
    del sglang.fake.parallel.pp_rank
    sglang.add()
    assert sglang.step(Mode.DECODE, 30, r_1=(1, ended())) == "done"
    assert sglang.trails == []
    assert len(caplog.records) == 1


def test_another_signature_is_one_warning_and_nothing_is_hooked(installed, caplog):
    class Changed(fake_sglang.Scheduler):
        def process_batch_result(self, work):  # type: ignore[override]
            """Another signature."""

    fake = installed(scheduler=Changed)
    module.register()
    assert fake.HookRegistry.hooks == []
    assert caplog.messages == [
        "tokentrail does not know this SGLang and records nothing: "
        "no process_batch_result(batch), process_batch_result(result)"
    ]


@pytest.mark.parametrize("said", ["false", ""])
def test_it_can_be_turned_off(installed, monkeypatch, said):
    monkeypatch.setenv("TOKENTRAIL_SGLANG", said)
    if not said:
        monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    fake = installed()
    module.register()
    assert fake.HookRegistry.hooks == []


@pytest.mark.parametrize(
    ("params", "given", "labels"),
    [
        ({}, {}, {}),
        (
            {"n": 1, "json_schema": None, "regex": None},
            {"priority": None, "return_logprob": False, "lora_id": None},
            {},
        ),
        (
            {"n": 3, "json_schema": "{}"},
            {"priority": 5, "return_logprob": True, "lora_id": "sql"},
            {"n": "3", "priority": "5", "logprobs": "true", "adapter": "sql", "response_format": "json_schema"},
        ),
        ({"ebnf": "x"}, {"lora_path": "old"}, {"adapter": "old", "response_format": "grammar"}),
    ],
)
def test_what_is_special_about_the_sampling_is_a_label(sglang, params, given, labels):
    s = sglang
    s.add(params=params, given=given)
    s.prefill(10, 4, r_1=(1, Reason(type="stop")))
    [row] = s.rows()
    start = semconv.LABEL_PREFIX
    assert {k.removeprefix(start): v for k, v in row.attributes.items() if k.startswith(start)} == labels
