"""The common names of the engines' metrics. metric_names.yaml is the table; its head explains the columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
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
    spellings: tuple[str, ...] = ()
    alone: bool = False
    not_with: Mapping[str, tuple[str, ...]] = {}
    names: Mapping[str, tuple[str | OwnName, ...]]

    def spelled(self, name: str) -> Iterator[str]:
        """Yield a name with the first prefix and with each other spelling of it, and each without its suffixes: a
        Collector may trim them.
        """
        names = [name]
        if name.startswith(self.prefixes[0]):
            names += [spelling + name.removeprefix(self.prefixes[0]) for spelling in self.spellings]
        trimmed = [one.removesuffix("_total").removesuffix("_seconds") for one in names]
        yield from dict.fromkeys(names + trimmed)


class _Table(_Model):
    common: Mapping[str, CommonName]
    engines: Mapping[str, _Engine]


@dataclass(frozen=True)
class Rule:
    """One own name of an engine and the common name that it gets."""

    common: str
    kind: Kind
    own_name: OwnName
    rank: int
    """Among the own names of one common name, 0 is the best."""
    only_of: str = ""
    """The engine whose processes alone have the name; empty: any process."""
    not_with: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def fits(self, labels: Mapping[str, str], engine: str) -> bool:
        """Tell whether it is for a series with these labels, of a process of this engine."""
        return (
            self.only_of in ("", engine)
            and all(labels.get(label) == value for label, value in self.own_name.where.items())
            and not any(labels.get(label, "").startswith(beginnings) for label, beginnings in self.not_with.items())
        )


@cache
def _table() -> _Table:
    text = resources.files(__package__).joinpath("metric_names.yaml").read_text(encoding="utf-8")
    return _Table.model_validate(yaml.safe_load(text))


@cache
def common_names() -> Mapping[str, CommonName]:
    """The common names, in the order of the file."""
    return _table().common


@cache
def rules() -> Mapping[str, tuple[Rule, ...]]:
    """The rules by own name; a name with labels may have several."""
    by_name: dict[str, list[Rule]] = {
        UP: [Rule(UP, "gauge", OwnName(name=UP), 0)],
        "scrape_duration_seconds": [Rule(SCRAPE_DURATION, "gauge", OwnName(name="scrape_duration_seconds"), 0)],
    }
    for engine, table in _table().engines.items():
        for common, owns in table.names.items():
            given = [one if isinstance(one, OwnName) else OwnName(name=one) for one in owns]
            spelled = [one.model_copy(update={"name": name}) for one in given for name in table.spelled(one.name)]
            for rank, one in enumerate(spelled):
                kind, only_of = common_names()[common].kind, engine if table.alone else ""
                by_name.setdefault(one.name, []).append(Rule(common, kind, one, rank, only_of, table.not_with))
    return {name: tuple(of_name) for name, of_name in by_name.items()}


def rule_for(name: str, labels: Mapping[str, str], engine: str) -> Rule | None:
    """Find the rule of a series of a process of this engine; None for a series that has no common name."""
    return next((rule for rule in rules().get(name, ()) if rule.fits(labels, engine)), None)


def engine_of(names: Iterable[str]) -> str:
    """Tell the engine by the names of a process's metrics; empty when no known prefix occurs."""
    seen = tuple(names)
    for engine, table in _table().engines.items():
        if any(name.startswith(table.prefixes + table.spellings) for name in seen):
            return engine
    return ""
