"""Checks of the images that read the Dockerfile and do not build it."""

from __future__ import annotations

import fnmatch
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from collector.app.service import open_access
from collector.pipeline.settings import load_settings
from instrumented_engine.__main__ import read_settings as engine_settings
from instrumented_engine.model.download import WHEEL_MODELS, cache_folder

ROOT = Path(__file__).parents[2]
ROLES = ("collector", "engine", "dashboard")


def environment(role, services, stages):
    """The environment of the role's container, without the TOKENTRAIL_* and OTEL_* variables of this process."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TOKENTRAIL_", "OTEL_"))}
    return inherited | stages[role].env | services[role]["environment"]


def from_context(stage):
    """(source, destination) of each COPY from the build context."""
    for *sources, destination in (copy for copy in stage.copies if not copy[0].startswith("--from")):
        yield from ((source, destination) for source in sources)


def is_sent(path: str) -> bool:
    """Whether .dockerignore lets the path into the build context (its last matching line decides)."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!").rstrip("/")
        is_inside = f"{path}/".startswith(f"{pattern}/")
        if line and not line.startswith("#") and (is_inside or fnmatch.fnmatch(path, pattern)):
            sent = line.startswith("!")
    return sent


def test_every_copied_file_exists_and_is_sent(stages):
    for name, stage in stages.items():
        for source, _ in from_context(stage):
            assert (ROOT / source).exists(), f"{name} copies {source}"
            assert is_sent(source.rstrip("/")), f".dockerignore keeps {source} from {name}"
    assert not is_sent(".venv")


def test_compose_builds_targets_that_exist_and_publishes_what_they_expose(services, stages):
    built = {name: service for name, service in services.items() if "build" in service}
    assert set(built) == set(ROLES)
    for service in built.values():
        stage = stages[service["build"]["target"]]
        assert stage.exposed == {int(port.rsplit(":", 1)[1]) for port in service["ports"]}


def test_the_collector_accepts_its_environment(services, stages, monkeypatch):
    for name, value in environment("collector", services, stages).items():
        monkeypatch.setenv(name, value)
    settings = load_settings([])
    assert settings.store == "http://clickhouse:8123/default"
    assert settings.store_user == "tokentrail"
    (secret,) = services["collector"]["secrets"]
    assert services["clickhouse"]["secrets"] == [secret]
    mounted = f"/run/secrets/{secret}"
    assert (
        str(settings.store_password_file)
        == services["clickhouse"]["environment"]["CLICKHOUSE_PASSWORD_FILE"]
        == mounted
    )
    listening = {int(address.rsplit(":", 1)[1]) for address in (settings.otlp_grpc, settings.otlp_http, settings.api)}
    assert listening == stages["collector"].exposed
    assert str(settings.data_dir) in {volume.split(":")[1] for volume in services["collector"]["volumes"]}
    assert str(settings.slos) in {volume.split(":")[1] for volume in services["collector"]["volumes"]}


def test_the_image_alone_asks_for_keys_and_compose_says_that_none_is_needed(services, stages, monkeypatch, tmp_path):
    for name, value in (stages["collector"].env | {"TOKENTRAIL_DATA_DIR": str(tmp_path)}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="there is no key"):
        open_access(load_settings([]), ["0.0.0.0"])
    for name, value in services["collector"]["environment"].items():
        monkeypatch.setenv(name, value)
    access = open_access(load_settings([]), ["0.0.0.0"])
    assert access.allow_anonymous
    assert access.allowed_hosts == {"collector", "0.0.0.0"}


def test_the_engine_accepts_its_environment(services, stages, monkeypatch):
    for name, value in environment("engine", services, stages).items():
        monkeypatch.setenv(name, value)
    settings = engine_settings([])
    assert settings is not None
    assert (settings.host, {settings.port}) == ("0.0.0.0", stages["engine"].exposed)
    assert settings.model in WHEEL_MODELS
    assert str(cache_folder()) in {volume.split(":")[1] for volume in services["engine"]["volumes"]}


@pytest.fixture(scope="module")
def installed(stages, tmp_path_factory):
    """The content of the wheel that is built from the files that the stage `wheel` copies, and from no others."""
    source, place = tmp_path_factory.mktemp("src"), tmp_path_factory.mktemp("site-packages")
    for name, destination in from_context(stages["wheel"]):
        if destination.endswith("/"):
            (source / destination).mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            unwanted = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / destination, ignore=unwanted, dirs_exist_ok=True)
        else:
            shutil.copy(ROOT / name, source / destination)
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(place)]
    done = subprocess.run(build, cwd=source, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = place.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    return place


@pytest.mark.parametrize("role", ROLES)
def test_each_role_starts_from_the_wheel(role, stages, installed):
    stage, parts = stages[role], installed / "tokentrail" / "parts"
    assert stage.workdir == "/opt/venv/parts"
    assert stage.entrypoint[:2] == ["python", "-m"]
    app = str(parts / "dashboard" / "pages.py")
    run = {
        "dashboard": "from streamlit.testing.v1 import AppTest; "
        f"page = AppTest.from_file({app!r}).run(timeout=60); "
        "assert page.main.children and not page.exception, page.exception; "
        "assert not [told for told in page.error if 'cannot be drawn' in told.value]"
    }
    start = run.get(role, f"import runpy; runpy.run_module({stage.entrypoint[2]!r}, run_name='__main__')")
    # The development install puts the repository on sys.path: these two folders come before it.
    path = os.pathsep.join(map(str, (parts, installed)))
    is_ours = f"import tokentrail; assert tokentrail.__file__.startswith({str(installed)!r})"
    command = [sys.executable, "-c", f"import sys; sys.argv[1:] = ['--help']; {is_ours}; {start}"]
    inherited = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=parts, env=inherited, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
