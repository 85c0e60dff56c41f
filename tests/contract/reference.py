"""Makes the reference blocks of docs/ from the code: `python -m tests.contract.reference` writes, `--check` compares.

A block lies between two marks, and everything around it is written by hand:

    <!-- reference: GET /api/v1/goodput -->
    …
    <!-- end -->

| mark | made of |
| --- | --- |
| `endpoints`, `GET /PATH`, `model NAME`, `parameters` | the collector's OpenAPI document |
| `metrics SECTION` | `collector/exposition/metrics.py` |
| `settings MODULE` | the fields of `Settings` in that module, and their descriptions |
| `variables MODULE` | its constants that name environment variables, and the docstrings under them |
| `commands`, `options COMMAND…` | the Typer application |
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import import_module, util
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from collector.api.parameters import TimesQuery, WindowQuery
from collector.exposition import metrics
from tests.contract import shape
from tests.contract.commands import each_command
from tests.support.api import openapi

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = tuple(sorted((ROOT / "docs").rglob("*.md")))
_BLOCK: Final = re.compile(r"(<!-- reference: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)

SECTIONS: Final = {
    "slos": ("tokentrail_slo_", metrics.SLO),
    "engines": ("tokentrail_engine_", metrics.SAMPLED),
    "collector": ("tokentrail_collector_", ()),
    "store": ("tokentrail_store_", ()),
    "requests": ("", metrics.REQUEST),
    "processes": ("", metrics.PROCESS),
}
"""Sections of docs/metrics.md: how names begin, and the labels of most metrics. The first that fits counts."""


def main() -> int:
    """Write the blocks of all pages, or with --check say which are old or absent. 1 if any is."""
    parser = argparse.ArgumentParser(prog="python -m tests.contract.reference", description=__doc__.partition(":")[0])
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
    return _BLOCK.sub(lambda block: f"{block[1]}{linked(made(block[2], text), page)}{block[3]}", text)


def absent(texts: Iterable[str]) -> Iterator[str]:
    """What no page has a block for, in words that say how to add it."""
    marks = {mark for text in texts for mark in marks_in(text)}
    wanted = [("docs/api.md", mark) for mark in ("endpoints", "parameters", *_operations())]
    wanted += [("docs/metrics.md", f"metrics {section}") for section in SECTIONS]
    wanted += [("docs/cli.md", "commands")]
    yield from (
        f"{page}: write <!-- reference: {mark} --> and <!-- end -->" for page, mark in wanted if mark not in marks
    )
    told = {name for mark in marks if mark.startswith("options ") for name in mark.split()[1:]}
    with_options = {name.split()[1] for name, command in each_command() if any(map(any, map(_option, command.params)))}
    yield from (f"docs/cli.md: add {name} to a mark <!-- reference: options … -->" for name in with_options - told)


def marks_in(text: str) -> list[str]:
    """The marks of a page, in its order."""
    return [found[2] for found in _BLOCK.finditer(text)]


def made(mark: str, page: str) -> str:
    """The block of a mark. Raises ValueError for a mark that is not known."""
    kind, _, name = mark.partition(" ")
    if mark in _operations():
        return _endpoint(mark, page)
    if kind not in _MAKERS:
        msg = f"nothing is made for {mark!r}: it is no endpoint, and none of {', '.join(_MAKERS)}"
        raise ValueError(msg)
    return _MAKERS[kind](name, page)


def linked(text: str, page: str) -> str:
    """Make links of the pages that a text names: [good requests](slos.md#good-requests) of `slos.md#good-requests`."""

    def link(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        words = anchor[1:].replace("-", " ") or target.removesuffix(".md")
        alone = found.string[found.start() - 1 : found.start()] + found.string[found.end() : found.end() + 1] == "()"
        return f"[{'more' if alone else words}]({target if target != page else ''}{anchor})"

    parts = re.split(r"(```.*?```)", text, flags=re.DOTALL)  # in a code block, it stays a path
    parts[::2] = [re.sub(r"(?<![\w`/])docs/([\w/-]+\.md)(#[\w-]+)?", link, part) for part in parts[::2]]
    return "".join(parts)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    lines = [head, ("---",) * len(head), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def code(value: object) -> str:
    """A default in a table; nothing for an empty one."""
    text = {True: "true", False: "false", None: ""}.get(value, str(value)) if isinstance(value, bool | None) else value
    return f"`{getattr(text, 'value', text)}`" if text != "" else ""


def listed(words: Iterable[str], last_word: str = "and") -> str:
    """`a`, `b` and `c`."""
    *most, last = words
    return f"{', '.join(most)} {last_word} {last}" if most else last


def alternatives(values: Iterable[object]) -> str:
    """`a`, `b` or `c`."""
    return listed((f"`{value}`" for value in values), "or")


@cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = openapi()
    return document


@cache
def _operations() -> dict[str, dict[str, Any]]:
    return {
        f"{method.upper()} {path}": operation
        for path, methods in _document()["paths"].items()
        for method, operation in methods.items()
    }


def _endpoints(_: str, page: str) -> str:
    def row(name: str, operation: dict[str, Any]) -> tuple[str, str]:
        return f"[`{name}`](#{_anchor(name, page)})", _sentence(operation["description"].partition("\n\n")[0])

    return table(("endpoint", "answers"), (row(*item) for item in _operations().items()))


def _anchor(mark: str, page: str) -> str:
    """The anchor of the heading above a mark."""
    before, found, _ = page.partition(f"<!-- reference: {mark} -->")
    heading = (_HEADING.findall(before) or [""])[-1] if found else ""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def _sentence(text: str) -> str:
    """A text as a cell, which ends without a full stop. Names of ours are code."""
    parts = " ".join(text.split()).removesuffix(".").split("`")
    parts[::2] = [
        re.sub(r"(TOKENTRAIL|tokentrail)_\w+|(?<![\w-])--[a-z][a-z-]+", r"`\g<0>`", part) for part in parts[::2]
    ]
    return "`".join(parts)


_COMMON: Final = {name: field.description for name, field in WindowQuery.model_fields.items()}


def _parameters(_: str, __: str) -> str:
    (summary,) = (operation for name, operation in _operations().items() if name == "GET /api/v1/summary")
    return table(("parameter", "meaning", "default"), map(_parameter, summary["parameters"]))


def _parameter(parameter: dict[str, Any]) -> tuple[str, str, str]:
    choices = [s for s in (parameter["schema"], *parameter["schema"].get("anyOf", ())) if "enum" in s]
    values = alternatives(choices[0]["enum"]) if choices else ""
    least, most = (parameter["schema"].get(bound) for bound in ("minimum", "maximum"))
    if least is not None and most is not None and most < 2**62:
        values = f"{least} to {most}"
    default = parameter["schema"].get("default")
    meaning = ": ".join(filter(None, (values, parameter.get("description"))))
    return f"`{parameter['name']}`", meaning, "" if default == [] else code(default)


def _endpoint(mark: str, page: str) -> str:
    operation = _operations()[mark]
    parameters = operation.get("parameters", [])
    given = {parameter["name"] for parameter in parameters}
    own = [p for p in parameters if p.get("description") != _COMMON.get(p["name"], "")]
    common = given - {p["name"] for p in own}
    taken = ""
    if common >= _COMMON.keys():
        taken = " It takes the [parameters of all endpoints](#parameters-of-all-endpoints)"
    elif common >= TimesQuery.model_fields.keys():
        taken = " It takes [`start` and `end`](#parameters-of-all-endpoints)"
    more = (", and:" if own else ".") if taken else ""
    text = f"`{mark}`: {' '.join(operation['description'].split())}{taken}{more}\n"
    text += "\n" + table(("parameter", "meaning", "default"), map(_parameter, own)) if own else ""
    answer = _answer(operation)
    return text + (f"\n{_shape(answer, page)}" if answer else "")


def _answer(operation: dict[str, Any]) -> str:
    """The name of the schema of an endpoint's answer, if it has one."""
    content = operation["responses"].get("200", {}).get("content", {}).get("application/json", {})
    return shape.name_of(content.get("schema", {}))


def _model(name: str, page: str) -> str:
    return f"{' '.join(_document()['components']['schemas'][name]['description'].split())}\n\n{_shape(name, page)}"


def _shape(name: str, page: str) -> str:
    marks = marks_in(page)
    elsewhere = {mark.removeprefix("model ") for mark in marks if mark.startswith("model ")}
    elsewhere |= {_answer(_operations()[mark]) for mark in marks if mark in _operations()} - {""}
    return f"```ts\n{shape.drawing(name, _document()['components']['schemas'], elsewhere)}\n```\n"


def _metrics(section: str, _: str) -> str:
    chosen = (metric for metric in metrics.ALL if section_of(metric) == section)
    common = set(SECTIONS[section][1])
    return table(
        ("metric", "type", "meaning"),
        ((f"`{m.name}`", m.kind, f"{_sentence(m.help)}{_labels(m, common)}") for m in chosen),
    )


def section_of(metric: metrics.Metric) -> str:
    """The section of docs/metrics.md that has a metric."""
    return next(
        (
            name
            for name, (begins, labels) in SECTIONS.items()
            if metric.name.startswith(begins) and (begins or set(labels) <= set(metric.labels))
        ),
        "processes",
    )


def _labels(metric: metrics.Metric, common: set[str]) -> str:
    """The labels that differ from the section's and that the help does not name, as the end of a cell."""
    if common - {*metric.labels}:
        return f". Labels: {', '.join(f'`{label}`' for label in metric.labels)}" if metric.labels else ". No labels"
    more = [f"`{label}`" for label in metric.labels if label not in common and f"`{label}`" not in metric.help]
    return f". By {listed(more)}" if more else ""


def _split(description: str) -> tuple[str, str]:
    """A description without its end, and the default that the end tells: "Layers that are kept; default: all."."""
    text, _, default = re.sub(r"[;.]? [Dd]efault: ", "\n", " ".join(description.split())).partition("\n")
    return text, default.removesuffix(".")


def _settings(module: str, _: str) -> str:
    settings = import_module(module).Settings
    switches = settings.model_config.get("cli_implicit_flags", False)
    return table(
        ("flag", "meaning", "default"),
        (_setting(name, field, switches) for name, field in settings.model_fields.items()),
    )


def _setting(name: str, field: Any, switches: bool) -> tuple[str, str, str]:
    flag = name.replace("_", "-")
    default = field.default if field.default is not None else ""
    text, told = _split(field.description)
    meaning = _sentence(text)
    if get_origin(field.annotation) is Literal and any(f"`{v}`" not in text for v in get_args(field.annotation)):
        meaning = f"{alternatives(get_args(field.annotation))}. {meaning}"
    off = f", `--no-{flag}`" if switches and default is True else ""
    return f"`--{flag}`{off}", meaning, told or code(default)


def variables_of(module: str) -> Iterator[tuple[str, str, str]]:
    """The name, meaning and default of each environment variable that a module has a documented constant for."""
    spec = util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    body = ast.parse(Path(spec.origin).read_text()).body
    for node, below in pairwise(body):
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if not (isinstance(value, ast.Constant) and re.fullmatch(r"[A-Z]+_[A-Z0-9_]+", str(value.value))):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            text, default = _split(str(below.value.value))
            yield str(value.value), _sentence(text), default


def _variables(modules: str, _: str) -> str:
    rows = (row for module in modules.split() for row in variables_of(module))
    return table(("variable", "meaning", "default"), ((f"`{name}`", *rest) for name, *rest in rows))


def _commands(_: str, __: str) -> str:
    rows = ((f"`{name}{_arguments(command)}`", _sentence(command.help)) for name, command in each_command())
    return table(("command", "what it does"), rows)


def _arguments(command: Any) -> str:
    names = (p.metavar or p.name.upper() for p in command.params if not p.opts[0].startswith("-"))
    return "".join(f" {name}" for name in names)


def _options(names: str, _: str) -> str:
    """The options of commands that begin with one of these names, each option once."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for name, command in each_command():
        _, first, *_ = words = name.split()
        for parameter in command.params if first in names.split() else ():
            rows.setdefault(_option(parameter), []).append(" ".join(words[1:]))
    cells = ((flag, listed(f"`{name}`" for name in of), *rest) for (flag, *rest), of in rows.items() if rest[0])
    if len(names.split()) == 1:
        return table(("option", "meaning", "default"), ((flag, *rest) for flag, _, *rest in cells))
    return table(("option", "of", "meaning", "default"), cells)


def _option(parameter: Any) -> tuple[str, str, str]:
    """Nothing of an argument, and of --help."""
    flags = [flag for flag in parameter.opts if flag.startswith("-")]
    if not flags or not parameter.help or "--help" in flags:
        return "", "", ""
    text, told = _split(parameter.help)
    default = "" if parameter.required or isinstance(parameter.default, bool) else parameter.default
    variable = f". Variable: `{parameter.envvar}`" if parameter.envvar else ""
    meaning = f"{_sentence(text)}{variable}"
    return ", ".join(f"`{flag}`" for flag in flags), meaning, told or code(default)


_MAKERS: Final[dict[str, Callable[[str, str], str]]] = {
    "endpoints": _endpoints,
    "parameters": _parameters,
    "model": _model,
    "metrics": _metrics,
    "settings": _settings,
    "variables": _variables,
    "commands": _commands,
    "options": _options,
}

if __name__ == "__main__":
    sys.exit(main())
