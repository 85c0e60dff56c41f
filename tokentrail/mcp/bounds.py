"""Keeps answers small, and names of others what they are: data on one line, never text that draws or hides itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tokentrail.shared.formatting import one_line

MOST_CHARACTERS: Final = 60_000
"""Of an answer as JSON: some 20,000 tokens of a model."""
LONGEST_TEXT: Final = 300
_LONGEST_KEY: Final = 100
_MOST_OF_A_LIST: Final = 50
"""Elements. An answer that is too long then has half as many of each list, and again."""
_DIGITS: Final = 6


def bounded(answer: Any) -> Any:
    """The answer with short texts on one line, numbers of six digits, and lists that fit together.

    A list that was cut has `{"left_out": n}` as its last element.
    """
    most = _MOST_OF_A_LIST
    while len(json.dumps(shortened := _bounded(answer, most))) > MOST_CHARACTERS and most:
        most //= 2
    return shortened


def written(answer: Any) -> str:
    """The bounded answer as JSON on one line, of `MOST_CHARACTERS` at most."""
    return json.dumps(bounded(answer), ensure_ascii=False)


def without(answer: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The answer without these fields."""
    left_out = {*names}
    return {name: value for name, value in answer.items() if name not in left_out}


def known(value: Any) -> Any:
    """The answer without what is null or an empty list, at any depth."""
    if isinstance(value, Mapping):
        return {name: known(one) for name, one in value.items() if one is not None and one != []}
    return [known(one) for one in value] if isinstance(value, list) else value


def _bounded(value: Any, most: int) -> Any:
    if isinstance(value, str):
        return _text(value, LONGEST_TEXT)
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, Mapping):
        kept = {_text(str(name), _LONGEST_KEY): _bounded(one, most) for name, one in [*value.items()][: max(most, 20)]}
        return kept | ({"left_out": len(value) - len(kept)} if len(value) > len(kept) else {})
    if isinstance(value, Sequence):
        kept_of_list = [_bounded(one, most) for one in value[:most]]
        return [*kept_of_list, {"left_out": len(value) - most}] if len(value) > most else kept_of_list
    return value


def _text(text: str, most: int) -> str:
    flat = one_line(text)
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"
