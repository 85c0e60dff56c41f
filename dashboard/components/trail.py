"""Tracks on one axis of time, with zoom and one cursor (components/trail.js). dashboard/tracks.py makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any, Final

import streamlit as st

from dashboard import palette
from tokentrail.semconv import Phase
from tokentrail.shared.formatting import duration, instant

_FILES = Path(__file__).parent
_CSS = """
.wrap {position: relative; outline-offset: 3px; border-radius: 4px}
.wrap:focus-visible {outline: 2px solid var(--st-primary-color)}
canvas {display: block; cursor: grab; touch-action: pan-y}
.tip {display: none; position: absolute; pointer-events: none; white-space: pre; padding: .25rem .55rem; z-index: 9}
.tip {background: var(--st-secondary-background-color); border: 1px solid var(--st-border-color); border-radius: .4rem}
.tip {font: 12px/1.4 var(--st-font); color: var(--st-text-color); font-variant-numeric: tabular-nums}
table {position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap}
"""
_HTML = """<div class="wrap" tabindex="0" role="group"><canvas role="img"></canvas><div class="tip"></div>
<table></table></div>"""
_mount = st.components.v2.component(
    "tokentrail_trail", html=_HTML, css=_CSS, js=(_FILES / "trail.js").read_text(encoding="utf-8")
)
_ROWS: Final = 200
"""Bars that the table for screen readers lists."""
COLOURS: Final[Mapping[str, str]] = {
    **{str(phase): palette.PHASES[phase] for phase in Phase},
    "others": palette.OTHERS,
    "wait": palette.QUIET,
    "open": palette.BAD,
    "cold": palette.PHASES[Phase.COLD_START],
}
NAMES: Final[Mapping[str, str]] = {
    "others": "others' prompts", "wait": "other", "open": "not ended", "cold": "cold start",
}  # fmt: skip
"""Of colours that are no phase, in words."""


@dataclass(frozen=True)
class Picture:
    """What is drawn. Times are seconds from `origin`, or from the arrival of a request where there is none."""

    id: str
    label: str
    begin_s: float
    end_s: float
    tracks: Sequence[Mapping[str, Any]]
    marks: Sequence[Mapping[str, Any]] = ()
    origin: str | None = None
    lanes_left_out: int = 0

    @property
    def legend(self) -> dict[str, str]:
        """The colours of bars and tokens by what they mean."""
        used = {bar[3] for track in self.tracks if track["kind"] == "bars" for bar in track["bars"]}
        used |= {place for track in self.tracks if track["kind"] == "waits" for place in track["colours"]}
        known = list(COLOURS.items())
        return {NAMES.get(name, name.replace("_", " ")): colour for name, colour in (known[i] for i in sorted(used))}

    @property
    def height(self) -> int:
        """Pixels."""
        return 34 + sum(int(track["height"]) + 8 for track in self.tracks)


def draw(picture: Picture, key: str, zone: tzinfo = UTC) -> tuple[str, str] | None:
    """Draw a picture. Returns trace id and span id of the request that the reader has just clicked on."""
    bars = [(bar, track) for track in picture.tracks if track["kind"] == "bars" for bar in track["bars"]]
    begin = 0.0 if picture.origin is None else instant(picture.origin).timestamp()
    opened = _mount(
        key=key,
        height=picture.height,
        data={
            "id": picture.id,
            "label": picture.label,
            "from_s": picture.begin_s,
            "to_s": picture.end_s,
            "origin_ms": None if picture.origin is None else begin * 1000,
            "zone": getattr(zone, "key", "UTC"),
            "colours": list(COLOURS.values()),
            "names": [NAMES.get(name, name.replace("_", " ")) for name in COLOURS],
            "tracks": list(picture.tracks),
            "marks": list(picture.marks),
            "rows": [
                [f"{track['name']}: {bar[4]}", duration(max(bar[1], 0.0)), duration(bar[2])] for bar, track in bars
            ][:_ROWS],
        },
        on_opened_change=lambda: None,
    ).opened
    return tuple(opened) if opened else None
