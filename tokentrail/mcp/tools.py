"""The tools of the MCP server. Each asks one endpoint of a collector's API, with the key of whoever calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import wraps
from http import HTTPStatus
from typing import Annotated, Any, Final

from httpx import DecodingError, HTTPError, HTTPStatusError
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from tokentrail.cli.api import Api, NoSuchRequest, list_of, other_form
from tokentrail.cli.explained import lines
from tokentrail.mcp.arguments import Filters, Side, Time, calls, given, of_links
from tokentrail.mcp.bounds import bounded, known, without, written
from tokentrail.mcp.explained import explained
from tokentrail.shared.connection import OTHER_FORM, ConnectionSettingError, in_words, way_out
from tokentrail.shared.formatting import one_line, without_user
from tokentrail.shared.parameters import Cause, Latency, Sort, Status, Threshold, Verdict

Start = Annotated[Time, Field(description="-15m before `end`, 14:00, RFC 3339")]
End = Annotated[Time, Field(description="now, 14:00, RFC 3339")]
Slo = Annotated[str | None, Field(max_length=63)]
Name = Annotated[str | None, Field(max_length=256)]

_OF_A_ROW: Final = (
    *("trace_id", "span_id", "request_id", "start", "end", "status", "error_type", "finish_reason", "model", "tenant"),
    *("variant", "engine", "service", "instance", "slo_class", "vantage", "input_tokens", "output_tokens"),
    *("cached_tokens", "ttft_s", "tpot_s", "e2e_s", "queue_s", "prefill_s", "decode_s", "preempted_s", "cold_start_s"),
    *("stalled_s", "preemptions", "verdict", "verdicts"),
)
"""Fields of a request that a list has. The tool `request` has all."""
_DRAWN: Final = ("tokens", "steps", "events_total", "steps_total")
"""Parts of a request that only a drawing needs."""

_SAME_VERSION: Final = (
    "install the same version of the collector and of tokentrail mcp, which tokentrail doctor compares"
)
_NO_PATH: Final = "this API has no path "
"""Words of a collector that is asked for what it does not have; another 404 is about a name."""


def _utc(ns: int | None) -> str | None:
    return None if ns is None else datetime.fromtimestamp(ns / 1e9, UTC).isoformat(timespec="milliseconds")


def _told(verdict: dict[str, Any], filters: Filters | None) -> dict[str, Any]:
    """A verdict or a box of one, with times that people read and calls in place of links."""
    times = {name.removesuffix("_ns"): _utc(value) for name, value in verdict.items() if name.endswith("_ns")}
    lists = (name for name in ("boxes", "inside", "odd") if name in verdict)
    inner = {name: [_told(one, filters) for one in verdict[name]] for name in lists}
    told = without(verdict, ("links", *(f"{name}_ns" for name in times)))
    return told | times | inner | {"next": of_links(verdict["links"], filters)}


def _open(process: dict[str, Any]) -> str:
    return "lost" if process["lost"] > process["requests"] else "in_flight"


def _lead_on(incident: dict[str, Any], last: str, filters: Filters | None) -> dict[str, Any]:
    """An incident with calls in place of the parameters of its lists."""
    burn = {name: incident[name] for name in ("slo", "tenant", "start")} | {"end": incident["end"] or last}
    following = [
        *(call for one in incident["requests"] for call in calls("requests", one["parameters"], filters)),
        *(calls("explain", _options(**burn), filters) if incident["slo"] else ()),
    ]
    return without(incident, ("requests",)) | {"next": following}


def _waited(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer of `/timeouts` without what is not known: of several models the time-outs, of one its sentences too.

    Of a model whose requests are one kind it has the curves.
    """
    groups = answer["groups"]
    if len({group["model"] for group in groups}) > 1:
        told = {"groups": [_decided(group) for group in groups], "more": "name one model: sentences, shares, hedging"}
    else:
        left_out = ("summary", "curve") if len(groups) > 1 else ("summary",)
        told = {"groups": [_sentences(group, left_out) for group in groups]}
    found: dict[str, Any] = known(without(answer, ("window",)) | told)
    return found


def _sentences(group: dict[str, Any], left_out: Sequence[str]) -> dict[str, Any]:
    """A group with its sentences one by one, as a long text is cut."""
    waits = [without(wait, left_out) | {"told": wait["summary"].split("; ")} for wait in group["waits"]]
    return without(group, () if group["split"] else ("split", "value")) | {
        "waits": waits,
        "hedging": [one["summary"] for one in group["hedging"]],
    }


def _decided(group: dict[str, Any]) -> dict[str, Any]:
    """The time-outs of a group in seconds, those that nothing decides, and those in use with whom they cut."""
    waits = {wait["wait"]: wait for wait in group["waits"]}
    decided = {name: wait["suggested"]["timeout_s"] for name, wait in waits.items() if wait["suggested"]}
    in_use = [
        {"wait": name, "timeout_s": one["timeout_s"], "requests": one["requests"]}
        | {"would_have_been_answered": one["would_have"] and one["would_have"]["share"]}
        for name, wait in waits.items()
        for one in wait["evident"]
    ]
    part = {group["split"]: group["value"]} if group["split"] else {}
    return {"model": group["model"], **part, "requests": group["requests"], "timeouts_s": decided} | {
        "undecided": [name for name in waits if name not in decided],
        "in_use": in_use,
    }


def _options(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _of_our_version(tool: Callable[..., Any]) -> Callable[..., Any]:
    """The tool, which says so when an answer is of another form than it reads."""

    @wraps(tool)
    def told(*args: Any, **named: Any) -> Any:
        try:
            return tool(*args, **named)
        except OTHER_FORM as error:
            raise ToolError(bounded(f"{other_form(error)}: {_SAME_VERSION}")) from error

    return told


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
        tools = (self.status, self.explain, self.differences, self.incidents, self.requests, self.request)
        return [_of_our_version(tool) for tool in (*tools, self.slos, self.compare, self.check, self.timeouts)]

    def status(self, ctx: Context, start: Start = "-15m", end: End = "now", filters: Filters | None = None) -> Any:
        """Say whether the SLOs are kept, since when not, who is hit, by what cause, and what without it. Ask it first.

        Of an alert, ask with its time as `end`. `boxes` has what fires, causes before symptoms, with the burns that
        each explains inside it, `odd` what is unusual though no SLO burns.
        """
        answer = self._ask(ctx, "verdict", start=start, end=end, **given(filters))
        slos = [without(one, ("groups", "burn", "select", "thresholds", "errors", "hash")) for one in answer["slos"]]
        return written(_told(answer, filters) | {"slos": slos})

    def slos(self, ctx: Context, end: End = "now", filters: Filters | None = None) -> Any:
        """List the SLOs: objective, attainment over the SLO's own window, error budget left, burn rates, tenants."""
        return written(self._ask(ctx, "slos", start="1970-01-01T00:00:00Z", end=end, **given(filters)))

    def incidents(self, ctx: Context, start: Start = "-1d", end: End = "now", filters: Filters | None = None) -> Any:
        """List what fires and what is over: burns of SLOs with their top cause, lost or
        hung engines, KV-cache evictions and waits for KV blocks, cold starts."""
        answer = self._ask(ctx, "incidents", start=start, end=end, **given(filters))
        last = answer["window"]["end"]
        return written(answer | {"incidents": [_lead_on(one, last, filters) for one in answer["incidents"]]})

    def requests(
        self,
        ctx: Context,
        start: Start = "-15m",
        end: End = "now",
        slo: Slo = None,
        verdict: Verdict | None = None,
        status: Status | None = None,
        cause: Cause | None = None,
        sort: Sort = "end",
        limit: Annotated[int, Field(ge=1, le=50)] = 10,
        cause_start: Annotated[Time | None, Field(description="Of `cause`: from then on")] = None,
        cause_end: Annotated[Time | None, Field(description="Of `cause`: until then")] = None,
        process_tenant: Name = None,
        metric: Latency | None = None,
        at_least: Annotated[str | None, Field(description="Of `metric`, such as 500ms")] = None,
        at_most: str | None = None,
        filters: Filters | None = None,
    ) -> Any:
        """List requests, the newest or the slowest first, with the thresholds that each one missed and by how much.

        `total` says how many there are. `request` shows one.
        """
        chosen = {"slo": slo, "verdict": verdict, "status": status}
        caused = {"cause": cause, "cause_start": cause_start, "cause_end": cause_end, "process_tenant": process_tenant}
        window = {"start": start, "end": end, "sort": sort, "limit": limit}
        bounds = {"metric": metric, "at_least": at_least, "at_most": at_most}
        answer = self._ask(ctx, "requests", **window, **_options(**chosen, **caused, **bounds), **given(filters))
        rows = [{name: row[name] for name in _OF_A_ROW} for row in answer["requests"]]
        return written({"window": answer["window"], "total": answer["total"], "requests": rows})

    def request(
        self,
        ctx: Context,
        trace_id: Annotated[str, Field(description="Or its first eight digits, or a `request_id`", max_length=256)],
    ) -> Any:
        """Show one request: what it missed, its causes beside typical requests, who delayed it, its phases and waits.

        Durations are seconds."""
        detail = self._asked(ctx, lambda api: api.request(trace_id))
        return written(without(detail, _DRAWN))

    def explain(
        self,
        ctx: Context,
        start: Start = "-15m",
        end: End = "now",
        slo: Slo = None,
        metric: Threshold | None = None,
        quantile: Annotated[float | None, Field(ge=0, lt=1)] = None,
        filters: Filters | None = None,
    ) -> Any:
        """Say which causes took the time of bad requests beyond typical ones, who is to blame for each, what would be
        good without it, and what to do. With `metric`, of the slowest ones in place of the bad.

        Typical is the middle half of good requests of the same model; with `metric`, of all of them.
        """
        options = _options(slo=slo, metric=metric, quantile=quantile, replay="auto")
        answer = self._ask(ctx, "explain", start=start, end=end, **options, **given(filters))
        asked = {name: answer["window"][name] for name in ("start", "end")} | _options(slo=slo)
        bad = sorted(answer["not_ended"], key=lambda one: -one["bad"])
        most_hang = metric is None and sum(one["bad"] for one in bad) > answer["selected"]["requests"]
        places = ("service", "instance", "process_tenant")
        hanging = [{name: one[name] for name in places} | {"status": _open(one)} for one in bad[:most_hang]]
        shown = [one for part in answer["parts"][:1] for one in part["exemplars"][:1]]
        following = [
            *(call for one in hanging for call in calls("requests", asked | one, filters)),
            *(call for one in shown for call in calls("request", {"trace_id": one["trace_id"]}, None)),
            *(call for of in (list_of(answer),) if of for call in calls("requests", of, filters)),
            *calls("differences", asked | _options(metric=metric), filters),
        ]
        return written({"text": lines(answer)} | explained(answer) | {"next": following})

    def differences(
        self,
        ctx: Context,
        start: Start = "-15m",
        end: End = "now",
        slo: Slo = None,
        metric: Threshold | None = None,
        at_least: Annotated[str | None, Field(description="With metric: 500ms", max_length=32)] = None,
        filters: Filters | None = None,
    ) -> Any:
        """Say what bad requests have that good ones have not: tenant, model, prompt length, batch, cause, error …

        With `metric` and `at_least`, the slow ones in place of the bad.
        """
        options = _options(slo=slo, metric=metric, at_least=at_least)
        return written(self._ask(ctx, "differences", start=start, end=end, **options, **given(filters)))

    def compare(
        self,
        ctx: Context,
        a: Side | None = None,
        b: Side | None = None,
        at: Annotated[Time | None, Field(description="In place of a and b: before and after this time")] = None,
        span: Annotated[str, Field(description="The time before and after `at`")] = "1h",
        start: Start = "-1h",
        end: End = "now",
        filters: Filters | None = None,
    ) -> Any:
        """Compare two sets of requests like for like, with 95 % intervals: two variants, models or times."""
        window = {"start": start, "end": end} if at is None else {"at": at, "span": span}
        sides = {**given(a, "a."), **given(b, "b.")}
        if not sides and at is None:
            raise ToolError('say how the sides differ: a={"variant": ["old"]} and b={"variant": ["new"]}, or at="-1h"')
        return written(self._ask(ctx, "compare", **window, **sides, **given(filters)))

    def check(
        self,
        ctx: Context,
        slo: Annotated[str, Field(description="Name of the SLO that judges", max_length=63)],
        since: Start = "-1h",
        filters: Filters | None = None,
        against: Side | None = None,
    ) -> Any:
        """Tell whether a release is good, worse or not decided yet: against an SLO, and against what was before."""
        sides = given(filters) | given(against, "against.")
        return written(self._ask(ctx, "check", slo=slo, start=since, end="now", **sides))

    def timeouts(
        self,
        ctx: Context,
        start: Start = "-1d",
        end: End = "now",
        kill: Annotated[str, Field(description="Share of healthy requests to cut", max_length=32)] = "0.1%",
        filters: Filters | None = None,
    ) -> Any:
        """Say how long clients should wait: what each time-out cuts and catches, those in use, and hedging."""
        return written(_waited(self._ask(ctx, "timeouts", start=start, end=end, kill=kill, **given(filters))))

    def _ask(self, ctx: Context, path: str, **params: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._asked(ctx, lambda api: api.get(path, **params))
        return answer

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
            told = api.problem(error.response)
            if error.response.status_code == HTTPStatus.NOT_FOUND and (told == "Not Found" or _NO_PATH in told):
                wanted = _SAME_VERSION
            told += f": {wanted}" if wanted else ""
        except (DecodingError, NoSuchRequest) as error:
            told = str(error)
        except HTTPError as error:
            shown = without_user(self._url)
            told = f"the collector at {shown} does not answer ({in_words(error)}): {way_out(error, '--api')}"
        finally:
            api.close()
        raise ToolError(bounded(told))


def _key(ctx: Context) -> str:
    """The key in the header of a call; empty without one."""
    scheme, _, key = (ctx.headers or {}).get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""
