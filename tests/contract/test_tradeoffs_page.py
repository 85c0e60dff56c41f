"""The tables of docs/tradeoffs.md: ratios with their intervals, and when a claim counts as held."""

import math

import pytest
import yaml

from benchmarks import batch_curve
from benchmarks.tradeoffs_page import METRICS, PAGE, TECHNIQUES, _t_975, compared, fill, judged, table
from instrumented_engine.__main__ import read_settings

KNOWN = {"baseline": {"claim": "", "why": ""}, "int8": {"claim": "c", "why": " w ", "expect": {"tpot_p50": "<"}}}


def run(technique, repetition, tpot, **more):
    return {
        "technique": technique, "repetition": repetition, "requests": 4, "answers": ["a", "b", "c", "d"],
        "ttft_s": [0.1, 0.2, 0.3, 0.4], "tpot_s": [tpot] * 4, "itl_p99_s": 0.5, "output_tokens_per_s": 10.0,
        "goodput_per_s": 1.0, "memory_mib": 100.0, "preemptions": 0, "kv_peak": None,
    } | more  # fmt: skip


def ratio(low, high):
    return {"ratio": math.sqrt(low * high), "low": low, "high": high}


@pytest.mark.parametrize(
    ("side", "low", "high", "verdict"),
    [
        ("<", 0.5, 0.9, "held"), ("<", 0.5, 1.0, "not decided"), ("<", 1.0, 1.5, "not decided"),
        ("<", 1.1, 1.5, "the opposite"), (">", 1.1, 1.5, "held"), (">", 0.9, 1.5, "not decided"),
        (">", 0.5, 0.9, "the opposite"),
    ],
)  # fmt: skip
def test_a_claim_held_when_the_whole_interval_is_on_its_side(side, low, high, verdict):
    assert judged("tpot_p50", side, ratio(low, high)).endswith(f"({low:.2f}–{high:.2f}): {verdict}")


def test_one_run_and_no_run_decide_nothing():
    assert judged("itl_p99", "<", {"ratio": 0.5, "low": None, "high": None}) == "itl p99 0.50: one run decides nothing"
    assert judged("itl_p99", "<", {"ratio": None, "low": None, "high": None}) == "itl p99: –"


def test_ratios_are_of_the_same_repetition_and_have_students_interval():
    runs = [run("baseline", i, tpot) for i, tpot in enumerate((0.1, 0.2, 0.4))]
    runs += [run("int8", i, tpot) for i, tpot in enumerate((0.05, 0.12, 0.22))]
    found = compared(runs, KNOWN)["int8"]
    tpot = found["ratios"]["tpot_p50"]
    assert tpot["ratio"] == pytest.approx((0.5 * 0.6 * 0.55) ** (1 / 3))
    assert (tpot["low"], tpot["high"]) == (pytest.approx(0.4366, abs=1e-3), pytest.approx(0.6879, abs=1e-3))
    assert found["ratios"]["ttft_p50"] == {"ratio": 1, "low": 1, "high": 1}
    assert found["ratios"].keys() == set(METRICS)
    assert (found["repetitions"], found["requests"], found["same_answers"]) == (3, 12, 1)


def test_all_techniques_tell_how_much_runs_differ():
    tpot = {"baseline": (0.1, 0.2), "int8": (0.05, 0.11), "int4": (0.04, 0.08), "bf16": (0.07, 0.15)}
    runs = [run(name, i, value) for name, values in tpot.items() for i, value in enumerate(values)]
    ratios = compared(runs, {name: {"claim": "", "why": ""} for name in tpot})
    found = ratios["int8"]["ratios"]["tpot_p50"]
    logs = {name: [math.log(value) for value in values] for name, values in tpot.items()}
    slopes = [after - before for before, after in logs.values()]
    mean = sum(slopes) / 4
    deviation = math.sqrt(sum((slope - mean) ** 2 / 2 for slope in slopes) / 3)  # 3 degrees of freedom
    margin = math.exp(3.182 * deviation)
    assert found["ratio"] == pytest.approx(math.sqrt(0.5 * 0.55))
    assert (found["low"], found["high"]) == (
        pytest.approx(found["ratio"] / margin),
        pytest.approx(found["ratio"] * margin),
    )


def test_a_technique_without_a_value_or_a_run_does_not_hide_how_much_the_others_differ():
    runs = [run(name, i, value * (1 + i / 9)) for name, value in (("baseline", 0.1), ("int8", 0.05)) for i in range(3)]
    whole = compared(runs, KNOWN)["int8"]["ratios"]["tpot_p50"]
    more = KNOWN | {"late": {}, "mute": {}}
    runs += [run("late", 0, 0.3), *(run("mute", i, 0.1, tpot_s=[]) for i in range(3))]
    assert compared(runs, more)["int8"]["ratios"]["tpot_p50"] == whole
    assert compared([*runs, run("baseline", 3, 0.2)], more)["int8"]["ratios"]["tpot_p50"] == whole
    assert compared(runs, more)["late"]["ratios"]["tpot_p50"]["low"] is None
    assert compared(runs, more)["mute"]["ratios"]["tpot_p50"]["ratio"] is None


@pytest.mark.parametrize(("freedom", "t"), [(1, 12.71), (9, 2.262), (10, 2.228), (38, 2.024), (1000, 1.962)])
def test_students_t(freedom, t):
    assert _t_975(freedom) == pytest.approx(t, abs=3e-3)


def test_a_repetition_without_its_baseline_is_no_ratio():
    runs = [run("baseline", 0, 0.1), run("int8", 0, 0.05), run("int8", 1, 0.9, answers=["x"] * 4)]
    found = compared(runs, KNOWN)["int8"]
    assert found["ratios"]["tpot_p50"] == {"ratio": pytest.approx(0.5), "low": None, "high": None}
    assert (found["repetitions"], found["same_answers"]) == (2, 1)
    assert "20 of 30" not in compared(runs, KNOWN | {"20 of 30": {}})


def test_percentiles_are_over_the_requests_of_all_repetitions():
    runs = [run("baseline", 0, 0.1), run("baseline", 1, 0.1, ttft_s=[0.9], tpot_s=[], kv_peak=0.5, memory_mib=300.0)]
    values = compared(runs, KNOWN)["baseline"]["values"]
    assert values["ttft_p50"] == pytest.approx(0.3)
    assert (values["tpot_p50"], values["kv_peak"], values["memory_mib"]) == (pytest.approx(0.1), 0.5, 200)
    nothing = compared([run("baseline", 0, 0.1, tpot_s=[])], KNOWN)["baseline"]["values"]
    assert nothing["tpot_p99"] is nothing["kv_peak"] is None


def test_the_table_has_a_dash_for_what_is_unknown():
    runs = [run("baseline", 0, 0.1), run("int8", 0, 0.05, tpot_s=[])]
    numbers = {"rate_per_s": 0.5, "requests": 4, "thresholds": ["1s", "100ms"], "techniques": compared(runs, KNOWN)}
    text = table({"numbers": numbers, "machine": {"cores": 2, "cpu": "X", "load_1m": 0.1}}, KNOWN)
    assert "| int8 | 1, 4 | 0.25 s, 0.40 s | –, – | 500 ms | 10.0 | 1.00 | – | 100 MiB | 100 % |" in text
    assert "| int8, against baseline | c | tpot p50: – | w |" in text
    assert "| baseline, against" not in text


def test_the_place_in_the_page():
    page = "a\n<!-- benchmarks.x: m -->\nold\n<!-- end -->\nb\n<!-- benchmarks.y: m -->\nkept\n<!-- end -->\n"
    assert fill(page, "new\\1\n", "benchmarks.x") == page.replace("old", "new\\1")
    assert fill(PAGE.read_text(), "x") != PAGE.read_text() != fill(PAGE.read_text(), "x", "benchmarks.batch_curve")


def test_the_curve_is_told_in_multiples_of_batch_1():
    numbers = {}
    for size, tokens, tpot in ((1, 20.0, 0.05), (8, 100.0, 0.08)):
        values = {"requests": 6, "output_tokens_per_s": tokens, "tpot_p50_s": tpot, "tpot_p99_s": 2 * tpot}
        values |= {"ttft_p50_s": 0.1, "ttft_p99_s": 0.2}
        numbers |= {f"batch_{size}_{key}": value for key, value in values.items()}
    text = batch_curve.table({"numbers": numbers, "machine": {"cores": 2, "cpu": "X"}})
    assert "| 1 | 6 | 20.0 (1.0×) | 50 (1.0×), 100 ms | 0.10, 0.20 s |\n" in text
    assert text.endswith("| 8 | 6 | 100.0 (5.0×) | 80 (1.6×), 160 ms | 0.10, 0.20 s |\n")


def test_each_technique_has_flags_that_the_engine_takes():
    for name, technique in yaml.safe_load(TECHNIQUES.read_text()).items():
        assert read_settings([*technique["flags"]]) is not None, name
        assert read_settings([*technique.get("prefill_flags", [])]) is not None, name
        assert technique["why"]
        assert bool(technique["claim"]) == (name != "baseline")
        assert set(technique.get("expect", {})) <= set(METRICS)
        assert set(technique.get("expect", {}).values()) <= {"<", ">"}
