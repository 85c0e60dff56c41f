"""`python -m alerts`, which `tokentrail rules` runs."""

import http.server
import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import parse_qs

import pytest
import yaml

from alerts.__main__ import main
from alerts.engine_packs import packs
from alerts.generate import generate
from alerts.links import address, runbooks
from alerts.loaded import LoadedRules
from collector.slo.model import load_slos
from tests.contract.commands import cli
from tests.deploy.kubernetes import problems
from tokentrail.shared.durations import parse_duration

ROOT = Path(__file__).parents[2]
SHIPPED = load_slos(ROOT / "alerts" / "slos.yaml")


BOTH = ("--dashboard-url", "https://tails.example/d/", "--runbook-url")


class Files:
    """Runs the command with folders of the test."""

    def __init__(self, folder):
        self.out, self.packs = folder / "out", folder / "packs"

    def __call__(self, *arguments):
        return main([*arguments, "--out", str(self.out), "--packs", str(self.packs)])


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def test_an_objective_that_no_rule_can_hold_is_told_in_a_line(tmp_path, files, capsys):
    slos = tmp_path / "slos.yaml"
    for objective in ("1e-999999999", "0." + 40 * "9"):
        slos.write_text(f"slos: [{{name: a, objective: {objective}, window: 30d, thresholds: {{e2e: 1s}}}}]")
        assert files("generate", "--slos", str(slos)) == 2
        assert "more than 9 digits" in capsys.readouterr().err


def test_it_writes_rules_that_promtool_accepts(tmp_path, files, capsys):
    slos = tmp_path / "mine.yaml"
    slos.write_text(
        'slos:\n  - {name: half, objective: "0.5", window: 7d, thresholds: {ttft: 1.5s, e2e: 2m}}\n'
        '  - {name: strict, objective: "0.9999", window: 28d, owner: ann, team: search, thresholds: {tpot: 33ms}}\n'
    )
    assert files("generate", "--slos", str(slos)) == 0
    written = capsys.readouterr().out.split()
    assert written[:2] == [str(files.out / name) for name in ("conditions.yml", "slos.yml")]
    assert subprocess.run(["promtool", "check", "rules", *written], capture_output=True).returncode == 0
    text = (files.out / "slos.yml").read_text()
    rules = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
    expr = {
        (r["labels"]["slo"], r["labels"]["severity"]): r["expr"] for r in rules if r.get("alert") == "TokentrailSloBurn"
    }
    # 2 % of a week in an hour is 3.36, and 2 is the most
    assert '1h{slo="half",groups=""} > 0.8 and' in expr["half", "page"]
    assert '1h{slo="strict",groups=""} > 0.001344 and' in expr["strict", "page"]
    owned = [r for r in rules if r.get("labels", {}).get("slo") == "strict"]
    assert all((r["labels"]["owner"], r["labels"]["team"]) == ("ann", "search") for r in owned)


def test_words_of_an_slo_file_are_no_templates(tmp_path, files):
    """Prometheus expands `{{` in the labels and annotations of alerts, and in those of no recording."""
    slo = {"name": "strange", "objective": "0.99", "window": "7d", "thresholds": {"ttft": "1s"}}
    slo |= {"description": "Keeps {{ $value }} and {{ .Values", "owner": "{{ end }}", "team": "a{{b"}
    (tmp_path / "slos.yaml").write_text(yaml.safe_dump({"slos": [slo]}))
    assert files("generate", "--slos", str(tmp_path / "slos.yaml")) == 0
    written = files.out / "slos.yml"
    subprocess.run(["promtool", "check", "rules", str(written)], check=True, capture_output=True)
    rules = [rule for group in yaml.safe_load(written.read_text())["groups"] for rule in group["rules"]]
    owned = [rule for rule in rules if "team" in rule.get("labels", {})]
    shown = {("alert" in rule, rule["labels"]["owner"], rule["labels"]["team"]) for rule in owned}
    assert shown == {(True, '{{ "{{" }} end }}', 'a{{ "{{" }}b'), (False, "{{ end }}", "a{{b")}
    burns = [rule["annotations"]["description"] for rule in owned if rule.get("alert") == "TokentrailSloBurn"]
    assert all(text.startswith('Keeps {{ "{{" }} $value }} and {{ "{{" }} .Values ') for text in burns)


def test_without_slos_there_are_no_slo_rules(tmp_path, files):
    slos = tmp_path / "none.yaml"
    slos.write_text("slos: []")
    assert files("--slos", str(slos)) == 0
    assert [p.name for p in files.out.iterdir()] == ["conditions.yml"]


def test_a_bad_file_is_named_with_its_problem(tmp_path, files, capsys):
    slos = tmp_path / "bad.yaml"
    slos.write_text('slos: [{name: x, objective: "2", window: 30d, thresholds: {ttfs: 1s}}]')
    assert files("--slos", str(slos)) == 2
    said = capsys.readouterr().err
    assert f"{slos}: slos[0].objective: '2' must be between 0 and 1" in said
    assert "slos[0].thresholds.ttfs: unknown field" in said
    assert not files.out.exists()


@pytest.mark.parametrize("option", ["--out", "--packs", "--dashboards"])
def test_folders_that_are_none_are_named(tmp_path, capsys, option):
    file = tmp_path / "file"
    file.write_text("mine")
    for wrong in (str(file), ""):
        with pytest.raises(SystemExit):
            main([option, wrong])
        assert f"argument {option}: {wrong!r} is not a folder" in capsys.readouterr().err
    assert file.read_text() == "mine"


def test_diff_and_check_say_what_differs(files, capsys):
    files("generate")
    assert (files("diff"), files("check")) == (0, 0)
    capsys.readouterr()
    assert files("generate", "--json") == 0
    written = json.loads(capsys.readouterr().out)["files"]
    assert {str(files.out / "slos.yml"), str(files.packs / "vllm.yml")} <= {*written}
    changed = files.packs / "vllm.yml"
    changed.write_text(changed.read_text().replace("> 0.95", "> 0.5"))
    (files.out / "slos.yml").unlink()
    capsys.readouterr()
    assert files("diff") == 1
    said = capsys.readouterr().out
    usage = "min_over_time(vllm:kv_cache_usage_perc[3m])"
    assert f"-    expr: max by (cluster, job, instance, model_name) ({usage}) > 0.5" in said
    assert "+- name: tokentrail-slos-outage" in said
    assert files("check") == 1
    said = capsys.readouterr().out
    assert f"{changed} differs from the rules of" in said
    assert f"{files.out / 'slos.yml'} is not there: generate it" in said
    assert files("check", "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert (len(told["problems"]), told["slos"], told["files"]) == (2, len(SHIPPED), written)
    assert told["prometheus_checked"] is False
    assert files("diff", "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert {*told["differ"]} == {str(changed), str(files.out / "slos.yml")}
    assert "+- name: tokentrail-slos-outage" in told["diff"]


def test_kubernetes_objects_hold_the_same_groups(files):
    assert files("generate", "--format", "kubernetes") == 0
    for path in (*files.out.iterdir(), *files.packs.iterdir()):
        found = yaml.safe_load(path.read_text())
        assert (found["apiVersion"], found["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
        assert found["metadata"]["name"] == f"tokentrail-{path.stem}"
        if path.name in generate(SHIPPED):
            assert found["spec"] == yaml.safe_load(generate(SHIPPED)[path.name])


def test_pyrra_gets_an_objective_of_each_slo_and_the_counter_that_it_lacks(tmp_path, files):
    slos = tmp_path / "slos.yaml"
    slos.write_text(
        "slos:\n  - {name: each_one, objective: 0.9995, window: 28d, group_by: [tenant], thresholds: {e2e: 1s}}\n"
        "  - {name: all, description: Ends., objective: 0.9, window: 7d, thresholds: {e2e: 1s}}\n"
    )
    assert files("generate", "--format", "pyrra", "--slos", str(slos)) == 0
    assert [path.name for path in files.out.iterdir()] == ["pyrra.yml"]
    counter, each, whole = objects = [*yaml.safe_load_all((files.out / "pyrra.yml").read_text())]
    assert [problem for one in objects for problem in problems(one)] == []
    (rule,) = counter["spec"]["groups"][0]["rules"]
    increases = {f"increase({name}[1m])" for name in rule["expr"].split(" - ")}
    assert increases == set(re.findall(r"increase\(tokentrail_slo_\w+\[1m\]\)", generate(SHIPPED)["slos.yml"]))
    assert each["metadata"]["name"] == "tokentrail-each-one"
    assert each["spec"] == {
        "target": "99.95", "window": "28d", "description": "",
        "indicator": {
            "ratio": {
                "errors": {"metric": f'{rule["record"]}{{slo="each_one"}}'},
                "total": {"metric": 'tokentrail_slo_requests_total{slo="each_one"}'},
                "grouping": ["tenant"],
            }
        },
    }  # fmt: skip
    assert (whole["spec"]["target"], whole["spec"]["window"], whole["spec"]["description"]) == ("90", "7d", "Ends.")
    assert "grouping" not in whole["spec"]["indicator"]["ratio"]
    assert files("check", "--format", "pyrra", "--slos", str(slos)) == 0


@pytest.fixture
def prometheus():
    """A Prometheus with the answers that the test puts into `answers`."""
    answers = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            path, _, query = self.path.removeprefix("/api/v1/").partition("?")
            answer = answers.get(path)
            failed = 500 if path in answers else 404
            self.send_response(200 if answer else failed)
            self.end_headers()
            if callable(answer):
                answer = answer(parse_qs(query)["query"][0])
            self.wfile.write(json.dumps({"data": answer}).encode())

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield LoadedRules(f"http://127.0.0.1:{server.server_port}"), answers
    server.shutdown()
    server.server_close()


@pytest.fixture
def loaded(prometheus):
    """One that has loaded the shipped rules and packs, and writes expressions in its own way."""
    loaded, answers = prometheus
    files = {f"/etc/{name}": text for name, text in (generate(SHIPPED) | packs()).items()}
    groups = [{"file": file, **group} for file, text in files.items() for group in yaml.safe_load(text)["groups"]]
    for rule in (rule for group in groups for rule in group["rules"]):
        rule["name"] = rule.pop("alert", None) or rule.pop("record")
        rule["query"] = f"+ {rule.pop('expr')}"
        rule["duration"] = parse_duration(rule.pop("for", "0s")) / 1e9
    info = [{"metric": {"slo": slo.name, "hash": slo.hash, "instance": "c:8080"}} for slo in SHIPPED]
    answers |= {"rules": {"groups": groups}, "query": {"result": info}}
    answers["format_query"] = lambda query: query.removeprefix("+ ")
    return loaded, answers


def rule_of(answers, name, **labels):
    rules = [rule for group in answers["rules"]["groups"] for rule in group["rules"]]
    return next(r for r in rules if r["name"] == name and labels.items() <= r.get("labels", {}).items())


def test_a_prometheus_without_a_rule_and_a_collector_with_another_file_are_found(loaded):
    loaded, answers = loaded
    assert loaded.problems(SHIPPED) == []
    answers["query"]["result"][1]["metric"]["hash"] = "0"
    next(g for g in answers["rules"]["groups"] if g["name"] == "tokentrail-slos-outage")["rules"].pop()
    missing, drifted = loaded.problems(SHIPPED)
    assert missing.startswith(f"{loaded.url} has not loaded TokentrailSloBurn (severity=page, slo=")
    assert missing.endswith(", of slos.yml")
    assert drifted == "the collector c:8080 judges SLO completion by another definition"


def test_rules_with_other_thresholds_times_or_labels_are_found_in_plain_words(loaded):
    loaded, answers = loaded
    conditions = f"{loaded.url} has loaded /etc/conditions.yml, in which"

    def changed(name, change, **labels):
        rule = rule_of(answers, name, **labels)
        before = {**rule}
        change(rule)
        said = loaded.problems(SHIPPED)
        rule |= before
        return said

    def other(old, new):
        def change(rule):
            assert old in rule["query"]
            rule["query"] = rule["query"].replace(old, new)

        return change

    full = "TokentrailKvCacheFull"
    said = changed(full, other("> 0.95", "> 0.5"))
    words = "(min_over_time(tokentrail_kv_usage_ratio[3m])) >"
    assert said == [
        f"{conditions} the expression of {full} (severity=ticket) has `{words} 0.5`; it must be `{words} 0.95`"
    ]
    assert changed(full, lambda rule: rule.update(duration=60)) == [
        f"{conditions} {full} (severity=ticket) has `for: 1m`; it must be `for: 10m`"
    ]
    assert changed("TokentrailStoreDamaged", lambda rule: rule.update(duration=1.5)) == [
        f"{conditions} TokentrailStoreDamaged (severity=ticket) has `for: 1500ms`; it must be `for: 0s`"
    ]
    assert changed(full, lambda rule: rule.update(labels={"severity": "page"})) == [
        f"{loaded.url} has {full} (severity=page) in /etc/conditions.yml; the labels must be those of {full} "
        "(severity=ticket)"
    ]
    assert changed("TokentrailSloDrift", other(SHIPPED[0].hash, "0" * 12), slo="chat") == [
        f"{loaded.url} has loaded /etc/slos.yml, in which rules are of another definition of SLO chat"
    ]
    (of_drift,) = changed("TokentrailSloDrift", other("last_over_time", "max_over_time"), slo="chat")
    assert "the expression of TokentrailSloDrift (severity=ticket, slo=chat) has `max_over_time(" in of_drift
    (of_recording,) = changed("slo:tokentrail_requests:increase1m", other("[1m]", "[2m]"))
    assert of_recording.startswith(f"{loaded.url} has loaded /etc/slos.yml, in which the expression of slo:tokentrail_")
    (of_pack,) = changed("EngineKvCacheFull", other("> 0.95", "> 0.5"), pack="vllm")
    assert "/etc/vllm, in which the expression of EngineKvCacheFull (severity=ticket, pack=vllm) has `" in of_pack


def test_an_old_copy_beside_the_right_rules_is_found_and_a_pack_that_is_not_loaded_is_not(loaded):
    loaded, answers = loaded
    groups = answers["rules"]["groups"]
    old = {**rule_of(answers, "TokentrailKvCacheFull")}
    old["query"] = old["query"].replace("0.95", "0.5")
    groups.append({"name": "copy", "file": "/etc/old.yml", "rules": [old]})
    (said,) = loaded.problems(SHIPPED)
    assert said.startswith(f"{loaded.url} has loaded /etc/old.yml, in which the expression of TokentrailKvCacheFull")
    answers["rules"]["groups"] = [g for g in groups[:-1] if not g["name"].startswith("pack-")]
    assert loaded.problems(SHIPPED) == []


def test_a_prometheus_that_formats_no_query_is_compared_by_the_text(loaded):
    loaded, answers = loaded
    del answers["format_query"]
    for group in answers["rules"]["groups"]:
        for rule in group["rules"]:
            rule["query"] = rule["query"][2:].replace(" ", "  ")
    assert loaded.problems(SHIPPED) == []
    rule = rule_of(answers, "TokentrailKvCacheFull")
    rule["query"] = rule["query"].replace("0.95", "0.5")
    assert len(loaded.problems(SHIPPED)) == 1


def test_a_prometheus_that_does_not_answer_is_named(loaded):
    loaded, answers = loaded
    answers["format_query"] = None  # an error of the server
    assert "cannot be asked: HTTP Error 500" in loaded.problems(SHIPPED)[0]
    answers["rules"] = None
    assert "cannot be asked" in loaded.problems(SHIPPED)[0]
    del answers["rules"]
    assert "cannot be asked" in loaded.problems(SHIPPED)[0]
    assert "must begin with http" in LoadedRules("file:///etc").problems(SHIPPED)[0]


def test_tokentrail_rules_is_the_same_command(tmp_path):
    command = [sys.executable, "-m", "tokentrail.cli", "rules", "diff", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, "+- name: tokentrail-slos-outage" in done.stdout) == (1, True), done.stderr


def test_the_commands_of_alerts_have_options_that_the_command_line_knows():
    known = {name: {o for p in one.params for o in p.opts} for name, one in cli().commands.items()}
    told = " ".join(alert["annotations"].get("command", "") for alert in _alerts(ROOT / "alerts" / "rules"))
    asked = re.findall(r"tokentrail (\w+)(.*?)(?=tokentrail |$)", told)
    options = {(name, option) for name, rest in asked for option in re.findall(r" (--[\w-]+)", rest)}
    assert {("explain", "--tenant"), ("requests", "--instance")} <= options
    assert [one for one in options if one[1] not in known[one[0]]] == []


@pytest.mark.parametrize(
    ("runbooks", "page"),
    [
        ("https://wiki.example/on-call/{alert}", "https://wiki.example/on-call/tokentrailsloburn"),
        ("https://wiki.example/alerts.md", "https://wiki.example/alerts.md#tokentrailsloburn"),
    ],
)
def test_alerts_lead_to_the_readers_own_runbooks_and_dashboard(files, tmp_path, runbooks, page):
    assert files("generate", "--slos", str(ROOT / "alerts" / "slos.yaml"), *BOTH, runbooks) == 0
    own, shipped = ([*_alerts(folder)] for folder in (files.out, ROOT / "alerts" / "rules"))
    assert {a["annotations"]["runbook_url"] for a in own if a["alert"] == "TokentrailSloBurn"} == {page}
    names = {name.rsplit("/", 1)[1].split("#")[-1] for name in {a["annotations"]["runbook_url"] for a in own}}
    assert names == {a["alert"].lower() for a in shipped}
    linked = {
        a["alert"] for a in own if a["annotations"].pop("dashboard_url", "").startswith("https://tails.example/d/e")
    }
    assert linked == {a["alert"] for a in shipped if "command" in a["annotations"]}
    assert linked == {"TokentrailSloBurn", "TokentrailEngineLost", "TokentrailEngineHung", "TokentrailColdStart",
                      "TokentrailKvCacheEvictions", "TokentrailKvCacheWaits"}  # fmt: skip
    for one in (*own, *shipped):
        one["annotations"].pop("runbook_url")
    assert own == shipped, "nothing else differs"
    packs = yaml.safe_load((files.packs / "vllm.yml").read_text())["groups"][0]["rules"]
    assert packs[0]["annotations"]["runbook_url"] == page.replace("tokentrailsloburn", packs[0]["alert"].lower())
    assert files("check", "--slos", str(ROOT / "alerts" / "slos.yaml"), *BOTH, runbooks) == 0


def _alerts(folder):
    files = sorted(folder.glob("*.yml"))
    return (r for path in files for g in yaml.safe_load(path.read_text())["groups"] for r in g["rules"] if "alert" in r)


BAD_LINKS = [
    "dashboard.example", "/explore", "javascript:alert(1)", "https://", "http://a b/", "https://me:secret@a.example/",
    "https://me@a.example/", "https://a.example/{{ $labels.tenant }}", "https://a.example/{x}", "https://a.example/\n",
    "https://a.example\n/x", "https://a.example/\r", "https://a.example/x y", 'https://a.example/"x', "https://a.example/'",
    "https://a.example/<x>", "https://a.example/\u202e", "HTTPS:\\\\a.example", "https://a.example:port/", "https://[::1/",
]  # fmt: skip


@pytest.mark.parametrize("option", ["--dashboard-url", "--runbook-url"])
@pytest.mark.parametrize("given", BAD_LINKS)
def test_a_link_that_no_browser_opens_or_that_tells_more_than_a_page_is_refused(files, capsys, option, given):
    with pytest.raises(SystemExit):
        files("generate", option, given)
    assert f"{given!r} is not an address: write it with http:// or https:// and a host" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "given", "is_one"),
    [
        *(
            ("--dashboard-url", f"https://a.example{path}", True)
            for path in ("", ":8501", "/tails/a-b~c_1/", "/%C3%A4")
        ),
        ("--dashboard-url", "http://[::1]:8501/x", True),
        *(("--dashboard-url", f"https://a.example/{path}", False) for path in ("?x=1", "#x", "{alert}")),
        *(
            ("--runbook-url", f"https://a.example/{path}", True)
            for path in ("?p={alert}&x=1", "{alert}#top", "{alert}.md")
        ),
    ],
)
def test_a_dashboard_has_no_query_and_runbooks_may(option, given, is_one):
    check = {"--dashboard-url": address, "--runbook-url": runbooks}[option]
    if is_one:
        assert check(given) == given
    else:
        with pytest.raises(ValueError, match="is not an address"):
            check(given)


def test_the_link_of_a_burn_has_the_hour_before_it_and_its_tenant(files, tmp_path):
    slos = tmp_path / "slos.yaml"
    slos.write_text(
        'slos: [{name: each, objective: "0.95", window: 30d, group_by: [tenant], thresholds: {ttft: 500ms}}]'
    )
    assert files("generate", "--slos", str(slos), *BOTH, "https://w.example/{alert}") == 0
    page = "https://tails.example/d/explore?slo=each&verdict=bad&tenant=a%26b+c&range=custom"
    test = {
        "rule_files": [str(files.out / "slos.yml")],
        "evaluation_interval": "5m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": 'tokentrail_slo_requests_total{slo="each", tenant="a&b c"}', "values": "0+9x600"},
                    {"series": 'tokentrail_slo_good_requests_total{slo="each", tenant="a&b c"}', "values": "0x600"},
                    {"series": 'tokentrail_slo_requests_total{slo="each", tenant="other"}', "values": "0+999x600"},
                    {"series": 'tokentrail_slo_good_requests_total{slo="each", tenant="other"}', "values": "0+999x600"},
                ],
                "alert_rule_test": [{"alertname": "TokentrailSloBurn", "eval_time": "400m", "exp_alerts": []}],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    said = subprocess.run(
        ["promtool", "test", "rules", str(tmp_path / "test.yml")], capture_output=True, text=True, check=False
    ).stderr.replace("\\", "")
    assert f"{page}&start=1970-01-01T05:40:00Z&end=1970-01-01T06:40:00Z" in said


def test_a_prometheus_and_an_alertmanager_of_this_machine_need_no_container(files, tmp_path):
    assert files("generate", "--with-prometheus", str(tmp_path / "mine")) == 0
    written = (tmp_path / "mine" / "prometheus.yml", tmp_path / "mine" / "alertmanager.yml")
    assert all(
        re.findall(r"(?<![\w.])(?:collector|engine|alertmanager):\d+", path.read_text()) == [] for path in written
    )
    done = subprocess.run(["promtool", "check", "config", str(written[0])], capture_output=True, text=True)
    assert (done.returncode, "rule files found" in done.stdout) == (0, True), done.stdout + done.stderr
    assert subprocess.run(["amtool", "check-config", str(written[1])], capture_output=True).returncode == 0
    assert files("check", "--with-prometheus", str(tmp_path / "mine")) == 0
