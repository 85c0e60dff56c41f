"""Two collectors on one ClickHouse while they and it are killed: every number is that of an oracle.

The oracle is Python over the requests that the test made. Bytes go to either collector or to both, over HTTP and gRPC,
again and again until one acknowledges them. The rules are those of docs/numbers.md and docs/slos.md.
"""

import random
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass

import grpc
import httpx
import numpy as np
import pytest

from collector.otlp.signals import TRACES
from tests.collector.test_two_collectors import counters, settled
from tests.support.clickhouse_server import Server
from tests.support.collector import PROTOBUF, Collector
from tests.support.otlp import MS, Request
from tests.support.stores import new_store
from tokentrail import semconv

pytestmark = pytest.mark.slow

PAYLOADS = 24
WINDOW_S = 600
SLOS = """
slos:
  - {name: chat, objective: "0.9", window: 7d, select: {slo_class: [chat]}, errors: {exclude: [bad_request]},
     thresholds: {ttft: 500ms, tpot: 60ms}}
  - {name: classed, objective: "0.9", window: 7d, select: {slo_class: [chat, batch]}, errors: {exclude: [bad_request]},
     thresholds: {e2e: 2s}}
"""
LIMITS = {"chat": {"ttft": 500, "tpot": 60}, "classed": {"e2e": 2000}}


@dataclass(frozen=True)
class Made:
    """One request; times in ms."""

    trace: int
    slo_class: str
    status: str
    error: str
    end_ms: int
    e2e: int
    ttft: int | None
    input: int | None
    output: int
    gap: int | None
    """The time between its tokens, when it has spans of them."""

    @property
    def tpot(self):
        return (self.e2e - self.ttft) / (self.output - 1) if self.output > 1 and self.ttft is not None else None

    def verdict(self, limits):
        values = {"e2e": self.e2e, "ttft": self.ttft, "tpot": self.tpot}
        if self.status == "cancelled" and not self.output:
            values["ttft"] = self.e2e
        late = any(values[name] is not None and values[name] > limit for name, limit in limits.items())
        needs = {"ttft": self.output > 0, "tpot": self.output > 1, "e2e": True}
        if self.status == "error":
            return "excused" if self.error == "bad_request" else "bad"
        if late:
            return "bad"
        if self.status == "cancelled":
            return "excused"
        return "undetermined" if any(needs[name] and values[name] is None for name in limits) else "good"

    def slos(self):
        return [name for name in LIMITS if self.slo_class in {"chat": ["chat"], "classed": ["chat", "batch"]}[name]]

    def verdict_of_all(self):
        verdicts = {self.verdict(LIMITS[name]) for name in self.slos()}
        return next((v for v in ("bad", "excused", "undetermined", "good") if v in verdicts), "unselected")


def make(chance, trace, end_ms):
    status = chance.choice(["ok"] * 8 + ["error", "cancelled"])
    output = chance.choice([0, 1, 2, 7, 20])
    gap = None
    if status == "ok" and output > 1 and chance.random() < 0.5:
        gap = chance.randrange(1, 150)
        ttft, e2e = gap, gap * output
    else:
        e2e = chance.randrange(1, 3000)
        ttft = chance.randrange(min(e2e, 900)) if output and (status != "ok" or chance.random() < 0.9) else None
    return Made(
        trace, chance.choice(["chat", "batch", ""]), status,
        chance.choice(["bad_request", "timeout"]) if status == "error" else "",
        end_ms, e2e, ttft, chance.choice([None, 0, 40]), output, gap,
    )  # fmt: skip


def body(requests):
    request = Request()
    for made in requests:
        start = (made.end_ms - made.e2e) * MS
        told = {semconv.OPERATION_NAME: "chat", "gen_ai.request.model": "m", semconv.OUTPUT_TOKENS: made.output}
        told |= {semconv.SLO_CLASS: made.slo_class, semconv.STATUS: made.status}
        told |= {semconv.INPUT_TOKENS: made.input} if made.input is not None else {}
        told |= {semconv.TIME_TO_FIRST_TOKEN: made.ttft / 1000} if made.ttft is not None else {}
        told |= {semconv.ERROR_TYPE: made.error} if made.error else {}
        request.span("chat m", trace=made.trace, start=start, ns=made.e2e * MS, kind=2, attributes=told)
        if made.gap:
            request.tokens(trace=made.trace, count=made.output, start=start, ns=made.gap * MS)
    return request.body()


class Pair:
    """Two collectors, of which any may be away for a moment."""

    def __init__(self, collectors, server):
        self.collectors, self.server = collectors, server
        self.addresses = [dict(collector.urls) for collector in collectors]

    def send(self, payload, number, *, over_grpc):
        """Whether this collector acknowledged the bytes."""
        urls = self.addresses[number]
        try:
            if not over_grpc:
                url = urls["otlp-http"] + "/v1/traces"
                return httpx.post(url, content=payload, headers=PROTOBUF, timeout=20).status_code == 200
            with grpc.insecure_channel(urls["otlp-grpc"].removeprefix("http://")) as channel:
                channel.unary_unary(f"/{TRACES.grpc_service}/Export")(payload, timeout=20)
            return True
        except (httpx.HTTPError, grpc.RpcError):
            return False

    def kill(self, number):
        collector = self.collectors[number]
        collector.kill()
        collector.start(ready=False)
        self.addresses[number] = dict(collector.urls)

    def ask(self, number, path):
        """The answer of this collector, or of the other one when it is away."""
        while True:
            try:
                answer = httpx.get(self.addresses[number]["api"] + path, timeout=60)
                if answer.status_code == 200:
                    return answer.json()
                assert answer.status_code == 503, answer.text
            except httpx.HTTPError:
                time.sleep(0.2)
            number = 1 - number


@pytest.fixture
def pair(tmp_path):
    new_store(tmp_path / "db")
    server = Server(tmp_path)
    server.start()
    slos = tmp_path / "slos.yaml"
    slos.write_text(SLOS)
    options = {"store": f"{server.url}/default"}
    collectors = [Collector(tmp_path / name, "--slos", str(slos), **options) for name in ("a", "b")]
    for collector in collectors:
        collector.start()
    yield Pair(collectors, server)
    for collector in collectors:
        if collector.process.poll() is None:
            collector.kill()
    server.kill()


def pages(pair, chance, window, sort):
    """The keys of all rows of a list, page by page."""
    keys, cursor = [], ""
    while True:
        path = f"/api/v1/requests?{window}&sort={sort}&limit=37{cursor}"
        page = pair.ask(chance.randrange(2), path)
        keys += [(row["trace_id"], row["span_id"]) for row in page["requests"]]
        if page["next"] is None:
            return keys
        cursor = f"&cursor={page['next']}"


def read_pages(pair, window, done, wrong):
    """Page through the list again and again. No row comes twice, and none is gone that was there before."""
    chance, known = random.Random(1), {"end": set(), "e2e": set()}
    took_s = 0.1
    while not done.wait(2 * took_s):  # the collectors have other work too
        began_s = time.monotonic()
        for sort, before in known.items():
            keys = pages(pair, chance, window, sort)
            if len(set(keys)) != len(keys):
                wrong.append(f"{len(keys) - len(set(keys))} rows came twice by {sort}")
            if gone := before - set(keys):
                wrong.append(f"{len(gone)} rows of {len(before)} are gone by {sort}")
            before |= set(keys)
        took_s = time.monotonic() - began_s


def send_all(pair, chance, payloads, seed):
    """Send each payload until it is acknowledged, sometimes more often, while somebody dies."""
    deadline = time.monotonic() + 300
    for n, payload in enumerate(payloads):
        if n % 7 == 3:
            pair.kill(chance.randrange(2))
        if n % 20 == 10:
            pair.server.kill()
        if n % 20 == 14:
            pair.server.start()
        acknowledged = 0
        while acknowledged < chance.choice([1, 1, 1, 2, 3]):
            assert time.monotonic() < deadline, f"nobody takes payload {n} of seed {seed}"
            acknowledged += pair.send(payload, chance.randrange(2), over_grpc=chance.random() < 0.5)
    pair.server.kill()
    pair.server.start()


@pytest.mark.parametrize("seed", [1])
def test_every_number_of_two_collectors_is_that_of_the_oracle(pair, seed):
    chance = random.Random(seed)
    until_ms = (time.time_ns() // MS // 60_000) * 60_000 - 60_000
    since_ms = until_ms - WINDOW_S * 1000
    made = [
        [make(chance, 100 * n + k + 1, chance.randrange(since_ms, until_ms)) for k in range(chance.randrange(1, 16))]
        for n in range(PAYLOADS)
    ]
    window = f"start={since_ms / 1000}&end={until_ms / 1000}"
    done, wrong = threading.Event(), []
    reader = threading.Thread(target=read_pages, args=(pair, window, done, wrong))
    reader.start()
    try:
        send_all(pair, chance, [body(requests) for requests in made], seed)
        settled(*pair.collectors)
    finally:
        done.set()
        reader.join(120)
    assert wrong == []
    requests = [one for some in made for one in some]
    keys = pages(pair, chance, window, "end")
    assert sorted(keys) == sorted((f"{one.trace:032x}", f"{1:016x}") for one in requests)
    ends = {f"{one.trace:032x}": one.end_ms for one in requests}
    assert [ends[trace] for trace, _ in keys] == sorted(ends.values(), reverse=True)
    for number in (0, 1):
        check_summary(pair.ask(number, f"/api/v1/summary?{window}"), requests)
        check_goodput(pair.ask(number, f"/api/v1/goodput?{window}&ttft=300ms&tpot=40ms&e2e=1s"), requests)
        check_slos(pair.ask(number, f"/api/v1/slos?end={until_ms / 1000}")["slos"], requests)
        check_timeseries(pair, number, window, requests)
    answers = [pair.ask(number, f"/api/v1/incidents?{window}") for number in (0, 1)]
    assert answers[0] == answers[1]
    check_metrics(pair.collectors, requests)


def distribution(values_ms):
    values = np.array(sorted(values_ms)) / 1000
    found = {"count": len(values), "mean": values.mean(), "max": values.max()}
    return found | {f"p{name}": np.percentile(values, q) for name, q in (("50", 50), ("99", 99), ("999", 99.9))}


def check_distribution(answer, values_ms):
    for name, value in distribution(values_ms).items():
        assert answer[name] == pytest.approx(value, abs=2e-6), (name, answer)


def latencies(requests):
    ok = [one for one in requests if one.status == "ok"]
    return {
        "ttft": [one.ttft for one in ok if one.output and one.ttft is not None],
        "tpot": [one.tpot for one in ok if one.tpot is not None],
        "e2e": [one.e2e for one in ok],
        "itl": [one.gap for one in ok if one.gap for _ in range(one.output - 1)],
    }


def counts(requests, verdicts):
    statuses, of = Counter(one.status for one in requests), Counter(verdicts)
    judged = of["good"] + of["bad"]
    found = {"total": len(requests), "ok": statuses["ok"], "failed": statuses["error"]}
    found |= {"cancelled": statuses["cancelled"], "good": of["good"], "excused": of["excused"]}
    unjudged = {name: of[name] for name in ("undetermined", "unselected")}
    return found | unjudged | {"lost": 0, "in_flight": 0}, of["good"] / judged


def check_counts(answer, requests, verdicts):
    numbers, attainment = counts(requests, verdicts)
    assert {name: answer["requests"][name] for name in numbers} == numbers
    assert answer["attainment"] == pytest.approx(attainment)


def check_summary(answer, requests):
    check_counts(answer, requests, [one.verdict_of_all() for one in requests])
    for name, values in latencies(requests).items():
        check_distribution(answer[f"{name}_s"], values)
    good = [one for one in requests if one.verdict_of_all() == "good"]
    rates = answer["throughput"]
    assert rates["requests_per_s"] == pytest.approx(len(requests) / WINDOW_S)
    assert rates["output_tokens_per_s"] == pytest.approx(sum(one.output for one in requests) / WINDOW_S)
    assert answer["goodput"]["requests_per_s"] == pytest.approx(len(good) / WINDOW_S)
    assert answer["goodput"]["output_tokens_per_s"] == pytest.approx(sum(one.output for one in good) / WINDOW_S)


def check_goodput(answer, requests):
    limits = {"ttft": 300, "tpot": 40, "e2e": 1000}
    verdicts = [one.verdict(limits) for one in requests]
    verdicts = ["bad" if one.status == "error" else found for one, found in zip(requests, verdicts, strict=True)]
    check_counts(answer, requests, verdicts)


def check_slos(answer, requests):
    for slo in answer:
        selected = [one for one in requests if slo["name"] in one.slos()]
        check_counts(slo, selected, [one.verdict(LIMITS[slo["name"]]) for one in selected])


def check_timeseries(pair, number, window, requests):
    ask = lambda metric: {  # noqa: E731
        point["t"]: point
        for point in pair.ask(number, f"/api/v1/timeseries?{window}&step=60s&metric={metric}")["points"]
    }
    buckets = {}
    for one in requests:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(one.end_ms // 60_000 * 60))
        buckets.setdefault(at, []).append(one)
    for metric in ("ttft", "tpot", "e2e", "itl"):
        expected = {at: latencies(some)[metric] for at, some in buckets.items()}
        points = ask(metric)
        assert points.keys() == {at for at, values in expected.items() if values}
        for at, point in points.items():
            found = distribution(expected[at])
            assert {name: point[name] for name in ("count", "p50", "p99", "max")} == pytest.approx(
                {name: found[name] for name in ("count", "p50", "p99", "max")}, abs=2e-6
            )
    sums = {
        "requests": lambda some: len(some),
        "failed": lambda some: sum(one.status == "error" for one in some),
        "cancelled": lambda some: sum(one.status == "cancelled" for one in some),
        "output_tokens": lambda some: sum(one.output for one in some),
        "goodput": lambda some: sum(one.verdict_of_all() == "good" for one in some),
    }
    verdicts = {at: {one.verdict_of_all() for one in some} for at, some in buckets.items()}
    known = {at: some for at, some in buckets.items() if verdicts[at] & {"good", "bad"} or verdicts[at] == {"excused"}}
    for metric, of in sums.items():
        points = {at: point["value"] * 60 for at, point in ask(metric).items()}
        told = known if metric == "goodput" else buckets
        assert points == pytest.approx({at: of(some) for at, some in told.items()}), metric


def check_metrics(collectors, requests):
    counters(collectors)  # wait for refreshes behind all rows
    pages = [collector.get("/metrics").text for collector in collectors]

    def total(name, *labels):
        lines = [line for page in pages for line in page.splitlines() if re.match(rf"{name}(\{{| )", line)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(label in line for label in labels))

    for status, count in Counter(one.status for one in requests).items():
        assert total("tokentrail_requests_total", f'status="{status}"') == count
    tokens = {"input": sum(one.input or 0 for one in requests), "output": sum(one.output for one in requests)}
    assert {kind: total("tokentrail_tokens_total", f'type="{kind}"') for kind in tokens} == tokens
    for name, limits in LIMITS.items():
        of = Counter(one.verdict(limits) for one in requests if name in one.slos())
        assert total("tokentrail_slo_good_requests_total", f'slo="{name}"') == of["good"]
        assert total("tokentrail_slo_requests_total", f'slo="{name}"') == of["good"] + of["bad"]
        assert total("tokentrail_slo_undetermined_requests_total", f'slo="{name}"') == of["undetermined"]
    histograms = {"ttft": "gen_ai_server_time_to_first_token_seconds", "e2e": "gen_ai_server_request_duration_seconds"}
    for metric, name in histograms.items():
        values = (
            latencies(requests)["ttft"]
            if metric == "ttft"
            else [one.e2e for one in requests if one.status != "cancelled"]
        )
        assert total(f"{name}_count") == len(values), name
        assert total(f"{name}_sum") == pytest.approx(sum(values) / 1000), name
