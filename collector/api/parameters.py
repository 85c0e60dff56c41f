"""What the endpoints take, validated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from collector.api.problems import bad_parameter
from collector.api.times import SECOND_NS, Moment, parse_moment
from collector.slo.durations import parse_duration
from collector.slo.judge import Condition, selected


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
Name = Annotated[str, Field(max_length=256)]
Names = Annotated[list[Name], Field(max_length=100)]


@dataclass(frozen=True)
class Window:
    """A half-open stretch of time, [start, end), in unix nanoseconds, and which requests of it are asked about."""

    start_ns: int
    end_ns: int
    filter: Condition

    @property
    def bounds(self) -> dict[str, int]:
        """As query parameters."""
        return {"start_ns": self.start_ns, "end_ns": self.end_ns}

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end_ns - self.start_ns) / SECOND_NS


class WindowQuery(BaseModel):
    """What all endpoints take: when, and which requests."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    start: Time = Field(
        Moment(-900 * SECOND_NS, relative=True),
        validate_default=True,
        description="RFC 3339, unix seconds, `now`, or `-15m`",
    )
    end: Time = Field(
        Moment(0, relative=True), validate_default=True, description="RFC 3339, unix seconds, `now`, or `-15m`"
    )
    model: Names = Field([], description="only requests of this model; may be repeated (any of)")
    tenant: Names = Field([], description="only requests of this tenant; may be repeated")
    variant: Names = Field([], description="only requests of this variant; may be repeated")
    engine: Names = Field([], description="only requests to this kind of server; may be repeated")
    slo_class: Names = Field([], description="only requests of this SLO class; may be repeated")

    def window(self, now_ns: int) -> Window:
        """The window and its requests, given what time it is. Raises Problem when it ends before it starts."""
        start, end = self.start.at(now_ns), self.end.at(now_ns)
        if start >= end:
            raise bad_parameter("start", "must be before end")
        given = {key: getattr(self, key) for key in ("model", "tenant", "variant", "engine", "slo_class")}
        return Window(start, end, selected({key: values for key, values in given.items() if values}, "filter"))


class GoodputQuery(WindowQuery):
    """Thresholds given now."""

    ttft: Duration | None = Field(None, description="for example `500ms`")
    tpot: Duration | None = Field(None, description="for example `100ms`")
    e2e: Duration | None = Field(None, description="for example `30s`")
    surface: Literal["0", "1"] = Field("0", description="1: also attainment for every pair of TTFT and TPOT")


class RequestsQuery(WindowQuery):
    """Which rows, in which order."""

    sort: Literal["end", "ttft", "tpot", "e2e"] = "end"
    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    offset: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    status: Literal["ok", "error", "cancelled"] | None = None
    request_id: Name | None = None


class RequestQuery(BaseModel):
    """Which request of a trace."""

    model_config = ConfigDict(extra="forbid")

    span_id: str | None = Field(None, description="16 hex digits, where a trace holds several requests")


Metric = Literal[
    "ttft", "tpot", "itl", "e2e", "queue",
    "requests", "failed", "cancelled", "output_tokens", "goodput", "kv_evictions", "preemptions",
    "attainment", "kv_usage", "running", "waiting",
]  # fmt: skip


class TimeseriesQuery(WindowQuery):
    """Which metric, in which steps."""

    metric: Metric
    step: Duration = Field(10 * SECOND_NS, description="for example `10s`")
    slo: Name | None = Field(None, description="only what this SLO selects, judged by it")
