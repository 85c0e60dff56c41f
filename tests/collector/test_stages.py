"""One contract for every stage of the collector: `collector.base.stage.Stage`."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from unittest.mock import Mock

import grpc
import httpx
import pytest

from collector.access.limits import Limiter, TenantLimits
from collector.api.admission import Admission
from collector.api.session import QueryLimits
from collector.app.http_server import HttpServer
from collector.app.service import Service
from collector.base.status import IngestStatus
from collector.base.store_errors import StoreUnavailableError
from collector.causes.stage.stage import Explainer
from collector.keep.expiry import Expiry
from collector.metrics import Live
from collector.otlp.checked import ItemLimits
from collector.otlp.signals import TRACES
from collector.pipeline.chain import Chain
from collector.pipeline.settings import Settings
from collector.receive.grpc import GrpcReceiver
from collector.receive.http import BodyLimits, create_otlp_app
from collector.receive.ingest import Ingest
from collector.scrape.scraper import ScrapeLimits
from collector.store import Store
from collector.store.joiner import Joiner
from collector.store.opener import StoreOpener
from collector.store.writer import Writer
from collector.wal.commit import GroupCommit
from collector.wal.dead_letters import DeadLetters
from collector.wal.frame import Frame, digest_of
from collector.wal.log import LogLimits
from tests.collector.wal.test_commit import GatedLog
from tests.support.otlp import token_body
from tests.support.stores import new_store

WAIT_S = 120
BODY = token_body()


class Case:
    """A stage on a real log, with a gate below it: while the gate is shut, the stage behind this one hangs."""

    def __init__(self, folder):
        self.status = IngestStatus()
        self.dead_letters = DeadLetters(folder / "dead", "traces")
        self.log = GatedLog(folder / "wal", self.dead_letters)
        self.gate, self.entered = self.log.gate, self.log.entered
        self.commit = GroupCommit("traces", self.log, self.status)
        self.stage = self.make()  # type: ignore[attr-defined]

    def close(self):
        self.gate.set()
        self.stage.stop(WAIT_S)


class CommitCase(Case):
    def make(self):
        return self.commit

    def give_work(self):
        self.future = self.commit.submit(BODY)

    def handed_on(self):
        return self.future.result(0) is False and self.log.next_sealed(0) is not None


class WriterCase(Case):
    def make(self):
        self.gate, self.entered = threading.Event(), threading.Event()
        self.gate.set()
        return Writer(TRACES, self.log, Store("chdb://"), self.status, self.dead_letters, insert=self.insert)

    def insert(self, *_):
        self.entered.set()
        assert self.gate.wait(WAIT_S)

    def give_work(self):
        self.log.append([Frame(digest_of(BODY), BODY)])
        self.log.seal()

    def handed_on(self):
        return self.log.pending == (0, 0)


class ReceiverCase(Case):
    """A receiver is held up by a log that does not write."""

    def make(self):
        self.commit.start()
        ingest = Ingest(TRACES, self.commit, self.status, ItemLimits())
        return self.receiver([ingest], BodyLimits(10**6, 10**6))  # type: ignore[attr-defined]

    def give_work(self):
        self.client = ThreadPoolExecutor(1)
        self.answer = self.client.submit(self.send)  # type: ignore[attr-defined]

    def handed_on(self):
        return self.answer.result(WAIT_S) == b""

    def close(self):
        super().close()
        self.commit.stop(WAIT_S)


class HttpCase(ReceiverCase):
    def receiver(self, ingests, limits):
        return HttpServer(create_otlp_app(ingests, limits), "otlp-http", "127.0.0.1", 0)

    def send(self):
        client = httpx.Client(base_url=self.stage.url, timeout=WAIT_S, trust_env=False)
        answer = client.post("/v1/traces", content=BODY, headers={"content-type": "application/x-protobuf"})
        return answer.raise_for_status().content


class GrpcCase(ReceiverCase):
    def receiver(self, ingests, limits):
        return GrpcReceiver(ingests, limits, "127.0.0.1", 0)

    def send(self):
        with grpc.insecure_channel(self.stage.url.removeprefix("http://")) as channel:
            return channel.unary_unary(f"/{TRACES.grpc_service}/Export")(BODY, timeout=WAIT_S)


class OpenerCase(Case):
    """The opener of a store whose server answers as soon as there is work."""

    def make(self):
        self.gate, self.entered = threading.Event(), threading.Event()
        self.gate.set()
        self.answers = False
        opener = StoreOpener("http://127.0.0.1:1/x", self.status, retry_s=0.01)
        opener._open = self.open
        return opener

    def open(self):
        if not self.answers:
            raise StoreUnavailableError("away")
        self.entered.set()
        assert self.gate.wait(WAIT_S)
        return Store("chdb://")

    def give_work(self):
        self.answers = True

    def handed_on(self):
        return self.stage.store.is_open


CASES = (HttpCase, GrpcCase, CommitCase, WriterCase, OpenerCase)


@pytest.fixture(params=CASES, ids=lambda case: case.__name__)
def case(request, tmp_path):
    case = request.param(tmp_path)
    yield case
    case.close()


def stop_in_background(stage, timeout_s):
    """The answer of `stop`, of a thread that must end while the stage behind still hangs."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(stage.stop(timeout_s)), daemon=True)
    thread.start()
    return thread, answers


def test_a_stage_has_a_name_for_log_lines(case):
    assert case.stage.name


def test_a_stage_without_work_stops(case):
    case.stage.start()
    assert case.stage.stop(WAIT_S) is True


def test_a_stage_may_be_stopped_twice(case):
    case.stage.start()
    assert [case.stage.stop(WAIT_S), case.stage.stop(WAIT_S)] == [True, True]


def test_a_stage_may_be_stopped_without_a_start(case):
    assert [case.stage.stop(WAIT_S), case.stage.stop(WAIT_S)] == [True, True]


@pytest.mark.parametrize("kind", [CommitCase, WriterCase])
def test_a_stage_that_was_never_started_says_that_it_keeps_its_work(kind, tmp_path):
    case = kind(tmp_path)
    case.give_work()
    assert [case.stage.stop(0.1), case.stage.stop(0.1)] == [False, False]


def test_a_stage_hands_on_its_work_before_it_ends(case):
    case.stage.start()
    case.gate.clear()
    case.give_work()
    assert case.entered.wait(WAIT_S)
    stopping, answers = stop_in_background(case.stage, WAIT_S)
    assert answers == []
    case.gate.set()
    stopping.join(WAIT_S)
    assert answers == [True]
    assert case.handed_on()


def test_a_stage_ends_in_time_while_the_one_behind_it_hangs_and_says_so(case):
    case.stage.start()
    case.gate.clear()
    case.give_work()
    assert case.entered.wait(WAIT_S)
    stopping, answers = stop_in_background(case.stage, 0.2)
    stopping.join(WAIT_S / 2)
    assert answers == [False]
    assert not case.gate.is_set()
    assert case.stage.stop(0.2) is False


def test_a_request_that_the_http_server_cut_off_counts_after_its_end_too(tmp_path):
    case = HttpCase(tmp_path)
    case.stage.start()
    case.gate.clear()
    case.give_work()
    assert case.entered.wait(WAIT_S)
    case.stage.stop(0.1)
    case.stage._thread.join(WAIT_S)
    assert case.stage.stop(WAIT_S) is False
    case.close()


@pytest.mark.parametrize("kind", [HttpCase, GrpcCase])
def test_a_stopped_receiver_answers_nobody(kind, tmp_path):
    case = kind(tmp_path)
    case.stage.start()
    assert case.send() == b""
    assert case.stage.stop(WAIT_S)
    with pytest.raises((httpx.ConnectError, grpc.RpcError)):
        case.send()
    case.close()


class Recorder:
    """A stage that writes down its calls."""

    def __init__(self, name, calls, *, finishes=True):
        self.name = name
        self.calls = calls
        self.finishes = finishes

    def start(self):
        self.calls.append(("start", self.name))

    def stop(self, timeout_s):
        self.calls.append(("stop", self.name, timeout_s))
        return self.finishes


@pytest.fixture
def service(tmp_path, monkeypatch):
    with made_service(tmp_path, monkeypatch) as service:
        yield service


@pytest.fixture(scope="class")
def looked_at(tmp_path_factory):
    """One for a class costs half a second of CPU. A process may have one store open at a time."""
    with pytest.MonkeyPatch.context() as patched, made_service(tmp_path_factory.mktemp("service"), patched) as service:
        yield service


@contextmanager
def made_service(tmp_path, monkeypatch):
    received = []
    monkeypatch.setattr(
        "collector.app.service.create_otlp_app", lambda *given: received.extend(given) or create_otlp_app(*given)
    )
    over_grpc = Mock(wraps=GrpcReceiver)
    monkeypatch.setattr("collector.app.service.GrpcReceiver", over_grpc)
    free = dict.fromkeys(("otlp_http", "otlp_grpc", "api"), "127.0.0.1:0")
    of_tenants = {"tenant_spans_per_s": 1_000_000.0, "tenant_bytes_per_s": 2_000_000.0, "tenant_names": 3_000}
    new_store(tmp_path / "data" / "store")
    service = Service(Settings(data_dir=tmp_path / "data", drain_timeout_s=0.001, **free, **of_tenants))
    service.ingests, service.body_limits, _, service.buffer = received  # type: ignore[attr-defined]
    service.over_grpc = over_grpc.call_args  # type: ignore[attr-defined]
    service.real_stages = service._stages  # type: ignore[attr-defined]
    yield service
    for stage in service.real_stages:  # type: ignore[attr-defined]
        stage.stop(1.0)
    service.store.close()


class TestService:
    """A service that is neither started nor stopped."""

    def test_a_segment_is_told_to_those_who_read_its_rows(self, looked_at):
        writers = [stage for stage in looked_at.real_stages if isinstance(stage, Writer)]
        requests = ["StoreCounters.on_segment", "Joiner.on_segment", "Explainer.on_segment"]
        assert {writer.name: [callback.__qualname__ for callback in writer._callbacks] for writer in writers} == {
            "traces writer": requests,
            "logs writer": requests,
            "metrics writer": ["Live.on_samples"],
        }

    def test_the_api_has_the_limits_of_the_settings(self, looked_at):
        api, given = looked_at.real_stages[-1]._server.config.app, looked_at._settings
        (admission,) = [middleware for middleware in api.user_middleware if middleware.cls is Admission]
        assert admission.kwargs["limits"] == QueryLimits(
            concurrency=given.query_concurrency,
            waiting=given.query_waiting,
            timeout_s=given.query_timeout_s,
            memory_bytes=given.query_memory_bytes,
        )

    def test_the_receivers_have_the_limits_of_the_settings(self, looked_at):
        given = looked_at._settings
        assert looked_at.body_limits == BodyLimits(
            sent=given.max_body_bytes, decompressed=given.max_decompressed_bytes, under_way=given.receive_buffer_bytes
        )
        assert looked_at.over_grpc.args[1] == looked_at.body_limits
        assert looked_at.over_grpc.kwargs["buffer"] is looked_at.buffer, "both share the room for their bodies"
        (limiter,) = {id(ingest.limiter): ingest.limiter for ingest in looked_at.ingests}.values()
        assert limiter.limits == TenantLimits(spans_per_s=1_000_000.0, bytes_per_s=2_000_000.0, names=3_000)


def test_a_chain_has_the_limits_of_the_settings(tmp_path):
    of_log = LogLimits(segment_bytes=10_000, segment_age_s=2.0, max_bytes=30_000, dedup_retention_s=4.0)
    of_items = ItemLimits(max_bytes=5_000, max_attributes=6, max_days=7, max_future_s=8.0, all_names=True)
    given = Settings(
        data_dir=tmp_path, segment_bytes=10_000, segment_age_s=2.0, wal_max_bytes=30_000, dedup_retention_s=4.0,
        max_span_bytes=5_000, max_span_attributes=6, max_payload_days=7, max_future_s=8.0, sample_all_names=True,
    )  # fmt: skip
    chain = Chain(TRACES, given, Mock(embedded=True), IngestStatus(), Limiter())
    assert (chain.log.limits, chain.ingest.limits) == (of_log, of_items)


@pytest.mark.parametrize(
    ("limits", "settings"),
    [
        (LogLimits, {name: name for name in ("segment_bytes", "segment_age_s", "dedup_retention_s")}),
        (LogLimits, {"max_bytes": "wal_max_bytes"}),
        (ItemLimits, {"max_bytes": "max_span_bytes", "max_attributes": "max_span_attributes"}),
        (ItemLimits, {"max_days": "max_payload_days", "max_future_s": "max_future_s"}),
        (BodyLimits, {"under_way": "receive_buffer_bytes"}),
        (QueryLimits, {name: f"query_{name}" for name in ("concurrency", "waiting", "timeout_s", "memory_bytes")}),
        (ScrapeLimits, {name: f"scrape_{name}" for name in ("interval_s", "timeout_s", "max_bytes", "max_series")}),
    ],
)
def test_a_limit_that_is_not_given_is_the_default_of_the_settings(limits, settings):
    assert {name: getattr(limits, name) for name in settings} == {
        name: Settings.model_fields[setting].default for name, setting in settings.items()
    }


def test_the_service_starts_against_the_flow_and_stops_with_it(service):
    assert [stage.name for stage in service._stages] == [
        "otlp-http",
        "otlp-grpc",
        "traces commit",
        "logs commit",
        "metrics commit",
        "traces writer",
        "logs writer",
        "metrics writer",
        "joiner",
        "explainer",
        "metrics",
        "retention",
        "store opener",
        "api",
    ]
    assert {type(stage) for stage in service.real_stages} == {
        HttpServer,
        GrpcReceiver,
        GroupCommit,
        Writer,
        Joiner,
        Explainer,
        Live,
        Expiry,
        StoreOpener,
    }
    calls = []
    service._stages = [Recorder(stage.name, calls) for stage in service.real_stages]
    service.start()
    assert calls == [("start", stage.name) for stage in reversed(service.real_stages)]
    assert service.status.snapshot().ready
    calls.clear()
    assert service.stop() is True
    assert [call[:2] for call in calls] == [("stop", stage.name) for stage in service.real_stages]
    assert service.status.snapshot().reason == "the collector is stopping"


def test_a_stage_that_is_late_is_named_and_the_others_still_get_time(service, caplog):
    calls = []
    names = ("first", "late", "last")
    service._stages = [Recorder(name, calls, finishes=name != "late") for name in names]
    assert service.stop() is False
    assert [(name, timeout_s >= 1.0) for _, name, timeout_s in calls] == [(name, True) for name in names]
    assert "work left in late;" in caplog.text
    assert service.store.query("SELECT 1").result_rows == [(1,)], "a late stage may still use the store"
