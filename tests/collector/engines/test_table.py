"""README.md's table of engines is made of collector/api/abilities.yaml, and recordings hold that file."""

from pathlib import Path

import pytest

from collector.api.abilities import known
from collector.signals import TRACES
from collector.store.insert import insert_otlp
from tests.support.recordings import DATA, replay

ROOT = Path(__file__).parents[3]
MARKS = {"full": "●", "partly": "◐", "none": "○"}
RECORDED = [connection for connection in known().connections if (DATA / connection.held_by).is_dir()]


def table():
    """The lines of the table as README.md must have them."""
    header = ["", *known().abilities.values()]
    rows = [
        [f"[{connection.name}]({connection.page})", *(MARKS[connection.tells[what]] for what in known().abilities)]
        for connection in known().connections
    ]
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] + [":-:"] * len(known().abilities), *rows)]


def test_readme_has_the_table():
    lines = "\n".join(table())
    assert lines in (ROOT / "README.md").read_text(), f"write these lines:\n{lines}"


def test_every_connection_has_a_page_and_a_mark_for_everything():
    for connection in known().connections:
        assert (ROOT / connection.page).exists()
        assert (DATA / connection.held_by).is_dir() or (ROOT / connection.held_by).is_dir()
        assert connection.tells.keys() == known().abilities.keys()
        assert connection.page in connection.way


@pytest.mark.parametrize("connection", RECORDED, ids=lambda connection: connection.held_by)
def test_a_recording_tells_what_the_table_says(api, module_store, connection):
    folder = DATA / connection.held_by
    if (folder / "traces.bin.gz").exists():
        replay(module_store, connection.held_by)
    else:
        body = b"".join(file.read_bytes() for file in sorted((folder / "traces").glob("*.bin")))
        insert_otlp(module_store, TRACES, body, connection.held_by)
    ((end_s,),) = module_store.query("SELECT toUnixTimestamp(max(end)) + 1 FROM requests").result_rows
    (line,) = api("engines", start=end_s - 3600, end=end_s)["engines"]
    assert line["engine"] == connection.engine
    assert {told["what"]: told["told"] for told in line["tells"]} == connection.tells
