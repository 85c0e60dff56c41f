"""The SLO file, validated. docs/slos.md describes each field."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from reprlib import Repr
from typing import Annotated, Any, Final, Literal, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from tokentrail.semconv import LABEL_NAME
from tokentrail.shared import regular_files
from tokentrail.shared.durations import parse_duration
from tokentrail.shared.folders import words_of
from tokentrail.shared.parameters import LABEL, Dimension

_REPR = Repr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother = 2, 80, 80
_brief = _REPR.repr
"""A value as it is told in an error: references of YAML make terabytes of a few lines."""

_OBJECTIVE_DIGITS = 9
"""The budget and what rules make of it are exact in the 28 digits of a Decimal."""

RuleColumn = Literal["model", "service", "operation", "engine", "variant", "vantage"]
"""The columns by which a rule of the SLO file recognises requests."""
GroupBy = Literal["tenant"]
"""The columns by which one SLO can be a promise to each of many."""


class SloFileError(ValueError):
    """The SLO file cannot be used. The message has one line per problem, with the file, the place and the fix."""


def _duration(value: Any) -> int:
    if not isinstance(value, str):
        msg = f"{_brief(value)} has no unit: write for example 500ms, 1.5s or 30d"
        raise ValueError(msg)  # pydantic reports a ValueError at its field
    ns = parse_duration(value)
    if ns <= 0:
        msg = f"{value!r} must be more than 0"
        raise ValueError(msg)
    return ns


def _objective(value: Any) -> Decimal:
    try:
        objective = Decimal(value) if isinstance(value, str) else Decimal("NaN")
    except InvalidOperation:
        objective = Decimal("NaN")
    if not (objective.is_finite() and 0 < objective < 1):
        msg = f"{_brief(value)} must be between 0 and 1, both excluded, such as 0.95"
        raise ValueError(msg)  # as above
    if objective != round(objective, _OBJECTIVE_DIGITS):
        msg = f"{_brief(value)} has more than {_OBJECTIVE_DIGITS} digits behind the point"
        raise ValueError(msg)  # as above
    return objective


def label_name(name: str) -> str:
    """A label's name; raises ValueError for one that no label has."""
    if not LABEL_NAME.fullmatch(name) and name != "_cut":
        msg = f"{_brief(name)} is no label's name: a letter, then letters, digits, _ . and -, at most 64 in all"
        raise ValueError(msg)
    return name


def _selector(name: str) -> str:
    if name.startswith(LABEL):
        label_name(name.removeprefix(LABEL))
    elif name not in get_args(Dimension):
        msg = f"{_brief(name)} cannot be selected by; use {', '.join(map(repr, get_args(Dimension)))} or '{LABEL}NAME'"
        raise ValueError(msg)
    return name


def _label(name: str) -> str:
    if not name.startswith(LABEL):
        msg = f"or {LABEL}NAME"
        raise ValueError(msg)
    return LABEL + label_name(name.removeprefix(LABEL))


Selector = Annotated[str, AfterValidator(_selector)]
"""A `Dimension`, or `label.NAME`."""
LabelOf = Annotated[str, AfterValidator(_label)]
"""`label.NAME`."""
DurationNs = Annotated[int, BeforeValidator(_duration)]
Objective = Annotated[Decimal, BeforeValidator(_objective)]
Values = Annotated[tuple[str, ...], Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Thresholds(_Strict):
    """A good request meets all of them (≤), in nanoseconds. None: no threshold."""

    ttft: DurationNs | None = None
    tpot: DurationNs | None = None
    e2e: DurationNs | None = None
    gap: DurationNs | None = None
    """The longest wait between two tokens, or arrivals of a client, of one answer."""
    first_visible: DurationNs | None = None
    """Until the first token that is no hidden reasoning."""

    @model_validator(mode="after")
    def _at_least_one(self) -> Thresholds:
        if not self.given():
            msg = f"name at least one threshold: {THRESHOLDS}"
            raise ValueError(msg)
        return self

    def given(self) -> dict[str, int]:
        """The thresholds that are set, by name, in nanoseconds."""
        return {name: ns for name in type(self).model_fields if (ns := getattr(self, name)) is not None}


THRESHOLDS: Final = ", ".join(Thresholds.model_fields)


class LabelRule(_Strict):
    """Gives a class or a tenant to requests that carry none and have one of the listed values in every column."""

    when: Annotated[dict[RuleColumn, Values], Field(min_length=1)]
    slo_class: str = ""
    tenant: str = ""

    @model_validator(mode="after")
    def _gives_something(self) -> LabelRule:
        if not (self.slo_class or self.tenant):
            msg = "a rule must give slo_class or tenant"
            raise ValueError(msg)
        return self


class ErrorRules(_Strict):
    """Which failed requests an SLO judges."""

    exclude: Annotated[tuple[str, ...], Field(max_length=100)] = ()
    """Error types (`error.type`) of requests that are not judged, such as refusals of wrong input."""


class Promise(_Strict):
    """The rule by which requests are judged, and the requests that it is for."""

    select: dict[Selector, Values] = Field(default_factory=dict)
    thresholds: Thresholds
    errors: ErrorRules = ErrorRules()
    labels: tuple[LabelRule, ...] = ()
    """The label rules of the file, which `select` is applied after."""

    @classmethod
    def to_all(cls, thresholds: Thresholds) -> Promise:
        """These thresholds for every request."""
        return cls.model_construct(None, select={}, thresholds=thresholds, errors=ErrorRules(), labels=())


class Slo(Promise):
    """One objective: this share of the selected requests is good over this window.

    A request that its server and its client both report is judged once: without a vantage in `select`, the server's.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
    description: str = ""
    owner: Annotated[str, Field(max_length=100)] = ""
    team: Annotated[str, Field(max_length=100)] = ""
    objective: Objective
    window: DurationNs
    select: dict[Selector, Values] = Field(default_factory=dict, validate_default=True)
    group_by: Annotated[tuple[GroupBy, ...], Field(max_length=1)] = ()
    most_groups: Annotated[int, Field(ge=1, le=500)] = 50
    """The answer and the metrics have so many groups; the others count in the SLO's total alone."""

    @field_validator("select")
    @classmethod
    def _one_vantage(cls, select: dict[str, Values]) -> dict[str, Values]:
        if len(select.get("vantage", ())) > 1:
            msg = "vantage: name one; a request that was measured at two of them would be judged twice"
            raise ValueError(msg)
        if unknown := set(select.get("vantage", ())) - {"server", "client"}:
            msg = f"vantage: {unknown.pop()!r} is neither server nor client"
            raise ValueError(msg)
        return select if "vantage" in select else {**select, "vantage": ("server",)}

    @property
    def budget(self) -> Decimal:
        """The share of requests that may be bad."""
        return 1 - self.objective

    @property
    def hash(self) -> str:
        """12 hex digits of the definition. Rules and a collector that differ in one have different ones."""
        words = dict.fromkeys(("name", "description", "owner", "team"), True)
        newer = {name for name in ("gap", "first_visible") if getattr(self.thresholds, name) is None}
        definition = self.model_dump_json(exclude={**words, "thresholds": newer})
        return sha256(definition.encode()).hexdigest()[:12]


class _SloFile(_Strict):
    slos: tuple[Slo, ...]
    labels: Annotated[tuple[LabelRule, ...], Field(max_length=100)] = ()

    @model_validator(mode="after")
    def _labels_stand_once(self) -> _SloFile:
        if any(slo.labels for slo in self.slos):
            msg = "labels stand beside slos, at the top of the file, and hold for all SLOs"
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _names_are_unique(self) -> _SloFile:
        names = [slo.name for slo in self.slos]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            msg = f"each SLO needs a name of its own; used more than once: {', '.join(twice)}"
            raise ValueError(msg)
        return self


class _ExactLoader(yaml.SafeLoader):
    """YAML's safe loader, with decimals left as text: 0.95 as a binary fraction would not be exact."""


def _as_written(loader: _ExactLoader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


_ExactLoader.add_constructor("tag:yaml.org,2002:float", _as_written)


_MOST_LETTERS: Final = 128 * 1024
"""Of an SLO file: over a thousand SLOs. Larger YAML takes so long to parse that readers would wait for it."""
_MOST_OPEN: Final = 100
"""Brackets that are open at once. Thousands in one line take YAML's parser minutes."""


def _must_be_small(path: Path, text: str) -> None:
    """Raise SloFileError for a text that takes long to parse: a large one, or brackets deeply in each other."""
    if len(text) > _MOST_LETTERS:
        msg = f"{path}: is too large for an SLO file: more than {_MOST_LETTERS:,} letters"
        msg += " (one SLO with `group_by` is a promise to each tenant)"
        raise SloFileError(msg)
    steps = (1 if sign in "[{" else -1 for sign in re.findall(r"[\[\]{}]", text))
    if max(accumulate(steps), default=0) > _MOST_OPEN:
        raise _too_deep(path)


def _too_deep(path: Path) -> SloFileError:
    return SloFileError(f"{path}: is nested too deeply for an SLO file (docs/slos.md has an example)")


def load_slos(path: Path) -> tuple[Slo, ...]:
    """The SLOs of a file. Raises SloFileError when it cannot be read or anything in it is wrong."""
    try:
        text = regular_files.read(path).decode()
        _must_be_small(path, text)
        content = yaml.load(text, Loader=_ExactLoader)  # noqa: S506 - a SafeLoader
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path}: cannot be read: {words_of(error)}"
        raise SloFileError(msg) from error
    except yaml.YAMLError as error:
        msg = f"{path}: is not YAML: {error}"
        raise SloFileError(msg) from error
    except RecursionError:
        raise _too_deep(path) from None
    try:
        file = _SloFile.model_validate(content)
    except ValidationError as error:
        raise SloFileError("\n".join(f"{path}: {line}" for line in describe(error))) from None
    return tuple(slo.model_copy(update={"labels": file.labels}) for slo in file.slos)


def describe(error: ValidationError) -> list[str]:
    """One line per problem: its place and its fix."""
    return [f"{place_of(e['loc'])}: {_fix(e)}" for e in error.errors()]


def place_of(loc: Sequence[int | str]) -> str:
    """The place of a problem, such as `slos[0].window`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return "".join(parts).removeprefix(".") or "the file"


def _fix(error: Any) -> str:
    match error["type"]:
        case "extra_forbidden":
            return "unknown field: remove it or correct its spelling (docs/slos.md lists the fields)"
        case "missing":
            return "is missing"
        case "model_type":
            return "must be a mapping of fields (docs/slos.md has an example)"
        case "string_pattern_mismatch":
            return (
                f"{_brief(error['input'])} must be a lower-case letter, then letters, digits, - or _, at most 63 in all"
            )
        case "tuple_type":
            return f"{_brief(error['input'])} must be a list, as in `model: [a, b]`"
        case "literal_error":
            return f"{_brief(error['input'])} cannot be selected by; use {error['ctx']['expected']}"
        case _:
            return str(error["msg"]).removeprefix("Value error, ")
