"""The rules that a running Prometheus has loaded, and the SLOs that the collectors it scrapes were started with."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from alerts.generate import generate
from collector.slo.model import Slo

TIMEOUT_S = 10.0


@dataclass(frozen=True)
class LoadedRules:
    """A Prometheus at an address."""

    url: str

    def problems(self, slos: Sequence[Slo]) -> list[str]:
        """One sentence for each rule that is not loaded, and for each SLO that a collector judges otherwise."""
        try:
            return [*self._rules(slos), *self._collectors(slos)]
        except (OSError, ValueError, KeyError, TypeError) as error:
            return [f"{self.url}: cannot be asked: {error}"]

    def _rules(self, slos: Sequence[Slo]) -> Iterator[str]:
        found = [rule for group in self._get("rules")["groups"] for rule in group["rules"]]
        # Prometheus leaves out the labels of a rule that has none.
        loaded = {_key(rule["name"], rule.get("labels", {})) for rule in found}
        for text in generate(slos).values():
            for group in yaml.safe_load(text)["groups"]:
                for rule in group["rules"]:
                    name = rule.get("alert") or rule["record"]
                    if _key(name, rule.get("labels", {})) not in loaded:
                        yield f"{self.url} has not loaded {name} {rule.get('labels', '')}".strip()
        drifts = {rule["labels"]["slo"]: rule["query"] for rule in found if rule["name"] == "TokentrailSloDrift"}
        for slo in slos:
            if slo.hash not in drifts.get(slo.name, slo.hash):
                yield f"{self.url} has the rules of another definition of SLO {slo.name}"

    def _collectors(self, slos: Sequence[Slo]) -> Iterator[str]:
        hashes = {slo.name: slo.hash for slo in slos}
        for found in self._get("query", query="tokentrail_slo_info")["result"]:
            labels = found["metric"]
            if labels["hash"] != hashes.get(labels["slo"]):
                yield f"the collector {labels.get('instance')} judges SLO {labels['slo']} by another definition"

    def _get(self, path: str, **query: str) -> Any:
        address = f"{self.url.rstrip('/')}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        if not address.startswith(("http://", "https://")):
            msg = "the address must begin with http:// or https://"
            raise ValueError(msg)
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:  # noqa: S310 - the scheme is checked
            return json.load(answer)["data"]


def _key(name: str, labels: dict[str, str]) -> tuple[Any, ...]:
    return name, *sorted(labels.items())
