"""The table of docs/alerts.md is of the committed result, and compressed rules are the shipped ones, only faster."""

import json

import yaml

from alerts.generate import generate
from benchmarks.alerts import compressed, judged
from benchmarks.alerts_cost import endpoint
from benchmarks.alerts_scenarios import SLOS, Scenario
from benchmarks.alerts_table import PAGE, RESULT, fill, table


def test_the_page_has_the_committed_result():
    numbers = json.loads(RESULT.read_text())["numbers"]
    page = PAGE.read_text()
    assert table(numbers) in page, "run `python -m benchmarks.alerts_table --write`"
    assert fill(page, table(numbers)) == page


def test_the_table_has_a_row_for_each_fault():
    found = {
        "seconds": {
            "TokentrailSloBurn page a": 61.2,
            "TokentrailSloBurn page b": 70.0,
            "EngineDown": 3.1,
        },
        "missing": ["TokentrailSloBurn ticket a", "TokentrailSloBurn ticket b"],
        "unexpected": [],
    }
    rows = table(
        {"well_s": 1, "outage": found, "calm": {"seconds": {}, "missing": [], "unexpected": ["X"]}}
    ).splitlines()
    assert rows[2:] == [
        "| outage | `EngineDown` 3, `page` 61–70 | `ticket` |  |",
        "| calm | nothing came |  | `X` |",
    ]


def test_compressed_rules_differ_in_their_times_alone():
    text = generate(SLOS)["slos.yml"]
    groups, faster = (yaml.safe_load(one)["groups"] for one in (text, compressed(text, 5)))
    assert compressed(text, 1) != compressed(text, 5)
    assert [[r.get("record", r.get("alert")) for r in g["rules"]] for g in groups] == [
        [r.get("record", r.get("alert")) for r in g["rules"]] for g in faster
    ]
    expr = {rule["record"]: rule["expr"] for group in faster for rule in group["rules"] if "record" in rule}
    assert expr["slo:tokentrail_requests:increase5m"].endswith("(increase(tokentrail_slo_requests_total[60000ms]))")
    assert expr["slo:tokentrail_bad_requests:ratio5m"].startswith("slo:tokentrail_bad_requests:increase5m /")
    intervals = [None, "60000ms", "12000ms", "24000ms", "24000ms", "48000ms", "24000ms"]
    assert [group.get("interval") for group in faster] == intervals
    stopped = next(r for g in faster for r in g["rules"] if r.get("alert") == "TokentrailTrafficStopped")
    assert (stopped["for"], "offset 17280000ms" in stopped["expr"]) == ("120000ms", True)


def test_what_is_neither_expected_nor_allowed_is_told():
    scenario = Scenario("s", {}, frozenset({"A"}), frozenset({"B"}))
    seconds = {("s", "B one"): 1.04, ("s", "C"): 2.0, ("other", "D"): 3.0}
    assert judged(scenario, seconds) == {"seconds": {"B one": 1.0, "C": 2.0}, "missing": ["A"], "unexpected": ["C"]}


def test_the_cost_of_the_endpoint_is_measured_on_a_store_with_requests(tmp_path):
    found = endpoint(tmp_path, requests=5, times=1)
    assert all(ms > 0 for ms in found.values()), found
    assert "/slos, CPU ms" in found
