"""The pages of docs/, their marks and what is made for each mark; `__main__.py` describes them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from tests.contract.commands import each_command
from tests.contract.reference import api, commands, data, settings
from tests.contract.reference.text import BLOCK, linked, marks_in

ROOT: Final = Path(__file__).parents[3]
PAGES: Final = tuple(sorted((ROOT / "docs").rglob("*.md")))


def main() -> int:
    """Write the blocks of all pages, or with --check say which are old or absent. 1 if any is."""
    parser = argparse.ArgumentParser("python -m tests.contract.reference")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a block is old or absent")
    check = parser.parse_args().check
    problems = [*absent(page.read_text() for page in PAGES)]
    for page in PAGES:
        old = page.read_text()
        new = filled(old, page.name)
        if new != old and check:
            problems.append(f"{page.relative_to(ROOT)} is old: run python -m tests.contract.reference")
        elif new != old:
            page.write_text(new)
    sys.stderr.write("".join(f"{problem}\n" for problem in problems))
    return int(bool(problems))


def filled(text: str, page: str) -> str:
    """The text of a page, with its blocks made anew. `page` is the page's name, to which links are relative."""
    return BLOCK.sub(lambda block: f"{block[1]}{linked(made(block[2], text), page)}{block[3]}", text)


def absent(texts: Iterable[str]) -> Iterator[str]:
    """What no page has a block for, in words that say how to add it."""
    marks = {mark for text in texts for mark in marks_in(text)}
    wanted = [("docs/api.md", mark) for mark in ("endpoints", "parameters", *api.operations())]
    wanted += [("docs/metrics.md", f"metrics {section}") for section in settings.SECTIONS]
    wanted += [("docs/cli.md", "commands")]
    yield from (
        f"{page}: write <!-- reference: {mark} --> and <!-- end -->" for page, mark in wanted if mark not in marks
    )
    told = {name for mark in marks if mark.startswith("options ") for name in mark.split()[1:]}
    with_options = {
        name.split()[1]
        for name, command in each_command()
        if any(any(commands.option(parameter)) for parameter in command.params)
    }
    yield from (f"docs/cli.md: add {name} to a mark <!-- reference: options … -->" for name in with_options - told)


def made(mark: str, page: str) -> str:
    """The block of a mark. Raises ValueError for a mark that is not known."""
    kind, _, name = mark.partition(" ")
    if mark in api.operations():
        return api.endpoint(mark, page)
    if kind not in _MAKERS:
        msg = f"nothing is made for {mark!r}: it is no endpoint, and none of {', '.join(_MAKERS)}"
        raise ValueError(msg)
    return _MAKERS[kind](name, page)


_MAKERS: Final[dict[str, Callable[[str, str], str]]] = {
    "endpoints": api.endpoints,
    "parameters": api.parameters,
    "model": api.model,
    "metrics": settings.metrics_of,
    "settings": settings.settings_of,
    "variables": settings.variables_of,
    "commands": commands.commands,
    "options": commands.options,
    "conditions": data.conditions,
    "rooms": data.rooms,
    "tickets": data.tickets,
    "causes": data.causes,
    "remedies": data.remedies,
    "faults": data.faults,
    "second_engine": data.second_engine,
    "replays": data.replays,
    "engines": data.engines,
}
