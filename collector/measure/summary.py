"""The numbers of a window's requests, judged by the SLO file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from collector.answer import Answer
from collector.measure.answers import Distribution, Goodput, WindowOut, per_s
from collector.measure.evaluation import OUTPUT_TOKENS, count
from collector.measure.itl import itl
from collector.measure.latencies import QuantileErrors, estimated, exact
from collector.measure.reader import Reader
from collector.measure.window import Window
from collector.slo.counts import Counts, Number
from collector.slo.estimate import Errors


class Throughput(Answer):
    """Rates over all requests that ended in the part of the window that is complete; null where none is.

    Those of tokens are over the requests that report theirs.
    """

    requests_per_s: float | None
    output_tokens_per_s: float | None
    output_tokens_known: Number
    total_tokens_per_s: float | None
    total_tokens_known: Number


class SummaryErrors(Errors):
    """Standard errors of rates and of percentiles: seconds, by field and percentile."""

    percentiles: dict[str, QuantileErrors]


class Summary(Answer):
    """`/summary`."""

    window: WindowOut
    requests: Counts
    ttft_s: Distribution
    """Of requests that ended ok, with one output token or more."""
    tpot_s: Distribution
    """Of requests that ended ok, with two output tokens or more."""
    itl_s: Distribution
    """Of their tokens."""
    e2e_s: Distribution
    """Of requests that ended ok."""
    queue_s: Distribution
    """Of requests that ended ok, where the engine tells it."""
    throughput: Throughput
    goodput: Goodput
    attainment: float | None
    """Good ÷ judged; null when none is judged."""
    estimated: bool
    """Requests were sampled: counts are sums of weights, and may have fractions."""
    errors: SummaryErrors | None


_SUMMANDS: Final = {
    **OUTPUT_TOKENS,
    "known_out": "output_tokens IS NOT NULL",
    "tokens_all": "toUInt64(input_tokens) + output_tokens",
    "known_all": "input_tokens IS NOT NULL AND output_tokens IS NOT NULL",
}


def summary(reader: Reader, asked: Window, vantage: Sequence[str]) -> Summary:
    """Counts, exact percentiles, throughput, goodput and attainment of a window, as measured at a `vantage`."""
    counted = count(reader, asked, vantage, reader.slos, _SUMMANDS)
    window, requests, covered = counted.window, counted.requests, counted.covered
    if counted.errors is None:
        latencies, errors = exact(reader, window, requests.ok), None
    else:
        latencies, of_latencies = estimated(reader, window)
        errors = SummaryErrors(**counted.errors.model_dump(), percentiles=of_latencies)
    return Summary(
        window=WindowOut.of(window, counted.complete_ns),
        requests=requests,
        ttft_s=latencies["ttft"],
        tpot_s=latencies["tpot"],
        itl_s=itl(reader.queries, window, counted.first_ns),
        e2e_s=latencies["e2e"],
        queue_s=latencies["queue"],
        throughput=Throughput(
            requests_per_s=per_s(covered.requests.total, covered.seconds),
            output_tokens_per_s=covered.tokens_per_s("tokens_out", covered.requests.total),
            output_tokens_known=counted.sums.get("known_out") or 0,
            total_tokens_per_s=covered.tokens_per_s("tokens_all", covered.requests.total),
            total_tokens_known=counted.sums.get("known_all") or 0,
        ),
        goodput=Goodput.of(covered),
        attainment=requests.attainment,
        estimated=counted.errors is not None,
        errors=errors,
    )
