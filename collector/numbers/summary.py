"""The numbers of a window's requests, judged by the SLO file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from collector.ask.slices import is_short
from collector.ask.window import Window
from collector.base.answer import Answer
from collector.count.answers import Distribution, Goodput, WindowOut, per_s
from collector.count.evaluation import OUTPUT_TOKENS, Counted, Groups, count, count_by
from collector.count.reader import Reader
from collector.numbers.itl import itl, itl_by
from collector.numbers.latencies import LATENCIES, QuantileErrors, estimated, exact, exact_by
from collector.slo.counts import Counts, Number
from collector.slo.estimate import Errors
from collector.slo.judge import LARGEST_US


class Throughput(Answer):
    """Rates over all requests that ended in the part of the window that is complete; null where none is.

    Those of tokens are over the requests that report theirs.
    """

    requests_per_s: float | None
    output_tokens_per_s: float | None
    output_tokens_known: Number


class SummaryErrors(Errors):
    """Standard errors of rates and of percentiles: seconds, by field and percentile."""

    percentiles: dict[str, QuantileErrors]


class Summary(Answer):
    """The numbers of the requests of a window."""

    window: WindowOut
    requests: Counts
    ttft_s: Distribution
    """Of requests that ended ok, with one output token or more."""
    ttft_is_e2e: Number
    """Of the requests in `ttft_s`, those whose first token came with the end: their answers were not streamed, or had
    one token. The label `stream` tells streams from others."""
    tpot_s: Distribution
    """Of requests that ended ok, with two output tokens or more."""
    itl_s: Distribution
    """Of their tokens."""
    e2e_s: Distribution
    """Of requests that ended ok."""
    queue_s: Distribution
    """Of requests that ended ok, where the engine tells it."""
    gap_s: Distribution
    """The longest wait between two tokens of an answer, of requests that ended ok, where their source tells it."""
    throughput: Throughput
    goodput: Goodput
    attainment: float | None
    """Good ÷ judged; null when none is judged."""
    estimated: bool
    """Requests were sampled: counts are sums of weights, and may have fractions."""
    errors: SummaryErrors | None


class Group(Summary):
    """The summary of the requests with one value of the column that `group_by` names."""

    value: str
    """Empty: requests without one."""


class GroupedSummary(Summary):
    """`/summary`."""

    groups: list[Group] | None = None
    """Groups with the most requests first, as many as `top` says; absent without `group_by`."""
    groups_total: int | None = None
    """The number of all values that requests of the window have."""


_SUMMANDS: Final = {
    **OUTPUT_TOKENS,
    "known_out": "output_tokens IS NOT NULL",
    "ttft_is_e2e": f"status = 'ok' AND ttft_us = e2e_us AND ttft_us BETWEEN 1 AND {LARGEST_US - 1}",
}


def summary(reader: Reader, asked: Window, vantage: Sequence[str]) -> Summary:
    """Counts, exact percentiles, throughput, goodput and attainment of a window, as measured at a `vantage`."""
    counted = count(reader, asked, vantage, reader.slos, _SUMMANDS)
    return Summary(**_all_numbers(reader, counted))


def summary_by(reader: Reader, asked: Window, vantage: Sequence[str], column: str, most: int) -> GroupedSummary:
    """The summary of a window, and of each of the values of a column with the most requests.

    In a window of a few hours, one query reads the latencies of all groups, and one their tokens. In a longer one they
    are read group by group, since the answers about whole days are remembered.
    """
    whole = summary(reader, asked, vantage)
    grouped = count_by(reader, asked, vantage, reader.slos, column, most, _SUMMANDS)
    if is_short(asked.start_ns, asked.end_ns):
        groups = [*_read_at_once(reader, grouped, column)]
    else:
        groups = [Group(value=value, **_all_numbers(reader, counted)) for value, counted in grouped.by_value.items()]
    return GroupedSummary(**vars(whole), groups=groups, groups_total=grouped.total)


def _read_at_once(reader: Reader, grouped: Groups, column: str) -> Iterator[Group]:
    latencies, tokens = exact_by(reader, grouped.window, column), itl_by(reader.queries, grouped.window, column)
    nothing = Distribution.empty()
    for value, counted in grouped.by_value.items():
        exactly = latencies.get(value, dict.fromkeys(LATENCIES, nothing)), None
        of_group = _latencies(reader, counted) if counted.errors else exactly
        yield Group(value=value, **_numbers(counted, *of_group, tokens.get(value, nothing)))


def _all_numbers(reader: Reader, counted: Counted) -> dict[str, Any]:
    of_tokens = itl(reader.queries, counted.window, counted.first_ns)
    return _numbers(counted, *_latencies(reader, counted), of_tokens)


def _latencies(reader: Reader, counted: Counted) -> tuple[dict[str, Distribution], dict[str, QuantileErrors] | None]:
    if counted.errors is None:
        return exact(reader, counted.window, counted.requests.ok), None
    return estimated(reader, counted.window)


def _numbers(
    counted: Counted,
    latencies: Mapping[str, Distribution],
    percentiles: dict[str, QuantileErrors] | None,
    of_tokens: Distribution,
) -> dict[str, Any]:
    """The fields of a summary. `percentiles` has the errors of latencies that are estimated."""
    requests, covered, errors = counted.requests, counted.covered, counted.errors
    return {
        "window": WindowOut.of(counted.window, counted.complete_ns),
        "requests": requests,
        **{f"{name}_s": distribution for name, distribution in latencies.items()},
        "ttft_is_e2e": counted.sums.get("ttft_is_e2e") or 0,
        "itl_s": of_tokens,
        "throughput": Throughput(
            requests_per_s=per_s(covered.requests.total, covered.seconds),
            output_tokens_per_s=covered.tokens_per_s("tokens_out", covered.requests.total),
            output_tokens_known=counted.sums.get("known_out") or 0,
        ),
        "goodput": Goodput.of(covered),
        "attainment": requests.attainment,
        "estimated": errors is not None,
        "errors": errors and SummaryErrors(**errors.model_dump(), percentiles=percentiles or {}),
    }
