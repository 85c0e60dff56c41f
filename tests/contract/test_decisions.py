"""docs/decisions/: entries are short, numbered once and tested, and whoever names one names one that is there."""

from pathlib import Path

import pytest

from tests.contract import decisions
from tests.contract.decisions import Entry

ROOT = Path(__file__).parents[2]
GOOD = Entry(7, "Counts", "From rows. **Test:** `tests/contract/test_decisions.py`.", Path("a.md"))


def test_the_entries_keep_the_rules_of_the_folder():
    entries = decisions.read()
    assert len(entries) > 150
    assert list(decisions.wrong(entries)) == []


def test_pages_and_code_are_searched():
    assert {"docs/alerts.md", "tests/alerts/test_rules.py"} < {path for path, _ in decisions.prose()}


def test_every_decision_that_is_named_is_there():
    known = {entry.number for entry in decisions.read()}
    named = {path: [n for n in decisions.cited(text) if n not in known] for path, text in decisions.prose()}
    assert {path: numbers for path, numbers in named.items() if numbers} == {}


def test_a_link_has_the_number_of_its_decision():
    wrong = {path: decisions.wrong_labels(text) for path, text in decisions.prose()}
    assert {path: links for path, links in wrong.items() if links} == {}


def test_decisions_stand_in_the_folder_alone():
    assert not (ROOT / "docs" / "decisions.md").exists(), "move its entries to docs/decisions/<room>.md"
    assert decisions.entries_of(ROOT / "docs" / "decisions" / "README.md") == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"text": GOOD.text + " word" * 120}, ["a.md 7 has 125 words, and 120 are the limit"]),
        ({"text": "From rows. **Test:** none."}, ["a.md 7 names no test"]),
        ({"text": "From rows: `tests/contract/test_decisions.py`."}, ["a.md 7 names no test"]),
        ({"text": GOOD.text + " word" * 115}, []),
        ({}, []),
    ],
)
def test_a_wrong_entry_is_told(change, told):
    assert list(decisions.wrong([Entry(**{**vars(GOOD), **change})])) == told


def test_numbers_go_up_within_a_page_and_come_once():
    other = Entry(**{**vars(GOOD), "page": Path("b.md")})
    smaller = Entry(**{**vars(GOOD), "number": 6})
    assert list(decisions.wrong([GOOD, other])) == ["b.md 7 has the number of a.md"]
    assert list(decisions.wrong([GOOD, smaller])) == ["a.md 6 stands behind 7"]
    assert list(decisions.wrong([smaller, GOOD])) == []
    assert list(decisions.wrong([GOOD, Entry(**{**vars(other), "number": 3})])) == []


def test_all_words_have_a_limit():
    text = f"{'word ' * 97}**Test:** {GOOD.test}"
    many = [Entry(n, "Counts", text, Path("a.md")) for n in range(101)]
    assert list(decisions.wrong(many)) == ["all have 10100 words, and 10000 are the limit"]
    assert list(decisions.wrong(many[:100])) == []


def test_the_address_of_a_link_is_no_word():
    assert Entry(1, "A title", "of [decision 2](sdk.md#2-of-many words)", Path("a.md")).words == 5


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("see decision 163, Decisions 177 and 181", [163, 177, 181]),
        ("[why](../docs/decisions/proxy.md#147-the-proxys-goal)", [147]),
        ("a decision of 12 people", []),
    ],
)
def test_named_decisions_are_found(text, numbers):
    assert list(decisions.cited(text)) == numbers


def test_a_label_of_another_number_is_found():
    right = "[decision 9](a.md#9-x) [why](a.md#9-x) [12](#12-y)"
    assert decisions.wrong_labels(right) == []
    wrong = ["[Decision 107](#109-z)", "[4](b.md#5-w)"]
    assert decisions.wrong_labels(" ".join([right, *wrong])) == wrong
