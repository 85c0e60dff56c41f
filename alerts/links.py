"""Links in alerts: to the runbook of each, and from the burn of an SLO to its bad requests in the dashboard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit

from collector.slo.burn import load_windows

_NAME: Final = "{alert}"
_RFC3339: Final = '(. | first | value | toTime).UTC.Format "2006-01-02T15:04:05Z"'
_TIME: Final = '{{ with printf "time() - %d" | query }}{{ ' + _RFC3339 + " }}{{ end }}"
"""The moment at which Prometheus evaluates the alert, less a number of seconds."""
_TENANT: Final = "{{ with $labels.tenant }}&tenant={{ . | urlquery }}{{ end }}"


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
        if self.dashboard and "rule" in rule["labels"]:
            links["dashboard_url"] = self._bad_requests(self.dashboard, rule["labels"])
        return {**rule, "annotations": {**rule["annotations"], **links}}

    def _bad_requests(self, dashboard: str, labels: Mapping[str, str]) -> str:
        """The list of an SLO's bad requests of the long window of its rule."""
        windows = load_windows()
        long_ns = {rule.name: rule.long for rule in (*windows.rules, windows.outage)}[labels["rule"]]
        start, end = (_TIME % before_s for before_s in (long_ns // 10**9, 0))
        asked = f"slo={quote(labels['slo'])}{_TENANT}&verdict=bad&range=custom&start={start}&end={end}"
        return f"{dashboard.rstrip('/')}/explore?{asked}"


TO_DOCS: Final = Links()


def linked(groups: Sequence[Mapping[str, Any]], links: Links) -> list[dict[str, Any]]:
    """Groups of rules with these links."""
    return [{**group, "rules": [links.of(rule) for rule in group["rules"]]} for group in groups]


def address(text: str) -> str:
    """The address of a page; raises ValueError for one that no browser opens."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or any(c.isspace() or c in '"{' for c in parts.netloc):
        msg = f"{text!r} is not an address: write it with http:// or https:// and a host"
        raise ValueError(msg)
    return text
