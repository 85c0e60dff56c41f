"""The answer of `/explain` in some 2,000 tokens of a model: without what says the same twice, or next to nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tokentrail.mcp.bounds import known, without

_TWICE: Final = ("groups", "typical", "models", "by_model", "unexplained_s", "wrong", "sentence", "note", "levels")
"""Fields that are sums of its parts, that only a page draws, or that its `text` has."""
_LEAST_SHARE: Final = 0.02
"""Of the time beyond typical: a part with less has its sums alone."""
_LEAST_OF_CULPRIT: Final = 0.05
"""Of its part: the first of each kind is told with less too."""
_MOST_REQUESTS: Final = 2


def explained(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The answer without what its `text` says, and without what is not known or small."""
    told = known(without(answer, _TWICE) | {"parts": [*_parts(answer["parts"])]})
    return {name: value for name, value in told.items() if value is not False}


def _parts(parts: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for part in parts:
        if part["share"] is not None and part["share"] < _LEAST_SHARE:
            yield {name: part[name] for name in ("cause", "excess_s", "share")}
            continue
        if alone := part["without"]:
            alone = without(alone, ("causes", "points"))
        yield without(part, ("exemplars",)) | {
            "without": alone,
            "culprits": [*_culprits(part["culprits"])],
            "examples": [one["trace_id"] for one in part["exemplars"][:_MOST_REQUESTS]],
        }


def _culprits(culprits: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Culprits with a share that counts, and the first of each kind: within a kind the largest come first."""
    of_kind: dict[str, int] = {}
    for culprit in culprits:
        before = of_kind.setdefault(culprit["by"], 0)
        of_kind[culprit["by"]] += 1
        is_small = culprit["share"] is not None and culprit["share"] < _LEAST_OF_CULPRIT
        if before and (is_small or (culprit["by"] == "request" and before >= _MOST_REQUESTS)):
            continue
        yield without(culprit, ("span_id",))
