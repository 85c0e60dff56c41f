"""The common names of the engines' metrics. names.yaml is the table; its head explains the columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict

Kind = Literal["gauge", "counter", "histogram"]

UP: Final = "up"
SCRAPE_DURATION: Final = "scrape_duration"
RANKS: Final = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "pid"})
"""Labels of processes that work on the same requests: all ranks of an engine report one number."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CommonName(_Model):
    """One row of `common`."""

    kind: Kind
    across: Literal["sum", "max"]
    help: str


class OwnName(_Model):
    """An engine's own name of a metric."""

    name: str
    where: Mapping[str, str] = {}
    scale: float = 1.0
    sum_of: bool = False


class _Engine(_Model):
    prefixes: tuple[str, ...]
    names: Mapping[str, tuple[str | OwnName, ...]]


class _Table(_Model):
    common: Mapping[str, CommonName]
    engines: Mapping[str, _Engine]


@dataclass(frozen=True)
class Rule:
    """One own name of an engine and the common name that it gets."""

    common: str
    kind: Kind
    own: OwnName
    rank: int
    """Among the own names of one common name, 0 is the best."""


@cache
def _table() -> _Table:
    text = resources.files(__package__).joinpath("names.yaml").read_text(encoding="utf-8")
    return _Table.model_validate(yaml.safe_load(text))


@cache
def common_names() -> Mapping[str, CommonName]:
    """The common names, in the order of the file."""
    return _table().common


@cache
def rules() -> Mapping[str, tuple[Rule, ...]]:
    """The rules by own name; a name with labels may have several."""
    found: dict[str, list[Rule]] = {
        UP: [Rule(UP, "gauge", OwnName(name=UP), 0)],
        "scrape_duration_seconds": [Rule(SCRAPE_DURATION, "gauge", OwnName(name="scrape_duration_seconds"), 0)],
    }
    for engine in _table().engines.values():
        for common, owns in engine.names.items():
            for rank, own in enumerate(owns):
                rule = own if isinstance(own, OwnName) else OwnName(name=own)
                found.setdefault(rule.name, []).append(Rule(common, common_names()[common].kind, rule, rank))
    return {name: tuple(of_name) for name, of_name in found.items()}


def rule_for(name: str, labels: Mapping[str, str]) -> Rule | None:
    """Find the rule of a series; None for a series that has no common name."""
    for rule in rules().get(name, ()):
        if all(labels.get(label) == value for label, value in rule.own.where.items()):
            return rule
    return None


def engine_of(names: Iterable[str]) -> str:
    """Tell the engine by the names of a process's metrics; empty when no known prefix occurs."""
    seen = tuple(names)
    for engine, table in _table().engines.items():
        if any(name.startswith(table.prefixes) for name in seen):
            return engine
    return ""
