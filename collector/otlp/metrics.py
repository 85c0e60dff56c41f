"""Checks OTLP metrics and gives them their common names. Scrapes are OTLP too when they arrive here.

The checked request is a plainer one, which the store reads: gauges, sums and explicit histograms of doubles, where a
metric's `name` is the common name and its `description` the engine's own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, DataPointFlags, Metric, ResourceMetrics

from collector.otlp.checked import Checked, ItemLimits
from collector.otlp.errors import MalformedError
from collector.otlp.exposition import MOST_COUNT, Labels, set_labels
from collector.otlp.metric_names import RANKS, engine_of, rule_for
from collector.otlp.parse_bombs import check_count, check_for_bomb
from collector.otlp.totals import parts_of_totals
from collector.otlp.validate import DAY_NS, EARLIEST_NS, LATEST_NS
from tokentrail.semconv import ENGINE, SCRAPER, SERVICE_INSTANCE_ID, SERVICE_NAME, TENANT

_RESOURCE: Final = (SERVICE_NAME, SERVICE_INSTANCE_ID, ENGINE, SCRAPER, TENANT)
_MOST_LABELS: Final = 32
_LONGEST_LABEL: Final = 1024
_LEAST_POINT_BYTES: Final = 11
"""A value, with its tag, and those of the point."""
_LEAST_METRIC_BYTES: Final = 16
"""A name and a data point with its value, with their tags."""
_MOST_BUCKETS: Final = 1024
_DELTA: Final = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
_CUMULATIVE: Final = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
_NO_VALUE: Final = DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK


class Reason(StrEnum):
    """The reasons for which a data point is not stored."""

    TIME = "time"
    FUTURE = "future"
    TOO_MANY_DAYS = "too_many_days"
    LABELS = "labels"
    KIND = "kind"
    UNSUPPORTED = "unsupported"
    UNKNOWN_NAME = "unknown_name"
    OTHER_NAME = "other_name"
    PART = "part"
    NO_VALUE = "no_value"


EXPLANATION: Final = {
    Reason.TIME: "time must be unix nanoseconds between the years 2000 and 2100",
    Reason.FUTURE: "time is later than TOKENTRAIL_MAX_FUTURE_S from now; is the sender's clock right?",
    Reason.TOO_MANY_DAYS: "the points before it have TOKENTRAIL_MAX_PAYLOAD_DAYS other days; send smaller batches",
    Reason.LABELS: f"more than {_MOST_LABELS} attributes, or a text longer than {_LONGEST_LABEL} characters",
    Reason.KIND: "the engine's metric of this name is of another kind, its buckets do not fit, or a count is over 2^53",
    Reason.UNSUPPORTED: "summaries, sums that fall and are deltas, and exponential histograms of negative values",
}
"""The answer to the sender. The reasons that are missing here are the collector's own choice, and only counted."""


@dataclass(frozen=True)
class _Point:
    """One data point of any kind. A gauge is not cumulative and not a delta."""

    labels: Labels
    time_ns: int
    value: float
    """A histogram's number of observations."""
    is_delta: bool = False
    is_counter: bool = False
    sum: float = 0.0
    """NaN: a histogram that tells none, as OTLP and OpenMetrics allow."""
    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] | None = None
    """None unless it is a histogram."""

    @property
    def shape(self) -> tuple[bool, bool, bool]:
        """The points of one OTLP metric have the same."""
        return self.is_delta, self.is_counter, self.counts is not None


_Key = tuple[str, str, tuple[bool, bool, bool]]
"""Common name, own name and shape."""


class _DroppedError(Exception):
    """A data point is not stored, for the reason in `args[0]`."""


@dataclass
class _Run:
    """The work on one request: its counts, and the days of the points that are kept."""

    limits: ItemLimits
    latest_ns: int
    days: set[int] = field(default_factory=set)
    total: int = 0
    dropped: Counter[Reason] = field(default_factory=Counter)


def check(body: bytes, limits: ItemLimits) -> Checked:
    """Rename the points of a request and leave out those that cannot or need not be stored; raises `MalformedError`."""
    check_for_bomb(body, _LEAST_METRIC_BYTES)
    try:
        request = ExportMetricsServiceRequest.FromString(body)
    except DecodeError as error:
        msg = f"the body is not an OTLP ExportMetricsServiceRequest: {error}"
        raise MalformedError(msg) from error
    metrics_of = (m for r in request.resource_metrics for scope in r.scope_metrics for m in scope.metrics)
    check_count(sum(len(_data_points(metric)) for metric in metrics_of), len(body), _LEAST_POINT_BYTES)
    run = _Run(limits, limits.latest_ns())
    checked = ExportMetricsServiceRequest()
    for resource_metrics in request.resource_metrics:
        texts = {a.key: a.value.string_value for a in resource_metrics.resource.attributes}
        if not texts.get(ENGINE):
            texts[ENGINE] = engine_of(m.name for scope in resource_metrics.scope_metrics for m in scope.metrics)
        metrics = _metrics(resource_metrics, texts, run)
        if metrics:
            checked.resource_metrics.append(_resource(texts, metrics))
    message = "; ".join(
        f"{n} data points: {EXPLANATION[why]}" for why, n in sorted(run.dropped.items()) if why in EXPLANATION
    )
    rejected = Counter({str(why): n for why, n in run.dropped.items() if why in EXPLANATION})
    unwanted = Counter({str(why): n for why, n in run.dropped.items() if why not in EXPLANATION})
    days = (min(run.days), max(run.days)) if run.days else (0, 0)
    return Checked(checked.SerializeToString(), run.total, rejected, message, days, unwanted)


def _resource(texts: Mapping[str, str], metrics: list[Metric]) -> ResourceMetrics:
    made = ResourceMetrics()
    set_labels(made.resource, ((key, texts[key]) for key in _RESOURCE if texts.get(key)))
    made.scope_metrics.add(metrics=metrics)
    return made


def _data_points(metric: Metric) -> Sequence[Any]:
    kind = metric.WhichOneof("data")
    points: Sequence[Any] = getattr(metric, kind).data_points if kind else ()
    return points


def _metrics(resource_metrics: ResourceMetrics, texts: Mapping[str, str], run: _Run) -> list[Metric]:
    """Return the points of one process by metric: of several own names for one common name, those of the best.

    `texts` are the attributes of its resource, with the engine.
    """
    series: dict[_Key, dict[tuple[Labels, int], _Point]] = {}
    ranks: dict[_Key, int] = {}
    of_process = [text for key, text in texts.items() if key in _RESOURCE]
    for metric in (m for scope in resource_metrics.scope_metrics for m in scope.metrics):
        kind = metric.WhichOneof("data")
        for data_point in _data_points(metric):
            run.total += 1
            try:
                common, rank, point = _named(metric, _read(metric, kind, data_point), texts[ENGINE], run)
                _check_names(common, *of_process)
            except _DroppedError as dropped:
                run.dropped[dropped.args[0]] += 1
                continue
            key = (common, metric.name, point.shape)
            points = series.setdefault(key, {})
            ranks[key] = rank
            other = points.setdefault((point.labels, point.time_ns), point)
            if other is not point:  # another rank of the same engine says it too
                run.dropped[Reason.OTHER_NAME] += 1
                points[point.labels, point.time_ns] = max(point, other, key=lambda p: p.value)
    for points in series.values():
        parts = parts_of_totals({labels for labels, _ in points})
        for place in [place for place in points if place[0] in parts]:
            del points[place]
            run.dropped[Reason.PART] += 1
    best: dict[str, int] = {}
    for (common, _, _), rank in ranks.items():
        best[common] = min(rank, best.get(common, rank))
    for key in [key for key, rank in ranks.items() if rank > best[key[0]]]:
        run.dropped[Reason.OTHER_NAME] += len(series.pop(key))
    return [_metric(common, name, list(points.values())) for (common, name, _), points in series.items()]


def _named(metric: Metric, point: _Point, engine: str, run: _Run) -> tuple[str, int, _Point]:
    """Return the common name, the rank of the own name, and the point in the unit of the common name."""
    rule = rule_for(metric.name, dict(point.labels), engine)
    if rule is None:
        if not run.limits.all_names:
            raise _DroppedError(Reason.UNKNOWN_NAME)
        return metric.name, 0, _in_time(point, run)
    is_histogram = point.counts is not None
    if is_histogram != (rule.kind == "histogram" or rule.own_name.sum_of):
        raise _DroppedError(Reason.KIND)
    value = point.sum if rule.own_name.sum_of else point.value
    if not math.isfinite(value * rule.own_name.scale):
        raise _DroppedError(Reason.NO_VALUE)
    labels = tuple((key, text) for key, text in point.labels if key not in RANKS)
    if rule.kind == "gauge" and point.is_delta:
        raise _DroppedError(Reason.KIND)
    named = replace(point, labels=labels, value=value * rule.own_name.scale, is_counter=rule.kind != "gauge")
    return rule.common, rule.rank, _in_time(replace(named, counts=None) if rule.own_name.sum_of else named, run)


def _in_time(point: _Point, run: _Run) -> _Point:
    if not EARLIEST_NS <= point.time_ns < LATEST_NS:
        raise _DroppedError(Reason.TIME)
    if point.time_ns > run.latest_ns:
        raise _DroppedError(Reason.FUTURE)
    day = point.time_ns // DAY_NS
    if day not in run.days and len(run.days) >= run.limits.max_days:
        raise _DroppedError(Reason.TOO_MANY_DAYS)
    run.days.add(day)
    return point


def _read(metric: Metric, kind: str, data_point: Any) -> _Point:
    """Read a data point of any kind; raises `_DroppedError`."""
    if kind == "summary":
        raise _DroppedError(Reason.UNSUPPORTED)
    if data_point.flags & _NO_VALUE:
        raise _DroppedError(Reason.NO_VALUE)
    labels, time_ns = _labels(data_point), data_point.time_unix_nano
    if kind in ("gauge", "sum"):
        value = float(data_point.as_int if data_point.WhichOneof("value") == "as_int" else data_point.as_double)
        if not math.isfinite(value):
            raise _DroppedError(Reason.NO_VALUE)
        is_delta = kind == "sum" and metric.sum.aggregation_temporality == _DELTA
        is_counter = kind == "sum" and metric.sum.is_monotonic
        if is_delta and not is_counter:
            raise _DroppedError(Reason.UNSUPPORTED)
        return _Point(labels, time_ns, value, is_delta, is_counter)
    is_delta = getattr(metric, kind).aggregation_temporality == _DELTA
    bounds, counts = (
        _explicit(data_point)
        if kind == "exponential_histogram"
        else (tuple(data_point.explicit_bounds), tuple(data_point.bucket_counts))
    )
    total = data_point.sum if data_point.HasField("sum") else math.nan
    if len(counts) > _MOST_BUCKETS or (counts and len(counts) != len(bounds) + 1) or not math.isfinite(data_point.sum):
        raise _DroppedError(Reason.KIND)
    if any(not a < b for a, b in pairwise(bounds)) or not all(map(math.isfinite, bounds)):
        raise _DroppedError(Reason.KIND)
    if max((data_point.count, *counts)) > MOST_COUNT:
        raise _DroppedError(Reason.KIND)
    bounds = bounds if counts else ()  # OTLP allows it, and the store must not compare them with buckets
    return _Point(labels, time_ns, float(data_point.count), is_delta, True, total, bounds, counts)


def _explicit(point: Any) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return bounds and counts of an exponential histogram: its buckets end at powers of 2^(2^-scale).

    scale 0, offset 1, counts 5 6, zero_count 3       3 up to 2, 5 up to 4, 6 up to 8, 0 above
    """
    counts = point.positive.bucket_counts
    if any(point.negative.bucket_counts) or len(counts) > _MOST_BUCKETS - 2 or not -10 <= point.scale <= 20:
        raise _DroppedError(Reason.UNSUPPORTED)
    try:
        bounds = tuple(2.0 ** ((point.positive.offset + i) * 2.0**-point.scale) for i in range(len(counts) + 1))
    except OverflowError:
        raise _DroppedError(Reason.UNSUPPORTED) from None
    return bounds, (point.zero_count, *counts, 0)


def _labels(data_point: Any) -> Labels:
    if len(data_point.attributes) > _MOST_LABELS:
        raise _DroppedError(Reason.LABELS)
    labels = {a.key: _text(a.value) for a in data_point.attributes}
    if any(len(text) > _LONGEST_LABEL for pair in labels.items() for text in pair):
        raise _DroppedError(Reason.LABELS)
    return tuple(sorted(labels.items()))


def _check_names(*names: str) -> None:
    """The store repeats the names of a process, and a metric's, for each of its points."""
    if any(len(name) > _LONGEST_LABEL for name in names):
        raise _DroppedError(Reason.LABELS)


def _text(value: Any) -> str:
    kind = value.WhichOneof("value")
    if kind == "bool_value":
        return "true" if value.bool_value else "false"
    return str(getattr(value, kind)) if kind in ("string_value", "int_value", "double_value") else ""


def _metric(common: str, name: str, points: Sequence[_Point]) -> Metric:
    metric, first = Metric(name=common, description=name), points[0]
    if first.counts is None and not first.is_counter:
        data: Any = metric.gauge
    else:
        data = metric.sum if first.counts is None else metric.histogram
        data.aggregation_temporality = _DELTA if first.is_delta else _CUMULATIVE
    for point in points:
        if point.counts is None:
            made = data.data_points.add(time_unix_nano=point.time_ns, as_double=point.value)
        else:
            made = data.data_points.add(
                time_unix_nano=point.time_ns,
                count=int(point.value),
                sum=point.sum,
                explicit_bounds=point.bounds,
                bucket_counts=point.counts,
            )
        set_labels(made, point.labels)
    return metric


def without_misread(payload: bytes) -> tuple[bytes, bytes]:
    """Divide a payload that the store cannot read: a checked request has no field that it could misread."""
    return payload, b""


def halves(payload: bytes) -> tuple[bytes, bytes] | None:
    """Return the first and the second half of the metrics, in order; None when there is only one."""
    whole = ExportMetricsServiceRequest.FromString(payload)
    count = sum(len(scope.metrics) for made in whole.resource_metrics for scope in made.scope_metrics)
    if count < 2:
        return None
    parts = ExportMetricsServiceRequest.FromString(payload), ExportMetricsServiceRequest.FromString(payload)
    for number, part in enumerate(parts):
        index = 0
        for made in part.resource_metrics:
            for scope in made.scope_metrics:
                kept = [m for n, m in enumerate(scope.metrics, index) if (n >= count // 2) == bool(number)]
                index += len(scope.metrics)
                del scope.metrics[:]
                scope.metrics.extend(kept)
    first, second = (part.SerializeToString() for part in parts)
    return first, second
