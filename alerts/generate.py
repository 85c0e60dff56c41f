"""Prometheus rules from the SLO file and the data of `collector.slo`: the arithmetic of `/api/v1/slos`, in PromQL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import groupby
from typing import Any

from alerts.links import TO_DOCS, Links, linked
from alerts.text import dump, fill, literal, plain, template
from collector.slo.burn import BurnRule, burn_rules, load_windows
from collector.slo.conditions import Condition, load_conditions
from collector.slo.model import Slo
from tokentrail.shared.durations import duration_text, format_duration

PER_SLO = ("slo_burn", "slo_unwatched", "slo_drift")
"""Conditions with alerts of their own for each SLO."""
OF_SLOS = (*PER_SLO, "budget_forecast", "slo_undetermined", "traffic_stopped")
"""Conditions that read the recordings of SLOs."""
HOUR_NS = 3600 * 10**9
GAP = "2m"
"""For so long at most is a collector not scraped that restarts. Its gauges keep their last value in the meantime."""
_STUCK = (
    "topk(1, max by (service_name, service_instance_id) "
    f"(last_over_time(tokentrail_requests_stuck{{cluster=%q}}[{GAP}])) > 0)"
)
TICKET_AFTER = "10m"
"""A ticket waits for so long: in a young store its windows have as little in them as those of a page, which comes first
and keeps it silent."""
_Templates = Mapping[str, Any]
_Recording = dict[str, Any]


def generate(slos: Sequence[Slo], links: Links = TO_DOCS) -> dict[str, str]:
    """Rule files by name. Raises InfeasibleSlo for an SLO that no rule can watch."""
    return {name: dump(groups) for name, groups in rule_groups(slos, links).items()}


def rule_groups(slos: Sequence[Slo], links: Links = TO_DOCS) -> dict[str, list[dict[str, Any]]]:
    """The groups of rules of each file. Raises InfeasibleSlo."""
    conditions = [_alert(name) for name in load_conditions() if name not in OF_SLOS]
    groups = {"conditions.yml": [{"name": "tokentrail-conditions", "rules": conditions}]}
    if slos:
        groups["slos.yml"] = [*_slo_groups(slos)]
    return {name: linked(of_file, links) for name, of_file in groups.items()}


def _slo_groups(slos: Sequence[Slo]) -> Iterator[dict[str, Any]]:
    """The rules of all SLOs in groups, by how often they must be evaluated.

    A group evaluates its rules in order, so recordings come before the alerts that read them. A value from another
    group is at most one interval old. Prometheus reads no sample that is older than five minutes, so a group is
    evaluated more often when others read its series. The sums of five minutes are read by windows only.
    """
    recording, windows = template("slo_recording"), load_windows()
    burns = [(slo, rule) for slo in slos for rule in burn_rules(slo, windows)]
    outage = {ns for one in windows.outages for ns in (one.short, one.long)}
    pages, tickets = ([of for of in burns if of[1].severity == severity] for severity in ("page", "ticket"))
    of_pages = (_windows(pages) | {HOUR_NS, 6 * HOUR_NS}) - outage
    of_tickets = _windows(tickets) - of_pages - outage
    grouped = "|".join(slo.name for slo in slos if slo.group_by)

    yield {"name": "tokentrail-slos-outage", "rules": [
        *_recordings(recording, "counted", outage, grouped), *_burn_alerts(pages),
    ]}  # fmt: skip
    yield {"name": "tokentrail-slos-sums", "interval": "5m", "rules": [
        *(fill(rule, {}) for rule in recording["five"]), *_of_all_groups(recording["five_of_all_groups"], grouped)
    ]}  # fmt: skip
    yield {"name": "tokentrail-slos-burn", "interval": "60s", "rules": [
        *_burn_recordings(recording, of_pages, grouped)
    ]}  # fmt: skip
    yield {"name": "tokentrail-slos-watched", "interval": "2m", "rules": [
        _of_slo(name, slo) for name in ("slo_unwatched", "slo_drift") for slo in slos
    ]}  # fmt: skip
    if tickets:
        yield {"name": "tokentrail-slos-tickets", "interval": "2m", "rules": [
            *_burn_recordings(recording, of_tickets, grouped), *_burn_alerts(tickets),
        ]}  # fmt: skip
    yield {"name": "tokentrail-slos-period", "interval": "4m", "rules": [
        *_objectives(recording["objective"], slos),
        *_periods(recording["period"], slos),
    ]}  # fmt: skip
    yield {"name": "tokentrail-slos-budget", "interval": "2m", "rules": [
        *(fill(rule, {}) for rule in recording["budget"]),
        _alert("budget_forecast"),
        _alert("slo_undetermined"),
        _alert("traffic_stopped"),
    ]}  # fmt: skip


def _windows(burns: Iterable[tuple[Slo, BurnRule]]) -> set[int]:
    return {ns for _, rule in burns for ns in (rule.short_ns, rule.long_ns)}


def _burn_recordings(recording: _Templates, windows: set[int], grouped: str) -> Iterator[_Recording]:
    """Windows up to an hour come from the counters, longer ones from the sums of five minutes."""
    yield from _recordings(recording, "counted", {ns for ns in windows if ns <= HOUR_NS}, grouped)
    yield from _recordings(recording, "summed", {ns for ns in windows if ns > HOUR_NS}, "")


def _recordings(recording: _Templates, kind: str, windows: Iterable[int], grouped: str) -> Iterator[_Recording]:
    for window in sorted(windows):
        values = {"window": format_duration(window)}
        yield from (fill(rule, values) for rule in recording[kind])
        yield from _of_all_groups(recording["all_groups"], grouped, values)
        yield fill(recording["ratio"], values)


def _of_all_groups(
    rules: Sequence[Mapping[str, str]], grouped: str, values: Mapping[str, str] | None = None
) -> Iterator[_Recording]:
    """The recordings of SLOs with groups (their names, joined by `|`) as a whole. None where no SLO has groups."""
    for rule in rules if grouped else ():
        yield {**fill(rule, {"grouped": grouped, **(values or {})}), "labels": {"groups": "all"}}


def _objectives(rules: Sequence[Mapping[str, str]], slos: Sequence[Slo]) -> Iterator[_Recording]:
    for slo in slos:
        values = {"objective": plain(slo.objective), "window_s": plain(Decimal(slo.window) / 10**9)}
        for rule in rules:
            yield {**fill(rule, values), "labels": {"slo": slo.name, **_owners(slo)}}


def _periods(rules: Sequence[Mapping[str, str]], slos: Sequence[Slo]) -> Iterator[_Recording]:
    for window in sorted({slo.window for slo in slos}):
        names = "|".join(slo.name for slo in slos if slo.window == window)
        for rule in rules:
            yield fill(rule, {"slos": names, "window": format_duration(window)})


def _owners(slo: Slo) -> dict[str, str]:
    """The labels of the people who answer for an SLO. An alert can be routed by them."""
    return {name: value for name in ("owner", "team") if (value := getattr(slo, name))}


def _burn_alerts(burns: Sequence[tuple[Slo, BurnRule]]) -> Iterator[dict[str, Any]]:
    """The alerts of rules of one severity: one of each SLO, and of one with groups one as a whole, which comes first.

    An alert fires while any of its rules does, so that one fault is one notification and one end.
    """
    for slo, of_slo in groupby(burns, key=lambda one: one[0]):
        rules = [rule for _, rule in of_slo]
        if slo.group_by:
            yield _burn(slo, rules, is_whole=True)
        yield _burn(slo, rules, is_whole=False)


def _burn(slo: Slo, rules: Sequence[BurnRule], *, is_whole: bool) -> dict[str, Any]:
    """An alert of these rules. Its annotation `cause` says why, as far as that is known when the alert is sent."""
    labels = {"severity": rules[0].severity, "slo": slo.name, **({"groups": "all"} if is_whole else {}), **_owners(slo)}
    values = _burn_values(slo, rules, is_whole=is_whole)
    alert = _alert("slo_burn", labels, values | {"expr": " or ".join(_fires(slo, rule, labels) for rule in rules)})
    return {**alert, **({"for": TICKET_AFTER} if rules[0].severity == "ticket" else {})}


def _fires(slo: Slo, rule: BurnRule, labels: Mapping[str, str]) -> str:
    """When a rule fires: not about what this alert or another one has told, but while this one still fires."""
    of_rule, is_whole = template("burn"), "groups" in labels
    values = {
        "slo": slo.name,
        "severity": rule.severity,
        "groups": labels.get("groups", ""),
        "short": format_duration(rule.short_ns),
        "long": format_duration(rule.long_ns),
        "bad_share": plain(rule.threshold * slo.budget),
        "least_bad": plain(_at_least(rule.least_bad)),
    }
    told = [of_rule["own"]]
    told += [of_rule["any_page" if is_whole else "own_page"]] if rule.severity == "ticket" else []
    told += [of_rule["page_of_all_groups"]] if slo.group_by and not is_whole else []
    silent = [of_rule["told"].replace("@{told}", one) for one in told]
    (text,) = fill({"expr": " ".join([of_rule["fires"], *silent])}, values).values()
    return f"({text})"


def _of_slo(name: str, slo: Slo) -> dict[str, Any]:
    return _alert(name, {"slo": slo.name, **_owners(slo)}, {"slo": slo.name, "hash": slo.hash})


def _alert(
    name: str, labels: Mapping[str, str] | None = None, values: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The alerting rule of a condition."""
    condition = load_conditions()[name]
    text = fill(template("alerts")[name], {"gap": GAP, **_thresholds(condition), **(values or {})})
    return {
        "alert": condition.alert,
        "expr": text["expr"],
        **({"for": format_duration(condition.lasting)} if condition.lasting else {}),
        "labels": {"severity": condition.severity, **{key: literal(text) for key, text in (labels or {}).items()}},
        "annotations": {
            **{key: value for key, value in text.items() if key != "expr"},
            "runbook_url": condition.runbook_url,
        },
    }


def _thresholds(condition: Condition) -> dict[str, str]:
    """The thresholds that a row sets: shares, and durations.

    Durations are as Prometheus writes them; `…_s` has plain seconds, and `…_text` stands in a sentence.
    `least` is one less half: increase() extrapolates, and three events read as 2.9 or 3.1.
    """
    values: dict[str, str] = {}
    for name in ("ratio", "believed"):
        if (share := getattr(condition, name)) is not None:
            values |= {name: plain(share), f"{name}_percent": f"{plain(share * 100)} %"}
    if condition.least:
        values["least"] = plain(_at_least(condition.least))
    for name in ("shown", "longer_than", "over", "within"):
        if ns := getattr(condition, name):
            seconds = plain(Decimal(ns) / 10**9)
            values |= {name: format_duration(ns), f"{name}_s": seconds, f"{name}_text": duration_text(ns)}
    return values


def _at_least(count: int) -> Decimal:
    return count - Decimal("0.5")


def _burn_values(slo: Slo, rules: Sequence[BurnRule], *, is_whole: bool) -> dict[str, Any]:
    kept = " and ".join(f"{name.upper()} ≤ {duration_text(ns)}" for name, ns in slo.thresholds.given().items())
    budgets = [rule for rule in rules if rule.name not in {one.name for one in load_windows().outages}] or rules
    short, long = budgets[0].short_ns, budgets[0].long_ns
    ratio = f'slo:tokentrail_bad_requests:ratio%s{{slo=\\"{slo.name}\\",tenant=%%q,cluster=%%q,groups=\\"%s\\"}}'
    groups = "all" if is_whole else ""
    of_short, of_long = (
        f'printf "{ratio % (format_duration(ns), groups)}" $labels.tenant $labels.cluster' for ns in (short, long)
    )
    return {
        "slo": slo.name,
        "whom": " for all tenants together" if is_whole else "{{ with $labels.tenant }} for {{ . }}{{ end }}",
        "about": f"{literal(slo.description)} " if slo.description else "",
        "reason": _of_alert("tokentrail_slo_reason_info", slo, "topk(1, %s)"),
        "share": _largest("tokentrail_slo_cause_share", "cause, group", slo),
        "culprits": _largest("tokentrail_slo_culprit_share", "by, name", slo, "by (by) "),
        "stuck": f'printf "{_STUCK}" $labels.cluster',
        "of_short": of_short,
        "of_long": of_long,
        "short_text": duration_text(short),
        "long_text": duration_text(long),
        "stays_text": duration_text(max(rule.short_ns for rule in rules)),
        "budget": f"{plain(slo.budget * 100)} %",
        "promise": f"{kept} for {plain(slo.objective * 100)} % of requests over {duration_text(slo.window)}",
    }


def _largest(gauge: str, by: str, slo: Slo, of_each: str = "") -> str:
    """In an annotation: the query of the largest series of a gauge, of the alert's SLO, tenant and cluster."""
    return _of_alert(gauge, slo, f"topk {of_each}(1, max by ({by}) (%s))")


def _of_alert(gauge: str, slo: Slo, query: str) -> str:
    """In an annotation: a query of a gauge of the alert's SLO, tenant and cluster, in the place of `%s`.

    What it told before counts only while it tells nothing, as during a restart: else two minutes would mix.
    """
    series = f'{gauge}{{slo=\\"{slo.name}\\",tenant=%q,cluster=%q}}'
    asked = query.replace("%s", f"({series} or on () last_over_time({series}[{GAP}]))")
    return f'printf "{asked}" $labels.tenant $labels.cluster $labels.tenant $labels.cluster'
