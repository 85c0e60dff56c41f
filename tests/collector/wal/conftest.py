"""A log that is opened again, under a clock that tests set."""

import pytest

from collector.wal.dead_letters import DeadLetters
from collector.wal.log import LogLimits, SegmentLog
from tests.collector.wal.opened import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def reopen(tmp_path, clock):
    def open_log(**limits):
        return SegmentLog(
            tmp_path / "wal",
            DeadLetters(tmp_path / "dead_letters", "traces"),
            limits=LogLimits(**limits),
            unix_ns=lambda: clock.ns,
            monotonic_s=lambda: clock.monotonic_s,
        )

    return open_log
