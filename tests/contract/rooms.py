"""The rooms of the collector, from the lowest up, and the rooms that each one imports.

A room is a folder of `collector/`, or a file that lies there by itself. `docs/architecture.md` has this table,
made by `python -m tests.contract.reference`. A new import between two rooms is a new word here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
ROOMS: Final = {
    "base": "",
    "otlp": "",
    "sql": "",
    "causes/split": "",
    "access": "base otlp",
    "slo": "base sql",
    "wal": "base",
    "receive": "base otlp access wal",
    "scrape": "base otlp access wal receive",
    "store": "base otlp sql slo wal",
    "ask": "sql store",
    "pipeline": "base otlp access slo wal receive scrape store",
    "access/__main__.py": "access pipeline",
    "keep": "base sql store ask pipeline",
    "causes/stage": "base causes/split store ask",
    "count": "base otlp sql slo ask",
    "numbers": "base sql slo ask count",
    "timeouts": "base slo ask count",
    "engines": "base slo ask count numbers",
    "causes/answer": "base sql causes/split slo ask causes/stage count",
    "compare": "base sql slo ask count numbers causes/answer",
    "incidents": "base sql causes/split slo ask count numbers engines causes/answer compare",
    "metrics": "base otlp sql causes/split access slo receive store ask keep count numbers incidents",
    "api": (
        "base otlp sql causes/split access slo store ask "
        "keep count numbers timeouts engines causes/answer compare incidents metrics"
    ),
    "app": (
        "base otlp sql access slo wal receive scrape store "
        "ask pipeline keep causes/stage count numbers incidents metrics api"
    ),
    "__main__.py": "base pipeline app",
}


def room_of(path: Path) -> str:
    """The room of a file of `collector/`; "" for the `__init__.py` of a folder of rooms."""
    parts = path.relative_to(ROOT / "collector").parts
    loose = "/".join(parts)
    if loose in ROOMS:
        return loose
    nested = "/".join(parts[:2])
    return nested if nested in ROOMS else parts[0] if len(parts) > 1 and parts[0] in ROOMS else ""


def files() -> list[Path]:
    """All Python files of the collector."""
    return sorted((ROOT / "collector").rglob("*.py"))


def imports(path: Path) -> set[str]:
    """The names of all modules that a file imports, and of what it takes from them."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from tokentrail import semconv` imports tokentrail.semconv
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def imported(path: Path) -> Iterator[str]:
    """The rooms that a file imports, without its own."""
    for name in imports(path):
        first, *rest = name.split(".")
        if first == "collector" and rest:
            room = room_of(ROOT / "collector" / "/".join(rest) / "_")
            if room != room_of(path):
                yield room or name


def said(room: str) -> str:
    """The first paragraph of a room's docstring."""
    path = ROOT / "collector" / room
    text = ast.get_docstring(ast.parse((path if path.suffix else path / "__init__.py").read_text(encoding="utf-8")))
    return " ".join((text or "").split("\n\n")[0].split())
