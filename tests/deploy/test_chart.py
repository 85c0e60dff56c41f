"""The Helm chart, the manifests made of it, and the examples: would an API server take them, and do their pods work?"""

from __future__ import annotations

import re

import pytest
import yaml

import tokentrail
from alerts.dashboards import dashboards
from alerts.generate import rule_groups
from collector.app.service import open_access
from collector.pipeline.settings import load_settings
from collector.slo.model import load_slos
from tests.contract.commands import FENCE
from tests.deploy.kubernetes import (
    CHART,
    ROOT,
    SETS,
    containers,
    helm,
    loose_ends,
    of,
    problems,
    read,
    rendered,
    variables,
)

MANIFESTS = ROOT / "deploy" / "manifests" / "tokentrail.yaml"
KEYS = SETS["keys"]["keys"]


def settings_of(objects, monkeypatch):
    """The settings of a collector that has the environment of its container."""
    collector = of(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    for name, value in {"TOKENTRAIL_DATA_DIR": "/var/lib/tokentrail", **variables(collector)}.items():
        monkeypatch.setenv(name, value)
    return load_settings([])


def test_helm_finds_nothing_to_complain_about():
    done = helm("lint", "--strict")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", SETS)
def test_an_api_server_would_take_every_object(name):
    objects = rendered(SETS[name])
    assert [problem for one in objects for problem in problems(one)] == []
    assert loose_ends(objects) == []
    for one in objects:
        labels = one["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "tokentrail", "kubectl get -l finds all of a release"
    for container in containers(objects):
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
        assert {"livenessProbe", "readinessProbe"} <= container.keys()


def test_the_collector_is_told_of_its_store_its_keys_and_its_names(monkeypatch, tmp_path):
    objects = rendered(SETS["own"] | {"keys": KEYS, "tls": {"secret": "tls"}, "proxies": []})
    found = settings_of(objects, monkeypatch)
    assert (found.retention, found.scrape, found.drain_timeout_s) == (
        "90d,tokens=7d",
        "vllm=dns+http://vllm:8000/metrics,http://b:1/metrics",
        60,
    )
    assert (str(found.keys), str(found.tls_cert), str(found.tls_key)) == (
        "/etc/tokentrail/keys/keys.json",
        "/etc/tokentrail/tls/tls.crt",
        "/etc/tokentrail/tls/tls.key",
    )
    assert not found.allow_anonymous
    assert found.tenant_spans_per_s == 1000
    pod = of(objects, "StatefulSet")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 90, "longer than the drain"
    assert pod["containers"][0]["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "api", "scheme": "HTTPS"}
    assert pod["containers"][0]["image"] == "registry.example/t/collector:9"


def test_a_collector_of_a_server_has_its_password_in_a_file(monkeypatch):
    found = settings_of(rendered(SETS["server"]), monkeypatch)
    assert (found.store, found.store_user, str(found.store_password_file)) == (
        SETS["server"]["collector"]["store"]["url"],
        "u",
        "/etc/tokentrail/store/password",
    )


def test_the_parts_call_each_other_by_names_that_are_let_in(monkeypatch, tmp_path):
    objects = rendered(SETS["proxies"] | {"keys": {}, "proxyDefaults": {}})
    monkeypatch.setenv("TOKENTRAIL_DATA_DIR", str(tmp_path))
    settings = settings_of(objects, monkeypatch).model_copy(update={"data_dir": tmp_path})
    access = open_access(settings, ["0.0.0.0"])
    addresses = ("TOKENTRAIL_API_URL", "OTEL_EXPORTER_OTLP_ENDPOINT")
    given = [value for one in containers(objects) for name, value in variables(one).items() if name in addresses]
    called = {re.sub(r"^https?://|:\d+$", "", address) for address in given}
    assert called == {"tokentrail", "tokentrail-otlp"}
    assert called | {f"{name}.tokentrail.svc.cluster.local" for name in called} <= access.allowed_hosts
    assert {one["metadata"]["name"] for one in objects if one["kind"] == "Service"} >= called


def test_otlp_reaches_a_collector_whose_store_is_away_and_the_api_only_a_ready_one_of_several():
    for name, several in {"defaults": True, "server": False}.items():
        services = {one["metadata"]["name"]: one["spec"] for one in rendered(SETS[name]) if one["kind"] == "Service"}
        assert services["tokentrail-otlp"]["publishNotReadyAddresses"]
        assert services["tokentrail-pods"]["publishNotReadyAddresses"], "Prometheus sees the one that is not ready"
        assert services["tokentrail"]["publishNotReadyAddresses"] is several


def test_a_host_leads_to_its_part():
    rules = of(rendered(SETS["ingress"]), "Ingress")["spec"]["rules"]
    routes = [one["spec"] for one in rendered(SETS["gateway"]) if one["kind"] == "HTTPRoute"]
    paths = {one["host"]: one["http"]["paths"][0]["backend"]["service"] for one in rules}
    backends = {one["hostnames"][0]: one["rules"][0]["backendRefs"][0] for one in routes}
    expected = {
        "api.example": ("tokentrail", 8080),
        "otlp.example": ("tokentrail-otlp", 4318),
        "slo.example": ("tokentrail-dashboard", 80),
    }
    assert {host: (one["name"], one["port"]["number"]) for host, one in paths.items()} == expected
    assert {host: (one["name"], one["port"]) for host, one in backends.items()} == expected


def test_rules_and_dashboards_are_those_that_the_generator_makes():
    objects = rendered(SETS["operator"])
    slos = load_slos(CHART / "files" / "slos.yaml")
    groups = {f"tokentrail-{name.removesuffix('.yml')}": found for name, found in rule_groups(slos).items()}
    assert {
        one["metadata"]["name"]: one["spec"]["groups"] for one in objects if one["kind"] == "PrometheusRule"
    } == groups
    maps = {name: text for one in objects if one["kind"] == "ConfigMap" for name, text in one["data"].items()}
    assert maps == {**dashboards(), "slos.yaml": (ROOT / "alerts" / "slos.yaml").read_text()}


def test_prometheus_is_told_what_alerts_prometheus_yml_says():
    (endpoint,) = of(rendered(SETS["keys"]), "ServiceMonitor")["spec"]["endpoints"]
    job = yaml.safe_load((ROOT / "alerts" / "prometheus.yml").read_text())["scrape_configs"][0]
    fixed = {one["targetLabel"]: one.get("replacement") for one in endpoint["relabelings"] if "targetLabel" in one}
    assert endpoint["honorLabels"] is job["honor_labels"] is True
    assert fixed["job"] == job["job_name"]
    assert "collector" in fixed
    assert endpoint["authorization"]["credentials"] == {"name": "metrics-key", "key": "key"}


def test_the_notes_say_the_next_command():
    done = helm("install", "tokentrail", "--dry-run=client", given=SETS["own"] | {"slos": "", "prometheusRule": {}})
    assert done.returncode == 0, done.stderr
    told = done.stdout.split("NOTES:\n")[1]
    assert "kubectl --namespace tokentrail rollout status statefulset/trail" in told
    assert "http://trail-otlp.tokentrail:4318" in told
    assert "Nobody needs a key" in told
    assert "port-forward service/trail-dashboard 8501:80" in told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"ingress": {"enabled": True}}, "http://slo.example"),
        ({"ingress": {"enabled": True, "tlsSecret": "t"}}, "https://slo.example"),
        ({"gateway": {"enabled": True, "parentRefs": [{"name": "g"}]}}, "https://slo.example"),
        ({"ingress": {"enabled": False}}, "http://localhost:8501"),
    ],
)
def test_the_notes_name_the_address_of_the_dashboard(given, told):
    (way,) = given
    done = helm("install", "a", "--dry-run=client", given={way: given[way] | {"hosts": {"dashboard": "slo.example"}}})
    assert f"   {told}\n" in done.stdout, done.stderr


def test_the_chart_has_the_version_and_the_files_of_the_project():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == tokentrail.__version__
    for name, source in {
        "slos.yaml": "alerts/slos.yaml",
        "rules": "alerts/rules",
        "dashboards": "alerts/grafana/dashboards",
    }.items():
        assert (CHART / "files" / name).resolve() == ROOT / source


def test_the_manifests_are_what_the_chart_makes():
    assert read(MANIFESTS.read_text()) == rendered({})


def documents():
    """The manifests, the examples, the objects of the page, and pods of what it shows for other charts."""
    for path in (MANIFESTS, *sorted((ROOT / "deploy" / "examples").glob("*.yaml"))):
        yield from ((path.name, one) for one in read(path.read_text()))
    page = ROOT / "docs" / "kubernetes.md"
    for one in (
        one for _, language, text in FENCE.findall(page.read_text()) if language == "yaml" for one in read(text)
    ):
        shown = [one] if "apiVersion" in one else [*parts_of_pods(one)]
        assert shown, one
        yield from ((page.name, each) for each in shown)


def parts_of_pods(found):
    """A pod of each part that has containers or variables. What the part leaves to its chart is filled in."""
    if isinstance(found, list):
        for one in found:
            yield from parts_of_pods(one)
    elif isinstance(found, dict):
        pod = {key: found[key] for key in ("initContainers", "containers", "volumes") if key in found}
        if "initContainer" in found:  # of vLLM's production-stack
            first = dict(found["initContainer"])
            first["volumeMounts"] = first.pop("extraVolumeMounts")
            main = {"name": "main", "env": found["env"], "volumeMounts": found["extraVolumeMounts"]}
            pod = {"initContainers": [first], "containers": [main], "volumes": found["extraVolumes"]}
        elif not pod and "env" in found:
            pod = {"containers": [{"name": "main", "env": found["env"]}]}
        if pod:
            spec = {"containers": [{"name": "main"}]} | pod
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}
        else:
            for value in found.values():
                yield from parts_of_pods(value)


def test_an_api_server_would_take_manifests_examples_and_what_the_page_shows():
    found = [*documents()]
    assert {name for name, _ in found} == {"tokentrail.yaml", "clickhouse-altinity.yaml", "kubernetes.md"}
    assert [f"{name}: {problem}" for name, one in found for problem in problems(one)] == []


def test_the_page_sends_to_the_service_that_the_chart_makes():
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    services = {one["metadata"]["name"]: one for one in read(MANIFESTS.read_text()) if one["kind"] == "Service"}
    named = set(re.findall(r"http://([\w-]+)\.tokentrail:(\d+)", text))
    assert named == {("tokentrail-otlp", "4317"), ("tokentrail-otlp", "4318")}
    assert {str(port["port"]) for port in services["tokentrail-otlp"]["spec"]["ports"]} == {"4317", "4318"}
    assert set(re.findall(r"tokentrail/(?:sdk|proxy):([\w.]+)", text)) == {tokentrail.__version__}


def test_an_unknown_field_a_wrong_type_and_an_unknown_kind_are_found():
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"ports": [{"port": 1}]}}
    assert problems(service) == []
    assert problems(service | {"spec": {"port": 1}})
    assert problems(service | {"spec": {"ports": [{"port": "http"}]}})
    assert problems({"apiVersion": "a/v1", "kind": "B", "metadata": {"name": "c"}, "spec": {}})
    assert problems(
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {},
            "spec": {"groups": [{"rules": []}]},
        }
    )
