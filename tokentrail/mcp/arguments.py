"""Arguments that tools share, and calls of tools that answers give: what to ask next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from tokentrail.cli.options import in_zone
from tokentrail.mcp.bounds import bounded


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
_LABEL: Final = "label."
_TOOLS: Final = {"explore": "requests", "tail": "explain", "compare": "compare"}
"""The tool that answers what a page of the dashboard shows, by the name of the page in links of the API."""


class Filters(BaseModel):
    """Only these values; label: {"stream": "true"}."""

    model_config = ConfigDict(extra="forbid")

    model: Names = []
    tenant: Names = []
    variant: Names = []
    engine: Names = []
    slo_class: Names = []
    vantage: Names = []
    label: dict[str, Names] = {}


class Side(Filters):
    """One side of a comparison: filters, and times of its own."""

    start: Time | None = None
    end: Time | None = None


class Against(BaseModel):
    """What a release is compared with: another variant at the same time, or another time."""

    model_config = ConfigDict(extra="forbid")

    variant: Names = []
    start: Time | None = None
    end: Time | None = None


def given(params: BaseModel | None, prefix: str = "") -> dict[str, Any]:
    """The parameters of the API that were given."""
    fields = {} if params is None else params.model_dump()
    labels = {f"{_LABEL}{name}": values for name, values in (fields.pop("label", None) or {}).items()}
    return {f"{prefix}{name}": value for name, value in {**fields, **labels}.items() if value not in (None, [])}


def calls(tool: str, params: Mapping[str, Any], filters: Filters | None) -> list[dict[str, Any]]:
    """The call of a tool with parameters of the API and the filters of the question.

    None if a name in it is not written in answers as it is: the call would ask for another one.
    """
    filtering = {n: [value] for n, value in params.items() if n in Filters.model_fields or n.startswith(_LABEL)}
    arguments = {name: value for name, value in params.items() if name not in filtering}
    if chosen := given(filters) | filtering:
        labels = {name: chosen.pop(name) for name in [*chosen] if name.startswith(_LABEL)}
        by_name = {name.removeprefix(_LABEL): values for name, values in labels.items()}
        arguments["filters"] = chosen | ({"label": by_name} if by_name else {})
    return [{"tool": tool, "arguments": arguments}] if bounded(arguments) == arguments else []


def of_links(links: list[dict[str, Any]], filters: Filters | None) -> list[dict[str, Any]]:
    """The calls that show what links of the API show in the dashboard."""
    known = [(_TOOLS[link["page"]], link["params"]) for link in links if link["page"] in _TOOLS]
    return [call for tool, params in known for call in calls(tool, params, filters)]
