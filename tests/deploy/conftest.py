from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@dataclass
class Stage:
    """One stage of a Dockerfile, with the instructions inherited from the stage that it is built on."""

    base: str
    copies: list[list[str]] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    user: str = "root"
    workdir: str = "/"
    exposed: set[int] = field(default_factory=set)
    entrypoint: list[str] = field(default_factory=list)


def read_stages(path: Path) -> dict[str, Stage]:
    text = re.sub(r"\\\n", " ", path.read_text())
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    stage = Stage("")
    for line in text.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "ARG" and "=" in rest:
            name, _, value = rest.partition("=")
            arguments[name] = value.strip('"')
        elif word == "FROM":
            base, _, name = re.sub(r"\$\{(\w+)\}", lambda m: arguments[m[1]], rest).partition(" AS ")
            parent = stages.get(base)
            stage = (
                Stage(parent.base, [*parent.copies], {**parent.env}, parent.user, parent.workdir)
                if parent
                else Stage(base)
            )
            stages[name] = stage
        elif word == "COPY":
            stage.copies.append(shlex.split(rest))
        elif word == "ENV":
            stage.env |= dict(pair.split("=", 1) for pair in shlex.split(rest))
        elif word == "USER":
            stage.user = rest
        elif word == "WORKDIR":
            stage.workdir = rest
        elif word == "EXPOSE":
            stage.exposed = {int(port) for port in rest.split()}
        elif word == "ENTRYPOINT":
            stage.entrypoint = yaml.safe_load(rest)
    return stages


@pytest.fixture(scope="session")
def compose() -> dict[str, Any]:
    text = (ROOT / "docker-compose.yml").read_text()
    defaults = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
    assert "${" not in defaults, "every variable has a default: `docker compose up` runs without an .env"
    return yaml.safe_load(defaults)


@pytest.fixture(scope="session")
def services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return compose["services"]


@pytest.fixture(scope="session")
def stages() -> dict[str, Stage]:
    return read_stages(ROOT / "docker" / "Dockerfile")
