"""The waterfall of one request: its phases, the wait for each token, and the engine's steps and KV cache meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboard import charts, palette
from dashboard.transform import Json, placed
from tokentrail.semconv import Phase
from tokentrail.shared.formatting import count, duration

ROWS = {"phases": 56, "tokens": 330, "steps": 120, "kv": 110}
"""Height of each panel in pixels."""
GAP, TOP, BOTTOM = 34, 34, 40
FEW_TOKENS = 10
TOKEN_WIDTH = 0.8
"""Height of a token's bar, in tokens. Without one, Plotly makes the bars of a phase as thick as the phase has gaps."""


def figure(trail: Json) -> go.Figure | None:
    """The figure of an answer of `/api/v1/requests/{trace_id}`. Panels without data are left out; None: all are."""
    present = {"phases": trail["phases"], "tokens": placed(trail["tokens"]), "steps": trail["steps"]}
    if any(step["kv_blocks_total"] for step in trail["steps"]) or trail["events"]:
        present["kv"] = True
    panels = [name for name in ROWS if present.get(name)]
    if not panels:
        return None
    heights = [ROWS[name] for name in panels]
    inner = sum(heights) + GAP * (len(panels) - 1)
    chart = make_subplots(
        rows=len(panels),
        cols=1,
        shared_xaxes=True,
        row_heights=heights,
        vertical_spacing=GAP / inner if panels[1:] else 0,
    )
    draw = {"phases": _phases, "tokens": _tokens, "steps": _steps, "kv": _kv}
    for row, name in enumerate(panels, start=1):
        draw[name](chart, row, trail)
    chart.update_layout(
        height=inner + TOP + BOTTOM,
        margin={"l": 8, "r": 8, "t": TOP, "b": BOTTOM},
        barmode="overlay",
        bargap=0.1,
        hovermode="closest",
        legend={"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "font": {"size": 11}, "traceorder": "normal"},
    )
    chart.update_yaxes(gridcolor="rgba(128,136,150,0.15)", zeroline=False, automargin=True, title_font={"size": 11})
    chart.update_xaxes(showgrid=True, gridcolor="rgba(128,136,150,0.15)", zeroline=False)
    chart.update_xaxes(charts.seconds(extent(trail)))
    chart.update_xaxes(
        range=[0, extent(trail) * 1.01], title={"text": "since arrival", "font": {"size": 11}}, row=len(panels)
    )
    return chart


def extent(trail: Json) -> float:
    """Seconds from arrival to the request's last known phase, token or end."""
    ends = [part["offset_s"] + part["duration_s"] for part in trail["phases"]]
    ends += [token["offset_s"] for token in placed(trail["tokens"])[-1:]]
    return float(max([*ends, trail["request"].get("e2e_s") or 0.0, 1e-6]))


def _bars(
    chart: go.Figure, row: int, name: str, colour: str, parts: Sequence[tuple[float, float, Any, str]], **more: Any
) -> None:
    """Draw horizontal bars of one colour. Each part is (start, length, y, hover text)."""
    begins, lengths, ys, texts = zip(*parts, strict=True)
    chart.add_bar(
        orientation="h",
        base=begins,
        x=lengths,
        y=ys,
        name=name,
        legendgroup=name,
        marker={"color": colour, "line": {"width": 0}},
        hovertext=texts,
        hoverinfo="text",
        row=row,
        col=1,
        **more,
    )


def _phases(chart: go.Figure, row: int, trail: Json) -> None:
    for name in dict.fromkeys(phase["name"] for phase in trail["phases"]):
        label = charts.label(name)
        parts = [
            (
                p["offset_s"],
                p["duration_s"],
                "phases",
                f"<b>{label}</b> {duration(p['duration_s'])}<br>from {duration(p['offset_s'])}",
            )
            for p in trail["phases"]
            if p["name"] == name
        ]
        _bars(chart, row, label, palette.phase_colour(name), parts, showlegend=True)
    chart.update_yaxes(showticklabels=False, row=row)
    ttft = trail["request"].get("ttft_s")
    if ttft is not None:
        chart.add_vline(x=ttft, line={"width": 1, "dash": "dot"}, row=row)
        side = "left" if ttft < extent(trail) / 2 else "right"  # the figure's edge would cut the number off
        chart.add_annotation(
            text=f"first token {duration(ttft)}", x=ttft, y=0, yref="y domain", xanchor=side, yanchor="top",
            showarrow=False, font={"size": 10}, row=row, col=1,
        )  # fmt: skip


def _tokens(chart: go.Figure, row: int, trail: Json) -> None:
    tokens = placed(trail["tokens"])
    drawn = {phase["name"] for phase in trail["phases"]}
    for name in dict.fromkeys(token["phase"] for token in tokens):
        parts = [
            (t["offset_s"] - t["duration_s"], t["duration_s"], t["index"], _token_text(t))
            for t in tokens
            if t["phase"] == name
        ]
        label, colour = charts.label(name or "wait"), palette.phase_colour(name or "")
        _bars(chart, row, label, colour, parts, width=TOKEN_WIDTH, showlegend=name not in drawn)
    _shade(chart, row, [step for step in trail["steps"] if step["interferes"]], len(tokens))
    ticks = {"dtick": 1} if len(tokens) < FEW_TOKENS else {}  # otherwise Plotly has a tick for token 0.5
    chart.update_yaxes(autorange="reversed", title_text="token", row=row, **ticks)


def _shade(chart: go.Figure, row: int, steps: Sequence[Json], tokens: int) -> None:
    """Shade the times of steps, all in one trace: with one shape per step, Plotly needs seconds for many of them."""
    spans = [(step["offset_s"], step["offset_s"] + step["duration_s"]) for step in steps]
    chart.add_scatter(
        x=[x for begin, end in spans for x in (begin, begin, end, end, None)],
        y=[-0.5, tokens - 0.5, tokens - 0.5, -0.5, None] * len(spans),
        name="others' prefill",
        mode="none",
        fill="toself",
        fillcolor="rgba(245,158,11,0.14)",
        hoverinfo="skip",
        showlegend=bool(spans),
        row=row,
        col=1,
    )


def _token_text(token: Json) -> str:
    where = f" in {charts.label(token['phase'])}" if token["phase"] else ""
    waited = f"token {token['index']}<br><b>waited {duration(token['duration_s'])}</b>{where}"
    step = "" if token["step"] is None else f", step {token['step']}"
    return f"{waited}<br>out at {duration(token['offset_s'])}{step}"


def _lacking(step: Json) -> str:
    """The reasons why requests wait, with their counts, where the engine tells them: ` (2 for kv, 1 for priority)`."""
    reasons = ("batch", "tokens", "kv", "priority")
    told = [f"{count(n)} for {reason}" for reason in reasons if (n := step[f"waiting_for_{reason}"])]
    return f" ({', '.join(told)})" if told else ""


def _steps(chart: go.Figure, row: int, trail: Json) -> None:
    steps = trail["steps"]
    middle = [step["offset_s"] + step["duration_s"] / 2 for step in steps]
    width = [step["duration_s"] for step in steps]
    texts = [
        f"step {s['step']}: {duration(s['duration_s'])}"
        f"<br>{count(s['prefill_tokens'])} tokens prefilled, {count(s['decode_tokens'])} decoded"
        f"<br>{count(s['running'])} running, {count(s['waiting'])} waiting{_lacking(s)}"
        for s in steps
    ]
    below = [0] * len(steps)
    for key, name, colour in (
        ("decode_tokens", "tokens decoded", palette.MAIN),
        ("prefill_tokens", "prompt tokens prefilled", palette.WARN),
    ):
        heights = [step[key] or 0 for step in steps]
        chart.add_bar(
            x=middle, y=heights, base=below, width=width, name=name, showlegend=False,
            hovertext=texts, hoverinfo="text",
            marker={"color": colour, "opacity": 0.75, "line": {"width": 0}}, row=row, col=1,
        )  # fmt: skip
        below = heights
    chart.update_yaxes(title_text="tokens a step", rangemode="tozero", nticks=4, row=row)


def _kv(chart: go.Figure, row: int, trail: Json) -> None:
    steps = [step for step in trail["steps"] if step["kv_blocks_total"] and step["kv_blocks_used"] is not None]
    if steps:
        chart.add_scatter(
            x=[step["offset_s"] + step["duration_s"] for step in steps],
            y=[step["kv_blocks_used"] / step["kv_blocks_total"] for step in steps],
            name="KV used",
            mode="lines",
            line={"color": palette.PHASES[Phase.KV_TRANSFER], "width": 1.5, "shape": "hv"},
            hovertext=[f"{s['kv_blocks_used']} of {s['kv_blocks_total']} KV blocks used" for s in steps],
            hoverinfo="text",
            row=row,
            col=1,
        )
    for own, label, symbol in ((True, "this request was hit", "x"), (False, "engine event", "circle-open")):
        events = [event for event in trail["events"] if event["own"] is own]
        if events:
            chart.add_scatter(
                x=[max(event["offset_s"], 0) for event in events],
                y=[1.08] * len(events),
                name=label,
                mode="markers",
                marker={
                    "symbol": symbol,
                    "size": 9,
                    "color": palette.BAD if own else palette.QUIET,
                    "line": {"width": 1.5},
                },
                hovertext=[_event_text(event) for event in events],
                hoverinfo="text",
                row=row,
                col=1,
            )
    chart.update_yaxes(title_text="KV cache", tickformat=".0%", range=[0, 1.2], tickvals=[0, 0.5, 1], row=row)


def _event_text(event: Json) -> str:
    parts = [charts.label(part) for part in (event["kind"], event.get("reason")) if part]
    parts += [f"{event['blocks']} blocks"] if event.get("blocks") else []
    return ", ".join(parts) + f"<br>at {duration(event['offset_s'])}"
