"""A latency and lengths of prompts with their bounds, as parameters of endpoints that select requests by them."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from collector.api.parameters import Duration, WindowQuery
from collector.api.problems import bad_parameter
from collector.ask.window import Window
from collector.count.reader import Reader
from collector.sql.fragment import Fragment, all_of
from tokentrail.shared.parameters import MEANING, Latency

_Tokens = Annotated[int, Field(ge=0, le=2**32 - 1)]


class LengthQuery(WindowQuery):
    """A window of time, and filters for its requests, of which one is the length of their prompts."""

    min_input_tokens: _Tokens | None = Field(None, description="only requests with so many prompt tokens or more")
    max_input_tokens: _Tokens | None = Field(None, description="only requests with so many prompt tokens or fewer")

    def as_reported(self, reader: Reader) -> Window:
        """The window, without the requests whose prompts have another length, or none that is known."""
        bounds = {"min_input_tokens": (">=", self.min_input_tokens), "max_input_tokens": ("<=", self.max_input_tokens)}
        lengths = [
            Fragment(f"ifNull(input_tokens {sign} {{{name}:UInt32}}, false)", {name: bound})
            for name, (sign, bound) in bounds.items()
            if bound is not None
        ]
        window = super().as_reported(reader)
        return replace(window, filter=all_of(window.filter, *lengths))


class LatencyQuery(LengthQuery):
    """Requests with a latency between two bounds."""

    metric: Latency | None = Field(None, description=MEANING["metric"])
    at_least: Duration | None = Field(None, description=MEANING["at_least"])
    at_most: Duration | None = Field(None, description=MEANING["at_most"])

    def between(self) -> list[Fragment]:
        """The predicates of the bounds; a request without this latency is not between them.

        Raises Problem for a bound without a metric, and for a metric without a bound.
        """
        if (self.metric is None) != (self.at_least is None and self.at_most is None):
            raise bad_parameter("metric", "give a metric with at_least or at_most, as in metric=ttft&at_least=500ms")
        bounds = {"at_least_ns": (">=", self.at_least), "at_most_ns": ("<=", self.at_most)}
        return [
            Fragment(f"ifNull({self.metric}_ns {sign} {{{name}:Int64}}, false)", {name: ns})
            for name, (sign, ns) in bounds.items()
            if ns is not None
        ]
