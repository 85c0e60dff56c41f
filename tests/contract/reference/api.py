"""The API: the table of endpoints, and parameters and answers of one, from the OpenAPI document."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

from collector.api.parameters import TimesQuery, WindowQuery
from tests.contract.reference import shape
from tests.contract.reference.text import alternatives, code, marks_in, sentence, table
from tests.support.api import openapi

_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)
_COMMON: Final = {field.alias or name: field.description for name, field in WindowQuery.model_fields.items()}


@cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = openapi()
    return document


@cache
def operations() -> dict[str, dict[str, Any]]:
    """The operation of each endpoint, by method and path."""
    return {
        f"{method.upper()} {path}": operation
        for path, methods in _document()["paths"].items()
        for method, operation in methods.items()
    }


def endpoints(_: str, page: str) -> str:
    """All endpoints, with links to their sections of the page."""

    def row(name: str, operation: dict[str, Any]) -> tuple[str, str]:
        return f"[`{name}`](#{_anchor(name, page)})", sentence(operation["description"].partition("\n\n")[0])

    return table(("endpoint", "answers"), (row(*item) for item in operations().items()))


def _anchor(mark: str, page: str) -> str:
    """The anchor of the heading above a mark."""
    before, found, _ = page.partition(f"<!-- reference: {mark} -->")
    heading = (_HEADING.findall(before) or [""])[-1] if found else ""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def parameters(_: str, __: str) -> str:
    """The parameters of all endpoints."""
    (summary,) = (operation for name, operation in operations().items() if name == "GET /api/v1/summary")
    common = [parameter for parameter in summary["parameters"] if parameter["name"] in _COMMON]
    return table(("parameter", "meaning", "default"), map(_parameter, common))


def _parameter(parameter: dict[str, Any]) -> tuple[str, str, str]:
    choices = [s for s in (parameter["schema"], *parameter["schema"].get("anyOf", ())) if "enum" in s]
    values = alternatives(choices[0]["enum"]) if choices else ""
    least, most = (parameter["schema"].get(bound) for bound in ("minimum", "maximum"))
    if least is not None and most is not None and most < 2**62:
        values = f"{least} to {most}"
    default = parameter["schema"].get("default")
    meaning = ": ".join(filter(None, (values, parameter.get("description"))))
    return f"`{parameter['name']}`", meaning, "" if default == [] else code(default)


def endpoint(mark: str, page: str) -> str:
    """What one endpoint answers, its own parameters, and its answer."""
    operation = operations()[mark]
    parameters = operation.get("parameters", [])
    given = {parameter["name"] for parameter in parameters}
    own = [p for p in parameters if p.get("description") != _COMMON.get(p["name"], "")]
    common = given - {p["name"] for p in own}
    taken = ""
    if common >= _COMMON.keys():
        taken = " It takes the [parameters of all endpoints](#parameters-of-all-endpoints)"
    elif common >= TimesQuery.model_fields.keys():
        taken = " It takes [`start` and `end`](#parameters-of-all-endpoints)"
    more = (", and:" if own else ".") if taken else ""
    text = f"`{mark}`: {' '.join(operation['description'].split())}{taken}{more}\n"
    text += "\n" + table(("parameter", "meaning", "default"), map(_parameter, own)) if own else ""
    answer = _answer(operation)
    return text + (f"\n{_shape(answer, page)}" if answer else "")


def _answer(operation: dict[str, Any]) -> str:
    """The name of the schema of an endpoint's answer, if it has one."""
    content = operation["responses"].get("200", {}).get("content", {}).get("application/json", {})
    return shape.name_of(content.get("schema", {}))


def model(name: str, page: str) -> str:
    """A schema that several answers have."""
    return f"{' '.join(_document()['components']['schemas'][name]['description'].split())}\n\n{_shape(name, page)}"


def _shape(name: str, page: str) -> str:
    schemas, roots = _document()["components"]["schemas"], []
    for mark in marks_in(page):
        of_mark = mark.removeprefix("model ") if mark.startswith("model ") else ""
        roots.append(of_mark or (_answer(operations()[mark]) if mark in operations() else ""))
    first = shape.first_uses([*dict.fromkeys(filter(None, roots))], schemas)
    elsewhere = first.keys() | set[str]().union(*first.values()) - first[name]
    return f"```ts\n{shape.drawing(name, schemas, elsewhere, first[name])}\n```\n"
