"""The requests to the API that the documentation shows are answered, each by the collector's own application."""

import random
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from benchmarks import soak
from tests.collector.rows import NOW, SECOND

ROOT = Path(__file__).parents[3]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
URL = re.compile(r"curl [^`\n]*?((?:\$API|(?:http://)?[\w.]+:8080)/[^\s\"'`)|]*)")
CALLS = sorted({url.rstrip(".,;:") for page in PAGES for url in URL.findall(page.read_text())})


@pytest.fixture
def one(rows):
    return rows.request(ended=NOW - SECOND, slo_class="chat")


def test_the_pages_show_some():
    assert len(CALLS) >= 10


@pytest.mark.parametrize("seed", range(10))
def test_a_question_of_the_soak_is_answered(api, seed):
    answer = api.client.get(f"/api/v1/{soak.question(random.Random(seed))}")
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("call", CALLS)
def test_a_request_of_the_documentation_is_answered(api, one, call):
    url = urlsplit(
        re.sub(r"^\$API", "http://api/api/v1", call) if "$API" in call else f"http://{call.removeprefix('http://')}"
    )
    path = url.path.replace("TRACE_ID", one["trace_id"]).replace("NAME", "chat")
    answer = api.client.get(path, params=url.query.replace("NAME", "chat"))
    assert answer.status_code == 200 or (path == "/readyz" and answer.status_code == 503), answer.text
