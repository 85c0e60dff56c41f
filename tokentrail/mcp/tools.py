"""The tools of the MCP server. Each asks one endpoint of a collector's API, with the key of whoever calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

from httpx import DecodingError, HTTPError, HTTPStatusError
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, ConfigDict, Field

from tokentrail.cli.api import Api, NoSuchRequest
from tokentrail.mcp.bounds import bounded, without
from tokentrail.shared.connection import ConnectionSettingError, in_words
from tokentrail.shared.formatting import one_line, without_user

Names = list[Annotated[str, Field(max_length=256)]]
Start = Annotated[str, Field(description="Start of the window: -15m, -1d, RFC 3339 or unix seconds", max_length=64)]
End = Annotated[str, Field(description="End of the window: now, -5m, RFC 3339 or unix seconds", max_length=64)]
Slo = Annotated[str | None, Field(description="Name of an SLO, as the tool `slos` lists them", max_length=63)]
Latency = Literal["ttft", "tpot", "e2e"]

_OF_A_ROW: Final = (
    *("trace_id", "span_id", "request_id", "start", "end", "status", "error_type", "finish_reason", "model", "tenant"),
    *("variant", "engine", "service", "instance", "slo_class", "vantage", "input_tokens", "output_tokens"),
    *("cached_tokens", "ttft_s", "tpot_s", "e2e_s", "queue_s", "prefill_s", "decode_s", "preempted_s", "cold_start_s"),
    *("stalled_s", "preemptions", "verdict", "verdicts"),
)
"""Fields of a request that a list has. The tool `request` has all."""
_DRAWN: Final = ("tokens", "steps", "events_total", "steps_total")
"""Parts of a request that only a drawing needs."""


class Filters(BaseModel):
    """Only requests with one of these values of each."""

    model_config = ConfigDict(extra="forbid")

    model: Names = []
    tenant: Names = []
    variant: Names = []
    engine: Names = []
    slo_class: Names = []
    vantage: Names = []


class Side(Filters):
    """One side of a comparison: filters, and times of its own."""

    start: str | None = None
    end: str | None = None


class Against(BaseModel):
    """What a release is compared with: another variant at the same time, or another time."""

    model_config = ConfigDict(extra="forbid")

    variant: str | None = None
    start: str | None = None
    end: str | None = None


def _given(params: BaseModel | None, prefix: str = "") -> dict[str, Any]:
    """The parameters of the API that were given."""
    given = {} if params is None else params.model_dump()
    return {f"{prefix}{name}": value for name, value in given.items() if value not in (None, [])}


def _options(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


class Tools:
    """The tools for one collector.

    Over HTTP each call is asked with the key in its own `Authorization` header, and never with the server's, so nobody
    sees more than the caller's key allows. On stdio the key is that of the environment, as for the command line.
    """

    def __init__(self, url: str, *, over_http: bool) -> None:
        self._url = url
        self._over_http = over_http

    def all(self) -> list[Callable[..., Any]]:
        """The tools, in the order in which an agent needs them."""
        return [
            *(self.status, self.explain, self.differences, self.incidents, self.requests, self.request),
            *(self.slos, self.compare, self.check),
        ]

    def status(self, ctx: Context, start: Start = "-15m", end: End = "now", filters: Filters | None = None) -> Any:
        """Say whether the SLOs are kept, since when not, who is hit, by what cause, and what without it. Ask it first.

        `boxes` has what fires, causes before symptoms, with the burns that each explains inside it; `links` have the
        parameters with which other tools show more.
        """
        answer = self._ask(ctx, "verdict", start=start, end=end, **_given(filters))
        slos = [without(one, ("groups", "burn", "select", "thresholds", "errors", "hash")) for one in answer["slos"]]
        return bounded(answer | {"slos": slos})

    def slos(self, ctx: Context, end: End = "now", filters: Filters | None = None) -> Any:
        """List the SLOs: objective, attainment over the SLO's own window, error budget left, burn rates, tenants."""
        found = self._ask(ctx, "slos", start="1970-01-01T00:00:00Z", end=end, **_given(filters))
        return bounded(found)

    def incidents(self, ctx: Context, start: Start = "-1d", end: End = "now", filters: Filters | None = None) -> Any:
        """List what fires and what is over: burns of SLOs with their top cause, lost or hung engines, KV-cache
        evictions, cold starts. `requests` of each has the parameters for the tool `requests`."""
        return bounded(self._ask(ctx, "incidents", start=start, end=end, **_given(filters)))

    def requests(
        self,
        ctx: Context,
        start: Start = "-15m",
        end: End = "now",
        slo: Slo = None,
        verdict: Literal["good", "bad", "undetermined", "excused", "unselected", "pending"] | None = None,
        status: Literal["ok", "error", "cancelled", "unknown", "in_flight", "lost"] | None = None,
        cause: Annotated[
            str | None,
            Field(description="Only requests that it touched: kv_eviction, kv_wait, cold_start", max_length=32),
        ] = None,
        sort: Literal["end", "ttft", "tpot", "e2e"] = "end",
        limit: Annotated[int, Field(ge=1, le=50)] = 10,
        service: str | None = None,
        instance: str | None = None,
        filters: Filters | None = None,
    ) -> Any:
        """List requests, the newest or the slowest first, with the thresholds that each one missed and by how much.

        `total` says how many there are. Durations are seconds.
        """
        options = _options(slo=slo, verdict=verdict, status=status, cause=cause, service=service, instance=instance)
        window = {"start": start, "end": end, "sort": sort, "limit": limit}
        answer = self._ask(ctx, "requests", **window, **options, **_given(filters))
        rows = [{name: row[name] for name in _OF_A_ROW} for row in answer["requests"]]
        return bounded({"window": answer["window"], "total": answer["total"], "requests": rows})

    def request(
        self,
        ctx: Context,
        request_id: Annotated[
            str, Field(description="Trace id, its first eight digits, or the id that the client got", max_length=256)
        ],
    ) -> Any:
        """Show one request: what it missed, its causes beside typical requests, who delayed it, its phases and waits.

        Durations are seconds."""
        detail = self._asked(ctx, lambda api: api.request(request_id))
        return bounded(without(detail, _DRAWN))

    def explain(
        self,
        ctx: Context,
        start: Start = "-15m",
        end: End = "now",
        slo: Slo = None,
        metric: Latency | None = None,
        quantile: Annotated[float | None, Field(ge=0, lt=1)] = None,
        filters: Filters | None = None,
    ) -> Any:
        """Say which causes took the time of bad requests beyond typical ones, who is to blame for each, what would be
        good without it, and what to do. With `metric`, of the slowest ones in place of the bad."""
        options = _options(slo=slo, metric=metric, quantile=quantile)
        return bounded(self._ask(ctx, "explain", start=start, end=end, **options, **_given(filters)))

    def differences(
        self,
        ctx: Context,
        start: Start = "-15m",
        end: End = "now",
        slo: Slo = None,
        metric: Latency | None = None,
        at_least: Annotated[str | None, Field(description="With metric: 500ms", max_length=32)] = None,
        filters: Filters | None = None,
    ) -> Any:
        """Say what bad requests have that good ones have not: tenant, model, variant, prompt length, error and so on.

        With `metric` and `at_least`, the slow ones in place of the bad.
        """
        options = _options(slo=slo, metric=metric, at_least=at_least)
        return bounded(self._ask(ctx, "differences", start=start, end=end, **options, **_given(filters)))

    def compare(
        self,
        ctx: Context,
        a: Side | None = None,
        b: Side | None = None,
        at: Annotated[str | None, Field(description="In place of a and b: before and after this time")] = None,
        span: Annotated[str, Field(description="The time before and after `at`")] = "1h",
        start: Start = "-1h",
        end: End = "now",
        filters: Filters | None = None,
    ) -> Any:
        """Compare two sets of requests like for like, with 95 % intervals: two variants, models or times."""
        window = {"start": start, "end": end} if at is None else {"at": at, "span": span}
        sides = {**_given(a, "a."), **_given(b, "b.")}
        return bounded(self._ask(ctx, "compare", **window, **sides, **_given(filters)))

    def check(
        self,
        ctx: Context,
        slo: Annotated[str, Field(description="Name of the SLO that judges", max_length=63)],
        since: Start = "-1h",
        variant: str | None = None,
        against: Against | None = None,
    ) -> Any:
        """Tell whether a release is good, worse or not decided yet: against an SLO, and against what was before."""
        options = _options(variant=variant) | _given(against, "against.")
        return bounded(self._ask(ctx, "check", slo=slo, start=since, end="now", **options))

    def _ask(self, ctx: Context, path: str, **params: Any) -> dict[str, Any]:
        found: dict[str, Any] = self._asked(ctx, lambda api: api.get(path, **params))
        return found

    def _asked(self, ctx: Context, question: Callable[[Api], Any]) -> Any:
        """The answer of the API. Raises ToolError with the collector's own words."""
        try:
            api = Api(self._url, _key(ctx) if self._over_http else None)
        except ConnectionSettingError as error:
            raise ToolError(one_line(str(error))) from error
        try:
            return question(api)
        except HTTPStatusError as error:
            wanted = api.key_wanted(error.response.status_code)
            if wanted and self._over_http:
                wanted = "the client of this MCP server sends no key, or one that may not: Authorization: Bearer KEY"
            told = api.problem(error.response) + (f": {wanted}" if wanted else "")
        except (DecodingError, NoSuchRequest) as error:
            told = str(error)
        except HTTPError as error:
            told = f"the collector at {without_user(self._url)} does not answer ({in_words(error)})"
        finally:
            api.close()
        raise ToolError(bounded(told))


def _key(ctx: Context) -> str:
    """The key in the header of a call; empty without one."""
    scheme, _, key = (ctx.headers or {}).get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""
