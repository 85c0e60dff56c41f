"""Parameters that several endpoints take, validated: a window of time, and filters for its requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, TypeVar, get_origin

from fastapi import Request
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    create_model,
    model_validator,
)

from collector.api.problems import bad_parameter, not_found
from collector.ask.window import LONGEST_NAME, Window
from collector.count.hops import without_doubles
from collector.count.reader import Reader
from collector.slo.judge import selected
from collector.slo.model import Slo, label_name
from collector.sql.fragment import all_of, negated
from tokentrail.semconv import MOST_LABELS
from tokentrail.shared.durations import parse_duration
from tokentrail.shared.moments import Moment, bounds, parse_moment
from tokentrail.shared.parameters import FILTERS, LABEL, MEANING, did_you_mean

MOST_POINTS: Final = 11_000


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
_LABELS: Final = f"{LABEL}*"
"""The end of the alias of a field that holds labels."""
Name = Annotated[str, Field(max_length=LONGEST_NAME)]
Names = Annotated[list[Name], Field(max_length=100)]
Labels = Annotated[
    dict[Annotated[str, AfterValidator(label_name)], Names],
    Field(max_length=MOST_LABELS),
    WithJsonSchema({"type": "string", "examples": ["label.region=eu"]}),
]


_Query = TypeVar("_Query", bound="TimesQuery")


async def given_once(request: Request) -> None:
    """Raise Problem for a parameter that takes one value and has several: FastAPI would take the last one alone."""
    several = [name for name, n in Counter(name for name, _ in request.query_params.multi_items()).items() if n > 1]
    if several:
        (query,) = request.scope["route"].dependant.query_params
        fields = {field.alias or name: field for name, field in query.field_info.annotation.model_fields.items()}
        for name in several:
            if name in fields and get_origin(fields[name].annotation) is not list:
                raise bad_parameter(name, "is given more than once, and takes one value")


class NoQuery(BaseModel):
    """An endpoint without parameters."""

    model_config = ConfigDict(extra="forbid")


class TimesQuery(BaseModel):
    """Parameters of all endpoints: a window of time."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    start: Time = Field("-15m", validate_default=True, description=MEANING["start"])
    end: Time = Field("now", validate_default=True, description=MEANING["end"])

    def bounds(self, now_ns: int) -> dict[str, int]:
        """The bounds as parameters of a query, when the clock shows `now_ns`.

        Raises Problem unless the window starts before it ends.
        """
        start, end = bounds(self.start, self.end, now_ns)
        if start >= end:
            raise bad_parameter("start", "must be before end; without it, the window begins 15 minutes before its end")
        return {"start_ns": start, "end_ns": end}


def with_filters(**sides: str) -> Callable[[type[_Query]], type[_Query]]:
    """The query with a field for each dimension and one for labels, behind the prefix of each of these sides.

    `of_all` has no prefix. `with_filters(a="of A: ")` makes `a_model` with the alias `a.model`: "of A: requests of …".
    """

    def taking(query: type[_Query]) -> type[_Query]:
        fields: dict[str, Any] = {}
        for side, which in sides.items():
            field, alias = ("", "") if side == "of_all" else (f"{side}_", f"{side}.")
            texts: dict[str, tuple[Any, Any, str]] = {name: (Names, list, text) for name, text in FILTERS.items()}
            texts["label"] = (
                Labels,
                dict,
                "requests with this value of the label that stands for `*`; empty: without it",
            )
            for name, (kind, empty, text) in texts.items():
                told = f"{which}{text}; may be repeated"
                ending = f"{LABEL}*" if name == "label" else name
                fields[f"{field}{name}"] = (
                    kind,
                    Field(default_factory=empty, alias=f"{alias}{ending}", description=told),
                )
        made = create_model(query.__name__, __base__=query, __module__=query.__module__, **fields)
        made.__doc__ = query.__doc__
        return made

    return taking


@with_filters(of_all="only ", **{"not": "no "})
class WindowQuery(TimesQuery):
    """A window of time, and filters for its requests."""

    @property
    def vantages(self) -> list[str]:
        """The vantages that are asked for; empty for any."""
        return self.filters().get("vantage", [])

    @model_validator(mode="before")
    @classmethod
    def _labels_by_name(cls, given: Any) -> Any:
        """`a.label.region=eu` is an item `region` of the field with the alias `a.label.*`."""
        if not isinstance(given, dict):
            return given
        rest = dict(given)
        for alias in (alias for field in cls.model_fields.values() if (alias := field.alias or "").endswith(_LABELS)):
            start = alias.removesuffix("*")
            labels = {key: value for key, value in given.items() if key.startswith(start)}
            if labels:
                rest = {key: value for key, value in rest.items() if key not in labels}
                rest[alias] = {
                    key.removeprefix(start): [value] if isinstance(value, str) else value
                    for key, value in labels.items()
                }
        return rest

    def filters(self, prefix: str = "") -> dict[str, list[str]]:
        """The filters of fields whose names begin so, by dimension or `label.NAME`; without those not given."""
        columns = {key: given for key in FILTERS if (given := getattr(self, f"{prefix}{key}", None))}
        labels = getattr(self, f"{prefix}label", {})
        return columns | {f"{LABEL}{name}": values for name, values in labels.items()}

    def own_filters(self, side: str) -> dict[str, list[str]]:
        """The filters that one side has alone, of a query with fields such as `a_model`."""
        return self.filters(f"{side}_")

    def own_times(self, side: str) -> tuple[Moment | None, Moment | None]:
        """The start and the end that one side has alone; None for a common one."""
        return getattr(self, f"{side}_start"), getattr(self, f"{side}_end")

    def of_side(self, side: str, start: Moment | None, end: Moment | None) -> WindowQuery:
        """The query of one side: its own filters and times, and the common ones in place of those that it lacks."""
        times = {"start": start or self.start, "end": end or self.end}
        without = {f"not.{key}": values for key, values in self.own_filters("not").items()}
        return WindowQuery.model_validate({**self.filters(), **without, **self.own_filters(side), **times})

    def window(self, reader: Reader) -> Window:
        """The window of an answer, in which each request counts once, by the row of its server if that reported it too.

        Raises Problem unless it starts before it ends.
        """
        return without_doubles(reader, self.as_reported(reader), self.vantages)

    def as_reported(self, reader: Reader) -> Window:
        """The window with all rows, for answers that find out by themselves whether a request was reported twice.

        Raises Problem unless it starts before it ends.
        """
        bounds = self.bounds(reader.now_ns)
        asked, refused = selected(self.filters(), "filter"), self.own_filters("not").items()
        without = [negated(selected({key: values}, f"not_{i}")) for i, (key, values) in enumerate(refused)]
        return Window(bounds["start_ns"], bounds["end_ns"], all_of(reader.tenant_filter, asked, *without))


def find_slo(slos: Sequence[Slo], name: str) -> Slo:
    """The SLO of that name; raises Problem (404) that lists the names there are."""
    for slo in slos:
        if slo.name == name:
            return slo
    known = ", ".join(slo.name for slo in slos) or "none: the collector was started without an SLO file"
    raise not_found(f"no SLO is named {name!r}{did_you_mean(name, [slo.name for slo in slos])}; there are: {known}")


def must_be_few_points(window: Window, step_ns: int) -> None:
    """Raise Problem (400) for a step that cuts a window into more than `MOST_POINTS` points."""
    if (window.end_ns - window.start_ns) / step_ns > MOST_POINTS:
        raise bad_parameter("step", f"gives more than {MOST_POINTS} points: make it longer, or the window shorter")
