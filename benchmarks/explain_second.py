"""How well causes are found at an engine of another shape: quadratic prompts, padded batches, short chunks, drafts.

Each fault (tests/support/second_engine.py) runs with three seeds. `right` says whether nothing else is blamed, the
largest cause is the fault, its size is within what is promised, and the culprit is named by all who waited for it.
"""

from __future__ import annotations

from typing import Any

import typer

from benchmarks.explain import SEEDS, seconds
from benchmarks.report import JsonPath, Quick, publish
from collector.causes.split.names import PARTS, load_causes
from collector.causes.split.requests import UNKNOWN_US
from tests.support.second_engine import LAW, SHOWN, explained, victims_of, worst_of


def main(quick: Quick = False, json: JsonPath = None) -> None:
    """Run all of them. It takes 3 minutes of one core; --quick is one seed."""
    numbers: dict[str, Any] = {}
    for name in SHOWN:
        runs = [one_run(name, seed) for seed in SEEDS[: 1 if quick else 3]]
        numbers[name] = {key: [run[key] for run in runs] for key in runs[0]}
        print(f"{name:42} {numbers[name]}", flush=True)
    rights = [right for one in numbers.values() for right in one["right"]]
    numbers["right_share"] = sum(rights) / len(rights)
    publish("explain_second", numbers, packages=("numpy",), quick=quick, path=json)


def one_run(name: str, seed: int) -> dict[str, Any]:
    """What one fault added and what was found, the largest cause of it, the culprit, and whether all is right."""
    case = SHOWN[name](seed, LAW)
    found = explained(case)
    times = seconds(found).sum(0)
    unusual = {cause: float(times[PARTS.index(cause)]) for cause in ("drift", "stall", "slower", "drafts")}
    false_s = sum(value for cause, value in unusual.items() if cause not in case.causes)
    found_s, injected_s = sum(unusual[cause] for cause in case.causes), float(case.injected.sum() / 1e9)
    largest = max(case.causes, key=lambda cause: unusual[cause]) if case.causes else None
    fact = found.slower
    named = [worst_of(case, victim) == case.culprit for victim in victims_of(case)]
    right = [
        false_s < 0.01 * times.sum(),
        largest is None or load_causes()[largest].group in case.top,
        abs(found_s - injected_s) <= case.within * injected_s,
        (fact.kind if fact else None) == (case.slower[0] if case.slower else None),
        all(named),
    ]
    return {
        "cause": largest,
        "injected_s": round(injected_s, 2),
        "found_s": round(found_s, 2),
        "error_s": round(float(found.error_us[found.error_us != UNKNOWN_US].sum()) / 1e6, 2),
        "false_share": float(false_s / times.sum()),
        "unexplained_share": float(times[-1] / times.sum()),
        "slower": [fact.kind, round(fact.ratio, 3), round(fact.low, 3), round(fact.high, 3)] if fact else None,
        "culprit_named": f"{sum(named)} of {len(named)}" if named else None,
        "right": all(right),
    }


if __name__ == "__main__":
    typer.run(main)
