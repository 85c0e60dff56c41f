"""The table of conditions: every cause of an alert and of an incident is one row of conditions.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from collector.slo.model import DurationNs, Objective
from collector.slo.severity import Severity

DOCS_URL: Final = "https://github.com/tokentrail/tokentrail/blob/main/docs"


class Condition(BaseModel):
    """One row of conditions.yaml, which explains the columns. Durations are nanoseconds, 0 where a row has none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    alert: Annotated[str, Field(pattern=r"^Tokentrail([A-Z][a-z]+)+$")]
    severity: Severity
    incident: bool = False
    lasting: Annotated[DurationNs, Field(alias="for")] = 0
    shown: DurationNs = 0
    longer_than: DurationNs = 0
    ratio: Objective | None = None
    over: DurationNs = 0
    within: DurationNs = 0
    believed: Objective | None = None
    least: Annotated[int, Field(ge=0)] = 0
    silenced_by: tuple[str, ...] = ()

    @property
    def runbook_url(self) -> str:
        """The page about the alert: its meaning, and the way out."""
        return f"{DOCS_URL}/alerts.md#{self.alert.lower()}"


@cache
def load_conditions() -> Mapping[str, Condition]:
    """The conditions that ship with the collector, by name, in the order of the file."""
    text = resources.files(__package__).joinpath("conditions.yaml").read_text(encoding="utf-8")
    return TypeAdapter(dict[str, Condition]).validate_python(yaml.safe_load(text))


CAUSES: Final = tuple(name for name, condition in load_conditions().items() if condition.incident)
"""The conditions that `/api/v1/incidents` reports."""

if TYPE_CHECKING:
    Cause = str  # mypy reads no Literal that is made at run time
else:
    Cause = Literal[CAUSES]
