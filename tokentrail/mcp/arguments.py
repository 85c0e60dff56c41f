"""Arguments that tools share, and calls of tools that answers give: what to ask next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field

from tokentrail.cli.options import in_zone
from tokentrail.mcp.bounds import bounded
from tokentrail.shared.parameters import FILTERS, LABEL, NOT


def as_text(value: Any) -> Any:
    """A number, or a truth value, as the text that is meant."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _listed(value: Any) -> Any:
    alone = as_text(value)
    if isinstance(alone, str):
        return [alone]
    return [as_text(one) for one in value] if isinstance(value, list) else value


Names = Annotated[list[Annotated[str, Field(max_length=256)]], BeforeValidator(_listed)]
"""Names; one alone may stand without a list."""
Time = Annotated[str, BeforeValidator(as_text), AfterValidator(in_zone), Field(max_length=64)]
"""A time, read in the zone of `--tz` if it names none."""
_TOOLS: Final = {"explore": "requests", "tail": "explain", "compare": "compare"}
"""The tool that answers what a page of the dashboard shows, by the name of the page in links of the API."""


_NAMES: Final = f"{', '.join(FILTERS)}, {LABEL}NAME"


def _is_filter(name: str) -> bool:
    return name in FILTERS or name.startswith(LABEL)


def _filter(name: str) -> str:
    if not _is_filter(name.removeprefix(NOT)):
        msg = f"there is no {name}; there are {_NAMES}, and {NOT} before each"
        raise ValueError(msg)
    return name


def _of_a_side(name: str) -> str:
    if not (_is_filter(name) or name in ("start", "end")):
        msg = f"there is no {name}; there are start, end, {_NAMES}"
        raise ValueError(msg)
    return name


def _in_zone(side: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: [*map(in_zone, values)] if name in ("start", "end") else values for name, values in side.items()}


Filters = Annotated[
    dict[Annotated[str, AfterValidator(_filter)], Names], Field(description=f"{_NAMES}; {NOT}model: others")
]
Side = Annotated[
    dict[Annotated[str, AfterValidator(_of_a_side)], Names],
    AfterValidator(_in_zone),
    Field(description="Filters, or start and end"),
]
"""One side of a comparison: filters, and times of its own."""


def given(params: Mapping[str, Any] | None, prefix: str = "") -> dict[str, Any]:
    """The parameters of the API that were given, those of a side behind its prefix."""
    return {f"{prefix}{name}": value for name, value in (params or {}).items() if value != []}


def calls(tool: str, params: Mapping[str, Any], filters: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The call of a tool with parameters of the API and the filters of the question.

    None if a name in it is not written in answers as it is: the call would ask for another one.
    """
    filtering = {name: [value] for name, value in params.items() if _is_filter(name)}
    arguments: dict[str, Any] = {name: value for name, value in params.items() if name not in filtering}
    if chosen := given(filters) | filtering:
        arguments["filters"] = chosen
    return [{"tool": tool, "arguments": arguments}] if bounded(arguments) == arguments else []


def of_links(links: list[dict[str, Any]], filters: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The calls that show what links of the API show in the dashboard."""
    known = [(_TOOLS[link["page"]], link["params"]) for link in links if link["page"] in _TOOLS]
    return [call for tool, params in known for call in calls(tool, params, filters)]
