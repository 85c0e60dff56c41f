"""The images, as far as their Dockerfile can be followed without building it."""

from __future__ import annotations

import fnmatch
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROLES = ("collector", "engine", "dashboard")


def from_context(stage):
    """(source, destination) of each COPY from the build context."""
    for *sources, destination in (copy for copy in stage.copies if not copy[0].startswith("--from")):
        yield from ((source, destination) for source in sources)


def is_sent(path: str) -> bool:
    """Whether .dockerignore lets the path into the build context (its last matching line decides)."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!").rstrip("/")
        if line and not line.startswith("#") and (path == pattern or fnmatch.fnmatch(path, pattern)):
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


@pytest.mark.parametrize("role", ROLES)
def test_the_copied_files_are_enough_to_start(role, stages, tmp_path):
    stage = stages[role]
    for source, destination in [*from_context(stages["build"]), *from_context(stage)]:
        place = tmp_path / ("outside" if destination.startswith("/") else "app") / source
        place.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / source).is_dir() else shutil.copy)(ROOT / source, place)
    packages = {path.name for path in (tmp_path / "app").iterdir() if path.is_dir()}
    absent = {"tokentrail", "collector", "instrumented_engine", "dashboard", "alerts", "benchmarks"} - packages
    script = stage.entrypoint[stage.entrypoint.index("-m") + 1] if "-m" in stage.entrypoint else None
    start = (
        f"import runpy; runpy.run_module({script!r}, run_name='__main__')"
        if script
        else ("import runpy; runpy.run_path('dashboard/app.py')")
    )
    # The development install puts the repository on sys.path: what the image lacks must not be found there.
    code = f"import sys; sys.modules.update(dict.fromkeys({sorted(absent)!r})); sys.argv[1:] = ['--help']; {start}"
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "app")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "app", env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
