"""SQL fragments that are made of tables: the ends of finish reasons, and the generations of GenAI names."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml

from tokentrail.shared.finish_reasons import ENDS, NOTHING


@cache
def generated(names: Path) -> dict[str, str]:
    """The fragments by name, of the names in a file as `schema/genai_names.yaml`.

    input: [a, b]   $told_input     coalesce(counted('a'), counted('b'))
                    $key_input      multiIf(mapContains(number, 'a'), 'a', 'b')
                    $has_input      (mapContains(number, 'a') OR mapContains(number, 'b'))
                    $keys_input     'a', 'b'
    """
    table = yaml.safe_load(names.read_text())
    ends = {word: str(end) for word, end in ENDS.items()} | dict.fromkeys(NOTHING, "")
    parts = {"end_words": f"[{_quoted(ends)}]", "end_kinds": f"[{_quoted(ends.values())}]"}
    for name, keys in (table["counts"] | table["seconds"]).items():
        has = [f"mapContains(number, '{key}')" for key in keys]
        counted = ", ".join(f"counted('{key}')" for key in keys)
        parts[f"told_{name}"] = f"coalesce({counted})"
        choices = ", ".join(f"{known}, '{key}'" for known, key in zip(has[:-1], keys, strict=False))
        parts[f"key_{name}"] = f"multiIf({choices}, '{keys[-1]}')" if choices else f"'{keys[-1]}'"
        parts[f"has_{name}"] = f"({' OR '.join(has)})"
        parts[f"keys_{name}"] = _quoted(keys)
    for name, keys in table["texts"].items():
        choices = ", ".join(f"text['{key}'] != '', text['{key}']" for key in keys[:-1])
        parts[f"text_{name}"] = f"multiIf({choices}, text['{keys[-1]}'])" if choices else f"text['{keys[-1]}']"
    labels = ((name, parts[f"text_{name}"]) for name in table["texts"])
    parts["text_labels"] = ", ".join(f"'{name}', {text}" for name, text in labels)
    return parts


def _quoted(words: object) -> str:
    return ", ".join(f"'{word}'" for word in words)  # type: ignore[attr-defined]
