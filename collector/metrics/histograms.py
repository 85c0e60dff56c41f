"""Histograms of latencies: their bucket edges, and the values that stored segments add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from prometheus_client.samples import Exemplar

from collector.metrics import metrics
from collector.metrics.series import SECOND_NS, Labels, Series, admitted
from collector.slo.model import Slo

_MOST_ERROR_TYPES: Final = 50
_OTHER_ERROR: Final = "_OTHER"
"""OpenTelemetry's name for an error without a type, and for those that are too many to name."""
SEMCONV_EDGES_MS: Final = {
    metrics.TTFT: (1, 5, 10, 20, 40, 60, 80, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10000, 20000, 40000, 80000),
    metrics.TPOT: (10, 25, 50, 75, 100, 150, 200, 300, 400, 500, 750, 1000, 2500),
    metrics.E2E: tuple(10 * 2**i for i in range(14)),
}
"""Bucket boundaries that OpenTelemetry's GenAI conventions advise, and three more of TTFT: theirs end at 10 s."""
_METRIC = {"ttft": metrics.TTFT, "tpot": metrics.TPOT, "e2e": metrics.E2E}
"""The histogram of each threshold's latency."""


def bucket_edges(slos: Sequence[Slo]) -> dict[str, list[int]]:
    """Bucket edges by threshold name: the advised ones and every SLO's threshold, so that a bucket is exact for it."""
    return {
        name: sorted(
            {ms * 1_000_000 for ms in SEMCONV_EDGES_MS[metric]} | {t[name] for t in _thresholds(slos) if name in t}
        )
        for name, metric in _METRIC.items()
    }


def _thresholds(slos: Sequence[Slo]) -> list[dict[str, int]]:
    return [slo.thresholds.given() for slo in slos]


def drop_old_histograms(series: Series, edges_of: Mapping[str, Sequence[int]]) -> None:
    """Drop the histograms with other buckets, which a changed SLO file leaves: they begin again."""
    for name, metric in _METRIC.items():
        by_labels = series.histograms.get(metric, {})
        for labels in [key for key, histogram in by_labels.items() if list(histogram.edges) != edges_of[name]]:
            del by_labels[labels]


def add_latencies(
    series: Series, edges_of: Mapping[str, Sequence[int]], row: Mapping[str, Any], labels: Labels, now_ns: int
) -> None:
    """Add the latencies of a row of the query `segment_requests`.

    A request that failed has an E2E alone, by its error. One that was cancelled, or whose end is unknown, has none.
    """
    if row["status"] in ("cancelled", "unknown"):
        return
    failed = row["status"] == "error"
    trace, *latest = row["latest"]
    for (name, metric), value_ns in zip(_METRIC.items(), latest, strict=True):
        if value_ns is None or (failed and name != "e2e"):
            continue
        key = labels
        if name == "e2e":
            key = (*labels, _error_type(series, labels, row["error_type"] or _OTHER_ERROR) if failed else "")
        exemplar = Exemplar({"trace_id": trace.hex()}, value_ns / SECOND_NS, row["at_ns"] / SECOND_NS)
        histogram = series.histogram(metric, key, edges_of[name], at_s=now_ns / SECOND_NS)
        histogram.add(row[f"{name}_over"], row["n"], row[f"{name}_sum"], exemplar)


def _error_type(series: Series, request: Labels, error_type: str) -> str:
    """The label of an error. The processes of each tenant have errors of their own."""
    known = {labels[-1] for labels in series.histograms.get(metrics.E2E, ()) if labels[-2] == request[-1]}
    return admitted(error_type, known, most=_MOST_ERROR_TYPES, other=_OTHER_ERROR)
