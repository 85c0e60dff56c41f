"""What the component `trail` draws: the tracks of a request, and those of an engine process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from math import floor, log10
from typing import Final

from dashboard import palette
from dashboard.components.trail import COLOURS, Picture
from dashboard.transform import Json, placed
from tokentrail.semconv import Phase
from tokentrail.shared.formatting import THRESHOLDS, count, counted, duration, instant, one_line

_LANES: Final = 24
"""Lanes of other requests; those behind them are left out, and the page says so."""
LANE: Final = 13
"""Pixels of a lane."""
WAITS_HEIGHT: Final = 150
"""Pixels of the waits of tokens."""
_WAITS: Final = ("batch", "tokens", "kv", "priority")
_KEYS: Final = "Plus and minus zoom, arrows move, 0 shows all."
_PLACES: Final = {name: place for place, name in enumerate(COLOURS)}

Bar = tuple[int, float, float, int, str, tuple[str, str] | None]
"""Row, begin and length in seconds, colour, text, and trace id and span id of the request that a click opens."""


def of_request(trail: Json, timeline: Json | None, now: datetime) -> Picture | None:
    """The picture of an answer of `/requests/{trace_id}`, with the others of its process. None: nothing is known.

    A red line stands where a threshold was missed; that of TPOT where the last token was due.
    """
    request, tokens, steps = trail["request"], placed(trail["tokens"]), trail["steps"]
    ends = [step["offset_s"] + step["duration_s"] for step in steps]
    if not (trail["phases"] or tokens or steps):
        return None
    still_open = request["status"] == "in_flight"
    end_s = max(extent(trail), (now - instant(request["start"])).total_seconds()) if still_open else extent(trail)
    lanes, left_out = _lanes(timeline, request) if timeline else ([], 0)
    tracks = [
        _bars("phases", 30, [(0, p["offset_s"], p["duration_s"], _place(p["name"]), label(p["name"]), None)
                             for p in trail["phases"]]),
        _tokens(tokens, steps, _gap(request)),
        _steps(
            [s["offset_s"] for s in steps], [s["duration_s"] for s in steps],
            {name: [s[name] for s in steps] for name in ("step", "prefill_tokens", "decode_tokens")},
            [_beside(s) for s in steps],
        ),
        _bars("others here", LANE * _rows_of(lanes), lanes, rows=_rows_of(lanes)),
        _kv([s["offset_s"] + s["duration_s"] for s in steps], [_used(s["kv_blocks_used"], s["kv_blocks_total"])
                                                                for s in steps], trail["events"]),
    ]  # fmt: skip
    words = ", ".join(f"{label(p['name'])} {duration(p['duration_s'])}" for p in trail["phases"][:12])
    return Picture(
        id=request["trace_id"] + request["span_id"],
        label=f"Waterfall of the request over {duration(end_s)}: {words or 'no phases'}. {_KEYS}",
        begin_s=0.0,
        end_s=end_s * 1.01,
        tracks=[track for track in tracks if track],
        marks=[*_limits(request, tokens), *_first_token(request), *_stands(ends, end_s, [request])],
        lanes_left_out=left_out,
    )


def of_process(timeline: Json, starts: Sequence[Json]) -> Picture | None:
    """The picture of an answer of `/processes/timeline`, with cold starts of the process. None: nothing happened."""
    window = timeline["window"]
    begin, end_s = instant(window["start"]), float(window["seconds"])
    steps = timeline["steps"]
    lanes, left_out = _lanes(timeline, None)
    cold = [
        (0, (instant(one["start"]) - begin).total_seconds() + part["offset_s"], part["duration_s"], _PLACES["cold"],
         label(part["name"]), None)
        for one in starts
        for part in one["phases"]
    ]  # fmt: skip
    columns = zip(*(steps[name] for name in ("running", "waiting")), strict=True)
    ends = [a + b for a, b in zip(steps["offset_s"], steps["duration_s"], strict=True)]
    tracks = [
        _bars("cold start", 22, cold),
        _bars("requests", LANE * _rows_of(lanes), lanes, rows=_rows_of(lanes)),
        _steps(steps["offset_s"], steps["duration_s"], steps, [
            f"; {count(running)} running, {count(waiting)} waiting" for running, waiting in columns
        ]),
        _kv(ends, [*map(_used, steps["kv_blocks_used"], steps["kv_blocks_total"])], []),
    ]  # fmt: skip
    drawn = [track for track in tracks if track]
    if not drawn:
        return None
    return Picture(
        id=window["start"] + window["end"],
        label=f"{counted(timeline['steps_total'], 'step')}, {counted(timeline['requests_total'], 'request')}. {_KEYS}",
        begin_s=0.0,
        end_s=end_s,
        tracks=drawn,
        marks=_stands(ends, end_s, timeline["requests"]),
        origin=window["start"],
        lanes_left_out=left_out,
    )


def extent(trail: Json) -> float:
    """Seconds from arrival to the request's last known phase, token or end."""
    ends = [part["offset_s"] + part["duration_s"] for part in trail["phases"]]
    ends += [token["offset_s"] for token in placed(trail["tokens"])[-1:]]
    return float(max([*ends, trail["request"].get("e2e_s") or 0.0, 1e-6]))


def label(name: str) -> str:
    """A name of the API for people: `cold_start` is `cold start`. A sender may have made it up."""
    return one_line(name.replace("_", " "))[:40]


def _place(phase: str | None) -> int:
    return _PLACES.get(phase or "", _PLACES["wait"])


def _bars(name: str, height: int, bars: Iterable[Bar], rows: int = 1) -> Json | None:
    drawn = list(bars)
    return {"kind": "bars", "name": name, "height": height, "rows": rows, "bars": drawn} if drawn else None


def _tokens(tokens: Sequence[Json], steps: Sequence[Json], limit_s: float | None) -> Json | None:
    """The wait before each token, upwards by its logarithm; tokens of one step have a wait of 0 but for the first."""
    if not tokens:
        return None
    waits = [token["duration_s"] for token in tokens]
    known = [wait for wait in (*waits, limit_s) if wait]
    shades = [(step["offset_s"], step["duration_s"]) for step in steps if step["interferes"]]
    return {
        "kind": "waits",
        "name": "tokens",
        "height": WAITS_HEIGHT,
        "first": tokens[0]["index"],
        "ends": [token["offset_s"] for token in tokens],
        "waits": waits,
        "colours": _reasons(tokens, shades),
        "shades": shades,
        "low": 10.0 ** floor(log10(min(known, default=0.01))),
        "high": 1.6 * max(known, default=0.01),
        "limit": limit_s,
    }


def _reasons(tokens: Sequence[Json], shades: Sequence[tuple[float, float]]) -> list[int]:
    """The colour of each token: the phase that took most of its wait, or prompts of others that took half of it."""
    places, first = [], 0
    for token in tokens:
        end = token["offset_s"]
        begin = end - token["duration_s"]
        while first < len(shades) and sum(shades[first]) <= begin:
            first += 1
        shared, place = 0.0, first
        while place < len(shades) and shades[place][0] < end:
            shared += min(end, sum(shades[place])) - max(begin, shades[place][0])
            place += 1
        is_others = token["phase"] == Phase.DECODE and shared > 0 and shared >= token["duration_s"] / 2
        places.append(_PLACES["others"] if is_others else _place(token["phase"]))
    return places


def _gap(request: Json) -> float | None:
    """The smallest longest gap that was promised and missed, in seconds."""
    missed = [miss for verdict in request["verdicts"] for miss in verdict["missed"]]
    return min((miss["limit_s"] for miss in missed if miss["threshold"] == "gap"), default=None)


def _steps(starts: Sequence[float], lengths: Sequence[float], of: Json, more: Sequence[str]) -> Json | None:
    series = (("prefill_tokens", "prompt tokens", palette.WARN), ("decode_tokens", "decoded", palette.MAIN))
    return (
        {
            "kind": "columns",
            "name": "steps",
            "height": 64,
            "log": True,
            "starts": list(starts),
            "lengths": list(lengths),
            "steps": list(of["step"]),
            "series": [{"name": name, "colour": colour, "values": list(of[key])} for key, name, colour in series],
            "more": list(more),
        }
        if starts
        else None
    )


def _beside(step: Json) -> str:
    """Who was beside the request in a step, and why requests waited: `; 3 running, 2 waiting (2 for kv)`."""
    told = [f"{count(n)} for {reason}" for reason in _WAITS if (n := step[f"waiting_for_{reason}"])]
    return f"; {count(step['running'])} running, {count(step['waiting'])} waiting" + (
        f" ({', '.join(told)})" if told else ""
    )


def _used(used: int | None, total: int | None) -> float | None:
    return used / total if used is not None and total else None


def _kv(times: Sequence[float], values: Sequence[float | None], events: Sequence[Json]) -> Json | None:
    known = [(at, value) for at, value in zip(times, values, strict=True) if value is not None]
    return (
        {
            "kind": "line",
            "name": "KV cache",
            "height": 44,
            "colour": palette.PHASES[Phase.KV_TRANSFER],
            "times": [at for at, _ in known],
            "values": [value for _, value in known],
            "events": [(max(event["offset_s"], 0.0), event["own"]) for event in events],
        }
        if known or events
        else None
    )


def _lanes(timeline: Json, request: Json | None) -> tuple[list[Bar], int]:
    """The requests of a process in lanes: each in the first that is free. In the axis of a request, if there is one."""
    shift = 0.0
    if request is not None:
        shift = (instant(timeline["window"]["start"]) - instant(request["start"])).total_seconds()
    free: list[float] = []
    bars: list[Bar] = []
    left_out = 0
    for one in timeline["requests"]:
        ids = (one["trace_id"], one["span_id"])
        if request is not None and ids == (request["trace_id"], request["span_id"]):
            continue
        begin, end = one["offset_s"] + shift, one["offset_s"] + shift + one["e2e_s"]
        lane = next((i for i, until in enumerate(free) if until <= begin), len(free))
        if lane == _LANES:
            left_out += 1
            continue
        free[lane:] = [end, *free[lane + 1 :]]
        name = _named(one)
        bars += [
            (lane, begin + part["offset_s"], part["duration_s"], _place(part["name"]),
             f"{name}: {label(part['name'])}", ids)
            for part in one["phases"]
        ] or [(lane, begin, one["e2e_s"], _PLACES["open"], f"{name}: {label(one['status'])}", ids)]  # fmt: skip
    return bars, left_out


def _rows_of(lanes: Sequence[Bar]) -> int:
    return 1 + max((bar[0] for bar in lanes), default=0)


def _named(lane: Json) -> str:
    tokens = "" if lane["input_tokens"] is None else f", {counted(lane['input_tokens'], 'token')}"
    tenant = f" {one_line(lane['tenant'])[:40]}" if lane["tenant"] else ""
    return f"{lane['trace_id'][:8]}{tenant}{tokens}"


def _first_token(request: Json) -> list[Json]:
    ttft = request.get("ttft_s")
    return (
        []
        if ttft is None
        else [
            {"at": ttft, "label": f"first token {duration(ttft)}", "colour": palette.QUIET, "dashed": True, "track": 0}
        ]
    )


def _limits(request: Json, tokens: Sequence[Json]) -> list[Json]:
    """A red line for each threshold that was missed; one line where several SLOs have the same."""
    lines = {}
    for verdict in request["verdicts"]:
        for miss in verdict["missed"]:
            at = moment_of(miss, request, tokens)
            if at is not None:
                text = f"{THRESHOLDS[miss['threshold']]} of {verdict['slo']}: {duration(miss['limit_s'])}"
                lines[round(at, 6)] = {
                    "at": at,
                    "label": one_line(text)[:60],
                    "colour": palette.THRESHOLD,
                    "dashed": False,
                }
    return list(lines.values())


def moment_of(miss: Json, request: Json, tokens: Sequence[Json]) -> float | None:
    """Seconds from the arrival at which a threshold was missed; of TPOT, when the last token was due.

    Of the longest gap, when the token that came last was due. None: the times of the tokens are not known.
    """
    if miss["threshold"] == "gap":
        waits = [one for one in tokens[1:] if one["duration_s"] is not None]
        longest = max(waits, key=lambda one: one["duration_s"], default=None)
        return None if longest is None else float(longest["offset_s"] - longest["duration_s"] + miss["limit_s"])
    if miss["threshold"] != "tpot":
        return float(miss["limit_s"])
    n = request["output_tokens"]
    if request["ttft_s"] is None or not n or n < 2:
        return None
    return float(request["ttft_s"] + miss["limit_s"] * (n - 1))


def _stands(ends: Sequence[float], end_s: float, requests: Sequence[Json]) -> list[Json]:
    """Where a process with open requests made its last step."""
    still_open = any(one["status"] in ("in_flight", "lost") for one in requests)
    if not (ends and still_open) or end_s - ends[-1] < 5:
        return []
    return [{"at": ends[-1], "label": "last step", "colour": palette.BAD, "dashed": False}]
