"""A label is a dimension as any other: each route answers about `label.arm=x` as about a column."""

import json
import random

import pytest

from collector.slo.model import SloFileError, load_slos
from tests.collector.rows import NOW, SECOND, Rows
from tests.support.api import NEEDED, openapi, windowed

SLOS = """
slos:
  - {name: chat, objective: "0.95", window: 30d, thresholds: {ttft: 500ms}, select: {variant: [a, ""]}}
  - {name: labelled, objective: "0.95", window: 30d, thresholds: {ttft: 500ms}, select: {label.arm: [a, ""]}}
  - {name: odd, objective: "0.9", window: 3d, thresholds: {e2e: 3s}, select: {label.a.b-c_d: [x], label.arm: [b]}}
"""
DOCUMENT = openapi()
OF_FILTERS = [
    path
    for path in windowed(DOCUMENT)
    if "label.*" in {one["name"] for one in DOCUMENT["paths"][f"/api/v1/{path}"]["get"]["parameters"]}
    and path != "verdict"  # whose parts are answers of other routes
]


def fill(rows):
    """Requests of three arms and of none, each in the column `variant` and in a label, some of them in flight."""
    rng = random.Random(39)
    for i, (arm, n) in enumerate((("a", 40), ("b", 25), ("it's", 6), ("", 9))):
        labels = {"arm": arm} if arm else {"other": "x"}
        made = rows.requests(
            [
                {
                    "ended": NOW - 1 - rng.randrange(800 * SECOND), "e2e": rng.randrange(SECOND, 6 * SECOND),
                    "ttft_ns": rng.choice((100_000_000, 900_000_000)), "variant": arm, "instance": f"i-{arm}",
                    "labels": labels | {"a.b-c_d": rng.choice("xy"), "session": f"s{rng.randrange(50)}"},
                    "status": rng.choice(("ok", "ok", "error")), "output_tokens": rng.choice((1, 9)),
                    "slo_class": "chat",
                }
                for _ in range(n)
            ]
        )  # fmt: skip
        rows.causes([(row, {"ttft_busy_us": rng.randrange(90_000)}) for row in made[::2]])
        rows.tokens(made[0], [rng.randrange(1000, 90_000) for _ in range(4)])
        same = {"variant": arm, "instance": f"i-{arm}", "labels": labels, "slo_class": "chat"}
        rows.open(start=NOW - 90 * SECOND, seen=NOW - SECOND, **same)
        rows.open(start=NOW - 80 * SECOND, seen=NOW - (70 - i) * SECOND, **same)


@pytest.fixture
def slos_file(tmp_path):
    path = tmp_path / "slos.yaml"
    path.write_text(SLOS)
    return path


@pytest.fixture(scope="module")
def filled(module_store):
    rows = Rows(module_store)
    fill(rows)
    return rows


@pytest.fixture
def rows(filled):
    return filled


def rounded(answer):
    """Twelve digits: the store adds in the order in which its threads end."""
    return json.loads(json.dumps(answer), parse_float=lambda text: float(f"{float(text):.12g}"))


@pytest.mark.parametrize("path", OF_FILTERS)
def test_a_filter_by_label_is_one_by_column(api, path):
    needed = NEEDED.get(path, {})
    common = {"label.a.b-c_d": ["x", ""], "not.label.session": ["s1", "s2"]}
    asked = (
        {"label.arm": ["", "it's", "b"], "not.label.arm": "b"},
        {"variant": ["", "it's", "b"], "not.variant": "b"},
    )
    by_label, by_column = (rounded(api(path, **needed, **common, **one)) for one in asked)
    assert by_label == by_column


def test_sides_selections_and_groups_by_label(api):
    for path, own in (
        ("compare", {"a.{}": "a", "b.{}": "b"}),
        ("check", {"slo": "chat", "against.{}": "a"}),
        ("differences", {"select.{}": "b"}),
    ):
        answers = []
        for column in ("label.arm", "variant"):
            answers.append(api(path, **{name.format(column): value for name, value in own.items()}))
            for one in answers[-1].get("differences", ()):
                assert one["conditions"][0]["dimension"] in ("label.arm", "variant", "instance")
                one["conditions"], one["also"], answers[-1]["summary"] = (), (), ""
        assert rounded(answers[0]) == rounded(answers[1]), path
    by_label, by_column = (api("summary", start="-20d", group_by=column) for column in ("label.arm", "variant"))
    assert rounded(by_label) == rounded(by_column)
    assert {group["value"] for group in by_label["groups"]} == {"a", "b", "it's", ""}
    for path, needed in (("timeseries", {"metric": "requests", "step": "5m"}), ("goodput", {"ttft": "500ms"})):
        groups = (api(path, **needed, group_by=column, top=3) for column in ("label.arm", "variant"))
        by_label, by_column = map(rounded, groups)
        assert by_label == by_column, path
    of_y = next(g for g in api("summary", group_by="label.a.b-c_d")["groups"] if g["value"] == "y")
    assert rounded({**of_y, "value": None}) == rounded({**api("summary", **{"label.a.b-c_d": "y"}), "value": None})


def test_an_slo_that_selects_by_label_is_judged_as_one_that_selects_by_column(api):
    told = {one["name"]: one for one in api("slos")["slos"]}
    words = ("name", "select", "hash", "warning")
    plain, labelled, odd = (
        {name: value for name, value in told[name].items() if name not in words} for name in ("chat", "labelled", "odd")
    )
    assert labelled == plain
    assert told["labelled"]["select"] == {"label.arm": ["a", ""], "vantage": ["server"]}
    alone = api("summary", **{"label.a.b-c_d": "x", "label.arm": "b"})["requests"]
    assert told["odd"]["selected_last_day"] == alone["total"] + alone["lost"]
    assert odd != plain
    answers = [str(api("explain", slo=slo)).replace("labelled", "chat") for slo in ("chat", "labelled")]
    assert answers[0] == answers[1]
    bad = [{r["trace_id"] for r in api("requests", slo=slo, verdict="bad")["requests"]} for slo in ("chat", "labelled")]
    assert bad[0] == bad[1] != set()
    incidents = {one["slo"]: one for one in api("incidents")["incidents"] if one["slo"]}
    assert incidents["labelled"]["top_cause"] == incidents["chat"]["top_cause"] is not None


def test_rows_and_values(api, rows):
    listed = api("requests", limit=1000, **{"label.arm": "it's"})["requests"]
    assert len(listed) == 6
    assert all(row["labels"].keys() == {"a.b-c_d", "arm", "session"} for row in listed)
    one = api(f"requests/{listed[0]['trace_id']}")["request"]
    assert one["labels"] == listed[0]["labels"]
    (open_,) = api("requests", status="in_flight", **{"label.arm": "it's"})["requests"]
    assert open_["labels"] == {"arm": "it's"}
    assert api(f"requests/{open_['trace_id']}")["request"]["labels"] == {"arm": "it's"}
    told = api("labels")["labels"]
    assert told["label.arm"] == told["variant"]
    named = [name for name in told if name.startswith("label.")]
    assert named == ["label.a.b-c_d", "label.session", "label.arm", "label.other"], "the commonest first"
    assert len(api("labels", limit=3)["labels"]["label.session"]) == 3


@pytest.mark.parametrize(
    ("params", "status"),
    [
        ({"label.": "x"}, 400),
        ({"label.9a": "x"}, 400),
        ({"label.a'b": "x"}, 400),
        ({"label." + "a" * 65: "x"}, 400),
        ({"label.*": "x"}, 400),
        ({"label": "x"}, 400),
        ({"labels.a": "x"}, 400),
        ({"a.label.arm": "x"}, 400),
        ({"label.arm": "x" * 257}, 400),
        ({f"label.n{i}": "x" for i in range(17)}, 400),
        ({f"label.n{i}": "x" for i in range(16)}, 200),
        ({"label._cut": ""}, 200),
        ({"label." + "a" * 64: "\\'; DROP TABLE requests"}, 200),
    ],
)
def test_names_that_no_label_has_are_refused(api, params, status):
    answer = api.client.get("/api/v1/summary", params=params)
    assert answer.status_code == status, answer.text
    if status == 400:
        assert all("label" in error["field"] for error in answer.json()["errors"])


@pytest.mark.parametrize("column", ["label.", "label.a b", "region", "label"])
def test_an_slo_file_names_the_selector_that_is_wrong(tmp_path, column):
    path = tmp_path / "slos.yaml"
    path.write_text(SLOS.replace("label.a.b-c_d", repr(column)))
    with pytest.raises(SloFileError, match=r"slos\[2\]\.select"):
        load_slos(path)
