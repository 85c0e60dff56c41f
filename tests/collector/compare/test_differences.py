"""`/differences`: a planted value, a planted pair, or nothing."""

import math
import re
from bisect import bisect_right
from collections import Counter
from dataclasses import replace
from io import StringIO
from statistics import NormalDist

import numpy as np
import pytest
from fastapi.testclient import TestClient
from rich.console import Console

from benchmarks.differences import HOW, PLANTED, SIZES, Drawn, draw, judged, plant
from collector.app.service import build_api
from collector.base.status import IngestStatus
from collector.causes.answer.arrivals import AT_ARRIVAL
from collector.compare.candidates import Met, candidates, told
from collector.compare.exact import tail_z
from collector.compare.telling import Sides, Table, Trait, chosen
from collector.numbers.values import DIMENSIONS
from collector.slo.model import load_slos
from tests.collector.rows import NOW, SECOND
from tests.support.keys import access_to, add_key
from tokentrail.cli.differences import show
from tokentrail.shared.formatting import percent

MS = 1_000_000


@pytest.fixture
def differences(api):
    return lambda **params: api("differences", slo="chat", **{k.replace("__", "."): v for k, v in params.items()})


def _traffic(rng, n, bad, **fields):
    """Requests of mixed kinds, of which `bad(row)` is the probability to miss the TTFT."""
    rows = []
    for i in range(n):
        row = {
            "ended": NOW - 1 - i * 800 * SECOND // n, "e2e": 3 * SECOND, "slo_class": "chat", "tpot_ns": 1e7,
            "model": rng.choice(["llama", "qwen", "phi"]), "tenant": f"t{rng.integers(8)}",
            "variant": rng.choice(["v1", "v2"]), "instance": f"i-{rng.integers(6)}",
            "input_tokens": int(rng.integers(1, 4000)), "output_tokens": int(rng.integers(2, 300)),
            "cached_tokens": None, "engine": "vllm", **fields,
        }  # fmt: skip
        row["engine"] = "sglang" if row["model"] == "phi" else "vllm"
        rows.append({**row, "ttft_ns": 900 * MS if rng.random() < bad(row) else 100 * MS})
    return rows


def _first(answer):
    return (
        {(c["dimension"], c["value"]) for c in answer["differences"][0]["conditions"]}
        if answer["differences"]
        else None
    )


def test_a_planted_value_is_first_and_what_it_implies_stands_behind_it(differences, rows):
    rng = np.random.default_rng(1)
    made = rows.requests(_traffic(rng, 2000, lambda r: 0.4 if r["model"] == "phi" else 0.02))
    got = differences()
    assert _first(got) == {("model", "phi")}
    (only,) = got["differences"]
    assert only["also"] == ["engine sglang"]
    bad = [r for r in made if r["ttft_ns"] > 500 * MS]
    assert got["selected"] == len(bad)
    assert got["others"] == 2000 - len(bad)
    assert isinstance(got["others"], int)
    phi = sum(r["model"] == "phi" for r in bad)
    assert only["selected"] == {"requests": phi, "share": pytest.approx(phi / len(bad))}
    of_others = sum(r["model"] == "phi" for r in made) - phi
    assert only["others"]["requests"] == of_others
    assert only["lift"] == pytest.approx(phi / len(bad) / (of_others / got["others"]))
    assert only["p"] < 1e-6
    assert " of the selected requests have model phi, " in got["summary"]
    show(Console(width=200, file=(output := StringIO())), got)
    first, _, line = output.getvalue().splitlines()
    assert first == got["summary"]
    assert line.startswith("model phi")
    assert f"{percent(only['selected']['share'])} ({phi})" in line
    assert "< 0.001" in line
    assert line.rstrip().endswith("engine sglang")


def test_the_store_counts_a_draw_of_the_benchmark_as_the_benchmark_does(api, rows):
    """By TTFT a pair is planted, by TPOT long answers, by the longest gap nothing. One of three counts four times."""
    random = np.random.default_rng(3)
    traffic, (pair, answers) = draw(random, 2500), (PLANTED[name] for name in ("model and variant", "output_tokens"))
    unknown = dict.fromkeys(("cause", *AT_ARRIVAL), np.zeros(2500, bool))  # in a store without steps and causes
    traffic = replace(traffic, known={**traffic.known, **unknown})
    weight = random.choice([1.0, 1.0, 4.0], 2500)
    bad = {
        metric: plant(random, traffic, planted, size).bad
        for metric, planted, size in (("ttft", pair, 0.6), ("tpot", answers, 0.3), ("gap", (), 0))
    }
    rows.requests([_row(traffic, i, weight[i], {metric: of[i] for metric, of in bad.items()}) for i in range(2500)])
    for metric, planted in (("ttft", pair), ("tpot", answers), ("gap", ())):
        drawn = Drawn.of(traffic, bad[metric], weight)
        found, everything, tried = told(drawn.rows(), drawn.edges, drawn.count_met)
        got = api("differences", metric=metric, at_least="600ms")
        assert judged(found, planted) == "first"
        assert (got["selected"], got["others"], got["tried"]) == (everything.selected, everything.others, tried)
        wanted = [one.model_dump(mode="json") for one in found]
        assert got["differences"] == [one | {"p": pytest.approx(one["p"])} for one in wanted]
    assert got["summary"].startswith("none of the recorded dimensions differs beyond chance: ")


def _row(traffic, i, weight, bad):
    """A request of a draw as `Rows` takes it; a latency is 900 ms if it is bad."""
    text = {name: traffic.values[name][of[i]] for name, of in traffic.texts.items()}
    number = {name: of[i] for name, of in traffic.numbers.items()}
    waits = ("batch", "kv", "tokens", "priority")
    plain = [name for name in DIMENSIONS if name in text]
    return {name: text[name] for name in plain} | {
        **{f"wait_{name}_ns": 5 if text["longest_wait"] == name else None for name in waits},
        "ended": NOW - 1 - i * 300_000_000, "weight": weight,
        "labels": {name: text[f"label.{name}"] for name in ("region", "app") if text[f"label.{name}"]},
        "preemptions": int(text["preempted"] == "yes") if traffic.known["preempted"][i] else None,
        "cold_start_ns": 7 if text["cold_start"] else None, "input_tokens": int(number["input_tokens"]),
        "output_tokens": int(number["output_tokens"]) or 9,
        "cached_tokens": round(number["cached_share"] * number["input_tokens"]),
        **{f"{metric}_ns": 900 * MS if is_bad else 100 * MS for metric, is_bad in bad.items()},
    }  # fmt: skip


def _arrivals(rng, planted):
    """800 requests to a process of its own, with its steps: of each what it met, and whether it misses its TTFT."""
    steps = [
        (NOW - 860 * SECOND + i * SECOND // 2, int(rng.integers(64)), int(rng.integers(1000))) for i in range(1700)
    ]
    if planted == "silence":  # the process tells no more steps for the last 400 s
        steps = steps[:800]
    starts = sorted(NOW - 2 * SECOND - int(s * SECOND) for s in rng.random(800) * 800)
    busy, rows, met = None, [], []
    for start in starts:
        last = steps[bisect_right(steps, start, key=lambda step: step[0]) - 1]
        if last[0] < start - 60 * SECOND:
            last = (0, None, None)
        idle = None if busy is None else max(start - busy, 0) / SECOND
        one = {"batch_at_arrival": last[1], "kv_usage_at_arrival": last[2] and last[2] / 1000, "idle_time": idle}
        after_idle = (idle or 0) > 1
        by = {"batch": (last[1] or 0) >= 50, "kv": (last[2] or 0) >= 800, "silence": last[1] is not None}
        by |= dict.fromkeys(("idle", "sampled", "held"), after_idle)
        bad = rng.random() < (0.7 if by.get(planted) else 0.4 if planted == "cause" else 0.03)
        busy = start + SECOND
        row = {"ended": start + SECOND, "ttft_ns": 900 * MS if bad else 100 * MS, "tenant": planted, "service": planted}
        rows.append(
            row | {"slo_class": "chat", "tpot_ns": 1e7, "output_tokens": int(rng.integers(2, 12)), "input_tokens": 9}
        )
        met.append(one)
    if planted == "sampled":
        rows[0]["weight"] = 2.0
    return rows, met, steps


_PLANTED = ("batch", "kv", "idle", "cause", "held", "silence", "sampled")


def _plant(rng, rows, kinds):
    """Return what each request met and whether it is bad, by kind."""
    told = {}
    for planted in kinds:
        made, met, steps = _arrivals(rng, planted)
        made = rows.requests(made)
        base = rows.step_row(start=0, service=planted) | {"kv_blocks_total": 1000}
        rows.insert("steps", [base | {"start": at, "running": n, "kv_blocks_used": kv} for at, n, kv in steps])
        told[planted] = [(one, row["ttft_ns"] > 500 * MS) for one, row in zip(met, made, strict=True)]
        if planted == "held":  # one request has not ended, so the process is never idle
            rows.open(start=NOW - 860 * SECOND, seen=NOW - SECOND, service=planted, tenant=planted)
        if planted == "cause":  # most bad ones waited for KV; what took longer took it of all
            waits = [40_000 if bad and rng.random() < 0.9 else 0 for _, bad in told[planted]]
            rows.all_causes(
                [
                    (row, {"ttft_wait_kv_us": us, "ttft_others_prompts_us": 90_000,
                           "rest_batch_us": 9_000 * (row["output_tokens"] - 1)})
                    for row, us in zip(made, waits, strict=True)
                ]
            )  # fmt: skip
    return told


def test_what_requests_met_is_found_by_a_bound_and_what_is_not_known_is_never_blamed(
    differences, rows, slos_file, tmp_path, monkeypatch
):
    """Also where most bad requests came while the process told what it did, or some were sampled away."""
    met = _plant(np.random.default_rng(11), rows, _PLANTED)
    for planted in ("batch", "kv", "idle"):
        first = differences(tenant=planted)["differences"][0]
        ((name, value),) = {(c["dimension"], c["value"]) for c in first["conditions"]}
        number, unit = re.fullmatch(r"at least ([\d.]+)(| %| s| ms)", value).groups()
        bound = float(number) / {"": 1, " %": 100, " s": 1, " ms": 1000}[unit]
        assert name.startswith(planted)
        for side, is_bad in (("selected", True), ("others", False)):
            n = sum(one[name] is not None and one[name] >= bound for one, bad in met[planted] if bad is is_bad)
            assert first[side]["requests"] == pytest.approx(n, abs=3)
    first = differences(tenant="cause")["differences"][0]
    assert first["conditions"] == [{"dimension": "cause", "value": "waiting for KV"}]
    assert first["selected"]["share"] > 0.8
    assert first["others"]["requests"] == 0
    for planted in ("held", "silence", "sampled"):
        got = differences(tenant=planted)
        assert (got["differences"], got["not_asked"]) == ([], [])
    key = add_key(tmp_path / "keys.json", "read", "batch")
    app, _ = build_api(
        rows.store, load_slos(slos_file), IngestStatus(), lost_after_s=30.0, clock=lambda: NOW,
        access=access_to(tmp_path / "keys.json"),
    )  # fmt: skip
    answer = TestClient(app).get("/api/v1/differences", params={"slo": "chat"}, headers=key).json()
    assert (answer["differences"], answer["selected"] > 100) == ([], True), "its process serves all tenants"
    for name in ("REQUESTS", "STEPS"):
        with monkeypatch.context() as fewer:
            fewer.setattr(f"collector.compare.differences.MOST_{name}", 100)
            got, output = differences(tenant="cause"), StringIO()
        assert (got["differences"], got["not_asked"][-1]) == ([], "cause")
        show(Console(width=200, file=output), got)
        assert "not compared: batch_at_arrival, kv_usage_at_arrival, idle_time, cause" in output.getvalue()


def test_an_empty_side_has_nothing_to_compare(differences, rows):
    assert differences()["summary"] == "there is nothing to compare: 0 selected and 0 other requests"
    rows.requests(_traffic(np.random.default_rng(5), 30, lambda r: 0.0))
    got = differences()
    assert (got["selected"], got["others"], got["differences"]) == (0, 30, [])


def test_a_rectangle_of_time_and_latency_is_compared_with_all_others(differences, rows):
    rng = np.random.default_rng(6)
    made = rows.requests(
        _traffic(rng, 2000, lambda r: 0.9 if r["tenant"] == "t3" and r["ended"] > NOW - 200 * SECOND else 0.02)
    )
    got = differences(metric="ttft", at_least="600ms", select__start="-200s")
    chosen = [r for r in made if r["ttft_ns"] >= 600 * MS and r["end"] >= NOW - 200 * SECOND]
    assert (got["selected"], got["others"]) == (len(chosen), 2000 - len(chosen))
    assert _first(got) == {("tenant", "t3")}
    upper = differences(metric="ttft", at_most="100ms")
    assert upper["selected"] == sum(r["ttft_ns"] <= 100 * MS for r in made)
    until = differences(select__end="-200s")
    assert until["selected"] == sum(r["end"] < NOW - 200 * SECOND for r in made)


def test_failed_requests_are_selected_by_their_status(differences, rows):
    rng = np.random.default_rng(7)
    made = _traffic(rng, 1000, lambda r: 0.0)
    failed = [
        {**r, "status": "error", "error_type": "queue_full" if r["tenant"] == "t1" else "timeout"} for r in made[:400]
    ]
    rows.requests([*failed, *made[400:]])
    got = differences(select__status="error")
    assert (got["selected"], got["others"]) == (400, 600)
    assert any(
        "status error" in text
        for d in got["differences"]
        for text in [*d["also"], f"status {d['conditions'][0]['value']}"]
    )


def test_a_selection_that_is_half_given_is_refused(api, rows):
    ask = lambda **params: api.client.get("/api/v1/differences", params=params)  # noqa: E731
    assert ask(at_least="500ms").status_code == 400
    assert "give a metric with at_least or at_most" in ask(metric="ttft").text
    assert ask(slo="gone").status_code == 404


def test_hostile_values_arrive_as_data(differences, rows):
    rng = np.random.default_rng(9)
    name = "a' OR 1=1 -- {x:String} \\ \n"
    rows.requests(_traffic(rng, 800, lambda r: 0.5, tenant=name) + _traffic(rng, 800, lambda r: 0.02))
    got = differences()
    assert _first(got) == {("tenant", name)}


def test_the_bound_of_a_number_is_its_exact_quantile_of_however_many_requests(differences, rows):
    """A quantile of a sample was another one each time that the question was asked."""
    rows.requests(_traffic(np.random.default_rng(4), 1, lambda r: 0))
    rows.store.client().command(
        "INSERT INTO requests SELECT requests.* REPLACE (toFixedString(unhex(hex(number + 1)), 16) AS trace_id,"
        " number AS input_tokens, if(number >= 18000, 900000000, 100000000) AS ttft_ns)"
        " FROM requests, numbers(20000) AS n"
    )
    edge = np.quantile(np.arange(20_000), 0.9)
    (first, *_) = differences()["differences"]
    assert first["conditions"] == [
        {"dimension": "input_tokens", "value": f"at least {edge:,.0f}".replace(",", "\u202f")}
    ]


def test_a_number_is_counted_on_both_sides_of_each_edge_where_it_is_known():
    counts = {"0": (1, 10), "1": (2, 20), "2": (4, 40), "-1": (8, 80)}
    rows = [{"name": "n", "value": value, "selected": one, "others": rest} for value, (one, rest) in counts.items()]
    found = {one.condition.value: one for one in candidates(rows, {"n": [100, 900]})}
    sides = {value: (one.selected, one.others) for value, one in found.items()}
    assert sides == {
        "at least 100": (6, 60),
        "less than 100": (1, 10),
        "at least 900": (4, 40),
        "less than 900": (3, 30),
    }
    assert {one.among for one in found.values()} == {Sides(7, 70)}


def test_all_values_and_the_pairs_of_the_best_count_as_tried():
    random = np.random.default_rng(1)
    drawn = plant(random, draw(random), PLANTED["input_tokens"], 0.25)
    best = []

    def count_met(of):
        best.extend(of)
        return drawn.count_met(of)

    _, _, tried = told(drawn.rows(), drawn.edges, count_met)
    assert tried == len([*candidates(drawn.rows(), drawn.edges)]) + len(best) * (len(best) - 1) / 2
    assert max(Counter(one.condition.dimension for one in best).values()) == 3


@pytest.mark.parametrize("how", ["", "sampled", "waiting"])
def test_what_is_planted_into_any_dimension_or_pair_is_first_and_nothing_is_nothing(how):
    """Three seeds, without a store; `python -m benchmarks.differences` has 200."""
    answers = Counter()
    for seed in range(3):
        traffic = draw(random := np.random.default_rng(seed))
        for name, planted in PLANTED.items():
            if not how or how in HOW.get(name, ()):
                drawn = plant(random, traffic, planted, SIZES[len(planted)][0], how)
                found, _, _ = told(drawn.rows(), drawn.edges, drawn.count_met)
                answers[judged(found, planted)] += 1
                if how == "waiting":
                    assert found[1].conditions == [Trait(dimension="longest_wait", value="batch")]
    assert answers["first"] >= 0.95 * answers.total(), answers


@pytest.mark.parametrize(
    ("dimension", "bad_by", "first"),
    [
        ("tenant", "both", {0, 1}),
        ("kv_usage_at_arrival", "both", {0, 1}),
        ("kv_usage_at_arrival", "variant", {0}),
        ("kv_usage_at_arrival", "cache", {0}),
        ("preempted", "both", {0}),
    ],
)
def test_a_variant_is_told_with_what_its_requests_met_if_both_make_them_bad(dimension, bad_by, first):
    """Where one of them does, the variant fills the cache. What follows from being bad stands in no pair before it."""
    random = np.random.default_rng(5)
    variant = random.random(4000) < 0.25
    full = random.random(4000) < np.where(variant & (bad_by != "both"), 0.9, 0.3)
    hit = {"both": variant & full, "cache": full, "variant": variant}[bad_by]
    bad = random.random(4000) < np.where(hit, 0.5, 0.03)
    conditions = [Trait(dimension="variant", value="v2"), Trait(dimension=dimension, value="at least 80 %")]
    table = Table(np.stack([variant, full], axis=1), bad.astype(float), (~bad).astype(float))
    found = chosen(table, {"selected": table.selected, "others": table.others}, conditions, 100)
    assert {conditions.index(trait) for trait in found[0].conditions} == first


def test_an_attribute_for_which_no_line_is_left_does_not_stand_behind_a_consequence():
    group = np.arange(4000) % 10
    bad = group < 5
    met = np.stack([*(group == i for i in range(5)), bad], axis=1)
    conditions = [Trait(dimension=f"d{i}", value="x") for i in range(5)] + [Trait(dimension="cause", value="stall")]
    table = Table(met, bad.astype(float), (~bad).astype(float))
    found = chosen(table, {"selected": table.selected, "others": table.others}, conditions, 20)
    assert [one.conditions[0].dimension == "cause" for one in found] == [False, False, False, True]
    assert found[-1].also == []


def test_two_proportions_are_told_apart_as_by_yates():
    """From 2 × 2 tables: 30 of 100 beside 10 of 100 is z = 3.35 with Yates' correction and the total less 1."""
    z = Sides(100, 100).z(np.array([30.0, 10.0, 0.0]), np.array([10.0, 30.0, 0.0]))
    assert z[0] == pytest.approx(-z[1])
    assert z[0] == pytest.approx((30 - 20 - 0.5) / np.sqrt(20 * 100 / 200 * 160 / 199))
    assert z[2] == 0


@pytest.mark.parametrize("sizes", [(0, 0), (None, 3), (7, None)])
def test_prompts_without_tokens_and_without_a_known_share_are_answered(differences, rows, sizes):
    chats = {"slo_class": "chat", "tpot_ns": 1e7, "input_tokens": sizes[0], "cached_tokens": sizes[1]}
    for tenant, ttft in (("a", 900 * MS), ("b", 100 * MS)):
        rows.requests([{**chats, "tenant": tenant, "ttft_ns": ttft}] * 40)
    assert _first(differences()) == {("tenant", "a")}


def test_of_two_that_the_same_requests_meet_the_more_specific_one_is_told(differences, rows):
    for model, service, ttft in (("x", "s", 900 * MS), ("y", "t", 100 * MS)):
        rows.requests([{"slo_class": "chat", "tpot_ns": 1e7, "model": model, "service": service, "ttft_ns": ttft}] * 40)
    (only,) = differences()["differences"]
    assert (only["conditions"], only["also"]) == ([{"dimension": "model", "value": "x"}], ["service s"])
    rows.clear()
    failed = {"status": "error", "error_type": "queue_full"}
    for own in (failed, {}):
        rows.requests([{"slo_class": "chat", "tpot_ns": 1e7, "ttft_ns": 100 * MS, **own}] * 40)
    (only,) = differences()["differences"]
    assert only["conditions"] == [{"dimension": "error_type", "value": "queue_full"}]


@pytest.mark.parametrize("values", [("a", "b", "c"), ("c", "b", "a"), ("b", "c", "a")])
def test_which_of_those_that_the_same_requests_meet_is_told_depends_on_no_value(values):
    """The store has the values of equal counts in the order of their names."""
    named = dict(zip(("label.zone", "label.region", "slo_class"), values, strict=True))
    sides = {"selected": 90.0, "others": 10.0}
    rows = [{"name": "model", "value": "m", "selected": 100.0, "others": 900.0}]
    rows += [{"name": name, "value": value, **sides} for name, value in named.items()]
    rest = {"selected": 10.0, "others": 890.0}
    rows += [{"name": name, "value": f"not {value}", **rest} for name, value in named.items()]
    rows.sort(key=lambda row: (-row["selected"], row["value"]))

    def count_met(best):
        met = np.array([[one.bound in values or one.bound == "m" for one in best], [one.bound == "m" for one in best]])
        counts = np.array([90.0, 10.0]), np.array([10.0, 890.0])
        return Met(met, *counts, *counts)

    (first,), *_ = told(rows, {}, count_met)
    assert [one.dimension for one in first.conditions] == ["label.region"]
    assert first.also == [f"label.zone {named['label.zone']}", f"slo_class {named['slo_class']}"]


def test_the_tail_of_a_rare_value_is_exact():
    """8 of 30 bad requests have a value that 95 of 2,000 have: a normal variable would say 4e-7."""
    p = 2 * (1 - NormalDist().cdf(tail_z([(8, 30, 95, 2000)])))
    total = math.comb(2000, 30)
    of = [math.comb(95, k) * math.comb(1905, 30 - k) / total for k in range(31)]
    assert p == pytest.approx(2 * (sum(of[9:]) + of[8] / 2), rel=1e-3)
    assert 1e-5 < p < 2e-4
    halves = tail_z([(4, 15, 47, 1000), (4, 15, 48, 1000)])
    assert halves == pytest.approx(tail_z([(8, 30, 95, 2000)]), abs=0.05), "strata that are alike say the same"
    assert tail_z([(0, 30, 95, 2000)]) < 0


def test_bad_sessions_blame_no_tenant():
    """Each bad session counts as one."""
    tenant = np.arange(100) % 10 < 7
    bad = np.arange(100) % 3 == 0
    sides = bad.astype(float), (~bad).astype(float)
    met = Met(tenant[:, None], *sides, *sides)
    assert met.table(4.0).selected.sum() == pytest.approx(bad.sum() / 4)


def _blamed(minute, bad, values, by_time=True):
    """What is told of one dimension whose values are 0 and 1. `minute`: that of each request."""
    sides = bad.astype(float), (~bad).astype(float)
    rows = [
        {"name": name, "value": value, "selected": float(sides[0][of].sum()), "others": float(sides[1][of].sum())}
        for name, value, of in [("model", "m", bad >= 0), *(("tenant", str(one), values == one) for one in (0, 1))]
    ]

    def count_met(best):
        met = np.stack(
            [(values == int(one.bound)) if one.sign == "=" and one.bound != "m" else bad >= 0 for one in best]
        )
        return Met(met.T, *sides, *sides, block=minute if by_time else None)

    return [one.conditions[0].value for one in told(rows, {}, count_met)[0]]


@pytest.mark.parametrize(
    ("usual", "then", "after", "bad_of_it", "told_by_time"),
    [
        (0.4, 0.7, 0.4, 0.5, []),  # common when all were bad: as bad as the others
        (0.4, 0.7, 0.4, 0.9, ["1"]),  # and worse than they
        (0.1, 0.7, 0.1, 0.5, ["1"]),  # a burst
        (0.0, 1.0, 1.0, 0.5, ["1"]),  # a version that took all traffic
        (0.4, 0.4, 0.4, 0.9, ["1"]),  # as common as ever
    ],
)
def test_what_was_common_in_a_bad_moment_is_not_blamed_for_it(usual, then, after, bad_of_it, told_by_time):
    """6,000 requests of an hour, which are bad for six minutes."""
    rng, minute = np.random.default_rng(1), np.arange(6000) // 100
    moment = (minute >= 30) & (minute < 36)
    values = (rng.random(6000) < np.where(moment, then, np.where(minute < 30, usual, after))).astype(int)
    bad = rng.random(6000) < np.where(moment, np.where(values, bad_of_it, 0.5), 0.02)
    assert _blamed(minute, bad, values) == told_by_time
    assert _blamed(minute, bad, values, by_time=False) == ["1"]
    table = Table(values[:, None] > 0, bad * 1.0, ~bad * 1.0, minute)
    assert not table.is_of_its_time(values > 0, 10**99) or usual < then, "whatever was tried"


def test_the_store_counts_requests_by_their_minute(differences, rows):
    """In an hour of which six minutes are bad, a tenant has most requests of these."""
    made = []
    for i in range(1200):
        moment = 600 <= i < 720
        bad = (i % 2 == 0) if moment else i % 60 == 0
        tenant = "a" if i * 37 % 100 < (75 if moment else 40) else "b"
        made.append(
            {"ended": NOW - 1 - (1200 - i) * 3 * SECOND, "e2e": 2 * SECOND, "slo_class": "chat", "tpot_ns": 1e7,
             "tenant": tenant, "ttft_ns": (900 if bad else 100) * MS}
        )  # fmt: skip
    rows.requests(made)
    asked = {"start": "-1h", "end": "now"}
    assert differences(**asked)["differences"] == []
    assert _first(differences(**asked, select__start="-31m", select__end="-24m")) == {("tenant", "a")}
