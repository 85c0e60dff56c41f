"""Each request has the verdicts by which the SLOs count it."""

import pytest

from tests.collector.rows import NOW, SECOND

MS = 1_000_000
SLOS = """
slos:
  - name: chat
    objective: "0.95"
    window: 7d
    select: {slo_class: [chat]}
    thresholds: {ttft: 500ms, tpot: 100ms}
    errors: {exclude: [invalid_request]}
  - name: clients
    objective: "0.95"
    window: 7d
    select: {vantage: [client], slo_class: [chat]}
    thresholds: {e2e: 700ms}
  - name: all
    objective: "0.9"
    window: 7d
    thresholds: {ttft: 333333ns, e2e: 2s}
"""
UNJUDGED = ("undetermined", "excused", "unselected")
VERDICTS = ("good", "bad", *UNJUDGED, "pending")


@pytest.fixture
def slos_file(tmp_path):
    path = tmp_path / "slos.yaml"
    path.write_text(SLOS)
    return path


@pytest.fixture
def mixed(rows):
    """Requests of every outcome, some of them seen by a client too, and some that have not ended.

    No SLO selects those of clients without a class.
    """
    rows.requests(
        [
            {
                "ended": NOW - n * SECOND - 1,
                "e2e": (500 + 400 * (n % 5)) * MS,
                "slo_class": "chat" if n % 3 else "",
                "vantage": "client" if n % 7 == 0 else "server",
                "status": ("ok", "ok", "unknown" if n % 2 else "ok", "error", "cancelled")[n % 5],
                "error_type": "" if n % 5 != 3 else "invalid_request" if n % 2 else "oom",
                "ttft_ns": (None, 333_334, 333_333, 600 * MS)[n % 4],
                "tpot_ns": (None, 20.5 * MS, 120.0 * MS)[n % 3],
                "tpot_at_most_ns": (None, 90.0 * MS, 130.0 * MS)[n // 3 % 3] if n % 3 == 0 and n % 4 < 3 else None,
                "output_tokens": (None, 10, 10, 0)[n % 4],
            }
            for n in range(120)
        ]
    )
    for n in range(4):  # a request that its client and its server report
        rows.requests([{"request_id": f"twin-{n}", "vantage": v, "e2e": SECOND} for v in ("client", "server")])
    for n in range(3):
        rows.open(start=NOW - n * SECOND, seen=NOW, slo_class="chat", request_id=f"open-{n}")
        rows.open(start=NOW - 500 * SECOND - n, seen=NOW - 400 * SECOND, slo_class="chat" if n else "")
    rows.open(start=NOW - 9 * SECOND, seen=NOW, vantage="client")
    for _ in range(2):
        rows.open(start=NOW - 400 * SECOND, seen=NOW - 300 * SECOND, vantage="client")


def total(api, **params):
    return api("requests", start="-7d", limit=1, **params)["total"]


def test_a_total_counts_rows_and_no_weights_whatever_else_is_asked(api, rows):
    rows.requests([{"status": "error", "weight": 3.0, "instance": f"i-{n % 2}", "e2e": MS} for n in range(4)])
    assert total(api, verdict="bad") == total(api, verdict="bad", status="error") == 4
    assert [total(api, verdict="bad", **one) for one in ({"instance": "i-1"}, {"status": "ok"})] == [2, 0]
    assert api("requests", start="-7d", limit=1, verdict="bad", slo="all")["total"] == 4


@pytest.mark.parametrize("slo", ["chat", "clients"])
def test_verdicts_add_up_to_the_counts_of_the_slo(api, mixed, slo):
    counts = api(f"slos/{slo}")["requests"]
    ended = {verdict: total(api, slo=slo, verdict=verdict) for verdict in VERDICTS}
    judged_bad = (
        ended["bad"] + total(api, slo=slo, verdict="bad", status="in_flight") + total(api, slo=slo, status="lost")
    )
    assert {name: ended[name] for name in ("good", *UNJUDGED)} == {name: counts[name] for name in ("good", *UNJUDGED)}
    assert ended["unselected"] == total(api, slo=slo, status="lost", verdict="unselected") == 0
    assert sum(ended.values()) == counts["total"] == total(api, slo=slo)
    assert ended["pending"] == 0
    judged = counts["total"] - counts["excused"] - counts["undetermined"] + counts["in_flight_violations"]
    assert judged_bad == judged + counts["lost"] - counts["good"]
    assert total(api, slo=slo, status="in_flight") == counts["in_flight"]
    assert slo != "chat" or min(ended["good"], ended["bad"], ended["undetermined"], ended["excused"], judged_bad) > 0


def test_verdicts_of_all_slos_together_add_up_to_the_summary(api, mixed):
    summary = api("summary", start="-7d")
    counts = summary["requests"]
    found = {verdict: total(api, verdict=verdict) for verdict in VERDICTS}
    assert {name: found[name] for name in ("good", "undetermined", "excused")} == {
        name: counts[name] for name in ("good", "undetermined", "excused")
    }
    assert sum(found.values()) == counts["total"] == total(api)
    late = total(api, verdict="bad", status="in_flight")
    assert late == counts["in_flight_violations"]
    lost = {verdict: total(api, status="lost", verdict=verdict) for verdict in VERDICTS}
    assert {verdict: n for verdict, n in lost.items() if n} == {"bad": 3, "unselected": 2}
    assert total(api, status="lost") == counts["lost"] == 5
    assert found["unselected"] + lost["unselected"] == counts["unselected"] == 6 + 2
    assert total(api, status="in_flight") == counts["in_flight"] == 4
    assert total(api, status="in_flight", verdict="pending") == counts["in_flight"] - late - 1
    assert total(api, status="in_flight", verdict="unselected") == 1
    judged = found["good"] + found["bad"] + late + lost["bad"]
    assert summary["attainment"] == found["good"] / judged
    charted = api("timeseries", metric="attainment", step="7d", start="-7d")
    assert charted["in_flight_violations"] == late
    assert charted["points"][-1]["value"] == found["good"] / (judged - late)


@pytest.mark.parametrize("slo", ["chat", "clients"])
def test_charts_of_an_slo_have_the_requests_that_it_judges(api, mixed, slo):
    """A client's row counts for an SLO of clients, also where the server reported the request too."""

    def point(metric):
        (only,) = api("timeseries", metric=metric, step="1h", slo=slo)["points"]
        return only

    judged = api(f"slos/{slo}")
    counts = judged["requests"]
    assert point("e2e")["count"] == counts["ok"]
    for metric, n in (("requests", counts["total"]), ("goodput", counts["good"]), ("failed", counts["failed"])):
        assert point(metric)["value"] * 900 == pytest.approx(n)
    late = counts["in_flight_violations"]
    assert point("attainment")["value"] == counts["good"] / (counts["good"] / judged["attainment"] - late)


@pytest.mark.parametrize("status", [None, "in_flight", "lost"])
def test_a_rows_verdicts_are_those_that_the_filters_select_by(api, mixed, status):
    of_status = {} if status is None else {"status": status}
    everything = api("requests", start="-7d", limit=1000, vantage=["client", "server"], **of_status)["requests"]
    assert len(everything) == {None: 128, "in_flight": 4, "lost": 5}[status]
    for verdict in VERDICTS if status is None else ("good", "bad", "unselected", "pending"):
        for slo in ("chat", "clients", "all") if verdict == "bad" else ("chat",):
            params = {"start": "-7d", "limit": 1000, "slo": slo, "verdict": verdict, **of_status}
            expected = [
                row["span_id"] + row["trace_id"]
                for row in everything
                if any(found["slo"] == slo and found["verdict"] == verdict for found in row["verdicts"])
            ]
            picked = api("requests", **params)["requests"]
            assert [row["span_id"] + row["trace_id"] for row in picked] == expected, (slo, verdict)
        together = api("requests", start="-7d", limit=1000, vantage=["client", "server"], verdict=verdict, **of_status)
        assert [r["trace_id"] for r in together["requests"]] == [
            r["trace_id"] for r in everything if r["verdict"] == verdict
        ]


def test_a_missed_threshold_says_by_how_much(api, rows):
    made = rows.request(slo_class="chat", e2e=3 * SECOND, ttft_ns=750 * MS, tpot_ns=50.0 * MS)
    found = api(f"requests/{made['trace_id']}")["request"]
    assert found["verdict"] == "bad"
    assert found["verdicts"] == [
        {"slo": "chat", "verdict": "bad",
         "missed": [{"threshold": "ttft", "limit_s": 0.5, "value_s": 0.75, "over_s": 0.25}]},
        {"slo": "all", "verdict": "bad", "missed": [
            {"threshold": "ttft", "limit_s": 333333e-9, "value_s": 0.75, "over_s": pytest.approx(0.749666667)},
            {"threshold": "e2e", "limit_s": 2.0, "value_s": 3.0, "over_s": 1.0}]},
    ]  # fmt: skip
    assert api("requests")["requests"] == [found]


@pytest.mark.parametrize(("at_most_ms", "verdict"), [(None, "undetermined"), (100.0, "good"), (100.1, "undetermined")])
def test_a_tpot_that_cannot_exceed_its_threshold_is_good_and_no_other_misses_it(api, rows, at_most_ms, verdict):
    bound = None if at_most_ms is None else at_most_ms * MS
    told = {"slo_class": "chat", "output_tokens": None, "tpot_ns": None, "tpot_at_most_ns": bound}
    for status in ("ok", "cancelled"):
        rows.request(ttft_ns=1, status=status, **told)
    cancelled, ok = sorted(api("requests", slo="chat")["requests"], key=lambda row: row["status"])
    assert (ok["tpot_s"], ok["tpot_at_most_s"]) == (None, None if bound is None else pytest.approx(bound / 1e9))
    assert [row["verdicts"][0] for row in (ok, cancelled)] == [
        {"slo": "chat", "verdict": verdict, "missed": []},
        {"slo": "chat", "verdict": "excused", "missed": []},
    ]


def test_the_wait_of_one_who_left_before_the_first_token_is_its_ttft(api, rows):
    rows.request(slo_class="chat", e2e=SECOND, status="cancelled", output_tokens=0)
    (row,) = api("requests", slo="chat")["requests"]
    (found,) = (one for one in row["verdicts"] if one["slo"] == "chat")
    assert (found["verdict"], found["missed"][0]["value_s"]) == ("bad", 1.0)


def test_a_client_that_left_behind_a_first_token_at_once_missed_no_ttft(api, rows):
    rows.request(slo_class="chat", e2e=SECOND, status="cancelled", ttft_ns=0, tpot_ns=50.0 * MS)
    (row,) = api("requests", slo="chat")["requests"]
    assert [one["verdict"] for one in row["verdicts"]] == ["excused", "excused"]
    assert [miss for one in row["verdicts"] for miss in one["missed"]] == []
    assert api("slos/chat")["requests"]["excused"] == 1
    answer = api("goodput", ttft="25ms")
    assert (answer["requests"]["excused"], answer["violations"]["ttft"]) == (1, 0)
    assert answer["attainment"] is None


def test_a_request_in_flight_is_bad_as_soon_as_it_is_late(api, rows):
    late = rows.open(start=NOW - 4 * SECOND, seen=NOW - SECOND, slo_class="chat", request_id="late")
    fresh = rows.open(start=NOW - 100, seen=NOW - 50, request_id="fresh")
    gone = rows.open(start=NOW - 90 * SECOND, seen=NOW - 80 * SECOND, slo_class="chat", ttft_ns=MS)
    listed = api("requests", status="in_flight")
    assert [(row["request_id"], row["verdict"], row["status"]) for row in listed["requests"]] == [
        ("late", "bad", "in_flight"),
        ("fresh", "pending", "in_flight"),
    ]
    assert api("requests", status="in_flight", request_id="fresh")["total"] == 1
    assert listed["requests"][0]["input_tokens"] == 5
    assert listed["requests"][0]["verdicts"][0]["missed"] == [
        {"threshold": "ttft", "limit_s": 0.5, "value_s": 3.0, "over_s": 2.5}
    ]
    (lost,) = api("requests", status="lost")["requests"]
    assert (lost["trace_id"], lost["status"], lost["verdict"]) == (gone["trace_id"], "lost", "bad")
    assert lost["verdicts"][0] == {"slo": "chat", "verdict": "bad", "missed": []}
    for made, row in ((late, listed["requests"][0]), (fresh, listed["requests"][1]), (gone, lost)):
        assert api(f"requests/{made['trace_id']}")["request"] == row


def test_the_tpot_of_a_hung_request_is_its_wait_for_each_later_token(api, rows):
    rows.step(start=NOW - 50 * SECOND)
    rows.open(start=NOW - 60 * SECOND, seen=NOW - SECOND, slo_class="chat", ttft_ns=100 * MS, output_tokens=4)
    (row,) = api("requests", status="in_flight")["requests"]
    (missed,) = row["verdicts"][0]["missed"]
    assert missed == {"threshold": "tpot", "limit_s": 0.1, "value_s": 58.9 / 3, "over_s": pytest.approx(58.9 / 3 - 0.1)}


def test_open_requests_come_in_pages_oldest_first(api, rows):
    for n in range(5):
        rows.open(start=NOW - (n // 2) * SECOND, seen=NOW, request_id=str(n))
    everything = api("requests", status="in_flight")["requests"]
    assert sorted(row["start"] for row in everything) == [row["start"] for row in everything]
    first = api("requests", status="in_flight", limit=2)
    second = api("requests", status="in_flight", limit=2, cursor=first["next"])
    third = api("requests", status="in_flight", limit=2, cursor=second["next"])
    assert [*first["requests"], *second["requests"], *third["requests"]] == everything
    assert (first["total"], third["next"]) == (5, None)


def test_a_request_that_ended_between_two_windows_is_in_the_later_one(api, rows):
    rows.request(ended=NOW - 60 * SECOND)
    edge = "2026-11-21T09:59:00Z"
    windows = {"start": "-1h", "end": edge}, {"start": edge}
    for count in (
        lambda w: api("requests", **w)["total"],
        lambda w: len(api("requests", **w)["requests"]),
        lambda w: api("summary", **w)["requests"]["total"],
    ):
        assert [count(window) for window in windows] == [0, 1]
