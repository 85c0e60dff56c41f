"""Pyrra's objects (pyrra.dev/v1alpha1) of our SLOs. Pyrra reads one counter of all requests and one of the bad ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import yaml

from alerts.text import HEADER, plain
from collector.slo.model import Slo
from tokentrail.shared.durations import format_duration

_BAD: Final = "slo:tokentrail_bad_requests:total"
_LABELS: Final = {"app.kubernetes.io/name": "tokentrail"}


def pyrra(slos: Sequence[Slo]) -> str:
    """The counter of bad requests as a PrometheusRule, and a ServiceLevelObjective for each SLO."""
    rule = {"record": _BAD, "expr": "tokentrail_slo_requests_total - tokentrail_slo_good_requests_total"}
    group = {"name": "tokentrail-pyrra", "rules": [rule]}
    counter = _object("monitoring.coreos.com/v1", "PrometheusRule", "tokentrail-pyrra", {"groups": [group]})
    documents = [counter, *(_object("pyrra.dev/v1alpha1", "ServiceLevelObjective", *_of(slo)) for slo in slos)]
    return HEADER + yaml.safe_dump_all(documents, sort_keys=False, width=120, allow_unicode=True)


def _of(slo: Slo) -> tuple[str, dict[str, Any]]:
    select = f'{{slo="{slo.name}"}}'
    ratio = {"errors": {"metric": f"{_BAD}{select}"}, "total": {"metric": f"tokentrail_slo_requests_total{select}"}}
    spec = {
        "target": plain(slo.objective * 100),
        "window": format_duration(slo.window),
        "description": slo.description,
        "indicator": {"ratio": ratio | ({"grouping": [*slo.group_by]} if slo.group_by else {})},
    }
    return f"tokentrail-{slo.name.replace('_', '-')}", spec


def _object(version: str, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": dict(_LABELS)}, "spec": spec}
