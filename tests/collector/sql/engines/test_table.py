"""Recordings hold collector/engines/abilities.yaml, of which the table of docs/engines/README.md is made."""

import re
from pathlib import Path

import pytest

from collector.engines.abilities import known
from collector.otlp.signals import TRACES
from collector.slo.model import load_slos
from collector.store.insert import insert_otlp
from tests.collector.scrape.engine import recorded
from tests.collector.scrape.scrapes import Scrapes
from tests.support.recordings import DATA, Recording, replay

ROOT = Path(__file__).parents[4]
RECORDED = [connection for connection in known().connections if not connection.held_by.startswith("tests/")]


def test_every_connection_has_a_page_and_a_mark_for_everything():
    for connection in known().connections:
        assert (ROOT / connection.page).exists()
        assert connection in RECORDED or (ROOT / connection.held_by).is_dir()
        assert connection.tells.keys() == known().abilities.keys()
        assert connection.page in connection.way
        assert (connection.tells["requests"] == "partly") == bool(connection.misses)


PAGES = sorted((ROOT / "docs" / "engines").glob("[a-z]*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_shows_the_set_up_and_how_it_was_checked(page):
    assert re.search(r"^```(sh|python|yaml)$", page.read_text(), re.MULTILINE)
    assert re.search(r"^(\*\*Checked|#+ Checked)", page.read_text(), re.MULTILINE)


def test_the_slo_for_hosted_models_is_one(tmp_path):
    (slos,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/engines/hosted.md").read_text(), re.DOTALL)
    file = tmp_path / "slos.yaml"
    file.write_text(slos)
    assert [(slo.name, slo.select["vantage"]) for slo in load_slos(file)] == [("hosted-chat", ("client",))]


NEWEST = "SELECT max(at) FROM (SELECT max(end) AS at FROM requests UNION ALL SELECT max(time) FROM samples)"


def play(store, held_by):
    """Store a recording: a folder of spans, an archive of all signals, a series of scrapes, or one page of metrics."""
    file = DATA / held_by
    if held_by.endswith(".tar.xz"):
        Recording(held_by).replay(store)
    elif file.name == "metrics-series.jsonl.gz":
        ((service,),) = store.query("SELECT ifNull(any(service), '') FROM requests").result_rows
        scrapes = Scrapes(store)
        for time_ns, text in recorded(file.parent.name):
            scrapes.add(text, time_ns, service=service or "scraped")
        scrapes.store()
    elif file.suffix == ".prom":
        ((service, end_ns),) = store.query(
            "SELECT any(service), toUnixTimestamp64Nano(max(end)) FROM requests"
        ).result_rows
        Scrapes(store).add(file.read_text(), end_ns, service=service).store()
    elif (file / "traces.bin.gz").exists():
        replay(store, held_by)
    else:
        body = b"".join(file.read_bytes() for file in sorted((file / "traces").glob("*.bin")))
        insert_otlp(store, TRACES, body, held_by)


@pytest.mark.parametrize("connection", RECORDED, ids=lambda connection: connection.name)
def test_a_recording_tells_what_the_table_says(api, module_store, connection):
    for held_by in connection.held_by.split(" + "):
        play(module_store, held_by)
    ((end_s,),) = module_store.query(f"SELECT toUnixTimestamp(({NEWEST})) + 1").result_rows
    (line,) = api("engines", start=end_s - 3600, end=end_s)["engines"]
    assert line["engine"] == connection.engine
    assert {told["what"]: told["told"] for told in line["tells"]} == connection.tells
