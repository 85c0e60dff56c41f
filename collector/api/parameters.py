"""Parameters that several endpoints take, validated: a window of time, and filters for its requests."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, get_args, get_origin

from fastapi import Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from collector.api.problems import bad_parameter
from collector.api.session import tenant_filter
from collector.api.times import SECOND_NS, Moment, parse_moment
from collector.slo.durations import parse_duration
from collector.slo.judge import selected
from collector.slo.model import Dimension
from collector.sql.fragment import Fragment, all_of


def _moment(value: Any) -> Moment:
    return value if isinstance(value, Moment) else parse_moment(str(value))


def _duration(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    ns = parse_duration(value)
    if ns <= 0:
        msg = f"{value!r} must be more than 0"
        raise ValueError(msg)
    return ns


Time = Annotated[Moment, BeforeValidator(_moment), WithJsonSchema({"type": "string", "examples": ["-15m"]})]
Duration = Annotated[int, BeforeValidator(_duration), WithJsonSchema({"type": "string", "examples": ["500ms"]})]
LONGEST_NAME: Final = 256
"""Characters of a name that a filter asks for."""
Name = Annotated[str, Field(max_length=LONGEST_NAME)]
Names = Annotated[list[Name], Field(max_length=100)]


@dataclass(frozen=True)
class Window:
    """A half-open stretch of time, [start, end), in unix nanoseconds, with a filter for its requests."""

    start_ns: int
    end_ns: int
    filter: Fragment

    @property
    def bounds(self) -> dict[str, int]:
        """The bounds as parameters of a query."""
        return {"start_ns": self.start_ns, "end_ns": self.end_ns}

    @property
    def seconds(self) -> float:
        """The length of the window."""
        return (self.end_ns - self.start_ns) / SECOND_NS

    def complete(self, complete_ns: int) -> Window:
        """The part of the window before this time; it may be empty."""
        return replace(self, end_ns=max(self.start_ns, min(self.end_ns, complete_ns)))


async def given_once(request: Request) -> None:
    """Raise Problem for a parameter that takes one value and has several: FastAPI would take the last one alone."""
    several = [name for name, n in Counter(name for name, _ in request.query_params.multi_items()).items() if n > 1]
    if several:
        (query,) = request.scope["route"].dependant.query_params
        fields = query.field_info.annotation.model_fields
        for name in several:
            if name in fields and get_origin(fields[name].annotation) is not list:
                raise bad_parameter(name, "is given more than once, and takes one value")


class NoQuery(BaseModel):
    """An endpoint without parameters."""

    model_config = ConfigDict(extra="forbid")


class TimesQuery(BaseModel):
    """Parameters of all endpoints: a window of time."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    start: Time = Field(
        "-15m",
        validate_default=True,
        description="RFC 3339, unix seconds, `now`, or `-15m`",
    )
    end: Time = Field("now", validate_default=True, description="RFC 3339, unix seconds, `now`, or `-15m`")

    def bounds(self, now_ns: int) -> dict[str, int]:
        """The bounds as parameters of a query, when the clock shows `now_ns`.

        Raises Problem unless the window starts before it ends.
        """
        start, end = self.start.at(now_ns), self.end.at(now_ns)
        if start >= end:
            raise bad_parameter("start", "must be before end; without it, the window begins 15 minutes ago")
        return {"start_ns": start, "end_ns": end}


class WindowQuery(TimesQuery):
    """A window of time, and filters for its requests."""

    model: Names = Field([], description="only requests of this model; may be repeated (any of)")
    tenant: Names = Field([], description="only requests of this tenant; may be repeated")
    variant: Names = Field([], description="only requests of this variant; may be repeated")
    engine: Names = Field([], description="only requests to this kind of server; may be repeated")
    slo_class: Names = Field([], description="only requests of this SLO class; may be repeated")
    vantage: Names = Field([], description="only requests measured there (`server`, `client`); may be repeated")

    def window(self, now_ns: int) -> Window:
        """The window when the clock shows `now_ns`. Raises Problem unless it starts before it ends."""
        bounds = self.bounds(now_ns)
        given = {key: getattr(self, key) for key in get_args(Dimension)}
        asked = selected({key: values for key, values in given.items() if values}, "filter")
        return Window(bounds["start_ns"], bounds["end_ns"], all_of(tenant_filter(), asked))
