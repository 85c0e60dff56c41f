"""Draws a schema of an OpenAPI document as a type of TypeScript, with the descriptions of its fields as comments."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

_WIDTH: Final = 120
_SPREAD: Final = 4
"""A schema that has all fields of another one, and so many at least, is drawn as `...Other` and the rest."""

Schema = Mapping[str, Any]


def name_of(schema: Schema) -> str:
    """`Counts` of a reference to it; nothing of another schema."""
    name: str = schema.get("$ref", "").rpartition("/")[2]
    return name


def short(name: str) -> str:
    """`Window` of `WindowOut`: the name of a model on the page."""
    return name.removesuffix("Out")


def drawing(name: str, schemas: Mapping[str, Schema], elsewhere: Collection[str], named: Collection[str] = ()) -> str:
    """A schema, and below it those that it uses more than once, or that have a name. Those `elsewhere` are only named.

    Page = {
      total: number,
      next: string | null,  // the cursor of the next page
    }
    """
    known = {*elsewhere} - {name}
    uses = Counter(_uses(name, schemas, known))
    again = [used for used, times in uses.items() if times > 1 or used in named]
    pen = _Pen(schemas, known.union(again))
    return "\n".join(f"{short(each)} = {pen.fields(each, '')}" for each in (name, *again))


def first_uses(roots: Sequence[str], schemas: Mapping[str, Schema]) -> dict[str, set[str]]:
    """By each schema of a page, those that it uses first and that this or a later one uses again."""
    within = {root: set(_uses(root, schemas, {*roots} - {root})) for root in roots}
    everywhere = {*roots}.union(*within.values())
    referred = Counter(used for each in everywhere for used in _references([*schemas[each]["properties"].values()]))
    unnamed = {name for name in everywhere if referred[name] < 2 or "__" in name}
    first: dict[str, set[str]] = {}
    for root in roots:
        first[root] = within[root] - {*roots} - unnamed - set().union(*first.values())
    return first


def _uses(name: str, schemas: Mapping[str, Schema], known: Collection[str]) -> Iterator[str]:
    for field in _without_spread(name, schemas, known)[1].values():
        for used in _references(field):
            if used not in known:
                yield used
                yield from _uses(used, schemas, known)


def _references(field: Any) -> Iterator[str]:
    if isinstance(field, Mapping):
        yield from filter(None, [name_of(field)])
        field = [value for key, value in field.items() if key in ("items", "anyOf", "additionalProperties")]
    if isinstance(field, list):
        for part in field:
            yield from _references(part)


def _without_spread(name: str, schemas: Mapping[str, Schema], known: Collection[str]) -> tuple[str, dict[str, Schema]]:
    """The largest known schema that this one extends, if there is one, and the fields that it adds."""
    fields = dict(schemas[name]["properties"])
    extended = [
        (len(other["properties"]), each)
        for each in known
        if each != name
        and len((other := schemas[each]).get("properties", {})) >= _SPREAD
        and other["properties"].items() <= fields.items()
    ]
    if not extended:
        return "", fields
    _, base = max(extended)
    return base, {field: schema for field, schema in fields.items() if field not in schemas[base]["properties"]}


class _Pen:
    def __init__(self, schemas: Mapping[str, Schema], known: Collection[str]) -> None:
        self._schemas = schemas
        self._known = known

    def fields(self, name: str, indent: str) -> str:
        base, fields = _without_spread(name, self._schemas, self._known)
        lines = [f"{indent}  ...{short(base)},"] if base else []
        return "\n".join(["{", *lines, *self._lines(fields, f"{indent}  "), f"{indent}}}"])

    def _lines(self, fields: Mapping[str, Schema], indent: str) -> Iterator[str]:
        packed = ""
        for name, field in fields.items():
            text = f"{name}: {self._type(field, indent)},"
            comment = field.get("description") or self._description(field)
            plain = not comment and "\n" not in text
            if packed and not (plain and len(indent) + len(packed) + len(text) < _WIDTH):
                yield f"{indent}{packed}"
                packed = ""
            if plain:
                packed = f"{packed} {text}".strip()
            else:
                yield from _commented(f"{indent}{text}", " ".join(comment.split()).removesuffix("."), indent)
        if packed:
            yield f"{indent}{packed}"

    def _description(self, field: Schema) -> str:
        """The description of the schema that is drawn inside of this field."""
        drawn = [name for name in _references(field) if name not in self._known]
        return self._schemas[drawn[0]].get("description", "") if len(drawn) == 1 else ""

    def _type(self, field: Schema, indent: str) -> str:
        if name := name_of(field):
            return short(name) if name in self._known else self.fields(name, indent)
        if "anyOf" in field:
            return " | ".join(dict.fromkeys(self._type(option, indent) for option in field["anyOf"]))
        if "enum" in field:
            return " | ".join(f'"{value}"' for value in field["enum"])
        kind = field.get("type", "unknown")
        if kind == "array":
            item, options = self._type(field["items"], indent), field["items"].keys() & {"anyOf", "enum"}
            return f"({item})[]" if options else f"{item}[]"
        if kind == "object":
            return f"{{[key: string]: {self._type(field['additionalProperties'], indent)}}}"
        return "number" if kind == "integer" else str(kind)


def _commented(line: str, comment: str, indent: str) -> Iterator[str]:
    """A line with its comment behind it, or above it if there is no room."""
    if not comment:
        yield line
    elif "\n" not in line and len(line) + len(comment) + 5 <= _WIDTH:
        yield f"{line}  // {comment}"
    else:
        yield from (f"{indent}// {part}" for part in textwrap.wrap(comment, _WIDTH - len(indent) - 3))
        yield line
