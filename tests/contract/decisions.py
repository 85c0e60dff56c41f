"""Reads the entries of docs/decisions/. `python -m tests.contract.decisions` prints how many words each page has."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "decisions"
WORDS_EACH, WORDS_TOGETHER = 120, 10_000
CITATION = re.compile(r"decisions/[a-z]+\.md#(\d+)-|\b[Dd]ecisions? (\d+)(?: and (\d+))?\b")
LABELLED = re.compile(r"\[(?:[Dd]ecision )?(\d+)\]\(([^)#\s]*)#(\d+)-[^)\s]*\)")


@dataclass(frozen=True)
class Entry:
    """A decision: `## 12. Title` and the text up to the next heading."""

    number: int
    title: str
    text: str
    page: Path

    @property
    def words(self) -> int:
        """Of title and text. The address of a link is no word."""
        return len(re.sub(r"\]\([^)]*\)", "]", f"{self.title} {self.text}").split())

    @property
    def test(self) -> str:
        """What stands behind **Test:**, or nothing."""
        return self.text.partition("**Test:**")[2].strip()


def entries_of(page: Path) -> list[Entry]:
    """The entries of a page, in its order."""
    parts = re.split(r"^## (\d+)\. (.+)$", page.read_text(), flags=re.MULTILINE)[1:]
    numbers, titles, texts = parts[::3], parts[1::3], parts[2::3]
    return [Entry(int(n), title, text, page) for n, title, text in zip(numbers, titles, texts, strict=True)]


def read() -> list[Entry]:
    """All entries, page by page."""
    return [entry for page in sorted(FOLDER.glob("*.md")) for entry in entries_of(page)]


def cited(text: str) -> Iterator[int]:
    """The numbers of decisions that a text names in words or by a link."""
    yield from (int(number) for found in CITATION.findall(text) for number in found if number)


def prose() -> Iterator[tuple[str, str]]:
    """(path, text) of the files of the repository in which people write about decisions, without the tests of this."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for path in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        written = path.endswith((".md", ".py", ".sql", ".yml", ".yaml", ".toml")) and (ROOT / path).is_file()
        if written and not path.endswith("contract/test_decisions.py"):
            yield path, (ROOT / path).read_text()


def wrong_labels(text: str) -> list[str]:
    """Links whose text has another number than their address."""
    return [link[0] for link in LABELLED.finditer(text) if link[1] != link[3]]


def wrong(entries: Iterable[Entry]) -> Iterator[str]:
    """What breaks a rule of the folder's README, in words."""
    known: dict[int, Entry] = {}
    for before, entry in zip([None, *(entries := list(entries))], entries, strict=False):
        name = f"{entry.page.name} {entry.number}"
        if entry.words > WORDS_EACH:
            yield f"{name} has {entry.words} words, and {WORDS_EACH} are the limit"
        if entry.number in known:
            yield f"{name} has the number of {known[entry.number].page.name}"
        if before and before.page == entry.page and before.number > entry.number:
            yield f"{name} stands behind {before.number}"
        if not re.search(r"`(?:tests/|python -m )[^`]+`", entry.test):
            yield f"{name} names no test"
        known[entry.number] = entry
    words = sum(entry.words for entry in entries)
    if words > WORDS_TOGETHER:
        yield f"all have {words} words, and {WORDS_TOGETHER} are the limit"


def main() -> None:
    """Print the words of each page and of all, and what is wrong."""
    entries = read()
    for page in sorted({entry.page for entry in entries}):
        of_page = [entry.words for entry in entries if entry.page == page]
        print(f"{page.name:15} {len(of_page):4} entries {sum(of_page):6} words, {max(of_page)} at most")
    print(f"{'together':15} {len(entries):4} entries {sum(entry.words for entry in entries):6} words")
    print("\n".join(wrong(entries)))


if __name__ == "__main__":
    main()
