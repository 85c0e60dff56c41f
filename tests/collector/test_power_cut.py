"""A power cut under a collector: a payload that was acknowledged is stored and counted once.

The disk is a real file system that forgets what was not synced (tests/support/power.py).
"""

import re
import subprocess

import pytest

from tests.collector.app.test_process import stored_tokens
from tests.support.collector import Collector
from tests.support.otlp import MS, Request
from tests.support.power import mounted

TOKENS = 1200
"""Enough that they are inserted as columns, by an insert of their own."""
COUNTED = re.compile(r"^tokentrail_requests_total{.*} (\S+)$", re.MULTILINE)


@pytest.fixture
def disk(tmp_path):
    disk = mounted(tmp_path)
    yield disk
    disk.unmount()


@pytest.fixture
def collector(disk):
    collector = Collector(disk.path / "data", "--segment-age-s", "1").start()
    disk.sync()
    yield collector
    if collector.process.poll() is None:
        collector.kill()


def body(trace, tokens=TOKENS):
    """A request and its tokens."""
    request = Request().tokens(trace=trace, count=tokens, ns=MS)
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.usage.output_tokens": tokens}
    request.span("chat m", trace=trace, span=1, kind=2, ns=tokens * MS, attributes=attributes)
    return request.body()


def power_cut(collector, disk):
    """Without a start after it."""
    disk.cut()
    collector.kill()
    disk.unmount()
    disk.mount()


def counted(collector):
    return sum(float(n) for n in COUNTED.findall(collector.get("/metrics").text))


def test_a_power_cut_neither_doubles_nor_loses_what_was_acknowledged(disk, collector):
    log = collector.data_dir / "wal"

    def send(trace):
        assert collector.post(body(trace)).status_code == 200
        return next(log.glob("*.wal"))

    segment = send(1)  # stored, and the removal of its file is not on the disk yet
    collector.wait_until(lambda: not segment.exists())
    power_cut(collector, disk)
    assert segment.exists(), "this cut came too late"

    collector.start()
    segment = send(2)  # stored, and not given up by the log yet
    subprocess.run(["chattr", "+i", log], check=True)
    collector.wait_until(lambda: "cannot be read or released" in collector.get("/readyz").text)
    power_cut(collector, disk)
    subprocess.run(["chattr", "-i", log], check=True)

    collector.start()
    send(3)  # acknowledged, and not stored yet
    power_cut(collector, disk)

    collector.start()
    collector.wait_until(lambda: counted(collector) >= 3)
    assert counted(collector) == 3
    assert collector.stop() == 0
    assert stored_tokens(collector.data_dir) == {(trace, index): 1 for trace in (1, 2, 3) for index in range(TOKENS)}
