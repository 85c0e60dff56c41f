"""The scraper against real HTTP servers, with the log replaced by a list."""

import asyncio
import gzip
import logging
import socket
import threading
import time
from concurrent.futures import Future

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from collector.samples.scraper import ScrapeLimits, Scraper
from collector.samples.targets import parse_static
from collector.status import IngestStatus
from collector.wal.commit import LogUnavailableError
from tests.collector.samples.engine import Engine
from tokentrail.semconv import SCRAPER

PAGE = 'vllm:num_requests_running{engine="0"} 6\nvllm:num_requests_waiting 2\n'


class Log:
    """Takes what the scraper hands on. `error` is raised, `stuck` gives a future that never ends."""

    def __init__(self):
        self.requests = []
        self.error = None
        self.stuck = False

    def accept(self, body):
        if self.error:
            raise self.error
        self.requests.append(ExportMetricsServiceRequest.FromString(body))
        future = Future()
        if not self.stuck:
            future.set_result(None)
        return future

    def scrapes(self, service):
        """Of each scrape of a service: resource, values by name, labels of `up`."""
        found = []
        for request in list(self.requests):
            (made,) = request.resource_metrics
            resource = {a.key: a.value.string_value for a in made.resource.attributes}
            if resource["service.name"] != service:
                continue
            values, labels = {}, {}
            for metric in made.scope_metrics[0].metrics:
                (point,) = metric.gauge.data_points
                values[metric.name] = point.as_double
                labels[metric.name] = {a.key: a.value.string_value for a in point.attributes}
            found.append((resource, values, labels))
        return found


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def engine():
    """Makes engines that are closed at the end."""
    made = []

    def make(*pages):
        made.append(Engine(*pages))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def scrape(log):
    """Starts a scraper of items of the setting; `status` counts. A busy machine has time for each answer."""
    made = []

    def start(setting, *, files=(), bearer_file=None, clock=time.time, **limits):
        status = IngestStatus()
        limits = ScrapeLimits(**({"interval_s": 0.3, "timeout_s": 10.0} | limits))
        scraper = Scraper(
            parse_static(setting), files, log, limits,
            scraper_id="me", status=status, bearer_file=bearer_file, clock=clock,
        )  # fmt: skip
        made.append(scraper)
        scraper.start()
        scraper.status = status  # type: ignore[attr-defined]
        return scraper

    yield start
    for scraper in made:
        assert scraper.stop(10)


def eventually(check, timeout_s=120):
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_target_is_scraped_again_and_again_and_is_up(log, engine, scrape):
    served = engine(PAGE)
    scraper = scrape(f"chat={served.url}")
    eventually(lambda: len(log.scrapes("chat")) >= 3)
    resource, values, labels = log.scrapes("chat")[0]
    assert resource == {
        "service.name": "chat", "service.instance.id": served.address,
        "tokentrail.engine": "vllm", SCRAPER: "me",
    }  # fmt: skip
    assert 0 < values.pop("scrape_duration_seconds") < 10
    assert values == {"vllm:num_requests_running": 6, "vllm:num_requests_waiting": 2, "up": 1}
    assert labels["vllm:num_requests_running"] == {"engine": "0"}
    assert labels["up"] == {}
    assert served.requests[0]["accept-encoding"] == "gzip"
    assert "authorization" not in served.requests[0]
    eventually(lambda: scraper.status.snapshot().scrapes["ok"] >= 3)
    assert scraper.status.snapshot().scrape_targets == 1


def test_a_target_is_reached_without_the_proxy_of_the_environment(log, engine, scrape, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    scrape(f"chat={engine(PAGE).url}")
    eventually(lambda: log.scrapes("chat"))
    assert log.scrapes("chat")[0][1]["up"] == 1


def test_a_target_whose_turn_has_just_begun_is_not_scraped_twice_in_it(log, engine, scrape, monkeypatch):
    """A timer may fire a little before its time by the wall clock."""
    served, slept = engine(PAGE), []

    async def sleep(seconds):
        slept.append(seconds)
        await asyncio.Event().wait()

    monkeypatch.setattr("collector.samples.scraper.asyncio.sleep", sleep)
    (target,) = parse_static(served.url)[0].targets(())
    turn_s = 60.0 + target.offset_s(60.0)
    scrape(served.url, interval_s=60.0, clock=lambda: turn_s - 0.5)
    eventually(lambda: slept)
    assert slept == [pytest.approx(60.5)]


def hang(_handler):
    time.sleep(30)


def drip(handler):
    handler.send_response(200)
    handler.end_headers()
    for _ in range(300):
        handler.wfile.write(b"#")
        handler.wfile.flush()
        time.sleep(0.1)
    handler.close_connection = True


def endless(handler):
    handler.send_response(200)
    handler.end_headers()
    for _ in range(100):
        handler.wfile.write(b"# a comment\n" * 100_000)


def cut(handler):
    handler.send_response(200)
    handler.send_header("content-length", "1000")
    handler.end_headers()
    handler.wfile.write(b"vllm:num_requests_running 6\n")
    handler.close_connection = True


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (hang, "timeout"),
        (drip, "timeout"),
        (endless, "too_large"),
        (cut, "broken"),
        (lambda handler: handler.send(gzip.compress(b"#" * 10_000_000), content_encoding="gzip"), "too_large"),
        (lambda handler: handler.send("no gzip", content_encoding="gzip"), "encoding"),
        (lambda handler: handler.send(b"\xff\xfe"), "encoding"),
        (lambda handler: handler.send(PAGE, status=503), "http_503"),
        (lambda handler: handler.send("", status=302, location="http://127.0.0.1:1/"), "http_302"),
        ("vllm:num_requests_running six\n", "parse"),
        (f"vllm:num_requests_running 1{'0' * 400}\n", "parse"),
        ('vllm:num_requests_running{a="' + '\\"' * 400_000 + '"} 1\n', "parse"),
    ],
)
def test_a_target_that_fails_is_down_with_the_reason_and_harms_no_other(log, engine, scrape, page, reason):
    good, bad = engine(PAGE), engine(page)
    timeout_s = 2.0 if reason == "timeout" else 60.0
    scraper = scrape(f"good={good.url},bad={bad.url}", max_bytes=1_000_000, timeout_s=timeout_s)

    def good_ones():
        return [values["up"] for _, values, _ in log.scrapes("good")]

    eventually(lambda: log.scrapes("bad") and good_ones().count(1) >= 2)
    _, values, labels = log.scrapes("bad")[0]
    assert values.keys() == {"up", "scrape_duration_seconds"}
    assert values["up"] == 0
    assert labels["up"] == {"reason": reason}
    # A machine that stands still for 2 s makes the good one late too.
    assert reason == "timeout" or 0 not in good_ones()
    eventually(lambda: scraper.status.snapshot().scrapes[reason] >= 1)


@pytest.mark.parametrize("page", ["<html>Welcome</html>", "", 'python_info{version="3.12"} 1\n'])
def test_a_target_that_answers_without_a_known_metric_is_up_with_the_reason(log, engine, scrape, page):
    scraper = scrape(f"chat={engine(PAGE, page).url}")
    eventually(lambda: len(log.scrapes("chat")) >= 2)
    resource, values, labels = log.scrapes("chat")[1]
    assert values.keys() == {"up", "scrape_duration_seconds"}
    assert (values["up"], labels["up"]) == (1, {"reason": "no_metrics"})
    assert resource["tokentrail.engine"] == "vllm", "the engine that it was"
    eventually(lambda: scraper.status.snapshot().scrapes["no_metrics"] >= 1)


def test_a_target_that_nobody_listens_at_is_down(log, scrape):
    with socket.socket() as bound:  # so nobody else gets the port
        bound.bind(("127.0.0.1", 0))
        scrape(f"gone=http://127.0.0.1:{bound.getsockname()[1]}")
        eventually(lambda: log.scrapes("gone"))
    assert log.scrapes("gone")[0][2]["up"] == {"reason": "connect"}


def test_a_target_that_fails_keeps_the_engine_that_it_was(log, engine, scrape, caplog):
    caplog.set_level(logging.INFO, "collector.samples.scraper")
    served = engine(PAGE, lambda handler: handler.send("", status=500), PAGE)
    scrape(f"chat={served.url.replace('//', '//me:secret@')}")
    eventually(lambda: len(log.scrapes("chat")) >= 3)
    (_, first, _), (resource, second, _), (_, third, _) = log.scrapes("chat")[:3]
    assert [first["up"], second["up"], third["up"]] == [1, 0, 1]
    assert resource["tokentrail.engine"] == "vllm"
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"the scrape of {served.url}: http_500", f"the scrape of {served.url}: works again"]


def test_a_compressed_page_is_read(log, engine, scrape):
    served = engine(lambda handler: handler.send(gzip.compress(PAGE.encode()), content_encoding="gzip"))
    scrape(f"chat={served.url}")
    eventually(lambda: log.scrapes("chat"))
    assert log.scrapes("chat")[0][1]["vllm:num_requests_running"] == 6


def test_series_beyond_the_limit_are_counted(log, engine, scrape):
    scraper = scrape(f"chat={engine(PAGE).url}", max_series=1)
    eventually(lambda: log.scrapes("chat"))
    assert log.scrapes("chat")[0][1].keys() == {"vllm:num_requests_running", "up", "scrape_duration_seconds"}
    eventually(lambda: scraper.status.snapshot().scrape_series_dropped >= 1)


def test_bytes_under_way_have_a_limit_and_are_given_back(log, engine, scrape):
    page = "#" * 300_000 + "\n" + PAGE
    scraper = scrape(f"small={engine(page).url},large={engine(page * 3).url}", under_way_bytes=700_000)
    eventually(lambda: scraper.status.snapshot().scrapes["busy"] >= 2)
    assert {values["up"] for _, values, _ in log.scrapes("large")} == {0}
    eventually(lambda: scraper.status.snapshot().scrapes["ok"] >= 4)


def test_targets_beyond_the_limit_are_counted(log, engine, scrape, monkeypatch):
    monkeypatch.setattr("collector.samples.scraper._MOST_TARGETS", 2)
    urls = [engine(PAGE).url for _ in range(3)]
    scraper = scrape(",".join(f"s{number}={url}" for number, url in enumerate(urls)))
    eventually(lambda: log.scrapes("s1"))
    assert log.scrapes("s2") == []
    status = scraper.status.snapshot()
    assert (status.scrape_targets, status.scrape_targets_dropped) == (2, 1)


def test_the_bearer_token_is_read_at_every_scrape(log, engine, scrape, tmp_path):
    token = tmp_path / "token"
    served = engine(PAGE)
    scrape(f"chat={served.url}", bearer_file=token)
    eventually(lambda: log.scrapes("chat"))
    assert log.scrapes("chat")[0][2]["up"] == {"reason": "bearer_file"}
    token.write_text("abc\n")
    eventually(lambda: served.requests)
    assert served.requests[0]["authorization"] == "Bearer abc"


def test_a_file_names_targets_and_a_target_that_leaves_it_is_left_alone(log, engine, scrape, tmp_path, monkeypatch):
    monkeypatch.setattr("collector.samples.scraper._REFRESH_S", 0.05)
    served, file = engine(PAGE + 'vllm:kv_cache_usage_perc{zone="own"} 0.5\n'), tmp_path / "targets.yml"
    entry = "- targets: ['{}']\n  labels: {{job: chat, instance: one, engine: mine, zone: x}}\n"
    file.write_text(entry.format(served.address))
    scraper = scrape("", files=[str(file)])
    eventually(lambda: log.scrapes("chat"))
    resource, _, labels = log.scrapes("chat")[0]
    assert (resource["service.instance.id"], resource["tokentrail.engine"]) == ("one", "mine")
    assert labels["vllm:num_requests_running"] == {"engine": "0", "zone": "x"}
    assert labels["vllm:kv_cache_usage_perc"] == {"zone": "own"}, "an engine's own label stays"
    file.unlink()
    eventually(lambda: scraper.status.snapshot().scrape_targets == 0)
    eventually(lambda: not scraper._engines)
    count = len(served.requests)
    threading.Event().wait(0.7)
    assert len(served.requests) <= count + 1, "one may have been under way"


def test_jobs_at_one_address_are_targets_and_entries_that_differ_in_labels_alone_are_named(
    log, engine, scrape, tmp_path, monkeypatch
):
    monkeypatch.setattr("collector.samples.scraper._REFRESH_S", 0.05)
    served, file = engine(PAGE), tmp_path / "targets.yml"
    entry = f"- targets: ['{served.address}']\n  labels: {{{{job: {{}}, zone: {{}}}}}}\n"
    file.write_text(
        entry.format("chat", "x") + entry.format("batch", "x") + entry.format("batch", "y") + entry.format("chat", "x")
    )
    scraper = scrape("", files=[str(file)])
    eventually(lambda: log.scrapes("chat") and log.scrapes("batch"))
    assert scraper.status.snapshot().scrape_targets == 2
    told = "entries with different labels name it: the last one is scraped"
    assert scraper.status.snapshot().discovery_problems == {f"the target {served.url} of batch": told}
    assert {labels["vllm:num_requests_waiting"]["zone"] for _, _, labels in log.scrapes("batch")} == {"y"}
    file.write_text(entry.format("chat", "x") + entry.format("batch", "y"))
    eventually(lambda: not scraper.status.snapshot().discovery_problems)


def test_a_file_says_that_a_target_is_nim(log, engine, scrape, tmp_path):
    served, file = engine("num_requests_running 4\n"), tmp_path / "targets.yml"
    file.write_text(f"- targets: ['{served.address}']\n  labels: {{job: chat, engine: nim}}\n")
    scrape(f"plain={served.url.replace('127.0.0.1', 'localhost')}", files=[str(file)])
    eventually(lambda: log.scrapes("chat") and log.scrapes("plain"))
    assert log.scrapes("chat")[0][1]["num_requests_running"] == 4
    assert log.scrapes("plain")[0][2]["up"] == {"reason": "no_metrics"}


def test_a_name_is_one_target_per_address(log, engine, scrape):
    served = engine(PAGE)
    scrape(f"chat=dns+http://localhost:{served.address.rpartition(':')[2]}")
    eventually(lambda: any(values["up"] for _, values, _ in log.scrapes("chat")))
    assert served.address in {resource["service.instance.id"] for resource, _, _ in log.scrapes("chat")}


def test_a_name_that_can_be_none_stops_no_other_target(log, engine, scrape, caplog):
    served = engine(PAGE)
    scraper = scrape(f"typo=dns+http://a..b:1,wrong=http://xn--:1,chat={served.url}")
    eventually(lambda: log.scrapes("chat") and log.scrapes("wrong"))
    assert log.scrapes("wrong")[0][2]["up"] == {"reason": "connect"}
    assert "the name a..b: not found" in caplog.text
    assert scraper.status.snapshot().discovery_problems.keys() == {"the name a..b"}
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("stuck", [False, True])
def test_a_log_that_takes_nothing_stops_no_scrape(log, engine, scrape, stuck):
    log.stuck, log.error = stuck, None if stuck else LogUnavailableError("full")
    scraper = scrape(f"chat={engine(PAGE).url}")
    eventually(lambda: scraper.status.snapshot().scrapes["log"] >= 2)
    log.stuck, log.error = False, None
    eventually(lambda: scraper.status.snapshot().scrapes["ok"] >= 1)
    assert log.scrapes("chat"), "the target was scraped again once the log took something"


def test_stop_does_not_wait_for_a_target_that_hangs(engine, scrape):
    asked, answer = threading.Event(), threading.Event()

    def hang_until_told(_handler):
        asked.set()
        answer.wait(600)

    scraper = scrape(f"chat={engine(hang_until_told).url}", interval_s=0.2, timeout_s=3600.0)
    assert asked.wait(120)
    assert scraper.stop(60)
    answer.set()


def test_a_scraper_that_never_started_stops():
    limits = ScrapeLimits()
    assert Scraper((), (), Log(), limits, scraper_id="me", status=IngestStatus()).stop(1)
