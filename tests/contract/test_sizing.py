"""docs/storage.md has the numbers of the committed results, and the arithmetic between them is right."""

import json
import shutil

import pytest

from benchmarks.sizing import PAGE, ROOT, Constants, fill, tables

SDK = {"realistic_batch_64_ns_per_token": 2_000.0, "engine_thread_batch_64_ns_per_token": 50.0}
COLLECTOR = {
    "spans": 1_100, "tokens": 1_000, "collector_us_per_span": 2.0, "bytes_per_span_on_the_wire": 100.0,
    "bytes_per_token_at_rest": 2.0,
}  # fmt: skip


@pytest.fixture
def results(tmp_path):
    def write(name, numbers, *, quick=False):
        (tmp_path / f"{name}.json").write_text(json.dumps({"quick": quick, "numbers": numbers}))

    write("sdk_span_cost", SDK)
    write("collector_ingest", COLLECTOR)
    return write, tmp_path


def test_the_page_has_the_numbers_of_the_results():
    page = PAGE.read_text()
    assert fill(page, tables(Constants.read())) == page, "run `python -m benchmarks.sizing --write`"


def test_the_costs_of_all_spans_are_spread_over_the_tokens(results):
    constants = Constants.read(results[1])
    assert constants.spans_per_token == 1.1
    assert constants.collector_us == pytest.approx(2.2)
    assert constants.wire_bytes == pytest.approx(110)
    assert (constants.sdk_ns, constants.engine_thread_ns, constants.rest_bytes) == (2000, 50, 2)


def test_a_rate_needs_twice_the_busy_cores_and_its_bytes(results):
    rows = [line.split(" | ") for line in tables(Constants.read(results[1]))["rates"].splitlines()[2:]]
    assert rows[0] == ["| 1,000", "0.1", "0.1", "0.11 MB/s", "0.17 GB", "1.2 GB |"]
    assert rows[2] == ["| 100,000", "0.4", "0.5", "11 MB/s", "17 GB", "120 GB |"]
    assert rows[3] == ["| 1,000,000", "4.0", "4.4", "110 MB/s", "170 GB", "1,200 GB |"]


def test_rough_numbers_are_not_planned_with(results):
    write, folder = results
    write("sdk_span_cost", SDK, quick=True)
    with pytest.raises(ValueError, match="made with --quick"):
        Constants.read(folder)


def test_a_page_without_a_mark_is_an_error():
    with pytest.raises(ValueError, match="no <!-- rates -->"):
        fill("<!-- rates -->\nx", {"rates": "y"})
    assert (
        fill("a\n<!-- rates -->\nx\n<!-- /rates -->\nb", {"rates": "y\n"}) == "a\n<!-- rates -->\ny\n<!-- /rates -->\nb"
    )


def test_a_result_that_moved_is_noticed(tmp_path):
    shutil.copytree(ROOT / "benchmarks" / "results", tmp_path / "results")
    file = tmp_path / "results" / "collector_ingest.json"
    report = json.loads(file.read_text())
    report["numbers"]["bytes_per_token_at_rest"] *= 1.2
    file.write_text(json.dumps(report))
    page = PAGE.read_text()
    assert fill(page, tables(Constants.read(tmp_path / "results"))) != page
