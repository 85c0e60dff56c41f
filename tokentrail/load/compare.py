"""Compares the clients' observations with the collector's request rows."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tokentrail.load.client import Observation


@dataclass(slots=True)
class Comparison:
    """Result of `compare`. Gaps are client − server in seconds, one per answered request that has a row."""

    matched: int = 0
    missing: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    ttft_gaps_s: list[float] = field(default_factory=list)
    tpot_gaps_s: list[float] = field(default_factory=list)
    e2e_gaps_s: list[float] = field(default_factory=list)

    def problems(self, *, median_s: float, slack_s: float = 0.005) -> list[str]:
        """The disagreements in words; empty when there are none.

        A client sees each token after the server has made it. So a gap below `-slack_s` (the error of reading two
        clocks) is wrong, and so is a median gap above `median_s`, the time that the hop between them may take.
        """
        sentences = [f"request {r} was answered but has no row" for r in self.missing] + self.wrong
        for name, gaps in (("TTFT", self.ttft_gaps_s), ("E2E", self.e2e_gaps_s)):
            if gaps and min(gaps) < -slack_s:
                sentences.append(f"{name}: the collector reports {-min(gaps) * 1e3:.1f} ms more than a client waited")
            if gaps and statistics.median(gaps) > median_s:
                sentences.append(
                    f"{name}: clients waited {statistics.median(gaps) * 1e3:.1f} ms longer than the collector reports "
                    f"(median; at most {median_s * 1e3:.0f} ms belong to the hop)"
                )
        return sentences


def longest_hop_s(observations: Iterable[Observation], least_s: float) -> float:
    """The median gap that still counts as a hop: `least_s`, or a tenth of the clients' median TTFT when that is longer.

    On a machine that is too busy for its model, the hop is slow too.
    """
    ttfts_s = [seen.ttft_s for seen in observations if seen.status == "ok" and seen.ttft_s is not None]
    return max(least_s, 0.1 * statistics.median(ttfts_s)) if ttfts_s else least_s


def compare(observations: Iterable[Observation], rows: Iterable[Mapping[str, Any]]) -> Comparison:
    """Join observations with rows of `/api/v1/requests` by request id and compare counts and latencies."""
    by_id = {row["request_id"]: row for row in rows}
    result = Comparison()
    for seen in observations:
        if seen.status != "ok":
            continue
        row = by_id.get(seen.request_id)
        if row is None:
            result.missing.append(seen.request_id)
            continue
        result.matched += 1
        counts = {"input_tokens": seen.input_tokens, "output_tokens": seen.output_tokens, "status": "ok"}
        result.wrong += [
            f"request {seen.request_id}: {key} is {row[key]!r}, its client saw {value!r}"
            for key, value in counts.items()
            if value is not None and row[key] != value
        ]
        if seen.ttft_s is not None and row["ttft_s"] is not None:
            result.ttft_gaps_s.append(seen.ttft_s - row["ttft_s"])
        if seen.tpot_s is not None and row["tpot_s"] is not None:
            result.tpot_gaps_s.append(seen.tpot_s - row["tpot_s"])
        result.e2e_gaps_s.append(seen.e2e_s - row["e2e_s"])
    return result
