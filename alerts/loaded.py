"""The rules that a running Prometheus has loaded, and the SLOs that the collectors it scrapes were started with."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import takewhile
from operator import eq
from typing import Any

from alerts.engine_packs import pack_metrics, pack_rules
from alerts.generate import rule_groups
from collector.slo.model import Slo
from tokentrail.shared.durations import format_duration, parse_duration

TIMEOUT_S = 10.0
_NO_SUCH_CALL = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)
_HASH = re.compile(r'hash!="\w+"')
"""Of the definition of an SLO, in its TokentrailSloDrift."""
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Rule:
    """One rule. Where it stands is its file and group; `lasting_s` is its `for`."""

    name: str
    labels: Mapping[str, str]
    expr: str
    lasting_s: float
    place: str

    @property
    def key(self) -> Key:
        """What tells a rule from others."""
        return self.name, *sorted(self.labels.items())

    def __str__(self) -> str:
        labels = ", ".join(f"{name}={value}" for name, value in self.labels.items())
        return f"{self.name} ({labels})" if labels else self.name


class LoadedRules:
    """A Prometheus at an address."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._parsed: dict[str, str] = {}

    def problems(self, slos: Sequence[Slo]) -> list[str]:
        """A sentence for each rule that is not loaded or differs, and each SLO that a collector judges otherwise."""
        try:
            return [*self._rules(slos), *self._collectors(slos)]
        except (OSError, ValueError, KeyError, TypeError) as error:
            return [f"{self.url}: cannot be asked: {error}"]

    def _rules(self, slos: Sequence[Slo]) -> Iterator[str]:
        loaded: dict[Key, list[Rule]] = defaultdict(list)
        for rule in _loaded(self._get("rules")["groups"]):
            loaded[rule.key].append(rule)
        other_labels: dict[str, list[Rule]] = defaultdict(list)
        ours = [
            rule
            for file, groups in rule_groups(slos).items()
            for group in groups
            for rule in _written(file, group["rules"])
        ]
        for key in loaded.keys() - {rule.key for rule in ours}:
            other_labels[key[0]] += loaded[key]
        for rule in ours:
            if not loaded[rule.key]:
                yield from self._missing(rule, other_labels[rule.name])
            for found in loaded[rule.key]:
                yield from self._differences(rule, found)
        # Which packs somebody loads is their choice. What is loaded must be the pack.
        for pack, metrics in pack_metrics().items():
            for rule in _written(pack, pack_rules(pack, metrics)):
                for found in loaded[rule.key]:
                    yield from self._differences(rule, found)

    def _missing(self, rule: Rule, others: Iterable[Rule]) -> Iterator[str]:
        for found in others:
            if self._same(rule.expr, found.expr):
                yield f"{self.url} has {found} in {found.place}; the labels must be those of {rule}"
                return
        yield f"{self.url} has not loaded {rule}, of {rule.place}"

    def _differences(self, rule: Rule, found: Rule) -> Iterator[str]:
        where = f"{self.url} has loaded {found.place}, in which"
        wanted_hash = _HASH.search(rule.expr)
        if wanted_hash and wanted_hash[0] not in found.expr:
            yield f"{where} rules are of another definition of SLO {rule.labels['slo']}"
        elif not self._same(rule.expr, found.expr):
            theirs, wanted = _middles(self._parse(found.expr), self._parse(rule.expr))
            yield f"{where} the expression of {rule} has `{theirs}`; it must be `{wanted}`"
        if found.lasting_s != rule.lasting_s:
            yield f"{where} {rule} has `for: {_for(found)}`; it must be `for: {_for(rule)}`"

    def _same(self, one: str, other: str) -> bool:
        return one == other or self._parse(one) == self._parse(other)

    def _parse(self, expr: str) -> str:
        """The expression as Prometheus writes it: 7d is 1w, and labels have an order. As it is for one before 2.41."""
        if expr not in self._parsed:
            try:
                self._parsed[expr] = " ".join(self._get("format_query", query=expr).split())
            except urllib.error.HTTPError as error:
                if error.code not in _NO_SUCH_CALL:
                    raise
                self._parsed[expr] = " ".join(expr.split())
        return self._parsed[expr]

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


def _loaded(groups: Sequence[Mapping[str, Any]]) -> Iterator[Rule]:
    for group in groups:
        for rule in group["rules"]:
            # Prometheus leaves out the labels of a rule that has none.
            labels, lasting_s = rule.get("labels") or {}, float(rule.get("duration", 0))
            yield Rule(rule["name"], labels, rule["query"], lasting_s, group.get("file") or group["name"])


def _written(file: str, rules: Sequence[Mapping[str, Any]]) -> Iterator[Rule]:
    for rule in rules:
        name, lasting = rule.get("alert") or rule["record"], rule.get("for")
        lasting_s = parse_duration(lasting) / 1e9 if lasting else 0.0
        yield Rule(name, rule.get("labels", {}), rule["expr"], lasting_s, file)


def _for(rule: Rule) -> str:
    return format_duration(round(rule.lasting_s * 1e9)) if rule.lasting_s else "0s"


def _middles(one: str, other: str) -> tuple[str, str]:
    """The words in which two expressions differ, with the two before them.

    `a / b > 0.05 and c`, `a / b > 0.1 and c` → `b > 0.05`, `b > 0.1`
    """
    words = one.split(), other.split()
    before = _shared(*words)
    behind = _shared(*(w[before:][::-1] for w in words))
    first, second = (" ".join(w[max(before - 2, 0) : len(w) - behind]) for w in words)
    return first, second


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    """How many words are the same at the begin of both."""
    return len([*takewhile(bool, map(eq, one, other))])
