"""The reference blocks of docs/ are made of the code as it is, and what is made can be read."""

import sys
from textwrap import dedent

import pytest

from collector.engines.abilities import known
from collector.metrics import metrics
from collector.metrics.metrics import ALL, Metric
from collector.pipeline.settings import Settings
from tests.contract.commands import each_command
from tests.contract.reference import pages, shape
from tests.contract.reference.pages import absent, filled
from tests.contract.reference.settings import SECTIONS, documented, section_of
from tests.contract.reference.text import linked, table


def page(*marks):
    return "".join(f"## {mark.title()}\n<!-- reference: {mark} -->\nold\n<!-- end -->\nby hand\n" for mark in marks)


def block(mark, text=None):
    made = filled(page(mark) if text is None else text, "page.md")
    return made.partition(f"<!-- reference: {mark} -->\n")[2].partition("<!-- end -->")[0]


def test_the_pages_are_as_the_code_makes_them(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["reference", "--check"])
    assert pages.main() == 0, capsys.readouterr().err


def test_old_and_absent_blocks_are_told_and_only_blocks_are_written(monkeypatch, capsys, tmp_path):
    file = tmp_path / "docs" / "metrics.md"
    file.parent.mkdir()
    file.write_text(page("metrics store"))
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "PAGES", (file,))
    monkeypatch.setattr(sys, "argv", ["reference", "--check"])
    assert pages.main() == 1
    told = capsys.readouterr().err
    assert "docs/metrics.md is old: run python -m tests.contract.reference\n" in told
    assert "docs/api.md: write <!-- reference: GET /api/v1/goodput --> and <!-- end -->\n" in told
    assert "docs/metrics.md: write <!-- reference: metrics slos --> and <!-- end -->\n" in told
    assert "docs/cli.md: add doctor to a mark <!-- reference: options … -->\n" in told
    assert "metrics store" not in told
    assert "old\n" in file.read_text()

    monkeypatch.setattr(sys, "argv", ["reference"])
    assert pages.main() == 1, "blocks are absent still"
    assert "| `tokentrail_store_rows` | gauge |" in file.read_text()
    assert "old\n" not in file.read_text()
    assert file.read_text().endswith("by hand\n")


def test_a_mark_that_nothing_is_made_for_is_an_error():
    with pytest.raises(ValueError, match="nothing is made for 'GET /api/v1/none'"):
        block("GET /api/v1/none")


def test_an_endpoint_has_its_own_parameters_and_its_answer():
    made = block("GET /api/v1/requests")
    assert made.startswith("`GET /api/v1/requests`: Request rows, ")
    assert "(#parameters-of-all-endpoints), and:\n\n| parameter |" in made
    assert "| `limit` | 1 to 1000: rows of a page | `100` |\n" in made
    sorts = "`end`, `ttft`, `tpot`, `e2e`, `gap` or `first_visible`"
    assert f"| `sort` | {sorts}: order, the largest first | `end` |\n" in made
    assert "| `tenant` |" not in made
    assert "\n  next: string | null,  // The `cursor` of the next page; null on the last one\n" in made
    assert "| `start` | only requests that ended from then on" in block("GET /api/v1/requests/{trace_id}")
    assert "It takes [`start` and `end`]" in block("GET /api/v1/spans")
    assert "It takes" not in block("GET /api/v1/storage")


def test_the_table_of_endpoints_links_to_their_sections():
    text = page("endpoints", "GET /api/v1/storage").replace("## Get /Api/V1/Storage", "## Disk use")
    assert "| [`GET /api/v1/storage`](#disk-use) | Disk use and retention |" in block("endpoints", text)


def test_a_model_that_stands_on_the_page_is_named_and_not_drawn_again():
    alone, beside = (
        block("GET /api/v1/summary"),
        block("GET /api/v1/summary", page("GET /api/v1/summary", "model Counts")),
    )
    assert "requests: Counts" in beside
    assert "unselected: number" not in beside
    assert "unselected: number" in alone


SCHEMAS = {
    "Page": {
        "properties": {
            "rows": {"type": "array", "items": {"$ref": "#/x/RowOut"}, "description": "The\n rows."},
            "first": {"anyOf": [{"$ref": "#/x/RowOut"}, {"type": "null"}]},
            "kind": {"type": "array", "items": {"enum": ["a", "b"], "type": "string"}},
            "by_name": {"type": "object", "additionalProperties": {"type": "number"}},
            "once": {"$ref": "#/x/Once"},
        }
    },
    "RowOut": {"properties": {"a": {"type": "integer"}, "b": {"anyOf": [{"type": "integer"}, {"type": "number"}]}}},
    "Once": {"properties": {"ok": {"type": "boolean"}}, "description": "It is there once."},
    "More": {"properties": {}},
}
SCHEMAS["More"]["properties"] = SCHEMAS["Page"]["properties"] | {"more": {"type": "string"}}


def test_a_schema_is_drawn_as_a_type():
    assert shape.drawing("Page", SCHEMAS, ()) == dedent("""\
        Page = {
          rows: Row[],  // The rows
          first: Row | null, kind: ("a" | "b")[], by_name: {[key: string]: number},
          // It is there once
          once: {
            ok: boolean,
          },
        }
        Row = {
          a: number, b: number,
        }""")


def test_a_schema_that_adds_to_one_that_is_known_names_it():
    assert shape.drawing("More", SCHEMAS, {"Page"}) == "More = {\n  ...Page,\n  more: string,\n}"
    assert "...Page" not in shape.drawing("Page", SCHEMAS, {"Page"})


def test_what_two_answers_have_is_drawn_below_the_first_of_them():
    def model(**uses):
        return {"properties": {name: {"$ref": f"#/{used}"} for name, used in uses.items()}}

    schemas = {"A": model(x="X"), "B": model(x="X", y="Y"), "X": model(z="Z"), "Y": model(), "Z": model()}
    assert shape.first_uses(["A", "B"], schemas) == {"A": {"X"}, "B": set()}
    assert "\nX = {" in shape.drawing("A", schemas, {"A", "B"}, {"X"})
    assert "x: X," in shape.drawing("B", schemas, {"A", "B", "X"})


def test_lines_have_an_end():
    fields = {f"field_{n}": {"type": "string", "description": "word " * (60 if n == 3 else 0)} for n in range(40)}
    drawn = shape.drawing("Page", {"Page": {"properties": fields}}, ())
    assert max(map(len, drawn.splitlines())) in range(100, 121)
    assert drawn.count("field_") == 40


@pytest.mark.parametrize(
    ("metric", "section", "cell"),
    [
        (Metric("tokentrail_slo_x", "gauge", "X.", ("slo", "tenant", "window")), "slos", "X. By `window`"),
        (Metric("tokentrail_slo_x", "gauge", "X by `window`.", ("slo", "tenant", "window")), "slos", "X by `window`"),
        (Metric("tokentrail_slo_x", "gauge", "X.", ("slo",)), "slos", "X. Labels: `slo`"),
        (Metric("tokentrail_slo_x", "gauge", "X."), "slos", "X. No labels"),
        (Metric("tokentrail_collector_x", "gauge", "X."), "collector", "X"),
        (
            Metric("tokentrail_store_x", "gauge", "X.", ("host", "disk", "path")),
            "store",
            "X. By `host`, `disk` and `path`",
        ),
    ],
)
def test_a_metric_stands_in_its_section_with_the_labels_that_others_lack(monkeypatch, metric, section, cell):
    assert section_of(metric) == section
    monkeypatch.setattr(metrics, "ALL", (metric,))
    assert (
        block(f"metrics {section}")
        == f"| metric | type | meaning |\n| --- | --- | --- |\n| `{metric.name}` | gauge | {cell} |\n"
    )


def test_each_metric_stands_in_one_section():
    made = "".join(block(f"metrics {section}") for section in SECTIONS)
    assert [made.count(f"| `{metric.name}` |") for metric in ALL] == [1] * len(ALL)


def test_a_setting_has_its_meaning_and_its_default():
    collector, engine = block("settings collector.pipeline.settings"), block("settings instrumented_engine.settings")
    assert collector.count("\n") == len(Settings.model_fields) + 2
    assert "| `--data-dir` | Folder of the logs, the dead letters and the embedded store; one collector " in collector
    assert " owns it | `.data` |\n" in collector
    assert "| `--fsync` | `ack`: on disk" in collector
    assert " cut | `ack` |\n" in collector
    assert "| `--allow-anonymous` |" in collector
    assert "reach | `false` |\n" in collector
    assert "| `--threads` | CPU threads | measured at the start |\n" in engine
    assert "| `--chunked-prefill`, `--no-chunked-prefill` |" in engine
    assert "| `--device` | `auto`, `cpu` or `cuda`. Where to compute; " in engine


def test_variables_are_constants_with_a_docstring():
    meaning, default = "File of the CA that signed the collector's certificate, in PEM", "the CAs of this machine"
    assert [*documented("tokentrail.shared.connection")][1] == ("TOKENTRAIL_API_TLS_CA", meaning, default)


def test_commands_and_options_stand_with_their_help():
    made = block("commands")
    assert made.count("\n") == len([*each_command()]) + 2
    shown = "Print dead letters: why and when each was set aside, and the spans in it"
    assert f"| `tokentrail dead-letters show NAME` | {shown} |\n" in made
    options = block("options dead-letters check-store")
    assert (
        "| `--data-dir` | `check-store`, `dead-letters list`, `dead-letters show` and `dead-letters replay` |"
        in options
    )
    assert "Variable: `TOKENTRAIL_DATA_DIR` | `.data` |\n" in options
    assert (
        "| `--set-aside` | `check-store` | Move damaged parts out, so that all other rows can be read |  |\n" in options
    )
    assert "--help" not in options
    assert "| option | meaning | default |" in block("options proxy")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see docs/slos.md#good-requests.", "see [good requests](slos.md#good-requests)."),
        ("an SLO file (docs/slos.md)", "an SLO file ([more](slos.md))"),
        ("docs/page.md#there", "[there](#there)"),
        ("```ts\n// docs/slos.md\n```\ndocs/slos.md", "```ts\n// docs/slos.md\n```\n[slos](slos.md)"),
    ],
)
def test_pages_that_a_text_names_become_links(text, shown):
    assert linked(text, "page.md") == shown


def test_a_bar_in_a_cell_ends_no_column():
    assert table(("a", "b"), [("x|y", "z")]) == "| a | b |\n| --- | --- |\n| x\\|y | z |\n"


def test_absent_blocks_are_of_any_page():
    assert [*absent([page.read_text() for page in pages.PAGES])] == []


def test_tables_of_data_files_have_a_row_for_each_entry():
    causes, conditions, engines = (block(mark) for mark in ("causes", "conditions", "engines"))
    assert "| `gap` | host gap | The engine computed nothing between two steps" in causes
    assert "| `slo_burn` | [TokentrailSloBurn](#tokentrailsloburn) | page or ticket | yes |  |  |  |\n" in conditions
    assert "(#tokentrailbudgetforecast) | ticket |  | 30m |  | `slo_burn` |" in conditions
    assert engines.startswith("|  | requests | tokens |")
    assert engines.splitlines()[1] == "| --- |" + " :-: |" * len(known().abilities)
    assert "| [vLLM, from inside](vllm.md) | ● |" in engines
    assert "| [tokentrail's SDK](../sdk.md) | ● |" in engines
