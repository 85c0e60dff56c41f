"""The table of docs/alerts.md from the committed result of `benchmarks.alerts`. `--write` replaces it in the page."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "alerts.md"
RESULT = ROOT / "benchmarks" / "results" / "alerts.json"
_PLACE = re.compile(r"(<!-- benchmarks\.alerts_table: .*? -->\n).*?(<!-- end -->)", re.DOTALL)


def main(write: Annotated[bool, typer.Option("--write", help="Replace the table in docs/alerts.md.")] = False) -> None:
    """Print the table."""
    text = table(json.loads(RESULT.read_text())["numbers"])
    print(text)
    if write:
        PAGE.write_text(fill(PAGE.read_text(), text))


def fill(page: str, text: str) -> str:
    """The page with this table between its two marks."""
    return _PLACE.sub(lambda found: f"{found[1]}{text}{found[2]}", page)


def table(numbers: Mapping[str, Any]) -> str:
    """One row per fault: alerts with the seconds of its first and last SLO, missing ones, and wrong ones."""
    head = "| fault | seconds to the webhook | missing | unexpected |\n| --- | --- | --- | --- |\n"
    faults = {name: found for name, found in numbers.items() if isinstance(found, dict)}
    return head + "".join(
        f"| {name} | {', '.join(_fired(found['seconds'])) or 'nothing came'} | {_names(found['missing'])} "
        f"| {_names(found['unexpected'])} |\n"
        for name, found in faults.items()
    )


def _fired(seconds: Mapping[str, float]) -> Iterator[str]:
    """The rules of all SLOs together, the fastest first; their alerts are called `TokentrailSloBurn RULE SLO`."""
    by_rule: dict[str, list[int]] = defaultdict(list)
    for alert, s in seconds.items():
        by_rule[_rule(alert)].append(round(s))
    for rule, times in sorted(by_rule.items(), key=lambda item: min(item[1])):
        yield f"`{rule}` {min(times)}" + (f"–{max(times)}" if max(times) > min(times) else "")


def _rule(alert: str) -> str:
    """`page` and `ticket` stand for the burns of all SLOs; results of before name their rules."""
    return alert.split()[1] if alert.startswith("TokentrailSloBurn ") else alert


def _names(alerts: list[str]) -> str:
    return ", ".join(f"`{rule}`" for rule in sorted({_rule(alert) for alert in alerts}))


if __name__ == "__main__":
    typer.run(main)
