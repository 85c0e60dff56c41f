"""Each import of each part is declared by the extra that the part needs, and no declared floor has a known hole."""

import ast
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = {"tokentrail", "collector", "instrumented_engine", "dashboard", "alerts"}
HOSTS = {"vllm", "sglang", "transformers", "triton"}
"""Packages that the host of an integration has, and Triton, which torch brings for CUDA."""
EXTRAS = {
    "tokentrail/cli": ["cli"],
    "tokentrail/shared/connection.py": ["cli"],
    "tokentrail/_send/grpc.py": ["grpc"],
    "tokentrail/shared/http_protocol.py": ["collector-server"],
    "tokentrail/load": ["engine"],
    "tokentrail/mcp": ["mcp"],
    "tokentrail/proxy": ["proxy"],
    "tokentrail": [],
    "collector": ["collector-server"],
    "instrumented_engine": ["engine"],
    "dashboard": ["dashboard"],
    "alerts": ["cli", "collector-server"],
}
"""The first part that a file is in is the one that counts."""
HOLES = {
    "aiohttp": "3.13.2",
    "fastapi": "0.120.0",
    "jinja2": "3.1.5",
    "protobuf": "6.33.4",
    "requests": "2.32.3",
    "starlette": "0.49.0",
    "transformers": "4.52.4",
    "urllib3": "2.6.2",
}
"""The last release of each with a published advisory that the project knows. FastAPI's allows no newer starlette."""


@cache
def owners():
    """The distribution of each module that is installed."""
    found = {}
    for distribution in distributions():
        name = distribution.metadata["Name"].lower().replace("_", "-")
        for file in distribution.files or ():
            if file.suffix in (".py", ".so", ".pyi"):
                found.setdefault(str(file).split(".")[0].removesuffix("/__init__").replace("/", "."), name)
    return found


def owner(module):
    while module:
        if module in owners():
            return owners()[module]
        module = module.rpartition(".")[0]
    return None


def modules(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def declared(extras):
    """The names that the dependencies and these extras list, with those of the extras that they include."""
    texts, waiting = list(PROJECT["dependencies"]), list(extras)
    while waiting:
        for text in PROJECT["optional-dependencies"][waiting.pop()]:
            requirement = Requirement(text)
            (waiting.extend(requirement.extras) if requirement.name == "tokentrail" else texts.append(text))
    return {Requirement(text).name for text in texts}


def undeclared(file, source):
    part = next(part for part in EXTRAS if Path(file).is_relative_to(part))
    names = {name for name in modules(source) if name.split(".")[0] not in OURS | HOSTS | sys.stdlib_module_names}
    return sorted({f"{file}: {name}" for name in names if owner(name) not in declared(EXTRAS[part])})


def test_each_import_is_declared():
    files = [path for top in sorted(OURS) for path in (ROOT / top).rglob("*.py")]
    assert len(files) > 200
    assert [one for path in files for one in undeclared(str(path.relative_to(ROOT)), path.read_text())] == []


def test_the_rule_would_catch_an_undeclared_import():
    assert undeclared("tokentrail/trail.py", "import httpx\nimport numpy, json") == ["tokentrail/trail.py: httpx"]
    assert undeclared("dashboard/app.py", "from requests import get\nfrom google.rpc import status_pb2") == []
    assert undeclared("collector/x.py", "from torch import nn") == ["collector/x.py: torch.nn"]


@pytest.mark.parametrize("name", HOLES)
def test_no_floor_has_a_known_hole(name):
    texts = PROJECT["dependencies"] + [text for some in PROJECT["optional-dependencies"].values() for text in some]
    found = [Requirement(text).specifier for text in texts if Requirement(text).name == name]
    assert found
    assert not [specifier for specifier in found if Version(HOLES[name]) in specifier]


def pinned(text):
    pins = re.findall(r"^([\w.-]+)==([^\s;]+)", text.lower(), re.MULTILINE)
    return {name.replace("_", "-"): version for name, version in pins}


@pytest.mark.parametrize(
    ("role", "extras"), [("collector", ["cli", "collector"]), ("dashboard", ["dashboard"]), ("engine", ["engine"])]
)
def test_the_images_install_the_pinned_files(role, extras):
    lock = (ROOT / "docker" / "locks" / f"{role}.txt").read_text()
    pins, versions = pinned((ROOT / "constraints.txt").read_text()), pinned(lock)
    assert {name.replace("_", "-").lower() for name in declared(extras)} - versions.keys() <= {"torch"}
    assert {name: pins[name] for name in versions if name in pins} == {n: v for n, v in versions.items() if n in pins}
    assert len(versions) - len(versions.keys() & pins.keys()) <= 5, "most are pinned by what the tests ran with"
    assert all("--hash=sha256:" in part for part in re.split(r"\n(?=\S)", lock.strip()))
    assert (
        f"--require-hashes --no-deps --requirement docker/locks/{role}.txt"
        in (ROOT / "docker" / "Dockerfile").read_text()
    )


def test_each_pin_is_within_its_range():
    pins = pinned((ROOT / "constraints.txt").read_text())
    texts = PROJECT["dependencies"] + [text for some in PROJECT["optional-dependencies"].values() for text in some]
    for requirement in map(Requirement, texts):
        if requirement.name != "tokentrail":
            assert pins[requirement.name.lower()] in requirement.specifier, requirement


def test_the_audit_asks_about_each_file_of_pins():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "audit.yml").read_text())
    files = workflow["jobs"]["packages"]["strategy"]["matrix"]["file"]
    locks = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docker" / "locks").iterdir())]
    assert files == ["constraints.txt", *locks]
