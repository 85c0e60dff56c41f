"""The wheel holds `tokentrail/` alone and works in an environment with its declared dependencies only."""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import tokentrail

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


def test_it_holds_only_our_package(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {n.split("/")[0] for n in names} <= {"tokentrail", next(n for n in names if ".dist-info" in n).split("/")[0]}
    assert "tokentrail/semconv.py" in names
    assert "tokentrail/py.typed" in names
    assert any(n.endswith("licenses/LICENSE") for n in names)
    assert wheel.name.startswith(f"tokentrail-{tokentrail.__version__}-")


def test_it_imports_with_its_base_dependencies_only(wheel, tmp_path):
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--constraint", ROOT / "constraints.txt", wheel], check=True, capture_output=True)
    code = (
        "import tokentrail, tokentrail.testing, importlib.util as u; "
        "assert u.find_spec('collector') is None; "
        "trail = tokentrail.Trail.from_env(service_name='wheel'); "
        "print(type(trail).__name__, tokentrail.__version__)"
    )
    run = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, cwd=tmp_path, env={"OTEL_SDK_DISABLED": "true"}
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split()[-1] == tokentrail.__version__
