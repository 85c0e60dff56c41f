"""Thresholds of the conditions that are alerted on beside SLO burn, from conditions.yaml."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from collector.slo.model import DurationNs, Objective

Severity = Literal["page", "ticket", "info"]


class _Condition(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    severity: Severity


class Event(_Condition):
    """Something that happens at a moment and stays visible for a while."""

    shown: DurationNs


class ColdStart(Event):
    """A start that somebody may have waited for."""

    longer_than: DurationNs


class Lasting(_Condition):
    """Something that must hold for a while before it is an alert."""

    lasting: DurationNs = Field(alias="for")


class KvFull(Lasting):
    """KV-cache use above a ratio."""

    ratio: Objective


class Conditions(BaseModel):
    """conditions.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kv_eviction: Event
    kv_full: KvFull
    cold_start: ColdStart
    engine_lost: Event
    engine_hung: Lasting
    collector_down: Lasting
    engine_down: Lasting
    slo_unwatched: Lasting
    no_telemetry: Lasting
    data_refused: Event


@cache
def load_conditions() -> Conditions:
    """The conditions that ship with the collector."""
    text = resources.files(__package__).joinpath("conditions.yaml").read_text(encoding="utf-8")
    return Conditions.model_validate(yaml.safe_load(text))
