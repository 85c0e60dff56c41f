"""Each package imports only the packages it may, and `import tokentrail` loads no framework into its host."""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.contract.rooms import imports as imports_of

ROOT = Path(__file__).parents[2]
OURS = ("tokentrail", "instrumented_engine", "collector", "alerts", "dashboard", "benchmarks", "tests")
ALLOWED = {
    "tokentrail": {"tokentrail"},
    "tokentrail/_host": {"tokentrail._host"},
    "tokentrail/_encode": {"tokentrail._encode"},
    "tokentrail/_record": {"tokentrail._record", "tokentrail._host", "tokentrail._encode", "tokentrail.semconv"},
    "tokentrail/_build": {
        "tokentrail._build",
        "tokentrail._record",
        "tokentrail._host",
        "tokentrail._encode",
        "tokentrail.semconv",
        "tokentrail.version",
    },
    "tokentrail/_send": {
        "tokentrail._send",
        "tokentrail._host",
        "tokentrail._encode",
        "tokentrail.shared",
    },
    "tokentrail/clients": {
        "tokentrail.clients",
        "tokentrail._record",
        "tokentrail._host",
        "tokentrail.semconv",
        "tokentrail.shared.finish_reasons",
        "tokentrail.trail",
    },
    "tokentrail/shared": {"tokentrail.shared", "tokentrail.semconv", "tokentrail.version"},
    "instrumented_engine": {"instrumented_engine", "tokentrail"},
    "collector": {
        "collector",
        "tokentrail.shared.durations",
        "tokentrail.shared.finish_reasons",
        "tokentrail.shared.folders",
        "tokentrail.shared.formatting",
        "tokentrail.shared.hosts",
        "tokentrail.shared.http_protocol",
        "tokentrail.shared.log_lines",
        "tokentrail.shared.moments",
        "tokentrail.shared.open_files",
        "tokentrail.shared.parameters",
        "tokentrail.shared.private_files",
        "tokentrail.shared.regular_files",
        "tokentrail.semconv",
        "tokentrail.version",
    },
    "collector/causes/split": {"collector.causes.split"},
    "alerts": {"alerts", "collector.slo", "tokentrail.shared.durations", "tokentrail.shared.folders"},
    "dashboard": {
        "dashboard",
        "tokentrail.shared.connection",
        "tokentrail.shared.durations",
        "tokentrail.shared.formatting",
        "tokentrail.shared.hosts",
        "tokentrail.shared.moments",
        "tokentrail.shared.otlp_json",
        "tokentrail.shared.parameters",
        "tokentrail.shared.perfetto",
        "tokentrail.shared.query",
        "tokentrail.shared.regular_files",
        "tokentrail.semconv",
    },
}

ENTER = {
    "tokentrail/cli": {"_send"},  # `doctor` sends as the SDK does
    "tokentrail/integrations": {"_record"},  # the types of arguments
    "tokentrail/proxy": {"_host"},
    "instrumented_engine": {"_record"},  # the type of what gets tokens
    "benchmarks": {"_build", "_encode", "_send"},  # they measure the rooms
}
"""Who enters private rooms of the SDK, besides its rooms, the files of `tokentrail/` itself and the tests."""


def imports(path: Path) -> set[str]:
    return {name for name in imports_of(path) if name.split(".")[0] in OURS}


def is_allowed(name: str, allowed: set[str]) -> bool:
    # The parent package of an allowed module may be named to reach it: `from tokentrail import semconv`.
    return any(name == a or name.startswith(f"{a}.") or a.startswith(f"{name}.") for a in allowed)


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_go_one_way(package):
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in imports(path)
        if not is_allowed(name, ALLOWED[package])
    ]
    assert wrong == []


def private_rooms(paths: Iterable[Path]) -> set[str]:
    return {
        match[1] for path in paths for name in imports(path) if (match := re.match(r"tokentrail\.(_[a-z]\w*)", name))
    }


def test_only_those_that_are_named_enter_a_private_room():
    parts = [f"tokentrail/{part}" for part in ("cli", "integrations", "load", "mcp", "proxy")]
    parts += ["instrumented_engine", "collector", "alerts", "dashboard", "benchmarks", "examples"]
    entered = {part: private_rooms((ROOT / part).rglob("*.py")) for part in parts}
    assert {part: rooms for part, rooms in entered.items() if rooms} == ENTER


def test_every_room_has_a_rule():
    rooms = {f"tokentrail/{path.parent.name}" for path in (ROOT / "tokentrail").glob("*/__init__.py")}
    parts = {f"tokentrail/{part}" for part in ("cli", "integrations", "load", "mcp", "proxy")}
    assert rooms - parts == {room for room in ALLOWED if room.startswith("tokentrail/")}
    face = {path.stem for path in (ROOT / "tokentrail").glob("*.py")}
    assert face == {"__init__", "_pipeline", "config", "semconv", "testing", "trail", "version"}


def test_numbers_know_no_web_framework():
    rooms = ("count", "numbers", "causes/answer", "compare", "engines", "incidents")
    files = [path for room in rooms for path in sorted((ROOT / "collector" / room).glob("*.py"))]
    code = "import sys, importlib\n"
    code += "".join(
        f"importlib.import_module('{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}')\n" for path in files
    )
    code += "print([m for m in ('fastapi', 'starlette', 'collector.access', 'collector.api') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert out.strip() == "[]"


def test_no_endpoint_asks_another():
    """Both read the same rooms; `app.py` alone knows all endpoints."""
    files = {path.stem: path for path in (ROOT / "collector/api").glob("*.py") if path.stem != "app"}
    endpoints = {name for name, path in files.items() if "\ndef router(" in path.read_text()}
    assert len(endpoints) > 10
    asked = {
        name: {other for other in endpoints - {name} if f"collector.api.{other}" in imports(path)}
        for name, path in files.items()
    }
    assert {name: others for name, others in asked.items() if others} == {}


def test_the_rule_would_catch_a_wrong_import(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("from tokentrail import Trail\nimport collector.store\n")
    assert imports(bad) == {"tokentrail", "tokentrail.Trail", "collector.store"}
    assert not is_allowed("tokentrail.Trail", ALLOWED["collector"])
    assert not is_allowed("collector.store", ALLOWED["alerts"])
    assert not is_allowed("tokentrail._send.export", ALLOWED["tokentrail/_record"])
    bad.write_text("from tokentrail import __version__, _send\nfrom tokentrail._record.request import Choice\n")
    assert private_rooms([bad]) == {"_send", "_record"}


def test_importing_the_sdk_loads_no_framework():
    heavy = (
        "torch",
        "chdb",
        "clickhouse_connect",
        "fastapi",
        "starlette",
        "streamlit",
        "pandas",
        "grpc",
        "httpx",
        "typer",
    )
    code = f"import sys, tokentrail; tokentrail.Trail; print([m for m in {heavy!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/").stdout
    assert out.strip() == "[]"
