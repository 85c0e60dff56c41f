"""Everything that needs a GPU, one step after the other: `python -m benchmarks.gpu --results FOLDER` (`make gpu`).

A machine with a GPU may be lent for minutes and reach no package index. So this needs Python's library alone, each step
is a process with a time limit, a step that fails does not stop the next one, and all is over in nine minutes.
FOLDER gets NAME.log and the files of each step, and gpu.json with the exit status and the seconds of each.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ALL_S = 540.0


class Step(NamedTuple):
    """A command of this Python. `{results}` in its arguments is the folder."""

    name: str
    arguments: tuple[str, ...]
    limit_s: float


PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu")
STEPS = (
    Step("facts", ("-m", "benchmarks.gpu_facts"), 60),
    Step("tests", (*PYTEST, "tests/instrumented_engine/test_gpu.py"), 150),
    Step("quick", ("-m", "benchmarks.engine_gpu", "--quick", "--json", "{results}/engine_gpu_quick.json"), 90),
    Step("trace", ("-m", "benchmarks.gpu_trace", "{results}/trace"), 160),
    Step("whole", ("-m", "benchmarks.engine_gpu", "--json", "{results}/engine_gpu.json"), 240),
    Step(
        "rerun", ("-m", "benchmarks.gpu_trace", "{results}/rerun", "--without", "long_prompt", "--without", "stop"), 120
    ),
)


def main() -> int:
    """Run the steps; 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path(".gpu/results"))
    parser.add_argument("--only", nargs="*", choices=[step.name for step in STEPS])
    parser.add_argument("--cpu", action="store_true", help="try the script without a GPU: tiny shapes, no figures")
    given = parser.parse_args()
    given.results.mkdir(parents=True, exist_ok=True)
    steps = [step for step in STEPS if given.only is None or step.name in given.only]
    if given.cpu:
        steps = [step._replace(arguments=(*step.arguments, "--quick")) if step.name in ("trace", "rerun") else step
                 for step in steps if step.name != "whole"]  # fmt: skip
    end = time.monotonic() + ALL_S
    outcomes = {step.name: run(step, given.results, end - time.monotonic()) for step in steps}
    (given.results / "gpu.json").write_text(json.dumps(outcomes, indent=1) + "\n")
    return int(any(outcome["status"] for outcome in outcomes.values()))


def run(step: Step, results: Path, left_s: float) -> dict[str, object]:
    """The exit status of a step, the reason when it was cut off or not begun, and its seconds."""
    limit = min(step.limit_s, left_s)
    if limit < 5:
        return {"status": 1, "reason": "no time was left", "seconds": 0.0}
    log = results / f"{step.name}.log"
    command = [sys.executable, *(argument.format(results=results) for argument in step.arguments)]
    print(f"== {step.name} (at most {limit:.0f} s)", flush=True)
    begun, reason = time.monotonic(), ""
    with log.open("wb") as output:
        try:
            status = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, timeout=limit).returncode
        except subprocess.TimeoutExpired:
            status, reason = 1, f"cut off after {limit:.0f} s"
    seconds = round(time.monotonic() - begun, 1)
    print(log.read_text(errors="replace")[-2500:])
    print(f"-- {step.name}: status {status} {reason} after {seconds} s", flush=True)
    return {"status": status, "reason": reason, "seconds": seconds}


if __name__ == "__main__":
    sys.exit(main())
