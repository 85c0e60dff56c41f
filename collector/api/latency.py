"""A latency and its bounds, as parameters of endpoints that select requests by them."""

from __future__ import annotations

from pydantic import Field

from collector.api.parameters import Duration, WindowQuery
from collector.api.problems import bad_parameter
from collector.measure.heatmap import Metric
from collector.sql.fragment import Fragment


class LatencyQuery(WindowQuery):
    """Requests with a latency between two bounds."""

    metric: Metric | None = Field(None, description="select by this latency")
    at_least: Duration | None = Field(None, description="select a latency of so much or more, such as `500ms`")
    at_most: Duration | None = Field(None, description="select a latency of so much or less")

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
