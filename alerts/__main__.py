"""`python -m alerts`, which `tokentrail rules` runs: write, check and compare the Prometheus rules of an SLO file."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import yaml

from alerts.dashboards import dashboards
from alerts.engine_packs import packs
from alerts.generate import generate
from alerts.links import Links, address, runbooks
from alerts.loaded import LoadedRules
from alerts.openslo import OpenSloError, from_openslo
from alerts.pyrra import pyrra
from collector.slo.burn import InfeasibleSlo
from collector.slo.model import Slo, SloFileError, load_slos
from tokentrail.shared.folders import folder

T = TypeVar("T")
HERE = Path(__file__).parent
RULES = Path("rules") if HERE.parent.name == "parts" else HERE / "rules"
"""In a checkout, the rules that are in git. An installed package is not written to."""


def main(arguments: Sequence[str]) -> int:
    """Run one command. 0: done, 1: something differs, 2: the input cannot be used."""
    given = _parser().parse_args(arguments)
    try:
        return _ACTIONS[given.action](given)
    except (SloFileError, InfeasibleSlo, OpenSloError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2


def _checked(read: Callable[[str], T]) -> Callable[[str], T]:
    """Read an option's text, whose ValueError is told as it stands."""

    def checked(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return checked


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tokentrail rules", description="Prometheus rules of an SLO file. `python -m alerts` is the same."
    )
    parser.add_argument(
        "action", choices=_ACTIONS, nargs="?", default="generate",
        help="generate: write the rule files; diff: show the differences of the files; check: say whether files, "
        "Prometheus and collector agree; import: print an SLO file for OpenSLO documents",
    )  # fmt: skip
    parser.add_argument("--slos", type=Path, default=HERE / "slos.yaml", help="the SLO file; import: an OpenSLO file")
    parser.add_argument("--out", type=_checked(folder), default=RULES, help=f"folder of the rule files ({RULES})")
    parser.add_argument("--packs", type=_checked(folder), help="folder of the packs; without it, they are left alone")
    parser.add_argument(
        "--dashboards", type=_checked(folder), help="folder of the Grafana dashboards; without it, left alone"
    )
    parser.add_argument(
        "--with-prometheus", type=_checked(folder), metavar="FOLDER",
        help="folder for a prometheus.yml and an alertmanager.yml of processes on this machine; without it, left alone",
    )  # fmt: skip
    parser.add_argument(
        "--format", choices=("prometheus", "kubernetes", "pyrra"), default="prometheus",
        help="kubernetes: each file is a PrometheusRule object of the Prometheus Operator; pyrra: one file, with "
        "Pyrra's ServiceLevelObjectives in place of our rules",
    )  # fmt: skip
    parser.add_argument(
        "--dashboard-url",
        type=_checked(address),
        help="address of the dashboard: the burns of SLOs have a link to the list of their requests",
    )
    parser.add_argument(
        "--runbook-url",
        type=_checked(runbooks),
        help="address of your runbooks, in place of this project's: `{alert}` in it is the alert's name in lower case; "
        "without that, the name follows behind a `#`",
    )
    parser.add_argument("--json", action="store_true", help="print JSON; import prints YAML")
    parser.add_argument("--prometheus", help="check: address of the Prometheus that has loaded the rules")
    return parser


def _files(given: argparse.Namespace, slos: Sequence[Slo]) -> dict[Path, str]:
    """Every file that the options name, with its content."""
    if given.format == "pyrra":
        return {given.out / "pyrra.yml": pyrra(slos)}
    links = Links(given.dashboard_url, given.runbook_url)
    rules = {given.out / name: text for name, text in generate(slos, links).items()}
    if given.packs:
        rules |= {given.packs / f"{name}.yml": text for name, text in packs(links).items()}
    if given.format == "kubernetes":
        rules = {path: _prometheus_rule(path, text) for path, text in rules.items()}
    if given.with_prometheus:
        rules |= {given.with_prometheus / name: text for name, text in _configuration(given).items()}
    if given.dashboards:
        rules |= {given.dashboards / name: text for name, text in dashboards().items()}
    return rules


def _configuration(given: argparse.Namespace) -> dict[str, str]:
    """The shipped files with the addresses of this machine, without the containers' engine."""
    texts = {name: (HERE / name).read_text(encoding="utf-8") for name in ("prometheus.yml", "alertmanager.yml")}
    text, _, _ = texts["prometheus.yml"].partition("\n  - job_name: tokentrail-engine")
    text = "# Scrapes the collector on this machine.\n" + text.partition("\n")[2]
    for name, port in (("collector", 8080), ("alertmanager", 9093)):
        text = text.replace(f"{name}:{port}", f"127.0.0.1:{port}")
    folders = {"rules": given.out, "packs": given.packs}
    for name, of in folders.items():
        text = text.replace(f"  - {name}/*.yml\n", f"  - {of.absolute()}/*.yml\n" if of else "")
    if not given.packs:
        text = re.sub(r"  # Alerts from the engines' own metrics\..*\n", "", text)
    return texts | {"prometheus.yml": f"{text.rstrip()}\n"}


def _prometheus_rule(path: Path, text: str) -> str:
    comment, _, rest = text.partition("\n")
    document = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": f"tokentrail-{path.stem}", "labels": {"app.kubernetes.io/name": "tokentrail"}},
        "spec": yaml.safe_load(rest),
    }
    return f"{comment}\n{yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True)}"


def _generate(given: argparse.Namespace) -> int:
    files = _files(given, load_slos(given.slos))
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if not given.json:
            sys.stdout.write(f"{path}\n")
    if given.json:
        sys.stdout.write(json.dumps({"files": [*map(str, files)]}) + "\n")
    return 0


def _diff(given: argparse.Namespace) -> int:
    files = _files(given, load_slos(given.slos))
    lines = [*_differences(files)]
    if given.json:
        differ = [str(path) for path, text in files.items() if _differences({path: text})]
        sys.stdout.write(json.dumps({"differ": differ, "diff": "".join(lines)}) + "\n")
    else:
        sys.stdout.writelines(lines)
    return 1 if lines else 0


def _differences(files: Mapping[Path, str]) -> list[str]:
    lines: list[str] = []
    for path, wanted in files.items():
        there = path.read_text(encoding="utf-8") if path.exists() else ""
        lines += difflib.unified_diff(
            there.splitlines(keepends=True), wanted.splitlines(keepends=True), str(path), "generated"
        )
    return lines


def _check(given: argparse.Namespace) -> int:
    """Print one line per check. Checks that need a program or an address that is not there say so and pass."""
    slos = load_slos(given.slos)
    files = _files(given, slos)
    problems = [
        f"{path} differs from the rules of {given.slos}" if path.exists() else f"{path} is not there: generate it"
        for path in files
        if _differences({path: files[path]})
    ]
    kept = [path for path in files if path.exists() and path.parent != given.with_prometheus]
    rules = [str(path) for path in kept if path.suffix == ".yml"]
    if given.format == "prometheus" and rules and (promtool := shutil.which("promtool")):
        done = subprocess.run([promtool, "check", "rules", *rules], capture_output=True, text=True, check=False)  # noqa: S603 - our files
        problems += [done.stderr.strip()] if done.returncode else []
    if given.prometheus:
        if loaded := LoadedRules(given.prometheus).problems(slos):
            loaded.append("to repair rules: generate them, copy them to the files of Prometheus, and let it reload")
        problems += loaded
    if given.json:
        told = {"slos": len(slos), "files": [*map(str, files)], "problems": problems}
        sys.stdout.write(json.dumps(told | {"prometheus_checked": bool(given.prometheus)}) + "\n")
        return 1 if problems else 0
    if not given.prometheus:
        sys.stdout.write("not checked: a running Prometheus (--prometheus URL)\n")
    sys.stdout.writelines(f"{problem}\n" for problem in problems)
    sys.stdout.write(f"{len(slos)} SLOs, {len(files)} files: {'nothing differs' if not problems else 'see above'}\n")
    return 1 if problems else 0


def _import(given: argparse.Namespace) -> int:
    sys.stdout.write(from_openslo(given.slos))
    return 0


_ACTIONS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "generate": _generate,
    "check": _check,
    "diff": _diff,
    "import": _import,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
