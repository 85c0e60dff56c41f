"""Images for docker-compose.yml where no registry can be reached: `python -m tests.deploy.stand_ins [COMMAND …]`.

They have the names that docker-compose.yml and docker/Dockerfile give, so that both stay as they are: Debian's Python,
Prometheus, Alertmanager and busybox, and chDB behind ClickHouse's HTTP interface. Grafana has none. Then COMMAND runs.
Its builds look into the folder of wheels that pip looks into here (`PIP_FIND_LINKS`), such as one with torch for CPUs.

It needs Docker with BuildKit, debootstrap, root, and Debian's packages.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import ipaddress
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILE = Path(__file__).with_suffix(".Dockerfile")
DEBIAN = "tokentrail-stand-in/debian:bookworm"
INCLUDED = "python3,python3-venv,python3-pip,ca-certificates"
WHEELS_PORT = 8799
OF_CLICKHOUSE = ("chdb", "lz4", "zstandard")
COMPOSE = {
    "COMPOSE_FILE": "docker-compose.yml:tests/deploy/stand_ins.yml",
    "COMPOSE_DOCKER_CLI_BUILD": "1",
    "DOCKER_BUILDKIT": "1",
}
"""What `docker compose` and docker-compose 1 read, in the repository's folder."""
TRUSTED = Path("/etc/ssl/certs/ca-certificates.crt")
"""This machine's certificate authorities."""


def images() -> list[str]:
    """The images that the compose file and the Dockerfile take from a registry, each once."""
    composed = re.findall(r"^ +image: (?!tokentrail/)(\S+)", (ROOT / "docker-compose.yml").read_text(), re.MULTILINE)
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    built_on = re.findall(r"^(?:ARG PYTHON_IMAGE=|FROM )([\w./-]+:[\w.-]+)", dockerfile, re.MULTILINE)
    return [*dict.fromkeys([*built_on, *composed])]


def target_of(image: str) -> str:
    """The target of `DOCKERFILE` for an image."""
    return image.rpartition(":")[0].replace("/", "-")


def targets() -> set[str]:
    """The targets that `DOCKERFILE` has."""
    return set(re.findall(r"^FROM \S+ AS (\S+)", DOCKERFILE.read_text(), re.MULTILINE))


def docker(*words: str, **options: object) -> None:
    """Run docker; its output is shown, and a failure ends the program."""
    subprocess.run(["docker", *words], check=True, env={**os.environ, "DOCKER_BUILDKIT": "1"}, **options)  # type: ignore[call-overload]


def bridge() -> str:
    """The address of this machine in the network of Docker's builds."""
    asked = subprocess.run(["docker", "network", "inspect", "bridge"], check=True, capture_output=True, text=True)
    (config, *_) = json.loads(asked.stdout)[0]["IPAM"]["Config"]
    return config.get("Gateway") or str(ipaddress.ip_network(config["Subnet"])[1])


def pip_settings(wheels: Path | None) -> str:
    """pip.conf for builds: trusts whom this machine trusts, and looks into its folder of wheels."""
    lines = ["[global]", f"cert = {TRUSTED}"]
    if wheels:
        lines += [f"find-links = http://{bridge()}:{WHEELS_PORT}/", f"trusted-host = {bridge()}"]
    return "\n".join(lines)


def make_debian() -> None:
    """Debian's base system with Python as an image; a mirror for debootstrap may be named by `DEBIAN_MIRROR`."""
    with tempfile.TemporaryDirectory() as folder:
        system = Path(folder) / "system"
        mirror = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
        made = ["debootstrap", "--variant=minbase", f"--include={INCLUDED}", "bookworm", str(system), mirror]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
        for unused in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
            shutil.rmtree(system / unused)
            (system / unused).mkdir()
        shutil.copy(TRUSTED, system / TRUSTED.relative_to("/"))
        with subprocess.Popen(["tar", "-C", str(system), "-c", "."], stdout=subprocess.PIPE) as packed:
            docker("import", "-", DEBIAN, stdin=packed.stdout, stdout=subprocess.DEVNULL)
        assert packed.returncode == 0


def pinned(names: tuple[str, ...]) -> str:
    """The pins of these packages in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return " ".join(line for line in lines if line.split("==")[0].lower() in names)


def make(wheels: Path | None) -> list[str]:
    """Make what is not there yet; the images that have no stand-in."""
    asked = ["docker", "images", "--format", "{{.Repository}}:{{.Tag}}"]
    present = subprocess.run(asked, check=True, capture_output=True, text=True)
    there = set(present.stdout.split())
    if DEBIAN not in there:
        print(f"{DEBIAN}: made by debootstrap", flush=True)
        make_debian()
    packages, settings = pinned(OF_CLICKHOUSE), pip_settings(wheels)
    given = [f"--build-arg={one}" for one in (f"DEBIAN={DEBIAN}", f"PACKAGES={packages}", f"PIP_CONF={settings}")]
    without = []
    for image in images():
        if target_of(image) not in targets():
            without.append(image)
        elif image not in there:
            print(image, flush=True)
            what = ["--quiet", "--target", target_of(image), "--tag", image, *given, "--file", str(DOCKERFILE)]
            docker("build", *what, str(ROOT / "tests" / "support"), stdout=subprocess.DEVNULL)
    return without


@contextlib.contextmanager
def served(wheels: Path | None) -> Iterator[None]:
    """Give the folder of wheels to builds."""
    if wheels is None:
        yield
        return

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Says nothing of each file."""

    handler = functools.partial(Quiet, directory=str(wheels))
    with http.server.ThreadingHTTPServer((bridge(), WHEELS_PORT), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


def main() -> int:
    """Make the images, then run the command; its exit status."""
    links = Path(os.environ.get("PIP_FIND_LINKS", ""))
    wheels = links if links.is_absolute() and links.is_dir() else None
    with served(wheels):
        without = make(wheels)
        print(f"without a stand-in: {', '.join(without) or 'none'}", flush=True)
        return subprocess.call(sys.argv[1:], env={**os.environ, **COMPOSE}) if sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
