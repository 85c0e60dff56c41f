"""Links in alerts: to the runbook of each, and to the list of its requests in the dashboard and as a command."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from collector.slo.conditions import load_conditions
from collector.slo.severity import BurnSeverity
from tokentrail.shared.durations import format_duration

_NAME: Final = "{alert}"
_PAGE: Final = r"https?://([\w.-]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?(/[\w.~!$&()*+,;=:@%/-]*)?"
_ADDRESS: Final = re.compile(_PAGE)
_RUNBOOKS: Final = re.compile(_PAGE + r"([?#][\w.~!$&()*+,;=:@%/?#-]*)?")
_RFC3339: Final = '(. | first | value | toTime).UTC.Format "2006-01-02T15:04:05Z"'
_TIME: Final = '{{ with printf "time() - %d" | query }}{{ ' + _RFC3339 + " }}{{ end }}"
"""The moment at which Prometheus evaluates the alert, less a number of seconds."""
_LISTS: Final[Mapping[str, Mapping[str, str]]] = {
    "engine_lost": {"status": "lost"},
    "engine_hung": {"status": "in_flight"},
    **{name: {"cause": name} for name in ("kv_eviction", "kv_wait", "cold_start")},
}
"""By condition of engine processes, the parameters of `/requests` that list its requests."""
_OF_SLO: Final = {"tenant": "tenant"}
_OF_PROCESS: Final = {
    "service": "service_name",
    "instance": "service_instance_id",
    "process_tenant": "process_tenant",
}
"""Parameters of `/requests` by which the labels of an alert narrow its list."""
_NO_OPTION: Final = "process_tenant"
"""The command line has no option for it. It narrows what service and instance give already, in all but rare cases."""
_BURN_NS: Final[Mapping[BurnSeverity, int]] = {"page": 3600 * 10**9, "ticket": 24 * 3600 * 10**9}
"""The list of an SLO's bad requests looks back so far."""
_LONG_NS: Final = 3600 * 10**9
"""The list of a condition, and a command about what lasted shorter, look back so far."""


@dataclass(frozen=True)
class Links:
    """Where alerts lead."""

    dashboard: str | None = None
    """The dashboard's address; None: alerts have no link to it."""
    runbooks: str | None = None
    """The runbooks' address; None: this project's pages. `{alert}` in it stands for the alert's name in lower case;
    without that, the name follows behind a `#`."""

    def of(self, rule: Mapping[str, Any]) -> dict[str, Any]:
        """A rule with these links among its annotations. A recording has none."""
        if "alert" not in rule:
            return {**rule}
        links = {}
        if self.runbooks:
            name, page = rule["alert"].lower(), self.runbooks
            links["runbook_url"] = page.replace(_NAME, name) if _NAME in page else f"{page}#{name}"
        if asked := _List.of(rule):
            links["command"] = asked.command
            if self.dashboard:
                links["dashboard_url"] = f"{self.dashboard.rstrip('/')}/explore?{asked.query}"
        return {**rule, "annotations": {**rule["annotations"], **links}}


@dataclass(frozen=True)
class _List:
    """The requests that an alert is about, as `/requests` is asked for them."""

    parameters: Mapping[str, str]
    labels: Mapping[str, str]
    """More parameters, with the labels that have their values."""
    long_ns: int
    """They ended so long before the alert at most."""

    @classmethod
    def of(cls, rule: Mapping[str, Any]) -> _List | None:
        """The list of a rule's alert; None where no list has its requests."""
        alert, labels = rule["alert"], rule["labels"]
        if alert == load_conditions()["slo_burn"].alert:
            return cls({"slo": labels["slo"], "verdict": "bad"}, _OF_SLO, _BURN_NS[labels["severity"]])
        of_alert = {load_conditions()[name].alert: parameters for name, parameters in _LISTS.items()}
        return cls(of_alert[alert], _OF_PROCESS, _LONG_NS) if alert in of_alert else None

    @property
    def query(self) -> str:
        """The parameters of the dashboard's page, with the moments at which the alert is evaluated."""
        start, end = (_TIME % before_s for before_s in (self.long_ns // 10**9, 0))
        asked = "&".join(f"{name}={quote(value)}" for name, value in self.parameters.items())
        return f"{asked}{self._narrowed(self.labels, '&%s={{ . | urlquery }}')}&range=custom&start={start}&end={end}"

    @property
    def command(self) -> str:
        """What says why an SLO burns, and what lists the requests. Names of others are quoted for a shell."""
        options = {name: label for name, label in self.labels.items() if name != _NO_OPTION}
        narrowed = self._narrowed(options, r""" --%s '{{ . | reReplaceAll "'" "'\\''" }}'""")
        narrowed += f" --start -{format_duration(max(self.long_ns, _LONG_NS))}"
        asked = "".join(f" --{name} {value}" for name, value in self.parameters.items())
        why = f"tokentrail explain --slo {self.parameters['slo']}{narrowed}; " if "slo" in self.parameters else ""
        return f"{why}tokentrail requests{asked}{narrowed}"

    @staticmethod
    def _narrowed(labels: Mapping[str, str], form: str) -> str:
        """A parameter for each label that the alert has."""
        return "".join(f"{{{{ with $labels.{label} }}}}{form % name}{{{{ end }}}}" for name, label in labels.items())


TO_DOCS: Final = Links()


def linked(groups: Sequence[Mapping[str, Any]], links: Links) -> list[dict[str, Any]]:
    """Groups of rules with these links."""
    return [{**group, "rules": [links.of(rule) for rule in group["rules"]]} for group in groups]


def address(text: str) -> str:
    """The address of a page without a query; raises ValueError for another text.

    It stands in annotations, which Prometheus expands as templates and receivers show: no braces, no user.
    """
    return _checked(text, _ADDRESS.fullmatch(text))


def runbooks(text: str) -> str:
    """The address of runbooks, which may have a query, a fragment and `{alert}`; raises ValueError for another text."""
    return _checked(text, _RUNBOOKS.fullmatch(text.replace(_NAME, "")))


def _checked(text: str, match: re.Match[str] | None) -> str:
    if not match:
        msg = (
            f"{text!r} is not an address: write it with http:// or https:// and a host, without a user, a template or "
            "spaces"
        )
        raise ValueError(msg)
    return text
