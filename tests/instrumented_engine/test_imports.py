import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def imported(path):
    """(module, name) of every `from module import name`, and (module, "") of every `import module`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def importers(wanted):
    package = ROOT / "instrumented_engine"
    files = sorted(package.rglob("*.py"))
    return {str(f.relative_to(package)) for f in files if any(wanted(*found) for found in imported(f))}


def test_torch_is_imported_by_the_model_and_the_device_only():
    found = importers(lambda module, _: module.split(".")[0] == "torch")
    assert "device.py" in found
    assert all(path == "device.py" or path.startswith("model/") for path in found), found


def test_the_server_starts_without_torch():
    # startup.load sets OMP_WAIT_POLICY, which torch reads when it is first imported.
    code = "import sys, instrumented_engine.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=120).returncode == 0


def test_only_the_observer_calls_the_trail():
    calls = {"Trail", "Phase", "KvEvent", "ColdStart"}
    found = importers(lambda module, name: module == "tokentrail" and name in calls)
    assert found == {"core/observer.py", "__main__.py"}, "__main__ makes the trail"
