"""The table of docs/tradeoffs.md from the result of `benchmarks.tradeoffs`. `--write` replaces it in the page."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import numpy as np
import typer
import yaml

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tradeoffs.md"
RESULT = ROOT / "benchmarks" / "results" / "tradeoffs.json"
TECHNIQUES = Path(__file__).with_suffix("").with_name("tradeoffs.yaml")
METRICS = ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "itl_p99", "output_tokens_per_s", "goodput_per_s")
T_975 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t for an interval of 95 %, by degrees of freedom from 1 on."""


def main(
    write: Annotated[bool, typer.Option("--write", help="Replace the table in docs/tradeoffs.md.")] = False,
) -> None:
    """Print the table."""
    text = table(json.loads(RESULT.read_text()), yaml.safe_load(TECHNIQUES.read_text()))
    print(text)
    if write:
        PAGE.write_text(fill(PAGE.read_text(), text))


def fill(page: str, text: str, name: str = "benchmarks.tradeoffs_page") -> str:
    """The page with this text between the two marks of a module."""
    place = re.compile(rf"(<!-- {re.escape(name)}: .*? -->\n).*?(<!-- end -->)", re.DOTALL)
    return place.sub(lambda match: f"{match[1]}{text}{match[2]}", page)


def compared(runs: list[dict[str, Any]], techniques: Mapping[str, Any]) -> dict[str, Any]:
    """For each technique its values over all runs, and the ratios to the technique that it is compared with."""
    by_name: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in techniques}
    for run in runs:
        by_name.setdefault(run["technique"], {})[run["repetition"]] = run
    logs = {metric: _logs(by_name, metric) for metric in METRICS}
    spreads = {metric: _spread([*logs[metric].values()]) for metric in METRICS}
    by_technique = {}
    for name, technique in techniques.items():
        by_repetition, other = by_name[name], technique.get("against", "baseline")
        both = sorted(by_repetition.keys() & by_name[other].keys())
        if by_repetition:
            by_technique[name] = {
                "repetitions": len(by_repetition),
                "requests": sum(run["requests"] for run in by_repetition.values()),
                "values": _values([*by_repetition.values()]),
                "ratios": {m: _ratio(logs[m][name], logs[m][other], spreads[m]) for m in METRICS},
                "same_answers": _same([(by_repetition[i]["answers"], by_name[other][i]["answers"]) for i in both]),
            }
    return by_technique


def _logs(by_name: Mapping[str, Mapping[int, dict[str, Any]]], metric: str) -> dict[str, dict[int, float]]:
    """The logarithm of a metric by technique and repetition, where it is known and not 0."""
    values = {name: {i: _values([run])[metric] for i, run in runs.items()} for name, runs in by_name.items()}
    return {name: {i: math.log(value) for i, value in known.items() if value} for name, known in values.items()}


def _values(runs: list[dict[str, Any]]) -> dict[str, float | None]:
    """Exact percentiles over the requests of runs, and means of rates."""
    ttft = np.concatenate([run["ttft_s"] for run in runs])
    tpot = np.concatenate([run["tpot_s"] for run in runs])
    values = {
        f"{name}_p{q}": float(np.percentile(rows, q)) if len(rows) else None
        for name, rows in (("ttft", ttft), ("tpot", tpot))
        for q in (50, 99)
    }
    for name, key in (("itl_p99", "itl_p99_s"), ("kv_peak", "kv_peak")):
        known = [run[key] for run in runs if run[key] is not None]
        values[name] = max(known, default=None)
    for name in ("output_tokens_per_s", "goodput_per_s", "memory_mib", "preemptions"):
        values[name] = fmean(run[name] for run in runs)
    return values


# Two techniques, with 0.10, 0.20, 0.40 and 0.05, 0.12, 0.22 in three repetitions. Ratios are 0.5, 0.6, 0.55: the mean
# of their logarithms is -0.60. Technique and repetition leave 0.065 unexplained with 2 degrees of freedom: t is 4.303,
# and the ratio 0.55 with an interval from 0.44 to 0.69. Twenty techniques give 38 degrees, and t is 2.02.
def _spread(logs: list[dict[int, float]]) -> tuple[float, int]:
    """The standard deviation of one run, and its degrees of freedom: a randomized block design without interaction.

    Repetitions are the blocks. Of an unfinished one, the part with more degrees of freedom counts: it without the
    techniques that lack it, or they without it. Formula: D. C. Montgomery, Design and Analysis of Experiments,
    chapter "Randomized Blocks".
    """
    best = (math.nan, 0)
    repetitions = sorted({i for one in logs for i in one})
    for count in range(2, len(repetitions) + 1):
        rows = np.array(
            [[one[i] for i in repetitions[:count]] for one in logs if one.keys() >= set(repetitions[:count])]
        )
        freedom = (len(rows) - 1) * (count - 1)
        if freedom > best[1]:
            left = rows - rows.mean(axis=1, keepdims=True) - rows.mean(axis=0, keepdims=True) + rows.mean()
            best = (math.sqrt(float((left**2).sum()) / freedom), freedom)
    return best


def _ratio(logs: Mapping[int, float], base: Mapping[int, float], spread: tuple[float, int]) -> dict[str, float | None]:
    """The geometric mean of the repetitions' ratios and its 95 % interval; None where it is not known."""
    differences = [logs[i] - base[i] for i in logs.keys() & base.keys()]
    if not differences:
        return {"ratio": None, "low": None, "high": None}
    mean, (deviation, freedom) = fmean(differences), spread
    if len(differences) < 2 or freedom < 1:
        return {"ratio": math.exp(mean), "low": None, "high": None}
    margin = _t_975(freedom) * deviation * math.sqrt(2 / len(differences))
    return {"ratio": math.exp(mean), "low": math.exp(mean - margin), "high": math.exp(mean + margin)}


def _t_975(freedom: int) -> float:
    """Student's t for an interval of 95 %. Beyond the table, Abramowitz and Stegun, 26.7.5, is exact to 0.003."""
    if freedom <= len(T_975):
        return T_975[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _same(pairs: list[tuple[list[str], list[str]]]) -> float | None:
    """Share of the answers that are the same text."""
    same = [one == other for ours, theirs in pairs for one, other in zip(ours, theirs, strict=True)]
    return fmean(same) if same else None


def table(report: Mapping[str, Any], techniques: Mapping[str, Any]) -> str:
    """The values of each technique, and the claims beside the measured ratios."""
    numbers = report["numbers"]
    measured = numbers["techniques"]
    text = (
        f"{numbers['rate_per_s']:.2f} requests/s, {numbers['requests']} a run, {report['machine']['cores']} cores "
        f"of {report['machine']['cpu']}, load before it {report['machine']['load_1m']}. Goodput: TTFT ≤ "
        f"{numbers['thresholds'][0]} and TPOT ≤ {numbers['thresholds'][1]}.\n\n"
        "| technique | runs, requests | TTFT p50, p99 | TPOT p50, p99 | ITL p99 | tokens/s | good requests/s | KV peak "
        "| memory | same answers |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
    )
    for name, one in measured.items():
        v = one["values"]
        text += (
            f"| {name} | {one['repetitions']}, {one['requests']} | {_s(v['ttft_p50'])}, {_s(v['ttft_p99'])} "
            f"| {_ms(v['tpot_p50'])}, {_ms(v['tpot_p99'])} | {_ms(v['itl_p99'])} | {v['output_tokens_per_s']:.1f} "
            f"| {v['goodput_per_s']:.2f} | {_percent(v['kv_peak'])} | {v['memory_mib']:.0f} MiB "
            f"| {_percent(one['same_answers'])} |\n"
        )
    text += "\n| technique | claim | here, as a ratio (95 %) | why |\n| --- | --- | --- | --- |\n"
    for name, technique in techniques.items():
        if technique["claim"] and name in measured:
            ratios = measured[name]["ratios"]
            here = "<br>".join(judged(metric, side, ratios[metric]) for metric, side in technique["expect"].items())
            against = technique.get("against", "baseline")
            text += f"| {name}, against {against} | {technique['claim']} | {here} | {technique['why'].strip()} |\n"
    return text


def judged(metric: str, side: str, ratio: Mapping[str, float | None]) -> str:
    """A ratio with its interval, and whether the claim held: the whole interval must lie on the claim's side of 1."""
    mean, low, high = ratio["ratio"], ratio["low"], ratio["high"]
    label = metric.replace("_", " ")
    if mean is None:
        return f"{label}: –"
    if low is None or high is None:
        return f"{label} {mean:.2f}: one run decides nothing"
    held = (high < 1) if side == "<" else (low > 1)
    against = (low > 1) if side == "<" else (high < 1)
    verdict = "held" if held else "the opposite" if against else "not decided"
    return f"{label} {mean:.2f} ({low:.2f}–{high:.2f}): {verdict}"


def _s(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value * 1000:.0f} ms"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.0f} %"


if __name__ == "__main__":
    typer.run(main)
