"""Each package imports only the packages it may, and `import tokentrail` loads no framework into its host."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("tokentrail", "instrumented_engine", "collector", "alerts", "dashboard", "benchmarks", "tests")
ALLOWED = {
    "tokentrail": {"tokentrail"},
    "instrumented_engine": {"instrumented_engine", "tokentrail"},
    "collector": {
        "collector",
        "tokentrail.folders",
        "tokentrail.hosts",
        "tokentrail.http_protocol",
        "tokentrail.open_files",
        "tokentrail.private_files",
        "tokentrail.semconv",
        "tokentrail.version",
    },
    "alerts": {"alerts", "collector.slo", "tokentrail.folders"},
    "dashboard": {
        "dashboard",
        "tokentrail.connection",
        "tokentrail.formatting",
        "tokentrail.hosts",
        "tokentrail.semconv",
    },
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from tokentrail import semconv` imports tokentrail.semconv
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return {name for name in found if name.split(".")[0] in OURS}


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


def test_the_rule_would_catch_a_wrong_import(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("from tokentrail import Trail\nimport collector.store\n")
    assert imports(bad) == {"tokentrail", "tokentrail.Trail", "collector.store"}
    assert not is_allowed("tokentrail.Trail", ALLOWED["collector"])
    assert not is_allowed("collector.store", ALLOWED["alerts"])


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
