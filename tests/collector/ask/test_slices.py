"""Counts of ended requests over many days, by any thresholds, equal those of a loop over all rows."""

import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from collector.ask.queries import Queries
from collector.ask.slices import slices
from collector.count.population import read_ended
from collector.slo.cells import Cells
from collector.slo.model import Promise, Thresholds
from collector.sql.fragment import TRUE, Fragment
from tests.collector.rows import NOW, SECOND

DAY = 86_400 * SECOND
MS = 1_000_000
HOUR = 3600 * SECOND


def population(n, seed=3, days=9):
    """Requests of many days, with latencies around the thresholds, values that are absent, and some on a day's edge."""
    draw = random.Random(seed)
    midnight = NOW // DAY * DAY
    edges = [midnight - d * DAY + by for d in range(days) for by in (-1, 0, 1)]
    rows = []
    for i in range(n):
        tokens = draw.choice([None, 0, 1, 2, 50])
        ttft = None if tokens == 0 else draw.choice([None, 1, 500 * MS - 1, 500 * MS, 500 * MS + 1, 10**9, 2 * HOUR])
        tpots = [0.4, 1e8 - 0.5, 1e8, 100000000.00000001 + 1e-7, 1e8 + 0.5, 1e9, 2.0 * HOUR]
        tpot = draw.choice([None, None, *tpots]) if tokens is None or tokens > 1 else None
        may_have_one = tpot is None and (tokens is None or tokens > 1)
        rows.append({
            "ended": edges[i] if i < len(edges) else NOW - draw.randrange(1, days * DAY),
            "status": draw.choice(["ok", "ok", "ok", "error", "cancelled"]), "output_tokens": tokens, "ttft_ns": ttft,
            "tpot_ns": tpot, "tpot_at_most_ns": draw.choice([None, 0.0, *tpots]) if may_have_one else None,
            "e2e": draw.choice([MS, MS + 1, HOUR * 2]),
        })  # fmt: skip
    return rows


@pytest.fixture(scope="module")
def stored(module_store):
    from tests.collector.rows import Rows

    rows = Rows(module_store)
    rows.clear()
    made = rows.requests(population(800))
    return Queries(module_store), made


def judged_by_hand(row, thresholds):
    """The outcome, as docs/slos.md says, and the thresholds that are missed."""
    tokens = 2 if row["output_tokens"] is None else row["output_tokens"]
    values = {"ttft": row["ttft_ns"], "tpot": row["tpot_ns"], "e2e": row["e2e_ns"]}
    if row["status"] == "cancelled" and tokens == 0:
        values["ttft"] = row["e2e_ns"]
    late = {name for name, ns in thresholds.given().items() if values[name] is not None and values[name] > ns}
    needed = {"ttft": 1, "tpot": 2, "e2e": 0}
    unknown = {n for n in thresholds.given() if values[n] is None and tokens >= needed[n]}
    if row["tpot_at_most_ns"] is not None and row["tpot_at_most_ns"] <= (thresholds.tpot or 0):
        unknown -= {"tpot"}
    if late or row["status"] == "error":
        return "bad", late
    if row["status"] == "cancelled":
        return "excused", late
    return "undetermined" if unknown else "good", late


@pytest.mark.parametrize(
    "given",
    [
        {"ttft": "500ms", "tpot": "100ms"},
        {"ttft": "500ms", "e2e": "1ms"},
        {"ttft": "499999999ns", "tpot": "100ms"},  # a fraction of a microsecond
        {"ttft": "500000001ns", "e2e": "1000001ns"},
        {"tpot": "99999999ns"},
        {"ttft": "2h", "tpot": "2h", "e2e": "2h"},  # more than 32 bits of microseconds
        {"ttft": "1h59m", "tpot": "1h59m"},
        {"ttft": "1ns", "tpot": "1ns"},
        {"ttft": "4294967294us"},
        {"ttft": "4294967293us", "e2e": "4294967293us"},
        {"e2e": "71m"},
    ],
)
def test_a_verdict_is_that_of_a_loop_over_all_rows(stored, given):
    queries, made = stored
    thresholds = Thresholds.model_validate(given)
    by_hand = [judged_by_hand(row, thresholds) for row in made]
    cells = Cells([Promise.to_all(thresholds)])
    found = read_ended(queries, TRUE, cells, slices([NOW + DAY, NOW - 20 * DAY]))
    outcomes = found.judged.of_all_slos()
    for name in ("good", "undetermined", "excused", "bad"):
        assert found.count(getattr(outcomes, name)) == sum(outcome == name for outcome, _ in by_hand)
    for name, ns in thresholds.given().items():
        assert found.count(found.judged.missed(name, ns)) == sum(name in late for _, late in by_hand)


@pytest.mark.parametrize(
    "ages_ns",
    [
        [9 * DAY],
        [5 * 60 * SECOND, HOUR, 3 * DAY, 8 * DAY],
        [DAY + 1, DAY + 2, 5 * DAY - 1],
        [NOW % DAY, NOW % DAY + 3 * DAY],
        [NOW % DAY + 1, NOW % DAY + 4 * DAY - 1],
        [2 * DAY],
    ],
)
@pytest.mark.parametrize("end", [NOW, NOW - 30 * HOUR, NOW // DAY * DAY, NOW // DAY * DAY - DAY + 1])
def test_a_band_holds_what_ended_in_it_however_the_days_lie(stored, ages_ns, end):
    queries, made = stored
    moments = [end, *(end - age for age in ages_ns)]
    ended = read_ended(queries, TRUE, Cells([]), slices(moments), sums={"tokens": "output_tokens"})
    found = ended.by_band({"n": ended.judged.of_all_slos().total})
    for band in range(1, len(moments)):
        inside = [row for row in made if moments[band] <= row["end"] < moments[band - 1]]
        row = found.get(band, {"n": 0, "tokens": None})
        assert row["n"] == len(inside), band
        known = [r["output_tokens"] for r in inside if r["output_tokens"] is not None]
        assert row["tokens"] == (sum(known) if known else None)


@pytest.mark.parametrize("others", ["0", "count()"])
def test_cells_of_many_buckets_take_little_memory(stored, others, monkeypatch):
    """Forty SLOs have 500 cells in a bucket. A series of thirty days pushed out what other answers had remembered."""
    sizes, remembered = [], Queries.remembered

    def measured(self, question, reads, answer, size, *now):
        found = remembered(self, question, reads, answer, size, *now)
        sizes.append(size(found))
        return found

    monkeypatch.setattr(Queries, "remembered", measured)
    queries, made = stored
    bucket = Fragment("toUnixTimestamp64Nano(end)")
    parts = [replace(one, band=bucket) for one in slices([NOW, NOW - 9 * DAY])]
    sums = {"tokens": "output_tokens"} if others == "0" else {}
    ended = read_ended(queries, TRUE, Cells([]), parts, sums=sums, others=Fragment(others))
    assert len(ended.n) > 700
    assert len(ended.others) == len(ended.n)
    assert sum(sizes) < 40 * len(ended.n)
    assert sorted(ended.band.tolist()) == sorted(row["end"] for row in made if NOW - 9 * DAY <= row["end"] < NOW)


def test_whole_days_are_read_by_partition_and_the_rest_by_time():
    midnight = NOW // DAY * DAY
    whole, rest = slices([midnight + HOUR, midnight - 4 * DAY - HOUR])
    first, last = (datetime.fromtimestamp(t // SECOND, UTC).strftime("%Y%m%d") for t in (midnight - 4 * DAY, midnight))
    assert whole.ended.parameters == {"day1_first": first, "day1_last": last}
    assert "_partition_id" not in rest.ended.sql
    assert [one.hours for one in slices([midnight + HOUR, midnight - 2 * DAY])] == [
        (midnight // HOUR - 48, midnight // HOUR - 24), (midnight // HOUR - 24, midnight // HOUR), None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("moments", "expected"),
    [
        ([10.5, 0], [(0, 10), None]),
        ([10.5, 0.1], [(1, 10), None]),
        ([10, 6], [(6, 10)]),
        ([10, 6.1], [None]),
        ([30, 20.5], [(24, 30), None]),  # three hours of the first day are few
        ([30.5, 10, 1], [(10, 24), (24, 30), (1, 10), None]),
        ([24 * 5 + 4, 20], [(20, 24), (24, 24 * 5), (24 * 5, 24 * 5 + 4)]),
        ([1, 1], [None]),
    ],
)
def test_whole_hours_of_a_day_are_slices_of_their_own(moments, expected):
    midnight = NOW // DAY * 24
    found = [one.hours for one in slices([midnight * HOUR + int(hours * HOUR) for hours in moments])]
    assert found == [one and (midnight + one[0], midnight + one[1]) for one in expected]
    assert all(one.hours is None for one in slices([NOW, NOW - 2 * DAY], "steps", "start"))


def test_days_that_share_the_last_partition_are_read_by_time():
    (rest,) = slices([6_000_000_000 * SECOND, 5_700_000_000 * SECOND])
    assert "_partition_id" not in rest.ended.sql


def test_a_filter_applies_to_days_and_the_rest(stored):
    queries, made = stored
    errors = Fragment("status = {wanted:String}", {"wanted": "error"})
    found = read_ended(queries, errors, Cells([]), slices([NOW, NOW - 9 * DAY]), sums={"tokens": "output_tokens"})
    inside = [row for row in made if row["status"] == "error" and NOW - 9 * DAY <= row["end"] < NOW]
    failed = found.judged.of_all_slos().total
    assert found.count(failed) == len(inside)
    assert found.total("tokens", failed) == sum(row["output_tokens"] or 0 for row in inside)
    assert found.total("tokens", ~failed) is None
