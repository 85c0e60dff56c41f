"""OpenSLO (openslo/v1) documents as our SLO file.

An OpenSLO indicator is a query in the language of a metric source. Ours needs none: the source's type is `tokentrail`.

    indicator: {spec: {thresholdMetric: {metricSource: {type: tokentrail, spec: {metric: ttft, select: {…}}}}}}
    objectives: [{op: lte, value: 0.5, target: 0.95}]
    → thresholds: {ttft: 500ms}, objective: 0.95

or, for several thresholds at once, `ratioMetric.good.metricSource.spec: {thresholds: {ttft: 500ms, tpot: 100ms}}`.
"""

from __future__ import annotations

import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from collector.slo.durations import format_duration
from collector.slo.model import SloFileError, load_slos
from tokentrail.folders import words_of


class OpenSloError(ValueError):
    """A document cannot be read as one of our SLOs. The message names it and says why."""


def from_openslo(path: Path) -> str:
    """The SLO file for the documents of a file; numbers stay as written.

    Raises OpenSloError, or SloFileError for values that ours refuses.
    """
    try:
        documents = [d for d in yaml.load_all(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader) if d]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        msg = f"{path}: cannot be read: {words_of(error)}"
        raise OpenSloError(msg) from error
    slos = [_slo(document, f"{path}: {i}") for i, document in enumerate(documents) if _kind(document) == "SLO"]
    if not slos:
        msg = f"{path}: has no document of kind SLO"
        raise OpenSloError(msg)
    text = yaml.safe_dump({"slos": slos}, sort_keys=False, allow_unicode=True)
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "slos.yaml"
        written.write_text(text, encoding="utf-8")
        try:
            load_slos(written)
        except SloFileError as error:
            raise SloFileError(str(error).replace(str(written), str(path))) from None
    return text


def _kind(document: Any) -> str:
    return str(document.get("kind")) if isinstance(document, dict) else ""


def _slo(document: dict[str, Any], where: str) -> dict[str, Any]:
    try:
        metadata, spec = document["metadata"], document["spec"]
        (objective,), (window,) = spec["objectives"], spec["timeWindow"]
        source, threshold = _source(spec["indicator"]["spec"])
        if source["type"] != "tokentrail":
            msg = f"{where}: its metric source is {source['type']!r}; only a source of type tokentrail can be read"
            raise OpenSloError(msg)
        details = source["spec"]
        labels = {k: v for k, v in (metadata.get("labels") or {}).items() if k in ("owner", "team")}
        return {
            "name": metadata["name"],
            **({"description": spec["description"]} if spec.get("description") else {}),
            **labels,
            "objective": str(objective["target"]),
            "window": window["duration"],
            **({"select": details["select"]} if details.get("select") else {}),
            "thresholds": {details["metric"]: _most(objective, where)} if threshold else details["thresholds"],
        }
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        if isinstance(error, OpenSloError):
            raise
        msg = f"{where}: needs one objective, one time window and an indicator of ours; missing or wrong: {error}"
        raise OpenSloError(msg) from error


def _source(indicator: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The metric source, and whether it is a threshold."""
    if "thresholdMetric" in indicator:
        return indicator["thresholdMetric"]["metricSource"], True
    return indicator["ratioMetric"]["good"]["metricSource"], False


def _most(objective: dict[str, Any], where: str) -> str:
    if objective["op"] != "lte":
        msg = f"{where}: its objective has the operator {objective['op']!r}; use lte"
        raise OpenSloError(msg)
    return format_duration(int(Decimal(str(objective["value"])) * 10**9))
