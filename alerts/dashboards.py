"""Grafana dashboards from templates/dashboards.yml, for the data source that Grafana's user chooses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from alerts.text import template

ROW_HEIGHT = 8
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboards() -> dict[str, str]:
    """The JSON of each dashboard, by file name."""
    return {
        f"{name}.json": json.dumps(_dashboard(name, content), indent=1, ensure_ascii=False) + "\n"
        for name, content in template("dashboards").items()
    }


def _dashboard(name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "uid": f"tokentrail-{name}",
        "title": content["title"],
        "tags": ["tokentrail"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "annotations": {"list": []},
        "templating": {"list": [*_variables(content["variables"], content.get("labels", {}))]},
        "panels": [*_panels(content["rows"])],
    }


def _variables(metric_of: Mapping[str, str], label_of: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    for name, metric in metric_of.items():
        yield {
            "name": name,
            "type": "query",
            "datasource": SOURCE,
            "query": f"label_values({metric}, {label_of.get(name, name)})",
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            # A label that no series has, such as `cluster` where there is one cluster, matches too.
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        }


def _panels(rows: Sequence[Sequence[Mapping[str, Any]]]) -> Iterator[dict[str, Any]]:
    number = 0
    for i, row in enumerate(rows):
        x = 0
        for panel in row:
            number += 1
            yield _panel(number, panel, {"x": x, "y": i * ROW_HEIGHT, "w": panel["width"], "h": ROW_HEIGHT})
            x += panel["width"]


def _panel(number: int, panel: Mapping[str, Any], position: Mapping[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "title": panel["title"],
        "type": panel.get("kind", "timeseries"),
        "datasource": SOURCE,
        "gridPos": position,
        "fieldConfig": {"defaults": {"unit": panel["unit"]}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
            for i, (legend, expr) in enumerate(panel["queries"].items())
        ],
    }
