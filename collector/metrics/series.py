"""Values of counters, gauges and histograms by their labels, and a limit on the number of label sets."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.samples import Exemplar

from collector.metrics.metrics import PROCESS_TENANT, Metric

Labels = tuple[str, ...]
Keys = set[tuple[Metric, Labels]]
"""Names of series: metric and labels."""
OTHER = "other"
LONGEST: Final = 1024
"""Characters of a label. A request has a hundred series, so a longer name would make each scrape that much larger."""
SECOND_NS: Final = 1_000_000_000


def printable(text: str) -> str:
    """The text of others as a label: `\ufffd` stands for each character that is not to be seen as such.

    Those are control characters, among them line breaks and the escapes of terminals, marks that turn the direction of
    a text, spaces without a width, and characters of no known meaning. Receivers of alerts print labels as they are.
    """
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def fits(label: str) -> bool:
    """Tell whether a label is short enough for /metrics."""
    return len(label) <= LONGEST


def admitted(label: str, known: Collection[str], *, most: int, other: str) -> str:
    """A text of others as a label, `printable`; `other` if it is not known, and too long or one too many."""
    label = printable(label)
    return label if label in known or (len(known) < most and fits(label)) else other


def is_other(labels: Labels) -> bool:
    """Tell whether these are the labels of all that there is no room for."""
    return all(label == OTHER for label in labels)


@dataclass
class LabelSets:
    """Admits label sets up to a limit. All label sets beyond it count together under `other`.

    One tenant's names leave room for those of others. When there is none, a label set of a tenant with fewer than the
    others, or of no tenant, takes the place of the longest unused one of the tenant that has the most:

        498 of acme, 2 of bolt    a third of bolt comes       497 of acme, 3 of bolt
        500 without a tenant      one of acme comes           it counts under `other`
    """

    names: tuple[str, ...]
    limit: int
    used_ns: dict[Labels, int] = field(default_factory=dict)
    gone: Callable[[Labels], None] = field(default=lambda _labels: None, compare=False)
    """Called with a label set that has lost its place to another."""

    def admit(self, labels: Labels, now_ns: int) -> Labels:
        """The label set, `printable`, or `other` in every label when there is no room or a name is too long."""
        labels = tuple(map(printable, labels))
        if labels not in self.used_ns and not (all(map(fits, labels)) and self._has_room(labels)):
            return (OTHER,) * len(labels)
        self.used_ns[labels] = now_ns
        return labels

    def _has_room(self, labels: Labels) -> bool:
        if len(self.used_ns) < self.limit:
            return True
        tenant_at = self.names.index(PROCESS_TENANT)
        tenant = labels[tenant_at]
        held = Counter(used[tenant_at] for used in self.used_ns if used[tenant_at])
        largest = max(held, key=held.__getitem__, default="")
        if not largest or (tenant and held[tenant] + 1 >= held[largest]):
            return False
        unused = min((used for used in self.used_ns if used[tenant_at] == largest), key=self.used_ns.__getitem__)
        del self.used_ns[unused]
        self.gone(unused)
        return True

    def forget(self, *, idle_since_ns: int, unused_since_ns: int) -> list[Labels]:
        """Drop the label sets that were unused for too long, and return them.

        When there is no room, the longest idle ones go too, until a tenth of the places is free.
        """
        too_many = len(self.used_ns) - self.limit * 9 // 10 if len(self.used_ns) >= self.limit else 0
        oldest = sorted(self.used_ns.items(), key=lambda item: item[1])
        gone = [
            labels
            for place, (labels, used) in enumerate(oldest)
            if used < unused_since_ns or (place < too_many and used < idle_since_ns)
        ]
        for labels in gone:
            del self.used_ns[labels]
        return gone


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
    """Values by metric and labels. Counters and histograms know when they were created (unix seconds)."""

    counters: dict[Metric, dict[Labels, float]] = field(default_factory=dict)
    gauges: dict[Metric, dict[Labels, float]] = field(default_factory=dict)
    histograms: dict[Metric, dict[Labels, Histogram]] = field(default_factory=dict)
    created: dict[tuple[Metric, Labels], float] = field(default_factory=dict)

    def add(self, metric: Metric, labels: Labels = (), n: float = 0, *, at_s: float | None = None) -> None:
        """Add to a counter. Adding 0 exposes it, so that Prometheus sees its first increase."""
        values = self.counters.setdefault(metric, {})
        if labels not in values and at_s is not None:
            self.created[metric, labels] = at_s
        values[labels] = values.get(labels, 0) + n

    def set(self, metric: Metric, labels: Labels, value: float) -> None:
        """Set a gauge."""
        self.gauges.setdefault(metric, {})[labels] = value

    def increase(self, metric: Metric, labels: Labels, n: float) -> None:
        """Add to a gauge: label sets that count together as `other` are one sum."""
        values = self.gauges.setdefault(metric, {})
        values[labels] = values.get(labels, 0) + n

    def raise_to(self, metric: Metric, labels: Labels, value: float) -> bool:
        """Set a gauge that holds the largest value, unless it is as large already. True when it was set."""
        values = self.gauges.setdefault(metric, {})
        if value <= values.get(labels, float("-inf")):
            return False
        values[labels] = value
        return True

    def histogram(
        self, metric: Metric, labels: Labels, edges: Sequence[int], *, at_s: float | None = None
    ) -> Histogram:
        """The histogram of a label set, empty at first."""
        by_labels = self.histograms.setdefault(metric, {})
        if labels not in by_labels:
            by_labels[labels] = Histogram(edges)
            if at_s is not None:
                self.created[metric, labels] = at_s
        return by_labels[labels]

    def drop(self, names: tuple[str, ...], labels: Labels) -> None:
        """Remove every counter and gauge with these label names that has these labels."""
        for by_metric in (self.counters, self.gauges):
            for metric, values in by_metric.items():
                if metric.labels[: len(names)] == names:
                    self._drop(metric, values, labels)

    def drop_histograms(self, labels: Labels) -> None:
        """Remove every histogram of a label set of latencies."""
        for metric, values in self.histograms.items():
            self._drop(metric, values, labels)

    def _drop(self, metric: Metric, values: dict[Labels, Any], labels: Labels) -> None:
        for key in [key for key in values if key[: len(labels)] == labels]:
            del values[key]
            self.created.pop((metric, key), None)

    @property
    def growing(self) -> Keys:
        """The keys of all counters and histograms."""
        kinds: tuple[Mapping[Metric, Mapping[Labels, Any]], ...] = (self.counters, self.histograms)
        return {(metric, labels) for kind in kinds for metric, values in kind.items() for labels in values}

    def families(self, newborn: Collection[tuple[Metric, Labels]] = ()) -> Iterator[Family]:
        """The values as metric families of prometheus_client. The `newborn` are written as 0."""
        for metric, counters in self.counters.items():
            counter = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, n in counters.items():
                counter.add_metric(labels, 0 if (metric, labels) in newborn else n)
            yield counter
        for metric, gauges in self.gauges.items():
            gauge = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, value in gauges.items():
                gauge.add_metric(labels, value)
            yield gauge
        for metric, histograms in self.histograms.items():
            family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, full in histograms.items():
                histogram = Histogram(full.edges) if (metric, labels) in newborn else full
                family.add_metric(labels, list(histogram.buckets()), histogram.sum_ns / 1e9)
            yield family
