"""Requests are judged rightly when the store, the collector or the engine is away: /metrics and the API agree."""

import pytest

from collector.app.service import build_api
from collector.base.watermark import Watermark
from collector.slo.model import load_slos
from tests.collector.rows import NOW, SECOND

MS = 1_000_000
LOST_AFTER = 30 * SECOND
CHAT = {"slo_class": "chat", "e2e": SECOND, "ttft_ns": 100 * MS, "tpot_ns": 10.0 * MS}


def pass_time(clock, ns, look):
    """Time passes, and somebody looks every few seconds."""
    for _ in range(ns // (5 * SECOND)):
        clock.now += 5 * SECOND
        look()
    clock.now += ns % (5 * SECOND)


class TestWatermark:
    @pytest.fixture
    def waiting(self):
        return [None]

    @pytest.fixture
    def watermark(self, clock, waiting):
        watermark = Watermark([lambda: waiting[0], lambda: None], clock, lost_after_ns=LOST_AFTER)
        clock.now += LOST_AFTER
        return watermark

    def test_it_is_now_when_nothing_waits_and_else_the_age_of_the_oldest(self, watermark, clock, waiting):
        assert watermark() == clock.now
        waiting[0] = clock.now
        clock.now += 2 * SECOND
        assert watermark() == clock.now - 2 * SECOND
        waiting[0] = None
        assert watermark() == clock.now

    @pytest.mark.parametrize(("outage_s", "held_s"), [(31, 31), (35, 35), (300, 35)])
    def test_after_an_outage_it_stays_until_senders_have_tried_again(self, watermark, clock, waiting, outage_s, held_s):
        began = waiting[0] = clock.now
        assert watermark() == began
        clock.now += outage_s * SECOND
        assert watermark() == began
        waiting[0] = None
        assert watermark() == began
        pass_time(clock, held_s * SECOND - 1, watermark)
        assert watermark() == began
        clock.now += 1
        assert watermark() == clock.now

    def test_an_answer_is_complete_up_to_it_but_for_what_senders_collect_for_a_moment(self, watermark, clock, waiting):
        assert watermark.complete_until() == clock.now - 2 * SECOND
        waiting[0] = clock.now - 5 * SECOND
        assert watermark.complete_until() == clock.now - 7 * SECOND
        waiting[0] = clock.now - 300 * SECOND
        began = watermark.complete_until()
        assert began == clock.now - 302 * SECOND
        waiting[0] = None
        assert watermark.complete_until() == began, "senders that were refused will try again"
        pass_time(clock, 35 * SECOND, watermark)
        assert watermark.complete_until() == clock.now - 2 * SECOND

    def test_a_short_backlog_holds_nothing(self, watermark, clock, waiting):
        waiting[0] = watermark()
        clock.now += LOST_AFTER
        assert watermark() == waiting[0]
        waiting[0] = None
        assert watermark() == clock.now

    def test_a_part_of_the_backlog_that_is_stored_moves_nothing_while_it_is_held(self, watermark, clock, waiting):
        began = waiting[0] = watermark()
        clock.now += 300 * SECOND
        watermark()
        waiting[0] = began + 100 * SECOND
        assert watermark() == began

    def test_time_that_nobody_looked_at_may_have_been_an_outage(self, watermark, clock):
        began = watermark()
        clock.now += 100 * SECOND
        assert watermark() == began
        pass_time(clock, 35 * SECOND - 1, watermark)
        assert watermark() == began
        clock.now += 1
        assert watermark() == clock.now

    def test_a_new_process_gives_engines_the_time_to_announce_again(self, clock):
        stopped = NOW - 300 * SECOND
        watermark = Watermark([], clock, lost_after_ns=LOST_AFTER, heard_until_ns=stopped)
        pass_time(clock, LOST_AFTER + 35 * SECOND - 1, watermark)
        assert watermark() == stopped
        clock.now += 1
        assert watermark() == clock.now

    @pytest.mark.parametrize(("pause_s", "held_s"), [(None, 0), (5, 5), (300, 35)])
    def test_a_new_process_waits_for_those_who_could_not_send(self, clock, pause_s, held_s):
        stopped = None if pause_s is None else NOW - pause_s * SECOND
        watermark = Watermark([], clock, lost_after_ns=LOST_AFTER, heard_until_ns=stopped)
        if held_s:
            pass_time(clock, held_s * SECOND - 1, watermark)
            assert watermark.complete_until() == stopped - 2 * SECOND
            clock.now += 1
        assert watermark.complete_until() == clock.now - 2 * SECOND
        pass_time(clock, 300 * SECOND, watermark)
        assert watermark.complete_until() == clock.now - 2 * SECOND

    def test_a_process_before_whose_clock_was_ahead_shortens_nothing(self, clock):
        watermark = Watermark([], clock, lost_after_ns=LOST_AFTER, heard_until_ns=NOW + 100 * SECOND)
        pass_time(clock, LOST_AFTER - 1, watermark)
        assert watermark() == NOW
        clock.now += 1
        assert watermark() == clock.now

    def test_what_a_process_before_left_in_the_log_lies_before_it(self, clock):
        assert Watermark([lambda: NOW - SECOND], clock, lost_after_ns=LOST_AFTER)() == NOW - SECOND


@pytest.fixture
def start_collector(rows, slos_file, clock, ingest_status, tmp_path):
    """Starts a collector on the same store and data folder, as often as it is called."""
    logs = [None]

    def start():
        slos = load_slos(slos_file)
        _, live = build_api(
            rows.store, slos, ingest_status, lost_after_s=30.0, data_dir=tmp_path, clock=clock, logs=[lambda: logs[0]]
        )
        return live

    start.logs = logs  # type: ignore[attr-defined]
    return start


def counted(live, slo="chat"):
    """Judged and good requests, and requests lost, as the next process would expose them."""
    live.refresh()
    values = live.counters._series.counters
    by_name = {metric.name: values for metric, values in values.items()}
    lost = sum(by_name.get("tokentrail_requests_lost_total", {}).values())
    names = "tokentrail_slo_requests_total", "tokentrail_slo_good_requests_total"
    return (*(by_name[name][slo, ""] for name in names), lost)


def agrees(live, slo="chat"):
    """The counters are those of the API."""
    judged, good, lost = counted(live, slo)
    (found,) = [one for one in live._evaluate() if one.name == slo]
    assert (judged, good, lost) == (found.requests.tally.judged, found.requests.good, found.requests.lost)
    return judged, good, lost


class TestBacklog:
    def test_healthy_requests_are_not_lost_while_their_announcements_wait_in_the_log(
        self, start_collector, rows, clock
    ):
        live = start_collector()
        clock.now += 31 * SECOND
        assert counted(live) == (0, 0, 0)
        healthy = [rows.open(start=clock.now, seen=clock.now, slo_class="chat", ttft_ns=MS) for _ in range(20)]
        live.counters.on_segment("s-1")
        assert counted(live) == (0, 0, 0)
        start_collector.logs[0] = clock.now
        for _ in range(4):
            clock.now += 30 * SECOND
            assert agrees(live) == (0, 0, 0)
        ends = [CHAT | {"trace_id": r["trace_id"], "segment": "s-2", "ingested_at": clock.now} for r in healthy]
        start_collector.logs[0] = None
        assert agrees(live) == (0, 0, 0)
        rows.requests([{"ended": clock.now - 5 * SECOND, **end} for end in ends])
        live.counters.on_segment("s-2")
        assert agrees(live) == (20, 20, 0)
        pass_time(clock, 60 * SECOND, live.refresh)
        assert agrees(live) == (20, 20, 0)

    def test_those_that_died_in_an_outage_are_lost_once_it_is_over(self, start_collector, rows, clock):
        live = start_collector()
        clock.now += 31 * SECOND
        counted(live)
        rows.open(start=clock.now, seen=clock.now, slo_class="chat", ttft_ns=MS)
        live.counters.on_segment("s-1")
        counted(live)
        start_collector.logs[0] = clock.now
        for _ in range(4):
            clock.now += 30 * SECOND
            assert counted(live) == (0, 0, 0)
        start_collector.logs[0] = None
        live.counters.on_segment("s-2")
        seen = [counted(live)[2]]
        for _ in range(8):
            clock.now += 10 * SECOND
            seen.append(counted(live)[2])
        assert seen == [0, 0, 0, 0, 1, 1, 1, 1, 1]
        assert agrees(live) == (1, 0, 1)


def test_a_request_that_was_lost_hours_ago_is_not_read_any_more(start_collector, rows, clock):
    live = start_collector()
    clock.now += 31 * SECOND
    rows.open(start=clock.now, seen=clock.now, slo_class="chat", ttft_ns=MS)
    live.counters.on_segment("s-1")
    pass_time(clock, 70 * SECOND, live.refresh)
    assert (counted(live), live._processes.has_open_requests) == ((1, 0, 1), True)
    clock.now += 2 * 3600 * SECOND
    pass_time(clock, 70 * SECOND, live.refresh)
    assert (counted(live)[:2], live._processes.has_open_requests) == ((1, 0), False)


@pytest.mark.parametrize(("too_early_ns", "burn"), [(0, 20.0), (1, None)])
def test_a_request_that_was_lost_at_the_beginning_of_a_window_is_in_it(api, rows, too_early_ns, burn):
    rows.open(start=NOW - 4000 * SECOND, seen=NOW - 3630 * SECOND - too_early_ns, slo_class="chat", ttft_ns=MS)
    by_rule = {rule["name"]: rule for rule in api("slos/chat")["burn"]}
    assert by_rule["page-fast"]["long_s"] == 3600
    assert by_rule["page-fast"]["long_burn"] == (burn and pytest.approx(burn))


class TestRestart:
    def test_counters_go_on_and_no_segment_is_counted_twice(self, start_collector, rows, clock):
        first = start_collector()
        rows.requests([CHAT | {"segment": "s-1", "ingested_at": NOW}] * 3)
        first.counters.on_segment("s-1")
        assert counted(first) == (3, 3, 0)
        rows.requests([CHAT | {"segment": "s-2", "ingested_at": NOW, "ttft_ns": SECOND}])
        first.counters.on_segment("s-2")  # and the process is killed before it counts it
        second = start_collector()
        assert counted(second) == (4, 3, 0)
        second.counters.on_segment("s-1")
        second.counters.on_segment("s-2")  # the writer was killed before it released it
        assert counted(second) == (4, 3, 0)
        assert counted(start_collector()) == (4, 3, 0)
        assert agrees(second) == (4, 3, 0)

    def test_a_series_that_a_scrape_has_seen_is_not_0_again_in_the_next_process(self, start_collector, rows):
        def exposed(live):
            (family,) = (f for f in live.families[0] if f.name == "tokentrail_slo_requests")
            return next(s.value for s in family.samples if s.labels["slo"] == "chat" and s.name.endswith("_total"))

        first = start_collector()
        rows.requests([CHAT | {"segment": "s-1", "ingested_at": NOW}] * 3)
        first.counters.on_segment("s-1")
        first.refresh()
        assert exposed(first) == exposed(start_collector()) == 0
        first.scraped(first.families[0])
        first.refresh()
        assert exposed(first) == exposed(start_collector()) == 3

    def test_a_request_in_flight_is_on_the_disk_before_a_scrape_sees_it(self, start_collector, rows):
        live = start_collector()
        request = rows.open(start=NOW - 5 * SECOND, seen=NOW - 5 * SECOND, slo_class="chat")
        assert counted(live) == (0, 0, 0)
        rows.insert("open_requests", [request | {"seen": NOW}])
        assert counted(live) == (1, 0, 0)
        next_process = start_collector().counters._series.counters
        assert next_process == live.counters._series.counters

    def test_an_idle_collector_writes_down_once_a_minute_up_to_when_it_heard(self, start_collector, clock):
        live = start_collector()
        clock.now += 31 * SECOND
        pass_time(clock, 300 * SECOND, live.refresh)
        assert clock.now - 65 * SECOND <= start_collector().counters.heard_until_ns <= clock.now

    def test_engine_and_collector_that_died_together(self, start_collector, rows, clock):
        first = start_collector()
        clock.now += 31 * SECOND
        for _ in range(20):
            rows.open(start=clock.now - SECOND, seen=clock.now, slo_class="chat", ttft_ns=MS)
        first.counters.on_segment("s-1")
        assert counted(first) == (0, 0, 0)
        clock.now += 600 * SECOND
        second = start_collector()
        assert counted(second) == (0, 0, 0)
        pass_time(clock, 66 * SECOND, second.refresh)
        assert agrees(second) == (20, 0, 20)
        third = start_collector()
        assert agrees(third) == (20, 0, 20)
        pass_time(clock, 70 * SECOND, third.refresh)
        assert agrees(third) == (20, 0, 20)

    def test_a_request_that_was_bad_in_flight_is_not_counted_again_by_the_next_process(
        self, start_collector, rows, clock
    ):
        hung = rows.open(start=NOW - 5 * SECOND, seen=NOW, slo_class="chat")
        first = start_collector()
        assert counted(first) == (1, 0, 0)
        second = start_collector()
        assert counted(second) == (1, 0, 0)
        end = CHAT | {"trace_id": hung["trace_id"], "ttft_ns": SECOND, "segment": "s-1", "ingested_at": NOW}
        rows.requests([end])
        second.counters.on_segment("s-1")
        assert agrees(second) == (1, 0, 0)

    @pytest.mark.parametrize("content", ["", "{", '{"version": 99}', "[]"])
    def test_counters_that_cannot_be_read_begin_at_0(self, start_collector, content, tmp_path):
        (tmp_path / "counters.json").write_text(content)
        assert counted(start_collector()) == (0, 0, 0)

    def test_files_that_cannot_be_read_do_not_keep_a_collector_from_starting(
        self, start_collector, rows, tmp_path, caplog
    ):
        for name in ("counters.json", "counters.segments"):
            (tmp_path / name).mkdir()
        live = start_collector()
        assert [record.args[0] for record in caplog.records] == [
            tmp_path / "counters.json", tmp_path / "counters.segments"
        ]  # fmt: skip
        rows.requests([CHAT | {"segment": "s-1", "ingested_at": NOW}])
        live.counters.on_segment("s-1")
        assert counted(live) == (1, 1, 0)

    def test_a_damaged_name_of_a_segment_costs_no_other_one(self, start_collector, rows, tmp_path):
        (tmp_path / "counters.segments").write_bytes(b"\xff\x00\ns-1\n")
        rows.requests([CHAT | {"segment": "s-1", "ingested_at": NOW}])
        assert counted(start_collector()) == (1, 1, 0)

    def test_a_disk_that_fails_is_no_reason_to_say_nothing(self, start_collector, rows, tmp_path, monkeypatch):
        live = start_collector()
        monkeypatch.setattr("collector.metrics.checkpoint.write_durably", lambda *_: (_ for _ in ()).throw(OSError()))
        rows.requests([CHAT | {"segment": "s-1", "ingested_at": NOW}])
        live.counters.on_segment("s-1")
        assert counted(live) == (1, 1, 0)


class TestCancelled:
    def test_it_is_bad_when_it_had_missed_a_threshold(self, start_collector, rows):
        live = start_collector()
        cancelled = CHAT | {"status": "cancelled", "segment": "s-1", "ingested_at": NOW}
        rows.requests(
            [
                cancelled | {"ttft_ns": None, "tpot_ns": None, "output_tokens": 0, "e2e": 60 * SECOND},
                cancelled | {"ttft_ns": None, "tpot_ns": None, "output_tokens": 0, "e2e": 500 * MS},
                cancelled | {"ttft_ns": 501 * MS},
                cancelled | {"ttft_ns": 500 * MS, "e2e": 9 * SECOND},
                cancelled | {"ttft_ns": None, "output_tokens": None, "e2e": 60 * SECOND},
            ]
        )
        live.counters.on_segment("s-1")
        assert agrees(live) == (2, 0, 0)

    def test_it_was_bad_in_flight_and_stays_so(self, start_collector, rows):
        live = start_collector()
        hung = rows.open(start=NOW - 60 * SECOND, seen=NOW, slo_class="chat")
        assert agrees(live) == (1, 0, 0)
        end = {"trace_id": hung["trace_id"], "status": "cancelled", "ttft_ns": None, "tpot_ns": None}
        rows.requests(
            [
                CHAT
                | end
                | {"output_tokens": 0, "e2e": 60 * SECOND, "segment": "s-1", "ingested_at": NOW, "ended": NOW - 1}
            ]
        )
        live.counters.on_segment("s-1")
        assert agrees(live) == (1, 0, 0)
