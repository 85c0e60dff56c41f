"""SLOs that are judged in one pass, by brute force; labels that rules give; groups; gauges."""

import random

import numpy as np
import pytest
import yaml

from collector.app.service import build_api
from collector.count.summing import _places_of
from collector.slo.model import load_slos
from tests.collector.rows import NOW, SECOND
from tokentrail.shared.durations import parse_duration

MS = 1_000_000
CLASSES = ("chat", "", "batch")


@pytest.fixture
def evaluate(rows, tmp_path, ingest_status, clock):
    """The numbers of an SLO file by SLO."""

    def evaluate(slos, **others):
        path = tmp_path / "some.yaml"
        defaults = {"objective": "0.9", "window": "30d", "thresholds": {"e2e": "60s"}}
        path.write_text(
            yaml.safe_dump({"slos": [{"name": f"s{i}", **defaults, **slo} for i, slo in enumerate(slos)], **others})
        )
        live = build_api(rows.store, load_slos(path), ingest_status, lost_after_s=30.0, clock=clock)[1]
        evaluate.live = live  # type: ignore[attr-defined]
        return {slo.name: slo for slo in live._evaluate()}

    return evaluate


def test_many_slos_are_judged_as_each_alone(evaluate, rows):
    pick = random.Random(5).choice
    made = rows.requests(
        [
            {"status": pick(["ok", "ok", "error", "cancelled", "unknown"]), "e2e": pick([1, 100, 5000]) * MS,
             "ttft_ns": pick([None, 50 * MS, 90 * MS, 90 * MS + 1, 3000 * MS]), "output_tokens": pick([None, 0, 5]),
             "tpot_ns": pick([None, 10.0 * MS]), "slo_class": pick(CLASSES), "tenant": pick(["t", "u"]),
             "vantage": pick(["server", "server", "client"]), "error_type": pick(["", "bad_request"]),
             "ended": NOW - pick([1, 40, 3000]) * 60 * SECOND}
            for _ in range(400)
        ]
    )  # fmt: skip
    slos = [
        {"thresholds": {"ttft": f"{ttft}{unit}"}, "select": select, "errors": {"exclude": exclude}}
        for ttft, unit in ((50, "ms"), (90, "ms"), *((i, "ms") for i in range(91, 113)), (90000001, "ns"), (2, "s"))
        for select in (
            {},
            {"slo_class": ["chat"]},
            {"slo_class": ["chat", ""], "tenant": ["u"]},
            {"vantage": ["client"]},
        )
        for exclude in ([], ["bad_request"])
    ]
    assert len(slos) > 64
    for group in (slos, [slo for slo in slos if "ns" not in slo["thresholds"]["ttft"]]):
        found = evaluate(group)
        for i, slo in enumerate(group):
            select = {"vantage": ["server"]} | slo["select"]
            limit = parse_duration(slo["thresholds"]["ttft"])
            chosen = [r for r in made if all(r[column] in values for column, values in select.items())]
            counts = {"good": 0, "undetermined": 0, "excused": 0}
            for row in chosen:
                if (verdict := judge(row, limit, slo["errors"]["exclude"])) in counts:
                    counts[verdict] += 1
            assert found[f"s{i}"].requests.model_dump(include={"total", *counts}) == {"total": len(chosen), **counts}, (
                slo
            )


BOUNDS = [None, 0.0, *(ms * MS + ns for ms in range(10, 100, 10) for ns in (-0.5, 0.0, 0.5, 1000.0))]


@pytest.mark.parametrize("unit", ["few", "many", "ns"])
def test_a_tpot_is_judged_by_its_bound_where_it_is_not_known(evaluate, rows, unit):
    pick = random.Random(7).choice
    made = rows.requests(
        [{"tpot_ns": (tpot := pick([None, *BOUNDS])), "tpot_at_most_ns": pick(BOUNDS) if tpot is None else None,
          "status": pick(["ok", "ok", "ok", "cancelled", "unknown"]), "output_tokens": pick([None, 5])}
         for _ in range(400)]
    )  # fmt: skip
    few, many, fractions = ["30ms", "60ms"], [f"{ms}ms" for ms in range(4, 100, 3)], ["30000001ns", "60ms"]
    limits = {"few": few, "many": many, "ns": fractions}[unit]
    found = evaluate([{"thresholds": {"tpot": limit}} for limit in limits])
    for i, limit in enumerate(map(parse_duration, limits)):
        counts = {"good": 0, "undetermined": 0, "excused": 0}
        for row in made:
            tpot, at_most = row["tpot_ns"], row["tpot_at_most_ns"]
            if tpot is not None and tpot > limit:
                continue
            is_known = tpot is not None or (at_most is not None and at_most <= limit)
            is_good = row["status"] == "ok" and is_known
            counts["excused" if row["status"] == "cancelled" else "good" if is_good else "undetermined"] += 1
        assert found[f"s{i}"].requests.model_dump(include={*counts}) == counts, limit
    assert found["s0"].requests.good > found["s0"].requests.undetermined > 0 or unit == "many"


def test_thresholds_that_microseconds_of_32_bits_do_not_hold_are_judged_by_nanoseconds(evaluate, rows):
    longest = 4_294_967_295_000
    made = [longest // 2, longest, 3 * longest // 2, 2 * longest]
    rows.requests([{"e2e": e2e, "ended": NOW - 3 * 3600 * SECOND, "ttft_ns": MS} for e2e in made])
    limits = [3_600_000_000_000 + n * 60 * SECOND for n in range(60)]
    found = evaluate([{"thresholds": {"e2e": f"{limit}ns"}} for limit in limits])
    good = [sum(e2e <= limit for e2e in made) for limit in limits]
    assert [found[f"s{i}"].requests.good for i in range(len(limits))] == good
    assert {*good} == {1, 2, 3}


def judge(row, limit, exclude):
    """As docs/slos.md says, for a threshold of TTFT alone."""
    none = row["ttft_ns"] is None and row["output_tokens"] == 0
    waited = row["e2e_ns"] if none and row["status"] == "cancelled" else row["ttft_ns"]
    is_late = waited is not None and waited > limit
    match row["status"]:
        case "error":
            return "excused" if row["error_type"] in exclude else "bad"
        case "cancelled":
            return "bad" if is_late else "excused"
    if is_late:
        return "bad"
    is_known = row["ttft_ns"] is not None or none
    return "good" if row["status"] == "ok" and is_known else "undetermined"


def test_rules_give_labels_to_requests_that_carry_none(evaluate, rows, api):
    rules = [
        {"when": {"model": ["coder"], "operation": ["chat"]}, "slo_class": "completion"},
        {"when": {"engine": ["vllm"]}, "slo_class": "chat", "tenant": "acme"},
    ]
    rows.requests([{"model": "coder"}, {"engine": "vllm"}, {"engine": "vllm", "slo_class": "batch"}, {}])
    rows.open(start=NOW - 90 * SECOND, seen=NOW, engine="vllm", model="coder")
    selects = [{"slo_class": ["chat"]}, {"slo_class": ["completion"]}, {"slo_class": [""]}, {"tenant": ["acme"]}]
    found = evaluate([{"select": select} for select in selects], labels=rules)
    totals = [(slo.requests.total, slo.requests.in_flight_violations) for slo in found.values()]
    assert totals == [(1, 0), (1, 1), (1, 0), (2, 1)]
    rules = [{"when": {"model": ["coder"]}, "slo_class": "completion"}, {"when": {"model": ["m"]}, "tenant": "acme"}]
    found = evaluate([{"select": selects[1]}, {"select": selects[3]}], labels=rules)
    assert [slo.requests.total for slo in found.values()] == [1, 3]


def test_one_slo_is_a_promise_to_each_tenant(evaluate, rows):
    rows.requests([{"tenant": "a"}] * 5 + [{"tenant": "b", "status": "error"}] * 4 + [{"tenant": "c"}])
    rows.open(start=NOW - 90 * SECOND, seen=NOW, tenant="a")
    slo = evaluate([{"group_by": ["tenant"], "most_groups": 2}])["s0"]
    assert slo.requests.total == 10
    assert {g.tenant: (g.requests.total, g.requests.in_flight_violations, g.attainment) for g in slo.groups} == {
        "a": (5, 1, 5 / 6), "b": (4, 0, 0.0),
    }  # fmt: skip
    live = evaluate.live
    rows.requests([{"tenant": t, "segment": "s-1", "ingested_at": NOW} for t in ("a", "a", "b", "c")])
    live.counters.on_segment("s-1")
    live.refresh()
    (by_labels,) = [v for m, v in live.counters._series.counters.items() if m.name == "tokentrail_slo_requests_total"]
    groups = {group: n for (_, group), n in by_labels.items()}
    assert (groups[""], sum(groups.values()), len(groups)) == (0, 5, 4)
    assert all(groups[tenant] == {"a": 3, "b": 1, "c": 1}[tenant] for tenant in groups.keys() - {"", "other"})


def test_a_tenants_burn_counts_what_arrives(evaluate, rows):
    late = {"tenant": "b", "status": "error", "ended": NOW - 7200 * SECOND, "ingested_at": NOW - SECOND}
    rows.requests([{"tenant": "a"}] * 5 + [late] * 4)
    slo = evaluate([{"group_by": ["tenant"], "objective": "0.9"}])["s0"]
    assert {g.tenant: g.burn[0].short_burn for g in slo.groups} == {"a": 0.0, "b": 10.0}
    assert slo.burn[0].short_burn == pytest.approx(10 * 4 / 9)


def test_groups_are_the_tenants_with_the_most_requests_that_ended_and_that_the_slo_selects(evaluate, rows):
    chat = {"slo_class": "chat"}
    rows.requests(
        [chat | {"tenant": "a"}] * 2 + [chat | {"tenant": "b"}] + [{"tenant": "b"}, {"tenant": "other class"}] * 5
    )
    for _ in range(4):
        rows.open(start=NOW - 9 * SECOND, seen=NOW, slo_class="chat", tenant="c")
    grouped = [{"select": {"slo_class": ["chat"]}, "group_by": ["tenant"], "most_groups": n} for n in (1, 3)]
    found = evaluate(grouped)
    assert [[g.tenant for g in slo.groups] for slo in found.values()] == [["a"], ["a", "b", "c"]]
    assert [slo.groups_total for slo in found.values()] == [3, 3]
    assert [(g.requests.total, g.requests.in_flight) for g in found["s1"].groups] == [(2, 0), (1, 0), (0, 4)]


def test_each_group_has_the_numbers_of_an_slo_for_its_tenant_alone(evaluate, rows):
    some, not_ended = random.Random(3), {1: 0, 60: 0}
    for _ in range(80):
        tenant, ago = some.choice("abcdef"), some.choice([20, 250, 4000, 80_000, 500_000]) * SECOND
        if some.random() < 0.3:
            silent_s = some.choice([1, 60])
            not_ended[silent_s] += 1
            rows.open(tenant=tenant, start=NOW - ago - 60 * SECOND, seen=NOW - silent_s * SECOND)
        else:
            status = some.choice(["ok", "ok", "error", "cancelled", "unknown"])
            rows.request(tenant=tenant, ended=NOW - ago, e2e=some.choice([1, 90]) * SECOND, status=status)
    grouped = evaluate([{"group_by": ["tenant"]}])["s0"]
    alone = evaluate([{"select": {"tenant": [tenant]}} for tenant in "abcdef"])
    for group, slo in zip(grouped.groups, alone.values(), strict=True):
        numbers = group.model_dump(exclude={"tenant"})
        assert numbers == slo.model_dump(include=numbers.keys())
    assert sum(group.requests.in_flight_violations for group in grouped.groups) == not_ended[1]
    assert sum(group.requests.in_flight for group in grouped.groups) == not_ended[1] > 0
    assert sum(group.requests.lost for group in grouped.groups) == not_ended[60] > 0


class Compared(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    times = 0

    def __lt__(self, other):
        Compared.times += 1
        return str.__lt__(self, other)

    def __eq__(self, other):
        Compared.times += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_tenant_is_not_looked_for_among_the_cells_of_all_tenants():
    """With 200 tenants, 30,000 cells and five SLOs, that took two seconds of each answer."""
    tenants = np.array([Compared(f"t{i % 100}") for i in range(2000)], object)
    found = _places_of(tenants)
    assert Compared.times < 50 * len(tenants)
    assert {tenant: places.tolist() for tenant, places in found.items()} == {
        f"t{i}": [*range(i, 2000, 100)] for i in range(100)
    }
    assert _places_of(np.empty(0, object)) == {}


def test_a_group_of_sampled_requests_has_its_own_error(evaluate, rows):
    rows.requests([{"tenant": "a", "weight": 2.5}, {"tenant": "b"}])
    slo = evaluate([{"group_by": ["tenant"]}])["s0"]
    assert (slo.requests.total, slo.errors.requests_total) == (3.5, pytest.approx(3.75**0.5))
    sampled, whole = slo.groups
    assert sampled.errors.requests_total == pytest.approx(3.75**0.5)
    assert whole.errors is None, "each of its requests was recorded"


def test_a_tenant_whose_first_request_is_under_way_has_a_group(evaluate, rows):
    rows.open(start=NOW - 90 * SECOND, seen=NOW, tenant="new")
    (group,) = evaluate([{"group_by": ["tenant"]}])["s0"].groups
    assert (group.tenant, group.requests.in_flight_violations, group.attainment) == ("new", 1, 0.0)


def test_a_tenant_with_a_long_name_counts_with_the_others_and_has_no_gauges(evaluate, rows):
    evaluate([{"group_by": ["tenant"]}])
    longest = "t" * 1024
    tenants = ("a", longest, "t" * 1025, "t" * 1026)
    rows.requests([{"tenant": t, "segment": "s-1", "ingested_at": NOW} for t in tenants])
    live = evaluate.live
    live.counters.on_segment("s-1")
    live.refresh()
    (by_labels,) = [v for m, v in live.counters._series.counters.items() if m.name == "tokentrail_slo_requests_total"]
    assert {group: n for (_, group), n in by_labels.items()} == {"": 0, "a": 1, longest: 1, "other": 2}
    attained = {f.name: f for f in _gauges(live)}["tokentrail_slo_attainment_ratio"]
    assert {s.labels["tenant"] for s in attained.samples} == {"", "a", longest}


def test_an_slo_that_selects_nothing_says_so_with_counts(evaluate, rows):
    rows.requests([{"slo_class": "chat"}] * 3 + [{"slo_class": "chat", "ended": NOW - 90_000 * SECOND}])
    found = evaluate([{}, {"select": {"slo_class": ["x", "y"]}}, {"select": {"vantage": ["client"]}}])
    assert (found["s0"].selected_last_day, found["s0"].ended_last_day, found["s0"].warning) == (3, 3, None)
    warning = found["s1"].warning
    assert warning.startswith(
        "The SLO selected 0 of 3 requests of the last day: none has slo_class in (x, y), vantage in (server)."
    )
    assert warning.endswith("change `select` or `labels` in the SLO file.")
    assert "vantage in (client)" in found["s2"].warning
    gauges = {f.name: f for f in _gauges(evaluate.live)}
    values = {s.labels["slo"]: s.value for s in gauges["tokentrail_slo_selected_requests"].samples}
    assert values == {"s0": 3, "s1": 0, "s2": 0}
    assert gauges["tokentrail_slo_candidate_requests"].samples[0].value == 3


def test_an_slo_whose_only_request_is_under_way_or_lost_has_no_warning(evaluate, rows):
    rows.requests([{"slo_class": "other"}] * 5)
    rows.open(start=NOW - 5 * SECOND, seen=NOW - SECOND, slo_class="runs")
    rows.open(start=NOW - 300 * SECOND, seen=NOW - 200 * SECOND, slo_class="lost")
    found = evaluate([{"select": {"slo_class": [name]}} for name in ("runs", "lost", "none")])
    assert [found[name].warning is None for name in ("s0", "s1", "s2")] == [True, True, False]


@pytest.mark.parametrize(("ago", "burns"), [("2d", True), ("4d", False)])
@pytest.mark.parametrize("groups", [{}, {"group_by": ["tenant"]}])
def test_a_request_that_was_lost_before_the_longest_window_of_a_rule_burns_nothing(evaluate, rows, ago, burns, groups):
    rows.requests([{"tenant": "a", "ended": NOW - 5 * SECOND}, {"tenant": "b", "e2e": 120 * SECOND}])
    began = NOW - parse_duration(ago)
    rows.open(start=began, seen=began + SECOND, tenant="a")
    slo = evaluate([groups])["s0"]
    assert (slo.requests.lost, slo.requests.tally.bad) == (1, 2)
    longest = max(slo.burn, key=lambda burn: burn.long_s)
    assert longest.long_s == 3 * 86400
    assert longest.long_burn == pytest.approx((2 / 3 if burns else 1 / 2) / 0.1)
    for tenant, bad in zip(slo.groups, [1 / 2 if burns else 0, 1], strict=False):
        burn = max(tenant.burn, key=lambda burn: burn.long_s)
        assert burn.long_burn == pytest.approx(bad / 0.1), tenant.tenant


def test_an_slo_that_can_judge_one_of_its_requests_has_no_warning(evaluate, rows):
    rows.requests([{"ttft_ns": None}] * 5 + [{"ttft_ns": 1}])
    assert evaluate([{"thresholds": {"ttft": "1s"}}])["s0"].warning is None


def test_what_cannot_be_judged_says_why(evaluate, rows):
    rows.requests([{"ttft_ns": None}] * 2)
    slo = evaluate([{"thresholds": {"ttft": "1s"}}])["s0"]
    assert slo.attainment is None
    assert slo.warning.startswith(
        "None of 2 requests of the last day can be judged: their source does not report ttft."
    )


def test_gauges_say_what_rules_need_without_arithmetic(evaluate, rows):
    rows.requests([{}] * 95 + [{"status": "error"}] * 5)
    slo = evaluate([{"owner": "ana", "team": "serving"}])["s0"]
    gauges = {f.name: f for f in _gauges(evaluate.live)}

    def value(name):
        return gauges[f"tokentrail_slo_{name}"].samples[0].value

    assert value("objective_ratio") == 0.9
    assert value("attainment_ratio") == slo.attainment == 0.95
    assert value("budget_left_ratio") == slo.budget_left == 0.5
    assert value("exhaustion_seconds") == slo.exhausted_in_s == pytest.approx(30 * 86400 * 0.5 / 0.5)
    burn = {s.labels["window"]: s.value for s in gauges["tokentrail_slo_burn_rate"].samples}
    assert burn == dict.fromkeys(("1m", "5m", "20m", "30m", "1h", "2h", "6h", "1d", "3d"), 0.5)
    info = gauges["tokentrail_slo_info"].samples[0].labels
    assert info == {"slo": "s0", "hash": slo.hash, "owner": "ana", "team": "serving"}
    assert evaluate([{"owner": "bo"}])["s0"].hash == slo.hash
    assert evaluate([{"objective": "0.91"}])["s0"].hash != slo.hash


def _gauges(live):
    live.refresh()
    return live.families[1]
