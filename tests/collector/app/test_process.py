"""The real process: starting, draining, being killed."""

import itertools
import random
import re
import signal
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from collector.__main__ import main
from collector.base.data_dir import lock_folder
from collector.base.store_errors import StoreError
from collector.store.store import Store
from tests.collector.scrape.engine import Engine, recorded
from tests.support import forked
from tests.support.collector import PROTOBUF, ROOT, Collector
from tests.support.otlp import token_body
from tests.support.stores import new_store
from tokentrail.shared import open_files

SLOS = str(ROOT / "alerts" / "slos.yaml")


def stored_tokens(data_dir):
    """(trace, index) → rows, read from the store of a collector that has ended."""
    store = Store.open(f"chdb://{data_dir / 'store'}")
    try:
        sql = "SELECT reinterpretAsUInt128(reverse(trace_id)) AS trace, token_index, count() FROM tokens GROUP BY ALL"
        return {(trace, index): count for trace, index, count in store.query(sql).result_rows}
    finally:
        store.close()


def test_what_was_acknowledged_before_sigterm_is_in_the_store_after(tmp_path):
    collector = Collector(tmp_path / "data", "--segment-age-s", "3600", "--slos", SLOS, command=True).start()
    for trace in range(1, 21):
        assert collector.post(token_body(trace=trace)).status_code == 200
    assert collector.stop() == 0
    assert stored_tokens(tmp_path / "data") == {(trace, index): 1 for trace in range(1, 21) for index in range(3)}
    assert list((tmp_path / "data" / "wal").glob("*.wal")) == []


class Client(threading.Thread):
    """Sends bodies and, like any OTLP exporter, sends the same bytes again until they are acknowledged."""

    def __init__(self, collector, traces, body=lambda trace: token_body(trace=trace, count=20)):
        super().__init__()
        self.collector = collector
        self.body = body
        self.traces = traces
        self.acknowledged = {}
        """Trace → when its answer had been read, in seconds of `time.monotonic`."""
        self.retries = 0
        self.enough = threading.Event()
        self.http = httpx.Client(timeout=5)

    def run(self):
        for trace in self.traces:
            body = self.body(trace)
            while not self._sent(body):
                if self.enough.wait(0.02):
                    return
                self.retries += 1
            self.acknowledged[trace] = time.monotonic()
            if self.enough.is_set():
                return

    def _sent(self, body):
        try:
            url = self.collector.urls["otlp-http"] + "/v1/traces"
            return self.http.post(url, content=body, headers=PROTOBUF).status_code == 200
        except (httpx.HTTPError, KeyError):
            return False


def test_killed_again_and_again_under_load_every_acknowledged_token_is_there_exactly_once(tmp_path):
    chance = random.Random(20261121)
    collector = Collector(tmp_path / "data", "--segment-age-s", "0.05").start()
    clients = [Client(collector, itertools.count(first, 4)) for first in (1, 2, 3, 4)]
    for client in clients:
        client.start()
    for n in (1, 2):
        collector.wait_until(lambda n=n: sum(len(c.acknowledged) for c in clients) >= 2 * n)
        threading.Event().wait(chance.uniform(0.1, 0.9))
        collector.kill()
        collector.start()
    for client in clients:
        client.enough.set()
        client.join(120)
    assert collector.stop() == 0
    acknowledged = set().union(*(client.acknowledged for client in clients))
    assert len(acknowledged) > 4
    assert sum(client.retries for client in clients) > 0
    stored = stored_tokens(tmp_path / "data")
    assert set(stored.values()) == {1}
    assert {(trace, index) for trace in acknowledged for index in range(20)} <= set(stored)


def test_a_crash_of_a_library_ends_the_process_and_what_was_acknowledged_is_stored_after_and_once(tmp_path):
    """ClickHouse would catch the signal and store nothing from then on. SIGINT ends it well."""
    collector = Collector(tmp_path / "data").start()
    for trace, number in ((1, signal.SIGSEGV), (2, signal.SIGABRT)):
        assert collector.post(token_body(trace=trace)).status_code == 200
        collector.wait_until_stored()
        collector.process.send_signal(number)
        # The traceback of all threads, which is written first, may meet one in the middle of its work and crash itself.
        assert collector.process.wait(120) in (-number, -signal.SIGSEGV)
        assert Path(collector.log.name).read_text().count("Fatal Python error") == trace
        collector.start()
        assert collector.post(token_body(trace=trace)).status_code == 200, "a sender repeats it"
    assert collector.post(token_body(trace=3)).status_code == 200
    collector.process.send_signal(signal.SIGINT)
    assert collector.process.wait(120) == 0
    collector.stop()
    stored = stored_tokens(tmp_path / "data")
    assert stored == dict.fromkeys(((trace, index) for trace in (1, 2, 3) for index in range(3)), 1)


def test_the_limit_of_open_files_is_raised_before_anything_is_opened(monkeypatch, tmp_path):
    def allow(needed):
        raise SystemExit(needed)

    monkeypatch.setattr(open_files, "allow", allow)
    with pytest.raises(SystemExit, match="2048"):
        main(["--data-dir", str(tmp_path / "data")])
    assert not (tmp_path / "data").exists()


def test_a_collector_that_may_open_too_few_files_does_not_start(monkeypatch, tmp_path, caplog):
    """Its API would die at the start, and the process live on."""
    monkeypatch.setattr(open_files, "allow", lambda needed: 255)
    assert main(["--data-dir", str(tmp_path / "data")]) == 1
    assert "it needs 256 open files" in caplog.text
    assert not (tmp_path / "data").exists()

    monkeypatch.setattr(open_files, "allow", lambda needed: 256)
    monkeypatch.setattr("collector.__main__._listen_for_stop", lambda: sys.exit("goes on"))
    with pytest.raises(SystemExit, match="goes on"):
        main(["--data-dir", str(tmp_path / "data")])


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("TZ", "nonsense/Zone", "Cannot load time zone nonsense/Zone. "), ("TMPDIR", "/proc", '["/proc/clickhouse-')],
)
def test_what_clickhouse_needs_of_the_system_is_named_when_it_is_missing(tmp_path, monkeypatch, name, value, said):
    monkeypatch.setenv(name, value)
    ended = forked.run("collector.__main__", "--data-dir", tmp_path / "data")
    assert ended.returncode == 1
    keys, line = ended.stderr.splitlines()
    assert "keys are those of " in keys
    assert "cannot start: chDB cannot be loaded: " in line
    assert said in line
    assert name in line.rpartition(said)[2]


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A collector with a folder of an odd name that scrapes an engine."""
    folder = tmp_path_factory.mktemp("running") / "tägliche #1 {a,b} * 100%20 'q'"
    engine = Engine(recorded("vllm-0.32-kv-pressure")[-1][1])
    target = engine.url.replace("http://", "http://me:secret@")
    flags = ("--scrape", target, "--scrape-interval-s", "0.5", "--scrape-timeout-s", "0.5")
    with Collector(folder, *flags) as collector:
        yield collector
    engine.close()


def test_a_scrape_that_works_is_no_line_of_the_log(running):
    scraped = re.compile('^tokentrail_collector_scrapes_total{result="ok"} [1-9]', re.MULTILINE)
    running.wait_until(lambda: scraped.search(running.get("/metrics").text))
    assert "secret" not in Path(running.log.name).read_text()


def test_a_folder_or_an_address_that_another_process_has_is_a_clear_end(running, tmp_path):
    again = forked.run("collector.__main__", "--data-dir", running.data_dir)
    assert again.returncode == 1
    assert "another collector" in again.stderr

    address = running.urls["api"].removeprefix("http://")
    free = ["--otlp-http", "127.0.0.1:0", "--otlp-grpc", "127.0.0.1:0"]
    new_store(tmp_path / "other" / "store")
    ended = forked.run("collector.__main__", "--data-dir", tmp_path / "other", "--api", address, *free)
    assert ended.returncode == 1
    assert f"cannot listen on {address}: Address already in use; set another --api\n" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_data_folder_may_have_any_name(running):
    """The last test of this collector: a store can be read when nobody else has it."""
    folder = running.data_dir
    assert running.post(token_body(trace=1, count=1200)).status_code == 200
    assert running.post(token_body(trace=2)).status_code == 200
    assert running.stop() == 0
    tokens = {(1, index) for index in range(1200)} | {(2, index) for index in range(3)}
    assert stored_tokens(folder) == dict.fromkeys(tokens, 1)
    assert sorted(path.name for path in folder.parent.iterdir()) == sorted((folder.name, f"{folder.name}.log"))


def test_a_data_folder_with_a_name_that_chdb_cuts_is_refused(tmp_path):
    refused = forked.run("collector.__main__", "--data-dir", tmp_path / "what?")
    assert refused.returncode == 1
    assert "chDB takes what follows a ? for options" in refused.stderr


def test_a_data_folder_that_cannot_be_made_names_the_setting(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"file/data cannot be used \(Not a directory\); set another --data-dir"):
        lock_folder(tmp_path / "file" / "data")


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--otlp-http", "4318", "HOST:PORT"),
        ("--store", "mysql://x", "chdb://"),
        ("--segment-age-s", "0", "greater than 0"),
        ("--fsync", "never", "ack"),
    ],
)
def test_a_wrong_setting_is_named_with_its_flag_and_variable(tmp_path, flag, value, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--data-dir", str(tmp_path), flag, value])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert flag in said
    assert "TOKENTRAIL_" in said
    assert message in said
