"""Metrics, settings and environment variables, from the modules that declare them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module, util
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from collector.metrics import metrics
from tests.contract.reference.text import alternatives, code, listed, sentence, split, table

SECTIONS: Final = {
    "slos": ("tokentrail_slo_", metrics.SLO),
    "engines": ("tokentrail_engine_", metrics.SAMPLED),
    "collector": ("tokentrail_collector_", ()),
    "store": ("tokentrail_store_", ()),
    "requests": ("", metrics.REQUEST),
    "causes": ("", metrics.SERVED),
    "processes": ("", metrics.PROCESS),
}
"""Sections of docs/metrics.md: how names begin, and the labels of most metrics. The first that fits counts."""


def metrics_of(section: str, _: str) -> str:
    """The metrics of a section."""
    chosen = (metric for metric in metrics.ALL if section_of(metric) == section)
    common = set(SECTIONS[section][1])
    return table(
        ("metric", "type", "meaning"),
        ((f"`{m.name}`", m.kind, f"{sentence(m.help)}{_labels(m, common)}") for m in chosen),
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


def settings_of(module: str, _: str) -> str:
    """The settings of a module, which are its class `Settings`."""
    settings = import_module(module).Settings
    switches = settings.model_config.get("cli_implicit_flags", False)
    return table(
        ("flag", "meaning", "default"),
        (_setting(name, field, switches) for name, field in settings.model_fields.items()),
    )


def _setting(name: str, field: Any, switches: bool) -> tuple[str, str, str]:
    flag = name.replace("_", "-")
    default = field.default if field.default is not None else ""
    text, told = split(field.description)
    meaning = sentence(text)
    if get_origin(field.annotation) is Literal and any(f"`{v}`" not in text for v in get_args(field.annotation)):
        meaning = f"{alternatives(get_args(field.annotation))}. {meaning}"
    off = f", `--no-{flag}`" if switches and default is True else ""
    return f"`--{flag}`{off}", meaning, told or code(default)


def documented(module: str) -> Iterator[tuple[str, str, str]]:
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
            text, default = split(str(below.value.value))
            yield str(value.value), sentence(text), default


def variables_of(modules: str, _: str) -> str:
    """The environment variables of modules."""
    rows = (row for module in modules.split() for row in documented(module))
    return table(("variable", "meaning", "default"), ((f"`{name}`", *rest) for name, *rest in rows))
