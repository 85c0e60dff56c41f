"""Reads the Prometheus text format as OTLP metrics.

# TYPE vllm:num_requests_running gauge               gauge vllm:num_requests_running
vllm:num_requests_running{engine="0"} 6.0                {engine="0"} 6

…_seconds_bucket{le="0.1"} 2                         histogram …_seconds
…_seconds_bucket{le="+Inf"} 3                            bounds 0.1; 2 up to it, 1 above
…_seconds_sum 0.9                                        sum 0.9
…_seconds_count 3                                        count 3
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from io import StringIO
from itertools import pairwise
from typing import Final

from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric
from prometheus_client.parser import text_string_to_metric_families

from collector.otlp.metric_names import engine_of, rule_for, rules

_PARTS: Final = ("_bucket", "_sum", "_count")
MOST_COUNT: Final = 2.0**53
"""Larger counts are not whole numbers in the doubles of the text and of the store."""
_LONGEST_LINE: Final = 128 * 1024
"""Characters. The parser takes minutes for a line of megabytes. No line of a series that is stored is so long."""
_LINES_OF_A_SERIES: Final = 10
"""Most lines of a page, for each of its most series: a histogram has a line for each bucket. To parse 8 MiB of lines
takes seconds, in which no other page is read."""
_NAME: Final = re.compile(r"[ \t]*([^\s{]+)")
"""A line may begin with blanks, and blanks or tabs stand behind a name."""
Labels = tuple[tuple[str, str], ...]


@dataclass
class _Histogram:
    buckets: dict[float, float] = field(default_factory=dict)
    """The number of observations up to each bound."""
    sum: float | None = None
    """None: the page tells none, as OpenMetrics allows."""
    count: float | None = None


@dataclass(frozen=True)
class Exposition:
    """The metrics of one page, under the engine's own names."""

    metrics: list[Metric]
    engine: str
    series: int
    """Series of the metrics; a histogram is one."""
    dropped: int
    """Series left out: more than the limit, or histograms with buckets that are not counts. Of lines that are too many,
    each counts."""


def read_exposition(text: str, *, time_ns: int, all_names: bool, most_series: int, engine: str = "") -> Exposition:
    """Read a page; lines of metrics that are not kept are not parsed. Raises ValueError for a line that is none.

    Only metrics with a common name are kept, unless `all_names`. `engine` is the product; empty: the names tell.
    """
    kinds, lines, names = _divided(text, all_names=all_names)
    engine = engine or engine_of(names)
    numbers: dict[str, dict[Labels, float]] = {}
    histograms: dict[str, dict[Labels, _Histogram]] = {}
    most_lines = _LINES_OF_A_SERIES * most_series
    series, too_many = 0, max(0, len(lines) - most_lines)
    for family in text_string_to_metric_families("".join(lines[:most_lines])):
        for sample in family.samples:
            base, part = _histogram_part(sample.name, kinds)
            le = sample.labels.pop("le", "") if part == "_bucket" else ""
            labels = tuple(sorted(sample.labels.items()))
            if not all_names and rule_for(base, sample.labels, engine) is None:
                continue
            known = (histograms if part else numbers).setdefault(base, {})
            if labels not in known:
                if series >= most_series:
                    too_many += 1
                    continue
                series += 1
            if not part:
                numbers[base].setdefault(labels, sample.value)
                continue
            histogram = histograms[base].setdefault(labels, _Histogram())
            if part == "_bucket":
                histogram.buckets[float(le)] = sample.value
            elif part == "_sum":
                histogram.sum = sample.value
            else:
                histogram.count = sample.value
    metrics = [_number(name, kinds.get(name, ""), points, time_ns) for name, points in numbers.items() if points]
    metrics += [_histogram(name, points, time_ns) for name, points in histograms.items() if points]
    kept = sum(len(getattr(metric, str(metric.WhichOneof("data"))).data_points) for metric in metrics)
    return Exposition(metrics, engine, kept, too_many + series - kept)


def _divided(text: str, *, all_names: bool) -> tuple[dict[str, str], list[str], set[str]]:
    """Return the kinds of the metrics, the lines to parse, and the names of all series."""
    kinds: dict[str, str] = {name: match[0].kind for name, match in rules().items()}
    lines, names = [], set()
    for line in StringIO(text):  # as the parser does it: a label may have other ends of lines
        if line.lstrip(" \t").startswith("#"):
            words = line.split(None, 3)
            if len(words) == 4 and words[1] == "TYPE":
                kinds.setdefault(words[2], words[3].strip())
        elif match := _NAME.match(line):
            name = match[1]
            names.add(name)
            if all_names or name in rules() or _base(name) in rules():
                if len(line) > _LONGEST_LINE:
                    msg = f"a line of {name:.100} has {len(line)} characters"
                    raise ValueError(msg)
                lines.append(line)
    return kinds, lines, names


def _base(name: str) -> str:
    return next((name.removesuffix(part) for part in _PARTS if name.endswith(part)), name)


def _histogram_part(name: str, kinds: Mapping[str, str]) -> tuple[str, str]:
    """Divide a histogram's series into its name and its part; any other series has no part."""
    for part in _PARTS:
        base = name.removesuffix(part)
        if base != name and (kinds.get(base) == "histogram" or _is_sum_of(base)):
            return base, part
    return name, ""


def _is_sum_of(name: str) -> bool:
    return any(rule.own_name.sum_of for rule in rules().get(name, ()))


def _number(name: str, kind: str, points: Mapping[Labels, float], time_ns: int) -> Metric:
    metric = Metric(name=name)
    if kind == "counter" or (not kind and name.endswith("_total")):
        metric.sum.is_monotonic = True
        metric.sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
        data_points = metric.sum.data_points
    else:
        data_points = metric.gauge.data_points
    for labels, value in points.items():
        point = data_points.add(time_unix_nano=time_ns, as_double=value)
        set_labels(point, labels)
    return metric


def _histogram(name: str, points: Mapping[Labels, _Histogram], time_ns: int) -> Metric:
    metric = Metric(name=name)
    metric.histogram.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    for labels, histogram in points.items():
        bounds = sorted(bound for bound in histogram.buckets if bound < math.inf)
        count = histogram.buckets.get(math.inf, histogram.count)
        if count is None:
            continue  # neither a count nor a bucket +Inf
        at_most = [0.0, *(histogram.buckets[bound] for bound in bounds), count]
        if not all(0 <= number <= MOST_COUNT for number in at_most) or any(a > b for a, b in pairwise(at_most)):
            continue
        point = metric.histogram.data_points.add(
            time_unix_nano=time_ns,
            count=int(count),
            sum=histogram.sum,  # None sets no sum
            explicit_bounds=bounds,
            bucket_counts=[int(b - a) for a, b in pairwise(at_most)],
        )
        set_labels(point, labels)
    return metric


def set_labels(point: object, labels: Iterable[tuple[str, str]]) -> None:
    """Add labels to a data point as attributes of type string."""
    for key, value in labels:
        point.attributes.add(key=key).value.string_value = value  # type: ignore[attr-defined]  # any data point
