"""A log's lines are the process's own: a name in them neither begins a line nor moves the cursor."""

import io
import logging
import sys

import pytest

from tokentrail.shared import log_lines

FORGED = "x\n2026-01-01 ERROR collector: all is lost\r\x1b[2J\u202etfel"
SHOWN = "x\n    2026-01-01 ERROR collector: all is lost\\r\\x1b[2J\\u202etfel"


@pytest.fixture
def written(monkeypatch):
    root, stream = logging.RootLogger(logging.WARNING), io.StringIO()
    monkeypatch.setattr(logging, "root", root)
    log_lines.begin("%(levelname)s %(message)s", stream)
    yield lambda: stream.getvalue()
    assert root.level == logging.INFO


def test_a_name_of_others_begins_no_line(written):
    logging.info("of the process %s", FORGED)
    logging.info("two\nlines, %s of which", "é→ß")
    assert written() == f"INFO of the process {SHOWN}\nINFO two\n    lines, é→ß of which\n"


def test_neither_does_one_in_a_traceback(written):
    try:
        raise ValueError(FORGED)
    except ValueError:
        logging.warning("failed", exc_info=sys.exc_info())
    first, *more = written().splitlines()
    assert first == "WARNING failed"
    assert {line[:4] for line in more} == {"    "}
    assert f"ValueError: {SHOWN}\n" in written()
