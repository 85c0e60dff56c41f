"""Who or what made requests wait, and examples of those that did, by cause."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np

from collector.ask.times import SECOND_NS
from collector.ask.window import Window
from collector.causes.answer.answer import Culprit, Exemplar
from collector.causes.answer.beyond import Beyond
from collector.causes.answer.holders import MOST_STRETCHES, Held, Victims, at_processes, joined, ran_in
from collector.causes.answer.request_times import Rows, Weighed
from collector.causes.answer.served import Served
from collector.causes.split.culprits import culprits_of
from collector.causes.split.names import PARTS
from collector.causes.stage.models import References, kind_of
from collector.causes.stage.reading import Process, happened, with_more
from collector.count.reader import Reader
from collector.sql.fragment import Fragment, all_of

OF_PROMPTS: Final = ("others_prompts", "wait_tokens")
"""The causes that are the prompts of others."""
WAITS: Final = ("wait_batch", "wait_kv", "wait_priority")
"""The causes that a burst makes."""
_OF_NO_PROCESS: Final = (*OF_PROMPTS, "own_prompt", "unexplained", "alone")
_MOST: Final = 5
_EXEMPLARS: Final = 3
_MOST_INFLICTERS: Final = 200
_MOST_GROUPS: Final = 10_000
_MOST_EVENTS: Final = 100_000
ANOTHER_TENANT: Final = "another tenant"


def exemplars(reader: Reader, rows: Rows, beyond: Beyond) -> dict[str, list[Exemplar]]:
    """By cause, the requests with the largest excess, the largest first, without those that the store has no more."""
    places = {}
    for name, excess in zip(PARTS, beyond.excess, strict=True):
        order = np.argsort(-excess, kind="stable")[:_EXEMPLARS]
        places[name] = [i for i in order.tolist() if excess[i] > 0]
    keys = {i: (int(rows.rows["end_ns"][i]), int(rows.rows["key"][i])) for of in places.values() for i in of}
    named = find_named(reader, keys.values())
    return {
        name: [
            Exemplar(
                trace_id=row["trace_id_hex"],
                span_id=row["span_id_hex"],
                time_s=float(beyond.time[cause, i]) / 1e6,
                excess_s=float(beyond.excess[cause, i]) / 1e6,
            )
            for i in places[name]
            if (row := named.get(keys[i]))
        ]
        for cause, name in enumerate(PARTS)
    }


def find_named(reader: Reader, wanted: Iterable[tuple[int, int]]) -> dict[tuple[int, int], dict[str, Any]]:
    """The requests that ended at these moments and have these keys, of those that the caller may see."""
    asked = sorted(set(wanted))
    if not asked:
        return {}
    ends, keys = sorted({end_ns for end_ns, _ in asked}), sorted({key for _, key in asked})
    rows = reader.queries.rows("explain_ids", {"filter": reader.tenant_filter}, ends=ends, keys=keys)
    return {(row["end_ns"], row["key"]): row for row in rows}


def lost_at(rows: Weighed, beyond: Beyond, cause: str) -> dict[int, float]:
    """The us that a cause took at each process beyond the typical, the most first."""
    excess = np.maximum(beyond.excess[PARTS.index(cause)], 0) * rows.weight
    processes, place = np.unique(rows.rows["process"], return_inverse=True)
    lost = np.bincount(place, excess, len(processes)) if len(processes) else np.empty(0)
    return {int(processes[i]): float(lost[i]) for i in np.argsort(-lost, kind="stable").tolist() if lost[i] > 0}


def of_processes(lost: Mapping[int, float], names: Mapping[int, Served], cause: str) -> list[Culprit]:
    """The processes whose requests lost most to a cause, and the variants where a service has several.

    No process is to blame for its requests' work, but its variant may be.
    """
    titles = {key: names[key].process.title for key in lost if key in names and cause not in _OF_NO_PROCESS}
    of_service = {(one.process.service, one.process.process_tenant, one.variant) for one in names.values()}
    several = {service for service, n in Counter(one[:2] for one in of_service).items() if n > 1}
    variants = {
        key: one.variant
        for key in lost
        if (one := names.get(key)) and (one.process.service, one.process.process_tenant) in several
    }
    return [*_by("process", lost, titles), *_by("variant", lost, variants)]


def _by(by: Literal["process", "variant"], lost: Mapping[int, float], names: Mapping[int, str]) -> list[Culprit]:
    sums: Counter[str] = Counter()
    for key, name in names.items():
        if name:
            sums[name] += lost[key]  # type: ignore[assignment] # us
    return _named(by, sums, sum(lost.values()))


def of_holders(held: Held, victims: Victims, cause: str) -> list[Culprit]:
    """The tenants that had the places or the blocks while the victims waited, with their parts of what these lost."""
    told = _named("tenant", held.by_tenant(victims, cause), float(victims.lost.sum()))
    bursts = {one.name: burst for one in told if cause in WAITS and (burst := held.burst(one.name))}
    return [
        one.model_copy(update=dict(zip(("requests", "within_s"), bursts[one.name], strict=True)))
        if one.name in bursts
        else one
        for one in told
    ]


def _named(by: Literal["process", "tenant", "variant"], us: Counter[str], whole: float) -> list[Culprit]:
    return [
        Culprit(by=by, name=name, time_s=n / 1e6, share=n / whole)
        for name, n in us.most_common(_MOST)
        if name and n > 0
    ]


def of_prompts(reader: Reader, victims: Sequence[Victims], *, suffered_s: float) -> list[Culprit]:
    """The requests that made others wait by their prompts, with their tenants, models and lengths.

    Their prompts were computed while these victims were there. A caller of one tenant sees its own, and whether others
    have a part in what its requests suffered.
    """
    groups = read_inflicted(reader, victims)
    whole = float(sum(group["us"] for group in groups))
    top = reader.queries.rows("explain_inflicters", _beside(reader, victims), limit=_MOST_INFLICTERS) if whole else []
    named = find_named(reader, ((row["end_ns"], row["request_key"]) for row in top))
    culprits: list[Culprit] = []
    lengths: Counter[str] = Counter()
    for row in top:
        request = named.get((row["end_ns"], row["request_key"]))
        if request is None:
            continue
        us = row["inflicted_us"] * row["weight"]
        if request["input_tokens"] is not None:
            lengths[_length(request["input_tokens"])] += us
        if len(culprits) < _MOST:
            tokens = "" if request["input_tokens"] is None else f", {request['input_tokens']} tokens"
            name = f"{request['trace_id_hex'][:8]}{tokens}"
            ids = {"trace_id": request["trace_id_hex"], "span_id": request["span_id_hex"]}
            culprits.append(Culprit(by="request", name=name, **ids, time_s=row["inflicted_us"] / 1e6, share=us / whole))
    tenants, models = (_summed(groups, column) for column in ("of_tenant", "of_model"))
    for by, sums in (("tenant", tenants), ("model", models), ("length", lengths)):
        for name, us in sums.most_common(_MOST):
            culprits.append(Culprit(by=by, name=name, time_s=us / 1e6, share=us / whole))  # type: ignore[arg-type]
    if reader.tenant and 1e6 * suffered_s > whole:
        culprits.append(Culprit(by="tenant", name=ANOTHER_TENANT, time_s=None, share=None))
    return culprits


def read_inflicted(reader: Reader, victims: Sequence[Victims]) -> list[dict[str, Any]]:
    """For how long prompts made others wait while these victims were there, by process, tenant and model."""
    if not any(len(of.lost) for of in victims):
        return []
    return reader.queries.rows("explain_inflicted", _beside(reader, victims), limit=_MOST_GROUPS)


def _beside(reader: Reader, victims: Sequence[Victims]) -> dict[str, Fragment]:
    """Rows of `causes` of the victims' processes, whose prompts were computed while these were there."""
    stretches = joined([one for of in victims for one in of.stretches()], MOST_STRETCHES)
    began = "toUnixTimestamp64Nano(end) - toInt64(e2e_ns)"
    ran = ran_in(stretches, began, f"({began} + toInt64(ifNull(ttft_ns, e2e_ns)))")
    return {"ran": ran, "filter": all_of(reader.tenant_filter, at_processes(victims))}


def inflicting_tenants(groups: Sequence[Mapping[str, Any]], lost: Mapping[int, float]) -> list[Culprit]:
    """The tenants whose prompts made others wait for the longest time at these processes."""
    there = [group for group in groups if group["process"] in lost]
    return _named("tenant", _summed(there, "of_tenant"), sum(group["us"] for group in there))


def of_victim(reader: Reader, row: Mapping[str, Any]) -> dict[tuple[str, str], list[Culprit]]:
    """The requests whose prompts delayed a row of `requests`, by cause and `ttft` or `rest`, the worst first.

    A caller of one tenant gets none: engine processes serve all tenants together, and so do their steps.
    """
    if reader.tenant:
        return {}
    reference = References(reader.queries, [row["service"]], row["ended_ns"] // SECOND_NS)
    judges = reference.of(row["process_key"], kind_of(row))
    process = Process(row["process_key"], row["service"], row["instance"], row["began_ns"], row["ended_ns"])
    [(_, there)] = happened(reader.queries, [process if judges.own else with_more(process, 1)])
    keys, ends = (np.asarray(there.requests[name]).tolist() for name in ("key", "end"))
    if row["request_key"] not in keys:
        return {}
    by_delay = culprits_of(
        keys.index(row["request_key"]),
        there.requests,
        there.phases,
        there.steps,
        kv_events=there.copies,
        reference=judges.laws.own,
        sister=judges.laws.sister,
    )
    ids = [(end_ns, key & 0xFFFFFFFF) for end_ns, key in zip(ends, keys, strict=True)]
    worst = {delay: culprits[:_MOST] for delay, culprits in by_delay.items()}
    named = find_named(reader, (ids[one.row] for culprits in worst.values() for one in culprits))
    return {
        delay: [
            Culprit(
                by="request",
                name=f"{request['trace_id_hex'][:8]}, {one.tokens} tokens in {_steps(one.steps)}",
                trace_id=request["trace_id_hex"],
                span_id=request["span_id_hex"],
                time_s=one.time_ns / SECOND_NS,
                low_s=one.low_ns / SECOND_NS,
                high_s=one.high_ns / SECOND_NS,
                share=one.time_ns / sum(other.time_ns for other in by_delay[delay]),
            )
            for one in culprits
            if (request := named.get(ids[one.row]))
        ]
        for delay, culprits in worst.items()
    }


def _steps(n: int) -> str:
    return "1 step" if n == 1 else f"{n} steps"


def _summed(groups: Sequence[Mapping[str, Any]], column: str) -> Counter[str]:
    sums: Counter[str] = Counter()
    for group in groups:
        if group[column]:
            sums[group[column]] += group["us"]
    return sums


def _length(tokens: int) -> str:
    """The octave of a prompt's length: `1024 to 2047 tokens`."""
    least = 1 << (tokens.bit_length() - 1) if tokens else 0
    return f"{least} to {max(2 * least - 1, 0)} tokens"


def of_kv(reader: Reader, window: Window, rows: Rows, beyond: Beyond, cause: str) -> list[Culprit]:
    """The requests for which blocks were taken from the chosen ones, by the time that these lost by it.

    A request that lost blocks twice, for two others, lost half of its time to each.
    """
    lost = np.maximum(beyond.excess[PARTS.index(cause)], 0) * rows.weight
    victims = {int(rows.rows["key"][i]): i for i in np.flatnonzero(lost).tolist()}
    if not victims:
        return []
    events = reader.queries.rows("explain_beneficiaries", **window.bounds, limit=_MOST_EVENTS)
    of_victim: dict[int, list[str]] = {}
    for event in events:
        i = victims.get(event["key"])
        if i is None:
            continue
        end_ns = int(rows.rows["end_ns"][i])
        if end_ns - 1000 * int(rows.requests["e2e_us"][i]) <= event["at_ns"] <= end_ns:  # keys may come again
            of_victim.setdefault(i, []).append(event["beneficiary"])
    us: defaultdict[str, float] = defaultdict(float)
    for i, beneficiaries in of_victim.items():
        for beneficiary in beneficiaries:
            us[beneficiary] += float(lost[i]) / len(beneficiaries)
    return _beneficiaries(reader, window, us, float(lost.sum()))


def _beneficiaries(reader: Reader, window: Window, us: Mapping[str, float], whole: float) -> list[Culprit]:
    """The traces that got blocks. A caller of one tenant learns of others only that there are some."""
    top = sorted(us.items(), key=lambda item: -item[1])[: None if reader.tenant else _MOST]
    if not top:
        return []
    asked = [trace_id for trace_id, _ in top]
    fragments = {"filter": reader.tenant_filter}
    rows = reader.queries.rows("explain_traces", fragments, **window.bounds, trace_ids=asked)
    spans = {row["trace_id_hex"]: row["span_id_hex"] for row in rows}
    visible = [one for one in top if one[0] in spans or not reader.tenant]
    beneficiaries = [
        Culprit(
            by="request",
            name=trace_id[:8],
            trace_id=trace_id,
            span_id=spans.get(trace_id),
            time_s=n / 1e6,
            share=n / whole,
        )
        for trace_id, n in visible[:_MOST]
    ]
    if others := sum(n for trace_id, n in top if trace_id not in spans) if reader.tenant else 0:
        beneficiaries.append(Culprit(by="tenant", name=ANOTHER_TENANT, time_s=others / 1e6, share=others / whole))
    return beneficiaries
