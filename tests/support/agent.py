"""An agent on call that knows no tool but by its answers: it asks for the status at an alert, and follows `next`."""

import json
from dataclasses import dataclass

import anyio
from mcp import Client

from collector.ask.times import rfc3339
from tokentrail.mcp.server import make

MOST_CALLS = 5
SECOND = 1_000_000_000


@dataclass(frozen=True)
class Finding:
    """What the agent would write into the incident's channel."""

    kind: str
    """Of the first box that fires, itself or what it explains."""
    where: str
    """The process, or the new value, of that box."""
    group: str
    """Where the bad requests lost most time, by `explain`; empty where none has ended."""
    culprits: tuple[str, ...]
    request: dict
    """The single request to which the answers led."""
    calls: int


def find(url, alert_ns, model=None):
    """Ask the collector at an address about an alert of a time, and of a model if it names one."""

    async def asked():
        async with Client(make(url)) as client:
            return await _find(client, alert_ns, model)

    return anyio.run(asked)


async def _find(client, alert_ns, model):
    told, calls = [], []

    async def ask(tool, arguments):
        result = await client.call_tool(tool, arguments)
        assert not result.is_error, (tool, arguments, result.content)
        calls.append(tool)
        told.append(json.loads(result.content[0].text))
        return told[-1]

    filters = {"filters": {"model": [model]}} if model else {}
    status = await ask("status", {"start": rfc3339(alert_ns - 900 * SECOND), "end": rfc3339(alert_ns)} | filters)
    box = next(one for one in status["boxes"] if any(each["firing"] for each in (one, *one["inside"])))
    burn = next((each for each in (box, *box["inside"]) if each["slo"]), box)
    answer = await ask(*_step(burn, "explain"))
    explained = answer
    while calls[-1] != "request" and len(calls) < MOST_CALLS:
        shown = answer.get("requests")
        answer = await ask(*(("request", {"trace_id": shown[0]["trace_id"]}) if shown else _step(answer)))
    top = next((part for part in explained.get("parts", ()) if part["share"]), None)
    return Finding(
        kind=box["kind"],
        where=box["instance"] or box["value"] or "",
        group=top["group"] if top else "",
        culprits=tuple(one["name"] for one in top["culprits"]) if top else (),
        request=answer.get("request", {}),
        calls=len(calls),
    )


def _step(answer, wanted=None):
    """The first call of `next` that is of this tool; else the first one."""
    call = next((one for one in answer["next"] if one["tool"] == wanted), answer["next"][0])
    return call["tool"], call["arguments"]
