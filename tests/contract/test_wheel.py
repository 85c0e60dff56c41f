"""The wheel works in an environment without a checkout, and brings no package but `tokentrail`."""

import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import httpx
import pytest
from packaging.requirements import Requirement

import tokentrail
from tokentrail.cli.processes import HOST, Child, free_port

ROOT = Path(__file__).parents[2]
PARTS = ("alerts", "collector", "dashboard", "instrumented_engine")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


def environment(folder, wheel, requirements):
    """A Python with the wheel and with links to the installed packages that these requirements need, and no others."""
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    for name in needed(requirements):
        installed = distribution(name)
        for top in {Path(str(file)).parts[0] for file in installed.files or []} - {"..", "__pycache__"}:
            (site / top).exists() or (site / top).symlink_to(installed.locate_file(top))
    return folder / "bin" / "python"


def needed(requirements):
    """The names of the distributions that requirements need, with those that they need in turn."""
    found, waiting = {}, [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        extras = frozenset(requirement.extras) | {""}
        name = requirement.name.lower()
        if not extras - found.get(name, frozenset()):
            continue
        found[name] = found.get(name, frozenset()) | extras
        for text in distribution(name).requires or []:
            inner = Requirement(text)
            if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(inner)
    return found.keys() - {"tokentrail"}


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """A Python with the collector and the dashboard, and without the engine."""
    return environment(tmp_path_factory.mktemp("all") / "env", wheel, ["tokentrail[cli,collector,dashboard]"])


def run(python, *arguments, cwd, **env):
    return subprocess.run([python, *arguments], capture_output=True, text=True, cwd=cwd, env={"COLUMNS": "200", **env})


def test_engines_find_their_plugins_in_it(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt")]
        sections = archive.read(name).decode().split("\n\n")
    assert "[vllm.stat_logger_plugins]\ntokentrail = tokentrail.integrations.vllm:StatLogger" in map(
        str.strip, sections
    )
    assert "[sglang.srt.plugins]\ntokentrail = tokentrail.integrations.sglang:register" in map(str.strip, sections)


def test_it_holds_our_package_and_everything_of_its_parts(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {n.split("/")[0] for n in names} <= {"tokentrail", next(n for n in names if ".dist-info" in n).split("/")[0]}
    tracked = subprocess.run(["git", "ls-files", *PARTS], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {f"tokentrail/parts/{file}" for file in tracked.splitlines()} <= {*names}
    assert not [n for n in names if "__pycache__" in n]
    assert "tokentrail/semconv.py" in names
    assert "tokentrail/py.typed" in names
    assert any(n.endswith("licenses/LICENSE") for n in names)
    assert wheel.name.startswith(f"tokentrail-{tokentrail.__version__}-")


def test_the_source_archive_makes_the_same_wheel_byte_for_byte(wheel, tmp_path):
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--outdir",
        tmp_path,
        ROOT,
    ]  # the wheel from the archive
    subprocess.run(command, check=True, capture_output=True)
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        assert not [file.name for file in files if not (file.isfile() or file.isdir())]
        tops = {name.split("/")[1] for name in files.getnames()}
    beside = {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "constraints.txt", "pyproject.toml", ".gitignore"}
    assert tops == {*PARTS, "tokentrail", *beside}


def test_the_sdk_alone_brings_little_and_no_part_brings_torch():
    transports = {"certifi", "charset_normalizer", "idna", "requests", "urllib3"}
    base = {one.replace("-", "_") for one in needed(["tokentrail"]) if not one.startswith("opentelemetry-")}
    assert base == {"googleapis_common_protos", "numpy", "protobuf", "typing_extensions", *transports}
    for extras in ("cli", "collector", "dashboard", "proxy", "mcp"):
        assert not {"torch", "transformers", "numba"} & needed([f"tokentrail[{extras}]"]), extras
    assert "chdb" not in needed(["tokentrail[collector-server,dashboard,proxy,mcp]"])


PERMISSIVE = re.compile(
    r"MIT|Apache|BSD|ISC|PSF|Python Software Foundation|MPL|Mozilla|Unlicense|Zlib|HPND|CC0", re.IGNORECASE
)


def test_what_it_brings_has_licences_that_companies_take():
    for name in needed(["tokentrail[cli,collector,dashboard,grpc,mcp,proxy]"]):
        told: Any = distribution(name).metadata
        classified = [one for one in told.get_all("Classifier") or [] if one.startswith("License ::")]
        licence = " ".join([told.get("License-Expression") or "", *classified, (told.get("License") or "")[:100]])
        assert PERMISSIVE.search(licence), f"{name}: {licence}"
        assert not re.search(r"\bA?GPL|\bLGPL", licence), f"{name}: {licence}"


def test_it_imports_with_its_base_dependencies_only(wheel, tmp_path):
    python = environment(tmp_path / "env", wheel, ["tokentrail"])
    code = (
        "import tokentrail, sys, importlib.util as u; "
        "loaded = {'numpy', 'opentelemetry'} & {*sys.modules}; import tokentrail.testing; "
        "trail = tokentrail.Trail.from_env(service_name='wheel'); "
        f"print(type(trail).__name__, tokentrail.__version__, loaded, [u.find_spec(p) for p in {PARTS}])"
    )
    done = run(python, "-c", code, cwd=tmp_path, OTEL_SDK_DISABLED="true")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(maxsplit=2)[1:] == [tokentrail.__version__, "set() [None, None, None, None]\n"]

    for words, extras in (((), "cli"), (("up",), "cli,collector,dashboard"), (("requests", "--json"), "cli")):
        done = run(python, "-m", "tokentrail.cli", *words, cwd=tmp_path)
        assert done.returncode == 1
        assert done.stderr == f"the tokentrail command needs the package typer: pip install 'tokentrail[{extras}]'\n"


def test_up_runs_from_it(python, tmp_path):
    """Collector and dashboard start, answer, and stop with SIGTERM."""
    assert (
        "None" in run(python, "-c", "import importlib.util as u; print(u.find_spec('collector'))", cwd=tmp_path).stdout
    )
    ports = {}
    for flag in ("otlp-http", "otlp-grpc", "api", "dashboard"):
        ports[flag] = free_port(0, ports.values())
    flags = [word for flag, port in ports.items() for word in (f"--port-{flag}", str(port))]
    up = Child("up", [python, "-m", "tokentrail.cli", "up", "--data-dir", tmp_path / "data", *flags], tmp_path / "log")
    try:
        up.wait_ready(f"http://{HOST}:{ports['dashboard']}/_stcore/health", timeout_s=300)
        slos = httpx.get(f"http://{HOST}:{ports['api']}/api/v1/slos", trust_env=False).json()["slos"]
        assert slos
        assert (tmp_path / "data" / "collector").is_dir()
    finally:
        assert up.stop(timeout_s=120), (tmp_path / "log").read_text()


def test_a_part_is_a_command(python, tmp_path):
    done = run(python, "-m", "tokentrail.cli", "keys", "create", "--tenant", "a", "--role", "read", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tokentrail_")
    absent = run(python, "-m", "tokentrail.cli", "engine", cwd=tmp_path)
    assert absent.returncode == 1
    assert "pip install 'tokentrail[engine]'" in absent.stderr
    refused = run(python, "-m", "tokentrail.cli", "collector", "--no-such-option", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--no-such-option" in refused.stderr
