"""Values of the Helm chart: odd names make objects that an API server takes; wrong values are refused with advice."""

from __future__ import annotations

import re

import jsonschema
import pytest
import yaml

from tests.deploy.kubernetes import CHART, SETS, containers, helm, loose_ends, of, problems, rendered, variables

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = jsonschema.Draft202012Validator(yaml.safe_load((CHART / "values.schema.json").read_text()))
KEYS, PROXY = SETS["keys"]["keys"], SETS["tls"]["proxies"][0]
RELEASES = {
    "123x": {"fullnameOverride": "trail"},
    "true": {"nameOverride": "123"},
    "a.b": {},
    "x2345678901234567890123456789012345678901234567890123": {
        "proxies": [{"name": "hosted-a", "upstream": "http://a"}, {"name": "hosted-b", "upstream": "http://b"}]
    },
    "x23456789012345678901234567890123456789012345678--bcd": {
        "nameOverride": "x234567890123456789012345678901234567890123456789.b"
    },
}
ALL_NUMBERS = SETS["proxies"] | {
    "keys": dict.fromkeys(KEYS, "123"),
    "tls": {"secret": "1e3"},
    "collector": {
        "store": {"url": "http://ch", "user": "1", "passwordSecret": "1", "caSecret": "0x1"},
        "persistence": {"size": "1Gi", "storageClass": "1"},
    },
    "dashboard": {"loginSecret": "123"},
    "proxies": [{"name": "1", "upstream": "http://a"}],
    "proxyDefaults": {"ingestSecret": "1"},
    "serviceMonitor": {"enabled": True},
    "ingress": {"enabled": True, "className": "1", "tlsSecret": "1", "hosts": {"dashboard": "*.slo.example"}},
    "gateway": {"enabled": True, "parentRefs": [{"name": "1"}], "hosts": {"api": "1.2"}},
}


@pytest.mark.parametrize("release", RELEASES)
def test_names_are_names_however_a_release_and_its_parts_are_called(release):
    """YAML reads 123, 1e3, true and null as something else, and *.slo.example as a reference."""
    objects = rendered(ALL_NUMBERS | RELEASES[release], release, "456")
    assert [problem for one in objects for problem in problems(one)] == []
    assert loose_ends(objects) == []
    assert {one["metadata"]["labels"]["app.kubernetes.io/instance"] for one in objects} == {release}
    volumes = of(objects, "StatefulSet")["spec"]["template"]["spec"]["volumes"]
    assert [one["secret"]["secretName"] for one in volumes if "secret" in one] == ["123", "1e3", "1", "0x1"]
    assert of(objects, "ServiceMonitor")["spec"]["namespaceSelector"] == {"matchNames": ["456"]}


@pytest.mark.parametrize("name", SETS)
def test_the_values_are_those_that_the_schema_describes(name):
    assert [error.message for error in SCHEMA.iter_errors(SETS[name])] == []


def test_the_schema_refuses_what_the_chart_does_not_read():
    assert [*SCHEMA.iter_errors(VALUES)] == []
    wrongs = """
        {colector: {}}
        {collector: {replica: 1}}
        {collector: {replicas: two}}
        {collector: {env: {PATH: /bin}}}
        {collector: {env: {TOKENTRAIL_FSYNC: 1}}}
        {collector: {store: {url: "clickhouse:9000"}}}
        {collector: {persistence: {size: many}}}
        {proxies: [{name: a}]}
        {ingress: {hosts: {otlp: "https://otlp.example"}}}
        {ingress: {hosts: {grpc: otlp.example}}}
        {dashboard: {resources: {limit: {}}}}
        {keys: {secret: Keys}}
        {serviceMonitor: {interval: fast}}
        {collector: {resources: {limits: {memroy: 4Gi}}}}
        {collector: {store: {url: "http:///slo"}}}
        {collector: {store: {url: "chdb:///elsewhere"}}}
        {networkPolicy: {apiFrom: [{nameSpaceSelector: {}}]}}
        {networkPolicy: {otlpFrom: [{}]}}
        {image: {pullSecrets: [pull]}}
        {image: {pullSecrets: [{secret: pull}]}}
        {fullnameOverride: a.b}
        {fullnameOverride: 1a}
        {prometheusRule: {files: {My_slos: "groups: []"}}}
    """
    for wrong in map(yaml.safe_load, wrongs.strip().splitlines()):
        assert [*SCHEMA.iter_errors(wrong)], wrong


REFUSED = {
    "the embedded store belongs to one collector": {"collector": {"replicas": 2}},
    "hosts.otlp and hosts.api empty": {"gateway": {"hosts": {"otlp": "a.example"}}},
    "Make keys and set keys.secret": {"ingress": {"hosts": {"api": "a.example"}}},
    "dashboard.enabled leaves out": {"ingress": {"hosts": {"dashboard": "a.example"}}, "dashboard": {"enabled": False}},
    "the dashboard needs keys.dashboardSecret": {"keys": {"secret": "k"}},
    "Prometheus needs keys.metricsSecret": {"keys": KEYS | {"metricsSecret": ""}, "serviceMonitor": {"enabled": True}},
    "the proxies need proxyDefaults.ingestSecret": {"keys": KEYS, "proxies": [PROXY]},
    "which dashboard, proxies and serviceMonitor": {"tls": {"secret": "t", "clientCa": True}},
    "tls.clientCa needs tls.secret": {"tls": {"clientCa": True}, "dashboard": {"enabled": False}},
    "are those of a ClickHouse server": {"collector": {"store": {"caSecret": "ca"}}},
    "passwordSecret needs its user": {"collector": {"store": {"url": "http://ch", "passwordSecret": "p"}}},
    "ingress.enabled leads nowhere": {"ingress": {"enabled": True}},
    "gateway.enabled leads nowhere": {"gateway": {"enabled": True, "parentRefs": [{"name": "g"}]}},
    "set gateway.parentRefs": {"gateway": {"enabled": True, "hosts": {"dashboard": "a.example"}}},
    "two of the proxies have one name": {"proxies": [PROXY, PROXY | {"upstream": "http://b"}]},
    "slos is not YAML": {"slos": "slos: [a"},
    "files.slos is no file of rules": {"prometheusRule": {"files": {"slos": "groups: [a"}}},
    "files.own is no file of rules": {"prometheusRule": {"files": {"own": "rules: []"}}},
    "tokentrail rules generate --slos slos.yaml": {"slos": "slos: []", "prometheusRule": {"enabled": True}},
}


@pytest.mark.parametrize("told", REFUSED)
def test_what_cannot_work_is_refused_with_what_to_do(told):
    done = helm("template", "tokentrail", given=REFUSED[told])
    assert done.returncode == 1
    assert told in done.stderr
    assert not [*SCHEMA.iter_errors(REFUSED[told])]


def test_a_release_whose_services_could_have_no_name_is_refused():
    done = helm("template", "1a")
    assert done.returncode == 1
    assert "1a-tokentrail cannot be the name of a Service" in done.stderr


def test_a_variable_has_one_origin():
    """An API server refuses a variable that is there twice, or takes the last one."""
    objects = [one for name in ("server", "keys", "tls", "client certificates", "own") for one in rendered(SETS[name])]
    parts = {name: set() for name in ("collector", "dashboard")}
    for container in containers(objects):
        if container["name"] in parts:
            parts[container["name"]] |= variables(container).keys()
    given = SETS["own"]["collector"]["env"].keys()
    text = (CHART / "templates" / "_helpers.tpl").read_text()
    taken = {"TOKENTRAIL_ALLOWED_HOSTS", *re.findall(r"^(TOKENTRAIL_\w+): ", text, re.MULTILINE)}
    assert parts["collector"] | parts["dashboard"] <= taken | given
    for part, name in {"collector": "TOKENTRAIL_DRAIN_TIMEOUT_S", "dashboard": "TOKENTRAIL_API_KEY"}.items():
        done = helm("template", "tokentrail", given={part: {"env": {name: "1"}}})
        assert f"{part}.env.{name}: the chart takes this variable from {part if part != 'dashboard' else 'keys'}." in (
            done.stderr
        )
    more = {"env": {"TOKENTRAIL_ALLOWED_HOSTS": "more.example"}}
    objects = rendered({"collector": more, "dashboard": more})
    assert loose_ends(objects) == []
    for container in containers(objects):
        hosts = variables(container)["TOKENTRAIL_ALLOWED_HOSTS"].split(",")
        assert {"more.example", f"{container['name']}.tokentrail"} & {*hosts} == {"more.example"}
        assert any(host.endswith(".tokentrail.svc") for host in hosts)


def test_none_of_a_proxy_is_none_and_a_slash_ends_no_repository():
    none = {"proxies": [PROXY | {"replicas": 0}], "image": {"repository": "registry.example/t/"}}
    assert of(rendered(none), "Deployment", "-proxy-hosted")["spec"]["replicas"] == 0
    assert {one["image"].rpartition("/")[0] for one in containers(rendered(none))} == {"registry.example/t"}
