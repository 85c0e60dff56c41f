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
    heads = len(encode([_of(family, set()) for family in histograms]))
    whole, kept, used = heads + sum(sizes.values()), set(), heads
    for key in by_turns(sizes, lambda key: dict(key).get(PROCESS_TENANT, "")):
        if used + sizes[key] > room:
            break
        used += sizes[key]
        kept.add(key)
    return (encode([_of(family, kept) for family in histograms]), whole - used) if kept else (b"", whole)


def _key(sample: Sample) -> tuple[tuple[str, str], ...]:
    labels: Mapping[str, str] = sample.labels
    return tuple(sorted((name, value) for name, value in labels.items() if name not in _OF_ONE))


def _size(sample: Sample) -> int:
    """Bytes of its line `name{label="value",…} number # {trace_id="…"} number time`, as far as nothing is escaped."""
    size = len(sample.name) + _labels(sample.labels) + len(str(sample.value)) + 2
    if told := sample.exemplar:
        size += _labels(told.labels) + len(f" #  {told.value} {told.timestamp}")
    return size


def _labels(labels: Mapping[str, str]) -> int:
    return sum(len(name) + len(value.encode()) + 4 for name, value in labels.items()) + 1


def _of(family: Family, kept: set[tuple[tuple[str, str], ...]]) -> Family:
    few = copy(family)
    few.samples = [sample for sample in family.samples if _key(sample) in kept]
    return few
