"""Pieces of Markdown: tables, code, lists and sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

BLOCK: Final = re.compile(r"(<!-- reference: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
"""The mark that begins a block, its words, and the mark that ends it."""


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]], *, middle: bool = False) -> str:
    """A table in Markdown; with `middle`, all columns but the first are centred."""
    lines = [
        head,
        ("---", *[":-:" if middle else "---"] * (len(head) - 1)),
        *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def code(value: object) -> str:
    """A default in a table; nothing for an empty one."""
    text = {True: "true", False: "false", None: ""}.get(value, str(value)) if isinstance(value, bool | None) else value
    return f"`{getattr(text, 'value', text)}`" if text != "" else ""


def listed(words: Iterable[str], last_word: str = "and") -> str:
    """`a`, `b` and `c`."""
    *most, last = words
    return f"{', '.join(most)} {last_word} {last}" if most else last


def alternatives(values: Iterable[object]) -> str:
    """`a`, `b` or `c`."""
    return listed((f"`{value}`" for value in values), "or")


def sentence(text: str) -> str:
    """A text as a cell, which ends without a full stop. Names of ours are code."""
    parts = " ".join(text.split()).removesuffix(".").split("`")
    parts[::2] = [
        re.sub(r"(TOKENTRAIL|tokentrail)_\w+|(?<![\w-])--[a-z][a-z-]+", r"`\g<0>`", part) for part in parts[::2]
    ]
    return "`".join(parts)


def split(description: str) -> tuple[str, str]:
    """A description without its end, and the default that the end tells: "Layers that are kept; default: all."."""
    text, _, default = re.sub(r"[;.]? [Dd]efault: ", "\n", " ".join(description.split())).partition("\n")
    return text, default.removesuffix(".")


def marks_in(text: str) -> list[str]:
    """The marks of a page, in its order."""
    return [found[2] for found in BLOCK.finditer(text)]


def linked(text: str, page: str) -> str:
    """Make links of the pages that a text names: [good requests](slos.md#good-requests) of `slos.md#good-requests`."""

    def link(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        words = anchor[1:].replace("-", " ") or target.removesuffix(".md")
        alone = found.string[found.start() - 1 : found.start()] + found.string[found.end() : found.end() + 1] == "()"
        return f"[{'more' if alone else words}]({target if target != page else ''}{anchor})"

    parts = re.split(r"(```.*?```)", text, flags=re.DOTALL)  # in a code block, it stays a path
    parts[::2] = [re.sub(r"(?<![\w`/])docs/([\w/-]+\.md)(#[\w-]+)?", link, part) for part in parts[::2]]
    return "".join(parts)
