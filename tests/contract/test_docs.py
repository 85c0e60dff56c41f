"""The documentation leads where it says, and its first screen runs."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

import tokentrail

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(#[^)\s]*)?\)")


def anchors(page):
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    broken = []
    for target, anchor in LINK.findall(page.read_text()):
        if "://" in target:
            continue
        path = (page.parent / target) if target else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor[1:] not in anchors(path)):
            broken.append(target + anchor)
    assert broken == []


def test_every_page_is_reached_from_the_readme():
    linked = {target for target, _ in LINK.findall((ROOT / "README.md").read_text())}
    assert {f"docs/{p.name}" for p in PAGES[1:]} <= linked


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
