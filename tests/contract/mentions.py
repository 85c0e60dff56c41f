"""Finds the commands, settings, files, endpoints and metrics that a text names, and checks that each exists.

`missing("Run `tokentrail rules`, then `make test`.")` is `["command: tokentrail rules"]`.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from inspect import cleandoc
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from opentelemetry import environment_variables as otel_api
from opentelemetry.sdk import environment_variables as otel_sdk

from collector.pipeline.settings import Settings as CollectorSettings
from instrumented_engine.settings import Settings as EngineSettings
from tests.contract.commands import (
    INLINE,
    PACKAGES,
    is_command,
    is_flag,
    is_module,
    is_target,
    named_commands,
    named_flags,
    named_modules,
    named_targets,
)
from tests.support.api import openapi

ROOT = Path(__file__).parents[2]

THEIR_OWN = {
    "docker-compose.override.yml",
    "config.json",
    "keys.json",
    "counters.json",
    "retention_clock.json",
    "slo_history.json",
}
"""File names that the documentation gives to files of the reader, of a data folder or of Hugging Face."""


def named_variables(text: str) -> Iterator[str]:
    """`TOKENTRAIL_WAL_MAX_BYTES`; one that ends in `_`, as in `OTEL_*`, is a prefix."""
    yield from re.findall(r"\b(?:TOKENTRAIL|OTEL)_[A-Z0-9_]*", text)


def is_variable(name: str) -> bool:
    """Read by the collector, the engine, the SDK, the dashboard, docker-compose.yml or OpenTelemetry."""
    return name in _variables() or (name.endswith("_") and any(known.startswith(name) for known in _variables()))


@cache
def _variables() -> frozenset[str]:
    known = {f"TOKENTRAIL_{name.upper()}" for name in CollectorSettings.model_fields}
    known |= {f"TOKENTRAIL_ENGINE_{name.upper()}" for name in EngineSettings.model_fields}
    known |= {text for text in _constants() if re.fullmatch(r"TOKENTRAIL_[A-Z_]*[A-Z]", text)}
    known |= set(re.findall(r"\$\{(TOKENTRAIL_[A-Z_]+)", (ROOT / "docker-compose.yml").read_text()))
    known |= {name for name in {**vars(otel_api), **vars(otel_sdk)} if name.startswith("OTEL_")}
    return frozenset(known)


@cache
def _constants() -> frozenset[str]:
    """Every string constant of the packages. A docstring that names a setting is a longer constant than its name."""
    trees = (ast.parse(path.read_text()) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    nodes = (node for tree in trees for node in ast.walk(tree))
    return frozenset(n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str))


def named_files(text: str) -> Iterator[str]:
    """Paths that begin with a folder of the repository, and file names in inline code: `conditions.yaml`."""
    folders = "|".join(map(re.escape, _folders()))
    for path in re.findall(rf"(?<![\w/.:@~-])(?:{folders})/[\w./*{{}},<>-]*+(?!:\d)", text):
        yield path.rstrip(".,")
    for code in INLINE.findall(text):
        if re.fullmatch(r"[\w-][\w.-]*\.(?:py|sql|md|ya?ml|toml|json)", code):
            yield code


def is_file(name: str) -> bool:
    """A file or folder of the repository; a name without a folder may lie in any.

    `*`, `<name>` and words in capitals stand for any name: `collector/sql/engines/NN_name/` is there when one such is.
    """
    if name in THEIR_OWN or (ROOT / name).exists():
        return True
    pattern = re.sub(r"<\w+>|(?<![A-Za-z])[A-Z]{2,}\w*", "*", name).rstrip("/")
    known = _files() if "/" in name else _names()
    return any(fnmatchcase(path, pattern) or ("*" in pattern and fnmatchcase(path, f"{pattern}/*")) for path in known)


@cache
def _files() -> frozenset[str]:
    """The files that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return frozenset(path for path in listed if (ROOT / path).exists())


@cache
def _names() -> frozenset[str]:
    return frozenset(path.rpartition("/")[2] for path in _files())


@cache
def _folders() -> list[str]:
    return sorted({path.partition("/")[0] for path in _files() if "/" in path})


def named_endpoints(text: str) -> Iterator[str]:
    """`/api/v1/summary?start=-1h`, the same below `$API`, and inline code that is a path alone: `/summary`."""
    for path in re.findall(r"(?<![\w/])(?:\$API|https?://[\w.:-]+/api/v1|/api/v1)(/[^\s`\"')|]*)", text):
        yield f"/api/v1{path}".rstrip(".,;:").removesuffix("/")
    yield from (code for code in INLINE.findall(text) if re.fullmatch(r"/[a-z_]+(?:\?\S*)?", code) and code != "/tmp")


def is_endpoint(name: str) -> bool:
    """The collector's OpenAPI document has the path (without `/api/v1` too) and every parameter of the query."""
    url = urlsplit(name)
    return any(
        set(dict(parse_qsl(url.query, keep_blank_values=True))) <= parameters
        for route, parameters in _routes()
        if re.fullmatch(rf"(?:/api/v1)?{re.sub(r'{[^}]*}', '[^/]+', route.removeprefix('/api/v1'))}", url.path)
    )


@cache
def _routes() -> tuple[tuple[str, frozenset[str]], ...]:
    listed = [
        (path, frozenset(p["name"] for operation in methods.values() for p in operation.get("parameters", ())))
        for path, methods in openapi()["paths"].items()
    ]
    return (*listed, ("/docs", frozenset()), ("/openapi.json", frozenset()))


def named_metrics(text: str) -> Iterator[str]:
    """`tokentrail_requests_total`; one that ends in `_`, as in `tokentrail_collector_*`, is a prefix."""
    yield from re.findall(r"(?<![\w.])(?:tokentrail|gen_ai)_[a-z0-9_]+", text)


def is_metric(name: str) -> bool:
    """A metric, a label or a table of the store. The series of a histogram (`…_bucket`) belong to it."""
    base = re.sub(r"_(?:bucket|sum|count)$", "", name)
    of_engine = base.removeprefix("tokentrail_engine_").removesuffix("_total")  # it adds the prefix to its names
    known = _constants() | _tables() | _recorded()
    begins = name.endswith("_") and any(other.startswith(name) for other in known)
    return begins or bool({name, base, of_engine} & known)


@cache
def _recorded() -> frozenset[str]:
    """The middle of the names of recording rules: `slo:tokentrail_burn:current`."""
    rules = (ROOT / "alerts" / "rules" / "slos.yml").read_text()
    return frozenset(re.findall(r"record: \w+:(tokentrail_\w+):", rules))


@cache
def _tables() -> frozenset[str]:
    sql = "\n".join(path.read_text() for path in (ROOT / "collector" / "sql").rglob("*.sql"))
    return frozenset(re.findall(r"CREATE [A-Z ]*(?:TABLE|VIEW)(?: IF NOT EXISTS)? (\w+)", sql))


@dataclass(frozen=True)
class Kind:
    """One kind of name: how a text's names of it are found, and whether one exists."""

    name: str
    find: Callable[[str], Iterable[str]]
    exists: Callable[[str], bool]


KINDS = (
    Kind("command", named_commands, is_command),
    Kind("module", named_modules, is_module),
    Kind("make", named_targets, is_target),
    Kind("flag", named_flags, is_flag),
    Kind("variable", named_variables, is_variable),
    Kind("file", named_files, is_file),
    Kind("endpoint", named_endpoints, is_endpoint),
    Kind("metric", named_metrics, is_metric),
)


def missing(text: str) -> list[str]:
    """The names in a text that do not exist, each with its kind."""
    return [
        f"{kind.name}: {name}" for kind in KINDS for name in dict.fromkeys(kind.find(text)) if not kind.exists(name)
    ]


_PLACED = re.compile(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`(?:,[^`.;]*,)?\s+(?:\(|is\s+in\s+)`([\w/.-]+\.py)`")


def misplaced(text: str) -> list[str]:
    """Symbols that a text places in a Python file that does not define them: "`Trail.step` is in `records.py`"."""
    return [
        f"{symbol} in {file}"
        for symbol, file in _PLACED.findall(text)
        if symbol not in _folders() and not any(_defines(path, symbol.rpartition(".")[2]) for path in _called(file))
    ]


def _called(file: str) -> list[str]:
    return [path for path in _files() if path == file or path.endswith(f"/{file}")]


def _defines(path: str, name: str) -> bool:
    defined = rf"^\s*(?:(?:async )?(?:def|class) {name}\b|(?:self\.)?{name}\b\s*[:=](?!.*,$))"
    return bool(re.search(defined, (ROOT / path).read_text(), re.MULTILINE))


def python_prose(source: str) -> str:
    """The docstrings and comments of a Python file."""
    values = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr)]
    texts = [
        cleandoc(value.value) for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)
    ]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts += [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]
    return "\n\n".join(texts)


def yaml_comments(source: str) -> str:
    """The comments of a YAML file or Dockerfile."""
    found = (re.search(r"(?:^|\s)#\s?(.*)", line) for line in source.splitlines())
    return "\n".join(match[1] for match in found if match)
