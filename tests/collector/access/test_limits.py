"""Limits of a tenant: rates, names, and their answers over HTTP and gRPC."""

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from starlette.testclient import TestClient

from collector.access.limits import NAMES_OF_A_KEY, LimitedError, Limiter, TenantLimits
from collector.base.status import IngestStatus
from collector.otlp.signals import SIGNALS, TRACES
from collector.receive.grpc import GrpcReceiver
from collector.receive.http import BodyLimits, create_otlp_app
from collector.receive.ingest import Ingest
from tests.collector.receive.test_otlp_http import PROTOBUF, WAIT_S, Receiver
from tests.support.keys import access_to, add_key
from tests.support.otlp import Request, token_body

LIMITS = BodyLimits(sent=100_000, decompressed=200_000)


class Monotonic:
    now = 1_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Monotonic()


@pytest.fixture
def limiter(clock):
    status = IngestStatus()

    def make(**limits):
        return Limiter(TenantLimits(**limits), status.limited, clock)

    make.status = status  # type: ignore[attr-defined]
    return make


def limited(limiter, status):
    return status.snapshot().payloads_limited


def test_without_limits_nothing_is_refused(limiter):
    free = limiter()
    for _ in range(100):
        free.check_rate("a")
        free.spend("a", spans=10**9, size=10**12)
        free.check_names("a", names_body("m"), ExportTraceServiceRequest)


def test_an_overdrawn_allowance_is_paid_back_before_the_next_payload(limiter, clock):
    one = limiter(spans_per_s=100)
    one.check_rate("a")
    one.spend("a", spans=250, size=1)
    with pytest.raises(LimitedError, match="tenant 'a' sends more than 100 spans a second") as refused:
        one.check_rate("a")
    assert refused.value.retry_after_s == 2
    clock.now += 1.5
    with pytest.raises(LimitedError):
        one.check_rate("a")
    clock.now += 0.02
    one.check_rate("a")


def test_an_allowance_that_is_not_used_does_not_grow_beyond_a_second(limiter, clock):
    one = limiter(spans_per_s=100)
    one.check_rate("a")
    clock.now += 3600
    one.check_rate("a")
    one.spend("a", spans=100, size=1)
    with pytest.raises(LimitedError):
        one.check_rate("a")


def test_a_steady_sender_within_its_limit_is_never_refused(limiter, clock):
    one = limiter(spans_per_s=100, bytes_per_s=10_000)
    for _ in range(1000):
        one.check_rate("a")
        one.spend("a", spans=10, size=1000)
        clock.now += 0.101


def test_each_tenant_has_an_allowance_of_its_own(limiter):
    one = limiter(bytes_per_s=100)
    one.spend("a", spans=1, size=1000)
    one.check_rate("b")
    with pytest.raises(LimitedError, match="bytes"):
        one.check_rate("a")
    assert limiter.status.snapshot().payloads_limited == {("a", "bytes"): 1}


def names_body(model, **resource):
    request = Request(**resource)
    request.tokens()
    request.span(
        "chat m", span=9, kind=2, attributes={"gen_ai.request.model": model, "tokentrail.tenant": f"of {model}"}
    )
    return request.body()


def check_names(limiter, body, tenant="a"):
    limiter.check_names(tenant, body, ExportTraceServiceRequest)


def test_names_that_are_known_pass_and_one_too_many_does_not(limiter):
    one = limiter(names=2)
    for model in ("m1", "m2", "m1", "m2"):
        check_names(one, names_body(model))
    with pytest.raises(LimitedError, match="more than 2 models in an hour, among them 'm3'") as refused:
        check_names(one, names_body("m3"))
    assert refused.value.retry_after_s == 60
    check_names(one, names_body("m2"))
    check_names(one, names_body("m3"), tenant="b")
    assert limiter.status.snapshot().payloads_limited == {("a", "models"): 1}


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("service.name", "services"), ("service.instance.id", "instances"), ("tokentrail.variant", "variants"),
    ],
)  # fmt: skip
def test_names_of_resources(limiter, key, kind):
    one = limiter(names=1)
    check_names(one, names_body("m", **{key: "one"}))
    with pytest.raises(LimitedError, match=f"more than 1 {kind} "):
        check_names(one, names_body("m", **{key: "two"}))


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("gen_ai.request.model", "models"),
        ("gen_ai.response.model", "models"),
        ("tokentrail.slo_class", "slo_classes"),
    ],
)
def test_names_of_spans_of_which_an_empty_one_is_none(limiter, key, kind):
    one, bodies = limiter(names=1), []
    for name in ("", "one", "two"):
        request = Request()
        request.span("chat m", kind=2, attributes={key: name})
        bodies.append(request.body())
    check_names(one, bodies[0])
    check_names(one, bodies[1])
    with pytest.raises(LimitedError, match=f"more than 1 {kind} "):
        check_names(one, bodies[2])


def test_tenants_are_names_where_the_key_does_not_say_the_tenant(limiter):
    one = limiter(names=1)
    check_names(one, names_body("m"), tenant="")
    other = Request()
    other.span("chat m", kind=2, attributes={"tokentrail.tenant": "t2"})
    with pytest.raises(LimitedError, match="without a tenant of their own has more than 1 tenants"):
        check_names(one, other.body(), tenant="")
    check_names(one, other.body(), tenant="a")
    third = Request(**{"tokentrail.tenant": "t3"}).tokens()
    check_names(one, third.body(), tenant="a")


def test_a_refused_payload_leaves_no_names(limiter):
    one = limiter(names=2)
    request = Request()
    for n in range(3):
        request.span("chat m", span=n + 1, kind=2, attributes={"gen_ai.request.model": f"m{n}"})
    with pytest.raises(LimitedError):
        check_names(one, request.body())
    check_names(one, names_body("x"))
    check_names(one, names_body("y"))


def test_a_name_that_is_not_used_for_an_hour_makes_room(limiter, clock):
    one = limiter(names=2)
    check_names(one, names_body("old"))
    clock.now += 1800
    check_names(one, names_body("new"))
    clock.now += 1800.5
    check_names(one, names_body("newest"))
    with pytest.raises(LimitedError):
        check_names(one, names_body("old"))


def test_a_name_that_comes_back_after_an_hour_counts_beside_a_new_one(limiter, clock):
    one, request = limiter(names=1), Request()
    check_names(one, names_body("old"))
    clock.now += 3601
    for model in ("old", "new"):
        request.span("chat m", kind=2, attributes={"gen_ai.request.model": model})
    with pytest.raises(LimitedError, match="more than 1 models"):
        check_names(one, request.body())


def test_a_name_that_is_used_makes_no_room(limiter, clock):
    one = limiter(names=1)
    for _ in range(3):
        check_names(one, names_body("used"))
        clock.now += 1800
    with pytest.raises(LimitedError):
        check_names(one, names_body("new"))


def test_long_names_that_begin_alike_count_as_one(limiter):
    one = limiter(names=1)
    for end in ("a", "b"):
        check_names(one, names_body("m" * 256 + end))
    with pytest.raises(LimitedError):
        check_names(one, names_body("m" * 255 + "a"))


def test_tokens_have_no_names():
    body = Request().tokens(count=3)
    body.message.resource_spans[0].scope_spans[0].spans[0].attributes.add(key="gen_ai.request.model")
    body.message.resource_spans[0].scope_spans[0].spans[0].attributes[-1].value.string_value = "m2"
    one = Limiter(TenantLimits(names=1))
    check_names(one, names_body("m1"))
    check_names(one, body.body())


def test_a_tenants_key_has_a_limit_of_names_unless_another_is_set():
    body = Request()
    for n in range(NAMES_OF_A_KEY + 1):
        body.span("chat", span=n + 1, attributes={"gen_ai.request.model": f"m{n}"})
    with pytest.raises(LimitedError, match=f"'acme' has more than {NAMES_OF_A_KEY} models in an hour"):
        Limiter().check_names("acme", body.body(), ExportTraceServiceRequest)
    Limiter().check_names("", body.body(), ExportTraceServiceRequest)
    Limiter(TenantLimits(names=0)).check_names("acme", body.body(), ExportTraceServiceRequest)


@pytest.mark.parametrize("tail", [b"", b"\x23\x24"], ids=["plain", "with a field that OTLP does not have"])
@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: signal.name)
def test_names_of_resources_count_in_every_signal(limiter, signal, tail):
    def body(service):
        request = signal.request()
        messages = getattr(request, request.DESCRIPTOR.fields_by_number[1].name)
        for name in service:
            messages.add().resource.attributes.add(key="service.name").value.string_value = name
        return request.SerializeToString() + tail

    one = limiter(names=2)
    for names in ("a", "ab"):
        one.check_names("acme", body(names), signal.request)
    with pytest.raises(LimitedError, match="more than 2 services in an hour, among them 'c'"):
        one.check_names("acme", body("bc"), signal.request)


class TestReceivers:
    @pytest.fixture
    def receiver(self, tmp_path, limiter):
        receiver = Receiver(tmp_path)
        yield receiver
        receiver.commit.stop(WAIT_S)

    @pytest.fixture
    def keys(self, tmp_path):
        return tmp_path / "keys.json"

    def ingest(self, receiver, limiter):
        return Ingest(TRACES, receiver.commit, receiver.status, receiver.ingest.limits, limiter)

    def http(self, receiver, limiter, keys):
        return TestClient(create_otlp_app([self.ingest(receiver, limiter)], LIMITS, access_to(keys)))

    def post(self, client, body, headers):
        return client.post("/v1/traces", content=body, headers={"content-type": PROTOBUF, **headers})

    def test_over_http(self, receiver, limiter, keys):
        headers = add_key(keys, "ingest", "acme")
        client = self.http(receiver, limiter(spans_per_s=2), keys)
        assert self.post(client, token_body(count=3), headers).status_code == 200
        refused = self.post(client, token_body(trace=2, count=3), headers)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "more than 2 spans a second" in Status.FromString(refused.content).message
        assert receiver.status.snapshot().payloads_rejected == {"limited": 1}
        assert len(receiver.stored()) == 1

    @pytest.mark.parametrize("tenant", ["acme", ""], ids=["a tenant", "everybody"])
    def test_too_many_names_over_http(self, receiver, limiter, keys, tenant):
        headers = add_key(keys, "ingest", tenant)
        client = self.http(receiver, limiter(names=1), keys)
        assert self.post(client, names_body("m1"), headers).status_code == 200
        refused = self.post(client, names_body("m2"), headers)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "60")
        assert len(receiver.stored()) == 1

    @pytest.mark.parametrize(
        ("role", "http_status", "reason"),
        [(None, 401, "unauthenticated"), ("read", 403, "forbidden"), ("ingest", 200, None), ("admin", 200, None)],
    )
    def test_keys_over_http(self, receiver, limiter, keys, role, http_status, reason):
        add_key(keys, "ingest", "acme")
        headers = add_key(keys, role, "" if role == "admin" else "acme") if role else {}
        answer = self.post(self.http(receiver, limiter(), keys), token_body(), headers)
        assert answer.status_code == http_status
        assert ("www-authenticate" in answer.headers) == (http_status == 401)
        assert receiver.status.snapshot().payloads_rejected == ({reason: 1} if reason else {})

    def test_a_body_is_not_read_before_the_key_is_known(self, receiver, limiter, keys):
        add_key(keys, "ingest", "acme")
        answer = self.post(self.http(receiver, limiter(), keys), bytes(LIMITS.sent + 1), {})
        assert answer.status_code == 401

    def test_a_name_of_another_host_is_refused(self, receiver, limiter, keys):
        client = TestClient(create_otlp_app([receiver.ingest], LIMITS, access_to(keys, allowed_hosts=frozenset())))
        answer = self.post(client, token_body(), {"host": "evil.example"})
        assert answer.status_code == 421
        assert self.post(client, token_body(), {"host": "localhost"}).status_code == 200

    def test_a_keys_tenant_is_in_the_log_and_a_key_of_all_tenants_leaves_the_payload_alone(
        self, receiver, limiter, keys
    ):
        client = self.http(receiver, limiter(), keys)
        body = Request(**{"tokentrail.tenant": "globex"}).tokens().body()
        assert self.post(client, body, add_key(keys, "ingest", "acme")).status_code == 200
        assert self.post(client, body, add_key(keys, "ingest")).status_code == 200
        stamped, claimed = receiver.stored()
        assert b"acme" in bytes(stamped)
        assert b"globex" not in bytes(stamped)
        assert claimed == body

    @pytest.fixture
    def export(self, receiver, limiter, keys):
        def start(limits):
            ingest = self.ingest(receiver, limits)
            server = GrpcReceiver([ingest], LIMITS, "127.0.0.1", 0, access=access_to(keys))
            server.start()
            channel = grpc.insecure_channel(server.url.removeprefix("http://"))
            started.extend([server, channel])
            call = channel.unary_unary(f"/{TRACES.grpc_service}/Export")
            return lambda body, headers: call(body, timeout=WAIT_S, wait_for_ready=True, metadata=[*headers.items()])

        started = []
        yield start
        for server, channel in zip(started[::2], started[1::2], strict=True):
            channel.close()
            server.stop(1.0)

    @pytest.mark.parametrize(
        ("role", "code"),
        [
            (None, grpc.StatusCode.UNAUTHENTICATED), ("read", grpc.StatusCode.PERMISSION_DENIED),
            ("ingest", None), ("admin", None),
        ],
    )  # fmt: skip
    def test_keys_over_grpc(self, receiver, limiter, keys, export, role, code):
        add_key(keys, "ingest", "acme")
        headers = add_key(keys, role, "" if role == "admin" else "acme") if role else {}
        send = export(limiter())
        if code is None:
            send(token_body(), headers)
            assert (b"acme" in bytes(receiver.stored()[0])) == (role == "ingest")
        else:
            with pytest.raises(grpc.RpcError) as refused:
                send(token_body(), headers)
            assert refused.value.code() is code

    def test_over_grpc(self, receiver, limiter, keys, export):
        headers = add_key(keys, "ingest", "acme")
        send = export(limiter(bytes_per_s=100))
        send(token_body(count=3), headers)
        with pytest.raises(grpc.RpcError) as refused:
            send(token_body(trace=2), headers)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        status = Status.FromString(dict(refused.value.trailing_metadata())["grpc-status-details-bin"])
        retry = RetryInfo()
        assert [detail.Unpack(retry) for detail in status.details] == [True]
        assert retry.retry_delay.seconds >= 1
        assert limiter.status.snapshot().payloads_limited == {("acme", "bytes"): 1}


def test_many_tenants_over_a_limit_count_together():
    status = IngestStatus()
    for n in range(1200):
        status.limited(f"t{n}", "spans")
    status.limited("t3", "spans")
    counted = status.snapshot().payloads_limited
    assert len(counted) == 1001
    assert (counted["t3", "spans"], counted["other", "spans"]) == (2, 200)
