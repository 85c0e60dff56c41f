"""The documentation as a site: each page is in it, no link of it is broken, and it needs nothing from elsewhere."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://github.com/tokentrail/tokentrail/"
LOADS = re.compile(
    r'<(?:script|img|iframe)\b[^>]*\bsrc="([^"]*)"|<link\b[^>]*\brel="(?:stylesheet|icon)"[^>]*\bhref="([^"]*)"'
)


def built(pages, to):
    command = (sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "--conf-dir", "docs")
    return subprocess.run([*command, str(pages), str(to)], cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    to = tmp_path_factory.mktemp("site")
    done = built("docs", to)
    assert done.returncode == 0, done.stderr
    return to


def test_each_page_is_in_it(site):
    pages = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
    assert len(pages) > 50
    front = (site / "index.html").read_text()
    assert [str(page) for page in sorted(pages) if f'href="{page}.html"' not in front] == ["index"]
    assert (site / "searchindex.js").stat().st_size > 100_000


def test_it_loads_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        loaded = ["".join(found) for found in LOADS.findall(page.read_text())]
        assert loaded
        assert not [one for one in loaded if one.startswith(("http:", "https:", "//"))], page


def test_links_to_code_lead_to_the_repository(site):
    links = re.findall(rf'href="{REPOSITORY}(?:blob|tree)/main/([^"#?]*)', (site / "benchmarks.html").read_text())
    assert "benchmarks/results" in links
    assert [path for path in links if not (ROOT / path).exists()] == []


def test_a_picture_is_shown_as_its_reader_reads(tmp_path):
    """In the light or in the dark, where the picture has a file for it."""
    show = runpy.run_path(str(ROOT / "docs" / "conf.py"))["in_light_and_dark"]
    show.__globals__["DOCS"] = tmp_path
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "now-dark.png").touch()
    source = ["![The page Now](images/now.png)\n\n![Other](images/other.png)\n"]
    show(None, "index", source)
    light = '<img class="only-light" src="images/now.png" alt="The page Now">'
    dark = '<img class="only-dark" src="images/now-dark.png" alt="The page Now">'
    assert source == [f"{light}{dark}\n\n![Other](images/other.png)\n"]


def test_a_broken_link_is_an_error(tmp_path):
    (tmp_path / "index.md").write_text("# A\n\n[b](b.md) and [c](#c)\n")
    done = built(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert "b.md" in done.stderr or "/b" in done.stderr
    assert "'c'" in done.stderr
