"""The documentation's links, the names it uses and its first example are held to the code."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

import tokentrail
from tests.contract.commands import PACKAGES
from tests.contract.mentions import misplaced, missing, python_prose, yaml_comments

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*sorted(ROOT.glob("*.md")), *DOCS, *ROOT.glob("examples/**/*.md"), *ROOT.glob("tests/**/*.md")]
PAGES += ROOT.glob(".github/**/*.md")
COMMENTED = [
    *ROOT.glob("*.yml"),
    *ROOT.glob("docker/Dockerfile"),
    *ROOT.glob("alerts/**/*.y*ml"),
    *ROOT.glob("collector/**/*.yaml"),
]
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(#[^)\s]*)?\)")


def anchors(page):
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    assert broken_links(page) == []


def broken_links(page):
    broken = []
    for target, anchor in LINK.findall(page.read_text()):
        if "://" in target:
            continue
        path = (page.parent / target) if target else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor[1:] not in anchors(path)):
            broken.append(target + anchor)
    return broken


def test_a_broken_link_or_anchor_is_found(tmp_path):
    (tmp_path / "other.md").write_text("# Its title\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n[a](other.md#its-title) [b](#here) [c](https://example.com/x) [d](gone.md) [e](other.md#x) [f](#y)"
    )
    assert broken_links(page) == ["gone.md", "other.md#x", "#y"]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_a_page_names_only_what_exists(page):
    # The switches of engines in this table are those of causes.yaml, whose test knows our engine's.
    text = re.sub(r"<!-- reference: remedies -->.*?<!-- end -->", "", page.read_text(), flags=re.DOTALL)
    names = missing(text)
    if (
        page.parent.name == "engines" or page.name == "kubernetes.md"
    ):  # these pages name flags, modules, variables and endpoints of those engines too
        names = [name for name in names if not name.startswith(("flag:", "module:", "variable: OTEL_", "endpoint:"))]
    assert names == []


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_and_comments_name_only_what_exists(package):
    found = {path: missing(python_prose(path.read_text())) for path in sorted((ROOT / package).rglob("*.py"))}
    assert {str(path.relative_to(ROOT)): names for path, names in found.items() if names} == {}


def test_symbols_are_in_the_files_that_pages_and_docstrings_name():
    texts = {page: page.read_text() for page in PAGES}
    texts |= {path: python_prose(path.read_text()) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    found = {str(path.relative_to(ROOT)): misplaced(text) for path, text in texts.items()}
    assert {path: symbols for path, symbols in found.items() if symbols} == {}


def test_comments_of_configuration_name_only_what_exists():
    found = {path: missing(yaml_comments(path.read_text())) for path in COMMENTED}
    assert len(found) > 8
    assert {str(path.relative_to(ROOT)): names for path, names in found.items() if names} == {}


def test_every_page_is_reached_from_the_readme():
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            targets = [(page.parent / target).resolve() for target, _ in LINK.findall(page.read_text()) if target]
            waiting += [path for path in targets if path.suffix == ".md" and path.exists()]
    assert {*DOCS} <= reached


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 90


def test_the_readme_shows_what_the_sdk_has():
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    tree = ast.parse(block)
    imported = [a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names]
    assert imported
    assert [name for name in imported if not hasattr(tokentrail, name)] == []


def test_make_help_lists_every_target():
    text = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", text, flags=re.MULTILINE)[1].split()
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [t for t in targets if f"make {t}" not in shown] == []


def test_ci_is_make_test():
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    assert {"make demo", "make test"} <= set(re.findall(r"make \w+", (ROOT / "README.md").read_text()))
