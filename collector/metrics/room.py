"""Which histograms a page of metrics keeps where it has no room for all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy

from prometheus_client import Metric as Family
from prometheus_client.samples import Sample

from collector.base.process import by_turns
from collector.metrics.metrics import PROCESS_TENANT

_OF_ONE = ("le", "error_type")
"""Labels that tell the series of one kind of request apart."""
_OF_A_LINE = 20
"""Bytes of a line that are neither a name nor a label, about."""
_LONG_LINE = 1024


def with_room(
    histograms: Sequence[Family], encode: Callable[[Iterable[Family]], bytes], room: int
) -> tuple[bytes, int]:
    """The text of as many histograms as fit into `room` bytes, and about how many bytes are left out.

    The requests of one label set have all of their histograms or none. Tenants take turns, so the label sets of one of
    them leave out none of another that has few. Of what does not fit no text is made, which would be dear.
    """
    if sum(len(family.samples) for family in histograms) * _LONG_LINE <= room:
        return encode(histograms), 0
    sizes: dict[tuple[tuple[str, str], ...], int] = defaultdict(int)
    for sample in (sample for family in histograms for sample in family.samples):
        sizes[_key(sample)] += _size(sample)
    whole, kept, used = sum(sizes.values()), set(), 0
    for key in by_turns(sizes, lambda key: dict(key).get(PROCESS_TENANT, "")):
        if used + sizes[key] > room:
            break
        used += sizes[key]
        kept.add(key)
    return encode([_of(family, kept) for family in histograms]) if kept else b"", whole - used


def _key(sample: Sample) -> tuple[tuple[str, str], ...]:
    labels: Mapping[str, str] = sample.labels
    return tuple(sorted((name, value) for name, value in labels.items() if name not in _OF_ONE))


def _size(sample: Sample) -> int:
    labels = sum(len(name) + len(value.encode()) + 4 for name, value in sample.labels.items())
    return len(sample.name) + labels + _OF_A_LINE


def _of(family: Family, kept: set[tuple[tuple[str, str], ...]]) -> Family:
    few = copy(family)
    few.samples = [sample for sample in family.samples if _key(sample) in kept]
    return few
