"""The demo's view in the terminal, drawn from the API answers that the dashboard shows too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tokentrail.shared.formatting import LATENCIES, UNDEFINED, count, data_until, duration, percent, whole_answers

LOADING = "the engine loads its model; the first requests wait for it (a cold start)"


def latencies(summary: Mapping[str, Any]) -> Table:
    """Percentiles of every latency, each with the number of values behind it."""
    table = Table("", "count", "p50", "p90", "p95", "p99", "max", box=None, pad_edge=False, header_style="dim")
    table.caption, table.caption_justify = whole_answers(summary) or None, "left"
    for column in table.columns[1:]:
        column.justify = "right"
    for name, word in {**LATENCIES, "queue": "queue"}.items():
        d = summary[f"{name}_s"]
        table.add_row(word, str(d["count"]), *(duration(d[p]) for p in ("p50", "p90", "p95", "p99", "max")))
    return table


def slos(answers: Sequence[Mapping[str, Any]]) -> Table:
    """Attainment, budget left and firing severity of each SLO."""
    table = Table("SLO", "objective", "attainment", "good", "bad", "budget left", "fires", box=None, header_style="dim")
    for slo in answers:
        r = slo["requests"]
        judged = r["total"] - r["excused"] - r["undetermined"] + r["in_flight_violations"] + r["lost"]
        missed = slo["attainment"] is not None and slo["attainment"] < slo["objective"]
        table.add_row(
            slo["name"],
            percent(slo["objective"]),
            Text(percent(slo["attainment"]), style="red" if missed else "green"),
            str(r["good"]),
            str(judged - r["good"]),
            percent(slo["budget_left"]),
            Text(slo["firing"] or "–", style="bold red" if slo["firing"] else "dim"),
        )
    return table


def traffic(summary: Mapping[str, Any]) -> str:
    """One line: requests by outcome, output tokens per second, goodput."""
    r = summary["requests"]
    tokens, goodput = summary["throughput"]["output_tokens_per_s"], summary["goodput"]["requests_per_s"]
    return (
        f"{r['ok']} ok, {r['failed']} failed, {r['cancelled']} cancelled, {r['in_flight']} in flight · "
        f"{UNDEFINED if tokens is None else f'{tokens:.1f}'} output tokens/s · "
        f"goodput {UNDEFINED if goodput is None else f'{goodput:.2f}'} requests/s"
    )


def view(state: Mapping[str, Any]) -> Panel:
    """Traffic, KV cache, latencies, SLOs and alerts in one panel. `state` holds API answers by name."""
    summary, alerts = state["summary"], state["alerts"]
    cache = ", ".join(
        f"KV cache {percent(one['kv_usage'])}, {count(one['running'])} running, {count(one['waiting'])} waiting, "
        f"{count(one['preemptions'])} preemptions"
        for one in _stepping(state)
    )
    lines: list[Any] = [
        Text(traffic(summary)),
        Text(data_until(summary["window"]), style="dim"),
        Text(cache or LOADING, style="dim"),
        Text(),
    ]
    lines += [latencies(summary), Text(), slos(state["slos"]["slos"]), Text()]
    lines.append(
        Text("alerts: " + (", ".join(alerts) if alerts else "none firing"), style="bold red" if alerts else "dim")
    )
    return Panel(Group(*lines), title=state["title"], title_align="left", padding=(1, 2))


def _stepping(state: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The processes that have made steps."""
    return [one for one in state["processes"]["processes"] if one["step_p50_s"] is not None]


class LiveView:
    """Shows each state: redrawn in place in a terminal, one line every `LINE_EVERY_S` seconds elsewhere.

    A terminal forgets the picture at the end, because the summary has the last numbers.
    """

    LINE_EVERY_S = 10.0

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._next_line = 0.0

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def update(self, state: Mapping[str, Any]) -> None:
        """Show the newest state."""
        if self._live:
            self._live.update(view(state), refresh=True)
        elif monotonic() >= self._next_line:
            self._next_line = monotonic() + self.LINE_EVERY_S
            summary, alerts = state["summary"], ", ".join(state["alerts"]) or "none"
            loads = "" if _stepping(state) else f" · {LOADING}"
            line = f"{traffic(summary)} · TTFT p99 {duration(summary['ttft_s']['p99'])} · alerts: {alerts}{loads}"
            self._console.print(line, soft_wrap=True)
