"""Checks of the Compose files that need no container engine."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from graphlib import TopologicalSorter
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
PORTS = {
    "clickhouse": {8123},
    "collector": {4317, 4318, 8080},
    "engine": {8000},
    "dashboard": {8501},
    "prometheus": {9090},
    "alertmanager": {9093},
    "grafana": {3000},
}


def compose_command() -> list[str] | None:
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) and not subprocess.run([*command, "version"], capture_output=True).returncode:
            return command
    return None


@pytest.mark.parametrize("files", [["docker-compose.yml"], ["docker-compose.yml", "docker-compose.gpu.yml"]], ids=len)
def test_compose_accepts_the_files(files):
    command = compose_command()
    if command is None:
        pytest.skip("neither `docker compose` nor `docker-compose` is installed")
    flags = [flag for file in files for flag in ("-f", file)]
    done = subprocess.run([*command, *flags, "config", "--quiet"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def published(service):
    return {int(port.rsplit(":", 1)[1]): port for port in service.get("ports", [])}


def mounts(service):
    return [volume.split(":") for volume in service.get("volumes", [])]


def test_every_part_is_there_and_listens_where_the_documentation_says(services):
    assert {name: set(published(service)) for name, service in services.items()} == PORTS
    table = (ROOT / "docs" / "deploy.md").read_text()
    for name, ports in PORTS.items():
        row, *_ = re.findall(rf"^\| `{name}` \|.*$", table, re.MULTILINE)  # another table has the sizes of images
        assert ports <= {int(number) for number in re.findall(r"\b\d{4}\b", row)}, row


def test_nothing_listens_beyond_this_host_unless_asked_to(services):
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in published(service).values())


def test_services_reach_each_other_without_a_proxy(services):
    for name, service in services.items():
        proxies = {key: value for key, value in service["environment"].items() if key.lower().endswith("_proxy")}
        assert proxies == {"HTTP_PROXY": "", "http_proxy": "", "ALL_PROXY": "", "all_proxy": ""}, name
        assert not [value for value in service["environment"].values() if value.startswith("https://")], "by NO_PROXY"


def test_images_are_pinned(services, stages):
    images = [service["image"] for service in services.values()] + [stage.base for stage in stages.values()]
    for image in images:
        assert re.fullmatch(r"[a-z/-]+:v?\d+\.\d+\.\d+[\w.-]*", image), image


def test_nothing_runs_as_root_or_gains_privileges(services, stages):
    for name, service in services.items():
        user = service.get("user") or stages[service["build"]["target"]].user
        assert user.split(":")[0] not in ("0", "root"), name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not service.get("privileged"), name
    assert [n for n, s in services.items() if not (s.get("read_only") and s.get("cap_drop") == ["ALL"])] == [
        "clickhouse"
    ]


def test_every_part_says_when_it_is_healthy(services):
    for name, service in services.items():
        check = service["healthcheck"]
        kind, program, *_ = check["test"]
        assert (kind, program) in {("CMD", "python"), ("CMD", "wget")}, name
        assert (program == "python") == ("build" in service), "python is in our images, wget in the others"
        (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)/", check["test"][-1])
        assert int(port) in PORTS[name], name
        assert {"interval", "timeout", "retries", "start_period"} <= check.keys(), name
        if program == "python":
            ast.parse(check["test"][-1])
    for name in ("collector", "engine"):
        assert "/readyz'" in services[name]["healthcheck"]["test"][-1], (
            "what depends on it, and --wait, may ask at once"
        )


def test_parts_start_after_what_they_need_is_healthy(services):
    needs = {name: service.get("depends_on", {}) for name, service in services.items()}
    assert all(on == {"condition": "service_healthy"} for need in needs.values() for on in need.values())
    order = list(TopologicalSorter({name: set(need) for name, need in needs.items()}).static_order())
    assert set(order) == set(services)
    assert (
        order.index("clickhouse")
        < order.index("collector")
        < min(map(order.index, ("engine", "dashboard", "prometheus")))
    )


def test_mounted_files_exist_and_volumes_are_declared(compose, services):
    used = set()
    for name, service in services.items():
        for source, _target, *mode in mounts(service):
            if source.startswith("."):
                assert (ROOT / source).exists(), f"{name} mounts {source}"
                assert mode == ["ro"], f"{name} could write to {source}"
            else:
                used.add(source)
    assert used == set(compose["volumes"])


def test_clickhouse_configuration_is_well_formed():
    assert ElementTree.parse(ROOT / "docker" / "clickhouse" / "tokentrail.xml").getroot().tag == "clickhouse"


def laid_out(service, at: Path) -> Path:
    """Copies the files that a service mounts from the repository to their container paths below `at`."""
    for source, target, *_ in mounts(service):
        if source.startswith("."):
            place = at / target.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (ROOT / source).is_dir() else shutil.copy)(ROOT / source, place)
    return at


def config_file(service, at: Path) -> Path:
    (path,) = [flag.partition("=")[2] for flag in service["command"] if flag.startswith("--config.file=")]
    return at / path.lstrip("/")


@pytest.mark.parametrize(
    ("name", "check"), [("prometheus", ["promtool", "check", "config"]), ("alertmanager", ["amtool", "check-config"])]
)
def test_configuration_is_accepted_as_mounted(services, tmp_path, name, check):
    if shutil.which(check[0]) is None:
        pytest.skip(f"{check[0]} is not installed")
    path = config_file(services[name], laid_out(services[name], tmp_path))
    done = subprocess.run([*check, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_asks_the_services_of_this_file(services):
    text = (ROOT / "alerts" / "prometheus.yml").read_text()
    targets = set(re.findall(r"\b([a-z][a-z0-9-]*):(\d{4})\b", text))
    assert ("collector", "8080") in targets
    assert ("alertmanager", "9093") in targets
    assert all(int(port) in PORTS[host] for host, port in targets)


def test_every_variable_is_documented():
    text = "".join((ROOT / name).read_text() for name in ("docker-compose.yml", "docker-compose.gpu.yml"))
    documented = (ROOT / "docs" / "deploy.md").read_text()
    for variable in set(re.findall(r"\$\{(\w+)", text)):
        assert f"`{variable}`" in documented
