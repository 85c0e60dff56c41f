"""`tokentrail slos init`: a starter SLO file from the requests that were seen."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from math import ceil, floor, log10
from typing import Any, Final

from tokentrail.cli.api import Api
from tokentrail.shared.formatting import one_line

MORE: Final = 1.3
"""A threshold is so many times the P95: what is met today, with room for chance."""
LEAST: Final = 20
"""Fewer requests say little of a P95."""
_MOST_MODELS: Final = 20
_STREAM: Final = "label.stream"
"""The TTFT of an answer that is not streamed is its E2E, and a promise about both kinds would be none."""
_HEAD: Final = f"""\
# Made by `tokentrail slos init` from what a collector has seen. Each threshold is {MORE} times the P95 of now:
# what is kept today, and not what your users need. Set thresholds and objectives to that. docs/slos.md has the fields.
slos:
"""


def starter(api: Api, start: str, end: str) -> str:
    """The file: an SLO for each vantage, class and model with enough requests, of streams and others apart.

    Raises ValueError without any.
    """
    found = [one for vantage in ("server", "client") for one in _of_vantage(api, vantage, start, end)]
    if not found:
        raise ValueError(f"no model had {LEAST} requests that ended ok: --start -7d looks further back")
    names: set[str] = set()
    return _HEAD + "".join(_slo(labels, numbers, names) for labels, numbers in found)


def _of_vantage(api: Api, vantage: str, start: str, end: str) -> Iterator[tuple[dict[str, str], Mapping[str, Any]]]:
    window = {"start": start, "end": end, "vantage": vantage}
    classes = api.get("summary", **window, group_by="slo_class")["groups"]
    for of_class in classes:
        asked = window | {"slo_class": of_class["value"]}
        streams = [one["value"] for one in api.get("summary", **asked, group_by=_STREAM)["groups"]]
        for only in [{_STREAM: value} for value in streams] if len(streams) > 1 else [{}]:
            labels = {"vantage": vantage, "slo_class": of_class["value"], **only}
            for numbers in api.get("summary", **asked, **only, group_by="model", top=_MOST_MODELS)["groups"]:
                if numbers["e2e_s"]["count"] >= LEAST:
                    yield labels | {"model": numbers["value"]}, numbers


def _slo(labels: Mapping[str, str], numbers: Mapping[str, Any], names: set[str]) -> str:
    told = {name: numbers[f"{name}_s"] for name in ("ttft", "tpot", "e2e")}
    is_whole = 2 * numbers["ttft_is_e2e"] > told["ttft"]["count"]
    kept = [name for name in ("ttft", "tpot") if told[name]["count"] >= LEAST and not is_whole] or ["e2e"]
    lines = [
        f"  # {told['e2e']['count']:g} requests that ended ok; P95: "
        + ", ".join(f"{name.upper()} {told[name]['p95']:.3g} s" for name in kept),
        f"  - name: {_name(labels, names)}",
        '    objective: "0.95"',
        "    window: 30d",
        "    select:",
        *(f"      {column}: [{json.dumps(value)}]" for column, value in labels.items()),
        "    thresholds:",
        *(f"      {name}: {_rounded_up(told[name]['p95'] * MORE)}" for name in kept),
    ]
    return "".join(f"{line}\n" for line in lines)


def _name(labels: Mapping[str, str], names: set[str]) -> str:
    """Lower-case letters, digits and hyphens, and a number if it is taken."""
    words = "-".join(filter(None, (labels["slo_class"], one_line(labels["model"]).rpartition("/")[2])))
    name = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:50]
    name = name if name[:1].isalpha() else f"model-{name}".strip("-")
    name += "-whole" if labels.get(_STREAM) == "false" else ""
    name += "-client" if labels["vantage"] == "client" else ""
    free = next(one for n in range(1, 1000) if (one := name if n == 1 else f"{name}-{n}") not in names)
    names.add(free)
    return free


def _rounded_up(seconds: float) -> str:
    """Two digits: `0.1234` is `130ms`, `78.2` is `79s`."""
    ms = max(seconds * 1000, 1.0)
    step = 10.0 ** (floor(log10(ms)) - 1) if ms >= 10 else 1.0
    rounded = ceil(round(ms / step, 6)) * step
    return f"{rounded:.0f}ms" if rounded < 10_000 else f"{rounded / 1000:.0f}s"
