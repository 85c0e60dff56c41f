"""What `/timeouts` answers, in the words of sentences, the command line and the pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokentrail.shared.formatting import UNDEFINED, duration, percent


def kind(group: Mapping[str, Any]) -> str:
    """A group's model, and what divides its requests."""
    part = f", {group['split']} {group['value'] or 'not given'}" if group["split"] else ""
    return f"{group['model'] or 'model not given'}{part}"


def interval(share: float | None, low: float, high: float) -> str:
    """A share with its interval: `0.1 % (0.05 to 0.2 %)`."""
    if share is None:
        return f"at most {percent(high)}"
    return f"{percent(share)} ({percent(low).removesuffix(' %')} to {percent(high)})"


def cells(point: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """A time-out as cells of a table: its time, the healthy requests that it cuts, the dead ones, seconds saved."""
    caught, saved = point["dead_caught"], point["saved_s"]
    return (
        duration(point["timeout_s"]),
        interval(**point["healthy_cut"]),
        UNDEFINED if caught is None else interval(**caught),
        UNDEFINED if saved is None else duration(saved),
    )
