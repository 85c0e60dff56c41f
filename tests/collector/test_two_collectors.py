"""Two collectors on one ClickHouse: payloads that both get are stored once, and /metrics count requests once in sum."""

import re
import shutil
import time
from collections import Counter
from http.client import HTTPConnection

import httpx
import pytest

from tests.collector.otlp.test_logs import dynamo
from tests.collector.rows import SECOND
from tests.support.clickhouse_server import Server
from tests.support.collector import PROTOBUF, Collector
from tests.support.otlp import Request, token_body
from tests.support.stores import new_store
from tokentrail import semconv

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A server and two collectors for all tests: to start them costs 2 s of CPU."""
    folder = tmp_path_factory.mktemp("two")
    new_store(folder / "db")
    server = Server(folder)
    server.start()
    slos = folder / "slos.yaml"
    slos.write_text("slos: [{name: chat, objective: '0.9', window: 7d, thresholds: {e2e: 5s}}]")
    flags = ("--dedup-retention-s", "0.2", "--slos", str(slos))
    pair = [Collector(folder / name, *flags, store=f"{server.url}/default") for name in ("a", "b")]
    for collector in pair:
        collector.start()
    yield server, pair
    for collector in pair:
        collector.kill()
    server.kill()


@pytest.fixture
def server(started):
    """Without rows. Each test sends traces of its own, since the store knows what it has taken."""
    server, _ = started
    for table in ("requests", "tokens"):
        server.http.post(server.url, content=f"TRUNCATE TABLE {table}").raise_for_status()
    yield server
    (server.folder / "hold").unlink(missing_ok=True)


@pytest.fixture
def collectors(started):
    _, pair = started
    yield pair
    for collector in pair:
        if collector.process.poll() is not None:
            collector.start()


STATE_AT = "tokentrail_collector_state_timestamp_seconds"


def test_both_follow_their_slo_file_and_tell_its_changes_after_a_crash(collectors):
    def objectives():
        return [one.get("/api/v1/slos").json()["slos"][0]["objective"] for one in collectors]

    def changes(collector):
        found = collector.get("/api/v1/changes").json()["changes"]
        return [(one["slo"], one["value"][:4]) for one in found if one["dimension"] == "slo"]

    file = collectors[0].data_dir.with_name("slos.yaml")
    assert objectives() == [0.9, 0.9]
    good = file.read_text().replace("0.9", "0.8")
    file.write_text(good)
    for collector in collectors:
        collector.wait_until(lambda: objectives() == [0.8, 0.8])
        info = 'tokentrail_slo_objective_ratio{slo="chat"} 0.8'
        collector.wait_until(lambda c=collector, info=info: info in c.get("/metrics").text)
        collector.wait_until(lambda c=collector: changes(c) == [("chat", "80 %")])
    file.write_text("slos: [")
    for collector in collectors:
        collector.wait_until(lambda c=collector: metric(c, "tokentrail_collector_slo_file_refused_total") == 1)
        assert "is not YAML" in collector.get("/api/v1/slos").json()["file_problem"]
    assert objectives() == [0.8, 0.8]
    file.write_text(good.replace("0.8", "0.7"))
    first, second = collectors
    first.kill()
    first.start()
    assert changes(first) == [("chat", "80 %"), ("chat", "70 %")]
    second.wait_until(lambda: objectives() == [0.7, 0.7])


def body(trace, count=3):
    request = Request()
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "tokentrail.label.region": "eu"}
    request.span("chat m", trace=trace, attributes=attributes)
    return request.body() + token_body(trace=trace, count=count)


def metric(collector, name):
    text = collector.get("/metrics").text
    return sum(float(value) for value in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE))


def settled(*collectors):
    """Wait until the logs are empty."""
    for collector in collectors:
        collector.wait_until_stored()


def rows(server):
    sql = "SELECT countIf(labels['region'] = 'eu'), uniqExact(trace_id) FROM requests"
    return tuple(map(int, server.http.post(server.url, content=sql).text.split())), server.tokens()


def exactly(requests):
    return (requests, requests), (requests, 3 * requests)


@pytest.fixture
def grown(collectors):
    """`counters`, from the beginning of the test on."""
    before = {collector: totals(collector) for collector in collectors}

    def since(collectors, *names):
        now = counters(collectors, *names)
        return [
            [value - before[collector][name] for collector, value in zip(collectors, values, strict=True)]
            for name, values in zip(names, now, strict=True)
        ]

    return since


def counters(collectors, *names):
    """Each counter's values, one for each collector, as of refreshes that began after this call."""
    for _ in range(2):  # the refresh that is under way may have read before
        before = [(collector, metric(collector, STATE_AT)) for collector in collectors]
        for collector, at in before:
            collector.wait_until(lambda c=collector, at=at: metric(c, STATE_AT) > at)
    found = [totals(collector) for collector in collectors]
    return [[values[name] for values in found] for name in names]


def totals(collector):
    """The sum of each counter over its labels, by its short name."""
    found = Counter()
    counter = re.compile(r"^tokentrail_(\w+)_total(?:\{.*\})? (\S+)$", re.MULTILINE)
    for name, value in counter.findall(collector.get("/metrics").text):
        found[name] += float(value)
    return found


def total(collector, name):
    return metric(collector, f"tokentrail_{name}_total")


def test_the_same_bytes_at_both_at_once_and_again_later_are_stored_once(server, collectors, grown):
    bodies = [body(trace) for trace in range(1, 6)]
    for sent in bodies:
        assert {collector.post(sent).status_code for collector in collectors} == {200}
    settled(*collectors)
    assert rows(server) == exactly(5)

    for collector in collectors:  # past the time for which the logs know their payloads
        time.sleep(0.3)
        assert collector.post(body(100 + collectors.index(collector))).status_code == 200
        settled(collector)
        time.sleep(0.3)
        assert collector.post(body(200 + collectors.index(collector))).status_code == 200
        settled(collector)
        for sent in bodies:
            assert collector.post(sent).status_code == 200
        settled(collector)
    assert rows(server) == exactly(9)
    counted = grown(collectors, "collector_payloads_duplicate", "requests", "collector_payloads_repeated")
    duplicate, requests, repeated = counted
    assert duplicate == [0.0, 0.0], "no log knew the payloads any more"
    assert sum(requests) == 9.0
    assert sum(repeated) == 5.0 + 2 * 5.0

    for collector in collectors:
        assert collector.stop() == 0
        collector.start()
        assert collector.post(bodies[0]).status_code == 200
    settled(*collectors)
    assert rows(server) == exactly(9)
    (requests,) = grown(collectors, "requests")
    assert sum(requests) == 9.0, "counters continue where they were"


def test_spans_that_come_to_the_other_in_other_payloads_are_stored_once(server, collectors, grown):
    """A sender between has batched them anew. Many tokens take another way into the store than few."""
    first, second = collectors
    for many in (3, 1200):
        traces = [300 + many + n for n in range(4)]
        sent = [body(trace, many) for trace in traces]
        assert first.post(sent[0] + sent[1]).status_code == 200
        settled(first)
        assert second.post(sent[1] + sent[2]).status_code == 200
        settled(second)
        assert first.post(sent[2] + sent[3] + sent[0]).status_code == 200
        settled(first)
    found = "SELECT count(), uniqExact(trace_id), (SELECT count() FROM tokens) FROM requests"
    assert server.http.post(server.url, content=found).text.split() == ["8", "8", str(4 * 3 + 4 * 1200)]
    (requests,) = grown(collectors, "requests")
    assert sum(requests) == 8.0


def test_a_payload_that_timed_out_at_one_collector_and_went_to_the_other_is_stored_once(server, collectors, grown):
    first, second = collectors
    claimed = claims(server)
    hold = server.folder / "hold"
    hold.touch()
    sender = HTTPConnection(httpx.URL(first.urls["otlp-http"]).netloc.decode(), timeout=120)
    sender.request("POST", "/v1/traces", body(400), PROTOBUF)
    first.wait_until(lambda: claims(server) == claimed + 1)
    sender.close()  # its time is up, and it has read no answer
    assert first.post(body(400)).status_code == 200
    assert second.post(body(400)).status_code == 200
    hold.unlink()
    settled(first, second)
    assert rows(server) == exactly(1)
    counted = grown(collectors, "requests", "collector_payloads_repeated")
    assert [sum(values) for values in counted] == [1.0, 1.0]


def claims(server):
    return int(server.http.post(server.url, content="SELECT uniqExact(claim) FROM payload_claims").text)


def test_a_collector_killed_between_claim_and_insert_stores_what_it_claimed_when_it_is_back(server, collectors, grown):
    first, second = collectors
    claimed = claims(server)
    hold = server.folder / "hold"
    hold.touch()
    assert first.post(body(500)).status_code == 200
    first.wait_until(lambda: claims(server) == claimed + 1)
    first.kill()
    assert second.post(body(500)).status_code == 200
    second.wait_until(lambda: claims(server) == claimed + 2)
    hold.unlink()
    settled(second)
    first.start()
    first.wait_until(lambda: rows(server) == exactly(1))
    settled(first)
    assert claims(server) == claimed + 2
    assert grown([second], "requests", "collector_payloads_repeated") == [[0.0], [1.0]]


def hung(trace):
    """The announcement and the end of a request that has been open for 20 s."""
    known = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    start, ns = time.time_ns() - 20 * SECOND, 20 * SECOND
    announced, end = Request(), Request()
    announced.span(semconv.OPEN_SPAN, trace=trace, span=2, parent=1, start=start, ns=ns, attributes=known)
    end.span("chat m", trace=trace, start=start, ns=ns, attributes=known)
    return announced.body(), end.body()


def test_requests_that_are_joined_count_at_one_of_two_collectors(server, collectors, grown):
    counted = sum(total(collector, "requests") for collector in collectors)
    for number in range(1, 5):
        collector = collectors[number % 2]
        url = collector.urls["otlp-http"] + "/v1/logs"
        assert collector.http.post(url, content=dynamo(number).SerializeToString(), headers=PROTOBUF).status_code == 200
        settled(collector)
    sql = "SELECT count() FROM requests"
    collectors[0].wait_until(lambda: server.http.post(server.url, content=sql).text.strip() == "4")
    collectors[0].wait_until(lambda: sum(total(c, "requests") for c in collectors) >= counted + 4)
    (requests,) = grown(collectors, "requests")
    assert sum(requests) == 4.0


def test_a_hung_request_counts_once_and_its_end_at_the_other_collector_not_again(server, collectors, grown):
    first, second = collectors
    before = list(map(judged, collectors))
    requests = [hung(trace) for trace in (601, 602)]
    for collector, (announced, _) in zip(collectors, requests, strict=True):
        assert collector.post(announced).status_code == 200
    first.wait_until(lambda: sum(map(judged, collectors)) == sum(before) + 2.0)
    claimed = [now - was for now, was in zip(map(judged, collectors), before, strict=True)]
    first.kill()
    counted = total(second, "requests")
    for _, end in requests:
        assert second.post(end).status_code == 200
    settled(second)
    second.wait_until(lambda: total(second, "requests") == counted + 2.0)
    assert judged(second) == before[1] + claimed[1]
    first.start()
    assert grown(collectors, "slo_requests", "slo_good_requests") == [claimed, [0.0, 0.0]]


def judged(collector):
    return total(collector, "slo_requests")


def test_a_server_that_comes_back_empty_gets_the_same_bytes_of_both_once(server, collectors):
    first, second = collectors
    claimed = claims(server)
    hold = server.folder / "hold"
    hold.touch()
    assert first.post(body(700)).status_code == 200
    first.wait_until(lambda: claims(server) == claimed + 1)
    server.kill()
    shutil.rmtree(server.folder / "db")
    hold.unlink()
    assert second.post(body(700)).status_code == 200
    first.wait_until(lambda: first.get("/readyz").status_code == second.get("/readyz").status_code == 503)
    server.start()
    settled(first, second)
    assert rows(server) == exactly(1)
