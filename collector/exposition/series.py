"""Values of counters, gauges and histograms by their labels, and a limit on the number of label sets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.samples import Exemplar

from collector.exposition.metrics import Metric

Labels = tuple[str, ...]
OTHER = "other"


@dataclass
class LabelSets:
    """Admits label sets up to a limit. All label sets beyond it count together under `other`."""

    names: tuple[str, ...]
    limit: int
    used_ns: dict[Labels, int] = field(default_factory=dict)

    def admit(self, labels: Labels, now_ns: int) -> Labels:
        """The label set itself, or `other` in every label when there is no room."""
        if labels not in self.used_ns and len(self.used_ns) >= self.limit:
            return (OTHER,) * len(labels)
        self.used_ns[labels] = now_ns
        return labels

    def forget_before(self, ns: int) -> list[Labels]:
        """Drop the label sets that were not used since then, and return them."""
        idle = [labels for labels, used in self.used_ns.items() if used < ns]
        for labels in idle:
            del self.used_ns[labels]
        return idle


@dataclass
class Histogram:
    """Counts by bucket. `edges` are ascending nanoseconds, inclusive; larger values are in the last bucket."""

    edges: Sequence[int]
    counts: list[float] = field(init=False)
    exemplars: dict[int, Exemplar] = field(default_factory=dict)
    sum_ns: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0.0] * (len(self.edges) + 1)

    def add(self, over_ns: int, n: float, sum_ns: float, exemplar: Exemplar) -> None:
        """Count n values. `over_ns` is the largest edge that they exceed, 0 for none."""
        bucket = bisect_left(self.edges, over_ns) + 1 if over_ns else 0
        self.counts[bucket] += n
        self.sum_ns += sum_ns
        self.exemplars[bucket] = exemplar

    def buckets(self) -> Iterator[tuple[str, float] | tuple[str, float, Exemplar]]:
        """The edges with cumulative counts, as the exposition formats want them."""
        total = 0.0
        for i, (edge, n) in enumerate(zip([*self.edges, None], self.counts, strict=True)):
            total += n
            le = "+Inf" if edge is None else repr(edge / 1e9)
            yield (le, total, self.exemplars[i]) if i in self.exemplars else (le, total)


@dataclass
class Series:
    """Values by metric and labels."""

    counters: dict[Metric, dict[Labels, float]] = field(default_factory=dict)
    gauges: dict[Metric, dict[Labels, float]] = field(default_factory=dict)
    histograms: dict[Metric, dict[Labels, Histogram]] = field(default_factory=dict)

    def add(self, metric: Metric, labels: Labels = (), n: float = 0) -> None:
        """Add to a counter. Adding 0 exposes it, so that Prometheus sees its first increase."""
        values = self.counters.setdefault(metric, {})
        values[labels] = values.get(labels, 0) + n

    def set(self, metric: Metric, labels: Labels, value: float) -> None:
        """Set a gauge."""
        self.gauges.setdefault(metric, {})[labels] = value

    def raise_to(self, metric: Metric, labels: Labels, value: float) -> bool:
        """Set a gauge that holds the time of the latest event, unless it is as late already. True when it was set."""
        values = self.gauges.setdefault(metric, {})
        if value <= values.get(labels, float("-inf")):
            return False
        values[labels] = value
        return True

    def histogram(self, metric: Metric, labels: Labels, edges: Sequence[int]) -> Histogram:
        """The histogram of a label set, empty at first."""
        by_labels = self.histograms.setdefault(metric, {})
        if labels not in by_labels:
            by_labels[labels] = Histogram(edges)
        return by_labels[labels]

    def drop(self, names: tuple[str, ...], labels: Labels) -> None:
        """Remove every series of metrics with these label names that has these labels."""
        for by_metric in (self.counters, self.gauges, self.histograms):
            for metric, values in by_metric.items():
                if metric.labels[: len(names)] == names:
                    for key in [key for key in values if key[: len(labels)] == labels]:
                        del values[key]

    def families(self) -> Iterator[Family]:
        """The values as metric families of prometheus_client."""
        for metric, counters in self.counters.items():
            counter = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, n in counters.items():
                counter.add_metric(labels, n)
            yield counter
        for metric, gauges in self.gauges.items():
            gauge = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, value in gauges.items():
                gauge.add_metric(labels, value)
            yield gauge
        for metric, histograms in self.histograms.items():
            family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, histogram in histograms.items():
                family.add_metric(labels, list(histogram.buckets()), histogram.sum_ns / 1e9)
            yield family
