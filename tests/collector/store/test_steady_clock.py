"""The retention's clock follows a leap forward when it has lasted for a day, also over a restart."""

import pytest

from collector.app.service import Service
from collector.keep.expiry import Expiry
from collector.pipeline.settings import Settings
from collector.store.steady_clock import SteadyClock
from tests.support.stores import new_store

HOUR = 3600 * 10**9
DAY = 24 * HOUR
T0 = 1_800_000_000 * 10**9


class Clocks:
    """The clocks of one process after another, or of one process."""

    def __init__(self, file):
        self.file = file
        self._now = T0
        self._new()

    def _new(self):
        self._clock = SteadyClock(self.file, lambda: self._now)

    def __call__(self, ns, *, restarted=False):
        if restarted:
            self._new()
        self._now = T0 + ns
        return self._clock() - T0


@pytest.fixture
def read(tmp_path):
    return Clocks(tmp_path / "clock.json")


@pytest.mark.parametrize("restarted", [False, True])
class TestLeaps:
    def test_it_follows_the_time_that_passes_and_steps_back(self, read, restarted):
        for ns in (0, HOUR, HOUR + DAY, HOUR, -400 * DAY, -399 * DAY):
            assert read(ns, restarted=restarted) == ns

    def test_a_leap_is_followed_after_a_day(self, read, restarted):
        read(0, restarted=restarted)
        leap = DAY + 1
        for ns in (leap, leap + HOUR, leap + DAY - 1):
            assert read(ns, restarted=restarted) == 0
        assert read(leap + DAY, restarted=restarted) == leap + DAY
        assert read(leap + DAY + HOUR, restarted=restarted) == leap + DAY + HOUR

    def test_a_leap_that_ends_is_forgotten(self, read, restarted):
        read(0, restarted=restarted)
        assert read(90 * DAY, restarted=restarted) == 0
        assert read(2 * HOUR, restarted=restarted) == 2 * HOUR
        assert read(91 * DAY, restarted=restarted) == 2 * HOUR

    def test_a_leap_within_a_leap_has_a_day_of_its_own(self, read, restarted):
        read(0, restarted=restarted)
        for ns in (90 * DAY, 92 * DAY, 93 * DAY - 1, 60 * DAY, 61 * DAY - 1):
            assert read(ns, restarted=restarted) == 0
        assert read(61 * DAY, restarted=restarted) == 61 * DAY


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"followed_ns": null, "leapt_ns": 1}', '{"followed_ns": "a"}']
)
def test_a_file_that_says_nothing_is_as_none(read, content):
    read.file.write_text(content)
    assert read(500 * DAY, restarted=True) == 500 * DAY


def test_a_leap_is_said(read, caplog):
    read(0)
    read(HOUR)
    assert not caplog.records
    read(90 * DAY)
    read(90 * DAY + HOUR)
    assert ["leapt by 90 days" in record.message for record in caplog.records] == [True], "once a minute"


def test_a_full_disk_stops_nothing(read):
    read.file.with_name("clock.json.tmp").mkdir()
    assert read(0) == 0
    assert read(90 * DAY) == 0


def test_the_collector_has_such_a_clock(tmp_path):
    new_store(tmp_path / "store")
    service = Service(Settings(data_dir=tmp_path, otlp_http="127.0.0.1:0", otlp_grpc="127.0.0.1:0", api="127.0.0.1:0"))
    (expiry,) = (stage for stage in service._stages if isinstance(stage, Expiry))
    assert isinstance(expiry._clock, SteadyClock)
    assert service.stop()
