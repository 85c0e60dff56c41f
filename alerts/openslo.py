"""OpenSLO (openslo/v1) documents as our SLO file.

An OpenSLO indicator is a query in the language of a metric source. Ours needs none: the source's type is `tokentrail`.

    indicator: {spec: {thresholdMetric: {metricSource: {type: tokentrail, spec: {metric: ttft, select: {…}}}}}}
    objectives: [{op: lte, value: 0.5, target: 0.95}]
    → thresholds: {ttft: 500ms}, objective: 0.95

or, for several thresholds at once, `ratioMetric.good.metricSource.spec: {thresholds: {ttft: 500ms, tpot: 100ms}}`.

A field that would change the promise and has no meaning here is refused by its name. What says nothing of the promise
(display names, the service, annotations, alert policies) is left out.
"""

from __future__ import annotations

import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from collector.slo.model import SloFileError, load_slos, place_of
from tokentrail.shared.durations import format_duration, parse_duration
from tokentrail.shared.folders import words_of

_OTHER_KINDS: Final = {"AlertCondition", "AlertNotificationTarget", "AlertPolicy", "DataSource", "Service", "SLI"}
"""What they say of an SLO is not read, or is refused where the SLO refers to it."""
_HOUR_NS: Final = 3600 * 10**9
_REFUSED: Final = {
    "bad": "name the good requests instead",
    "calendar": "a window of the calendar cannot be judged, a rolling one can: 30d with isRolling: true",
    "compositeWeight": "an SLO of several indicators cannot be judged: write one SLO for each",
    "indicatorRef": "an SLI elsewhere is not read: write its spec as the SLO's indicator",
    "metricSourceRef": "a source elsewhere is not read: write `type: tokentrail` and its spec here",
    "raw": "a stored ratio cannot be judged: name the good requests",
    "targetPercent": "write a target between 0 and 1 instead, and one of the two alone",
    "timeSliceTarget": "slices of time cannot be judged: requests are counted (Occurrences)",
    "timeSliceWindow": "slices of time cannot be judged: requests are counted (Occurrences)",
}
"""Fields of OpenSLO that have no meaning here, and what to do."""


class OpenSloError(ValueError):
    """A document cannot be read as one of our SLOs. The message names it, the field and the fix."""


def _as_text(value: Any) -> str:
    if not isinstance(value, str):
        msg = "must be one value"
        raise ValueError(msg)  # pydantic reports a ValueError at its field
    return value


def _window(text: str) -> str:
    if text[-1:] in ("M", "Q", "Y"):
        msg = f"{text!r}: months, quarters and years differ in length: write days, such as 30d"
        raise ValueError(msg)
    if parse_duration(text) < _HOUR_NS:
        msg = f"{text!r} is less than an hour, too short for an SLO; m is a minute: write days for months, such as 30d"
        raise ValueError(msg)
    return text


def _rolling(text: str) -> str:
    if text.lower() != "true":
        msg = f"{text!r}: only a rolling window can be judged: write true"
        raise ValueError(msg)
    return text


def _seconds(text: str) -> str:
    try:
        ns = Decimal(text) * 10**9
    except ArithmeticError:
        ns = Decimal("NaN")
    if not (ns.is_finite() and 0 < ns < 10**20 and ns == int(ns)):
        msg = f"{text[:80]!r} must be seconds, at most to the nanosecond, such as 0.5"
        raise ValueError(msg)
    return format_duration(int(ns))


_Text = Annotated[str, BeforeValidator(_as_text)]
Spec = TypeVar("Spec")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Metadata(_Strict):
    name: _Text
    displayName: Any = None  # noqa: N815 - names of OpenSLO, here and below
    labels: dict[str, Any] = {}
    annotations: Any = None


class _Threshold(_Strict):
    """The `spec` of our source in a thresholdMetric."""

    metric: _Text
    select: Any = None


class _Ratio(_Strict):
    """The `spec` of our source in `good` of a ratioMetric."""

    thresholds: Any
    select: Any = None


class _All(_Strict):
    """The `spec` of our source in `total` of a ratioMetric."""

    select: Any = None


class _Source(_Strict, Generic[Spec]):
    type: _Text
    spec: Spec

    @model_validator(mode="before")
    @classmethod
    def _is_ours(cls, value: Any) -> Any:
        if isinstance(value, dict) and "type" in value and value["type"] != "tokentrail":
            msg = f"its metric source is {value['type']!r}; only a source of type tokentrail can be read"
            raise ValueError(msg)
        return value


class _Metric(_Strict, Generic[Spec]):
    metricSource: _Source[Spec]  # noqa: N815


class _RatioMetric(_Strict):
    counter: Any = None
    good: _Metric[_Ratio]
    total: _Metric[_All] | None = None

    @model_validator(mode="after")
    def _of_the_same_requests(self) -> _RatioMetric:
        select = self.good.metricSource.spec.select
        if self.total and self.total.metricSource.spec.select not in (None, select):
            msg = "total: its select differs from that of good; an SLO selects once, for both"
            raise ValueError(msg)
        return self


class _IndicatorSpec(_Strict):
    thresholdMetric: _Metric[_Threshold] | None = None  # noqa: N815
    ratioMetric: _RatioMetric | None = None  # noqa: N815

    @model_validator(mode="after")
    def _is_one(self) -> _IndicatorSpec:
        if (self.thresholdMetric is None) == (self.ratioMetric is None):
            msg = "needs either a thresholdMetric or a ratioMetric"
            raise ValueError(msg)
        return self


class _Indicator(_Strict):
    metadata: Any = None
    spec: _IndicatorSpec


class _Window(_Strict):
    duration: Annotated[_Text, AfterValidator(_window)]
    isRolling: Annotated[_Text, AfterValidator(_rolling)] = "true"  # noqa: N815


class _Objective(_Strict):
    displayName: Any = None  # noqa: N815
    op: Literal["lte"] | None = None
    value: Annotated[_Text, AfterValidator(_seconds)] | None = None
    target: _Text


class _Spec(_Strict):
    description: _Text = ""
    service: Any = None
    indicator: _Indicator
    timeWindow: Annotated[list[_Window], Field(min_length=1, max_length=1)]  # noqa: N815
    budgetingMethod: Literal["Occurrences"] = "Occurrences"  # noqa: N815
    objectives: Annotated[list[_Objective], Field(min_length=1, max_length=1)]
    alertPolicies: Any = None  # noqa: N815

    @model_validator(mode="after")
    def _value_belongs_to_a_threshold(self) -> _Spec:
        (objective,) = self.objectives
        given = [name for name in ("op", "value") if getattr(objective, name) is not None]
        if self.indicator.spec.thresholdMetric and len(given) < 2:
            msg = "objectives[0]: a thresholdMetric needs `op: lte` and the value, in seconds"
            raise ValueError(msg)
        if self.indicator.spec.ratioMetric and given:
            msg = f"objectives[0].{given[0]}: a ratioMetric has its thresholds in its source, and none here"
            raise ValueError(msg)
        return self


class _Document(_Strict):
    apiVersion: Literal["openslo/v1"]  # noqa: N815
    kind: Literal["SLO"]
    metadata: _Metadata
    spec: _Spec

    def as_ours(self) -> dict[str, Any]:
        """The SLO as an entry of our file."""
        (objective,), (window,), indicator = self.spec.objectives, self.spec.timeWindow, self.spec.indicator.spec
        source: _Threshold | _Ratio
        if indicator.thresholdMetric:
            source = indicator.thresholdMetric.metricSource.spec
            thresholds: Any = {source.metric: objective.value}
        else:
            assert indicator.ratioMetric
            source = indicator.ratioMetric.good.metricSource.spec
            thresholds = source.thresholds
        return {
            "name": self.metadata.name,
            **({"description": self.spec.description} if self.spec.description else {}),
            **{k: v for k, v in self.metadata.labels.items() if k in ("owner", "team")},
            "objective": objective.target,
            "window": window.duration,
            **({"select": source.select} if source.select else {}),
            "thresholds": thresholds,
        }


def from_openslo(path: Path) -> str:
    """The SLO file for the documents of a file; numbers stay as written.

    Raises OpenSloError, or SloFileError for values that ours refuses.
    """
    try:
        documents = [d for d in yaml.load_all(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader) if d]
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        msg = f"{path}: cannot be read: {words_of(error)}"
        raise OpenSloError(msg) from error
    slos = [
        _slo(document, f"{path}: {i}") for i, document in enumerate(documents) if _kind(document) not in _OTHER_KINDS
    ]
    if not slos:
        msg = f"{path}: has no document of kind SLO"
        raise OpenSloError(msg)
    text = yaml.safe_dump({"slos": slos}, sort_keys=False, allow_unicode=True)
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "slos.yaml"
        written.write_text(text, encoding="utf-8")
        try:
            load_slos(written)
        except SloFileError as error:
            raise SloFileError(str(error).replace(str(written), str(path))) from None
    return text


def _kind(document: Any) -> str:
    return str(document.get("kind")) if isinstance(document, dict) else ""


def _slo(document: Any, where: str) -> dict[str, Any]:
    try:
        return _Document.model_validate(document).as_ours()
    except ValidationError as error:
        lines = (f"{where}: {place_of(e['loc'])}: {_fix(e)}" for e in error.errors())
        raise OpenSloError("\n".join(lines)) from None


def _fix(error: Any) -> str:
    context = error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden":
            return _REFUSED.get(str(error["loc"][-1]), "is no field that can be read here: remove it")
        case "missing":
            return "is missing"
        case "literal_error":
            return f"{str(error['input'])[:80]!r} cannot be read; only {context['expected']} can"
        case "too_long" | "too_short":
            return f"has {context['actual_length']} entries; write one, and an SLO for each"
        case _:
            return str(error["msg"]).removeprefix("Value error, ")
