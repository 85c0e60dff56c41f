"""OpenSLO documents become our SLO file, or are refused by the name of what has no meaning here."""

import pytest

from alerts.__main__ import main
from collector.slo.model import load_slos

OPENSLO = """
apiVersion: openslo/v1
kind: SLO
metadata: {name: chat, labels: {owner: ann, team: serving, tier: gold}}
spec:
  description: First tokens come fast.
  timeWindow: [{duration: 28d, isRolling: true}]
  budgetingMethod: Occurrences
  indicator: {spec: {thresholdMetric: {metricSource: {type: tokentrail, spec: {metric: ttft, select: {model: [m]}}}}}}
  objectives: [{op: lte, value: 0.5, target: 0.999}]
---
apiVersion: openslo/v1
kind: Service
metadata: {name: llm}
---
apiVersion: openslo/v1
kind: SLO
metadata: {name: joint}
spec:
  timeWindow: [{duration: 30d}]
  indicator:
    spec: {ratioMetric: {good: {metricSource: {type: tokentrail, spec: {thresholds: {ttft: 1s, tpot: 80ms}}}}}}
  objectives: [{target: 0.95}]
"""
OURS = "metricSource: {type: tokentrail, spec: "


@pytest.fixture
def imported(tmp_path, capsys):
    """Imports a document: the SLOs, or the lines of the error without the place of the file."""
    file, ours = tmp_path / "open.yaml", tmp_path / "slos.yaml"

    def run(text):
        file.write_text(text)
        status = main(["import", "--slos", str(file)])
        out, error = capsys.readouterr()
        if status == 0:
            ours.write_text(out)
            return load_slos(ours)
        assert (status, out) == (2, "")
        lines = error.splitlines()
        assert lines[0].startswith(f"{file}: ")
        return [line.removeprefix(f"{file}: ") for line in lines]

    return run


def test_openslo_documents_become_our_slos(imported):
    chat, joint = imported(OPENSLO)
    assert (chat.name, str(chat.objective), chat.owner, chat.team) == ("chat", "0.999", "ann", "serving")
    assert (chat.description, chat.window) == ("First tokens come fast.", 28 * 86_400 * 10**9)
    assert (chat.thresholds.given(), chat.select["model"]) == ({"ttft": 500_000_000}, ("m",))
    assert joint.thresholds.given() == {"ttft": 10**9, "tpot": 80_000_000}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("metadata: {name: chat,", "metadata: {name: chat, displayName: Chat, annotations: {a: b},"),
        ("  budgetingMethod: Occurrences", "  service: chat\n  alertPolicies: [{alertPolicyRef: fast-burn}]"),
        ("isRolling: true", "isRolling: True"),
        ("indicator: {spec: {threshold", "indicator: {metadata: {name: x}, spec: {threshold"),
        ("target: 0.999}", "target: 0.999, displayName: most}"),
        ("{target: 0.95}]", "{target: 0.95}]\n---\napiVersion: openslo/v1\nkind: SLI\nmetadata: {name: x}\nspec: {}"),
        (
            "{ratioMetric: {good:",
            "{ratioMetric: {counter: true, total: {metricSource: {type: tokentrail, spec: {}}}, good:",
        ),
    ],
)
def test_what_says_nothing_of_the_promise_is_left_out(imported, old, new):
    assert old in OPENSLO
    assert imported(OPENSLO.replace(old, new)) == imported(OPENSLO)


def test_a_total_of_the_same_requests_is_what_our_select_means(imported):
    text = OPENSLO.replace(f"{OURS}{{thresholds", f"{OURS}{{select: {{model: [a]}}, thresholds")
    total = f"total: {{{OURS}{{select: {{model: [a]}}}}}}}}"
    same = text.replace("{ratioMetric: {good:", f"{{ratioMetric: {{{total}, good:")
    assert imported(same) == imported(text)
    (line,) = imported(same.replace(total, total.replace("[a]", "[b]")))
    assert line.startswith("2: spec.indicator.spec.ratioMetric: total: its select differs from that of good")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("type: tokentrail, spec: {metric", "type: prometheus, spec: {metric", "only a source of type tokentrail"),
        ("op: lte", "op: gt", "objectives[0].op: 'gt' cannot be read; only 'lte' can"),
        ("op: lte, ", "", "objectives[0]: a thresholdMetric needs `op: lte` and the value"),
        ("value: 0.5, ", "", "objectives[0]: a thresholdMetric needs `op: lte` and the value"),
        ("value: 0.5", "value: half", "objectives[0].value: 'half' must be seconds"),
        ("value: 0.5", "value: 1e999999999", "objectives[0].value: '1e999999999' must be seconds"),
        ("value: 0.5", "value: 1e-10", "objectives[0].value: '1e-10' must be seconds"),
        ("value: 0.5", "value: -1", "objectives[0].value: '-1' must be seconds"),
        ("value: 0.5", "value: [1]", "objectives[0].value: must be one value"),
        ("target: 0.999", "target: 2", "must be between 0 and 1"),
        ("target: 0.999", "target: 1e-999999999", "has more than 9 digits behind the point"),
        ("target: 0.999", "target: 0.999, targetPercent: 99.9", "objectives[0].targetPercent: write a target between"),
        ("target: 0.999", "targetPercent: 99.9", "objectives[0].targetPercent: write a target between"),
        ("target: 0.999", "target: 0.999, timeSliceTarget: 0.99", "timeSliceTarget: slices of time cannot be judged"),
        ("target: 0.999", "target: 0.999, timeSliceWindow: 1m", "timeSliceWindow: slices of time cannot be judged"),
        ("target: 0.999", "target: 0.999, indicatorRef: x", "indicatorRef: an SLI elsewhere is not read"),
        ("target: 0.999", "target: 0.999, compositeWeight: 2", "compositeWeight: an SLO of several indicators"),
        ("target: 0.999", "target: 0.999, weight: 2", "objectives[0].weight: is no field that can be read here"),
        ("target: 0.999}", "target: 0.999}, {op: lte, value: 1, target: 0.9}", "objectives: has 2 entries; write one"),
        ("[{op: lte, value: 0.5, target: 0.999}]", "[]", "objectives: has 0 entries; write one"),
        ("{target: 0.95}", "{op: lte, value: 0.5, target: 0.95}", "objectives[0].op: a ratioMetric has its thresholds"),
        ("Occurrences", "Timeslices", "budgetingMethod: 'Timeslices' cannot be read; only 'Occurrences' can"),
        ("Occurrences", "RatioTimeslices", "budgetingMethod: 'RatioTimeslices' cannot be read"),
        ("28d", "1M", "duration: '1M': months, quarters and years differ in length"),
        ("28d", "1m", "duration: '1m' is less than an hour, too short for an SLO; m is a minute"),
        ("28d", "59m", "duration: '59m' is less than an hour"),
        ("28d", "a month", "duration: 'a month' is not a duration"),
        ("isRolling: true", "isRolling: false", "isRolling: 'false': only a rolling window can be judged"),
        ("isRolling: true", "calendar: {startTime: 2022-01-01 12:00:00}", "calendar: a window of the calendar cannot"),
        ("isRolling: true}", "isRolling: true}, {duration: 7d}", "timeWindow: has 2 entries; write one"),
        ("metric: ttft", "metric: fps", "fps: unknown field"),
        ("metric: ttft", "query: ttft", "query: is no field that can be read here"),
        (f"{OURS}{{metric", f"{OURS}{{metric".replace("type", "metricSourceRef: x, type"), "metricSourceRef: a source"),
        ("{ratioMetric: {good:", "{ratioMetric: {bad: {}, good:", "bad: name the good requests instead"),
        ("{ratioMetric: {good:", "{ratioMetric: {raw: {}, good:", "raw: a stored ratio cannot be judged"),
        ("{good:", f"{{total: {{{OURS}{{thresholds: {{ttft: 1s}}}}}}}}, good:", "thresholds: is no field"),
        ("{thresholdMetric:", "{ratioMetric: {good: {}}, thresholdMetric:", "good.metricSource: is missing"),
        ("indicator: {spec: {thr", "indicatorRef: x\n  other: {spec: {thr", "spec.indicatorRef: an SLI elsewhere"),
        ("openslo/v1\nkind: SLO", "openslo/v1alpha\nkind: SLO", "0: apiVersion: 'openslo/v1alpha' cannot be read"),
        ("SLO\nmetadata: {name: joint", "Slo\nmetadata: {name: joint", "2: kind: 'Slo' cannot be read; only 'SLO'"),
        ("kind: SLO", "kind: SLI", "has no document of kind SLO"),
        ("spec:", "spec: [", "cannot be read"),
        ("apiVersion: openslo/v1\nkind: Service\nmetadata: {name: llm}", "text", "1: the file: Input should be"),
    ],
)  # fmt: skip
def test_what_has_no_meaning_here_is_refused_by_its_name(imported, old, new, said):
    assert old in OPENSLO
    assert [line for line in imported(OPENSLO.replace(old, new)) if said in line]


def test_all_that_is_wrong_is_told_at_once(imported):
    text = OPENSLO.replace("isRolling: true", "isRolling: false").replace("Occurrences", "Timeslices")
    assert [line.split(": ")[:2] for line in imported(text)] == [
        ["0", "spec.timeWindow[0].isRolling"],
        ["0", "spec.budgetingMethod"],
    ]


def test_two_metrics_or_none_are_refused(imported):
    both = OPENSLO.replace("{ratioMetric:", f"{{thresholdMetric: {{{OURS}{{metric: ttft}}}}}}, ratioMetric:")
    one = f"{{ratioMetric: {{good: {{{OURS}{{thresholds: {{ttft: 1s, tpot: 80ms}}}}}}}}}}}}"
    for text in (both, OPENSLO.replace(one, "{}")):
        assert text != OPENSLO
        assert imported(text) == ["2: spec.indicator.spec: needs either a thresholdMetric or a ratioMetric"]
