"""docs/explain.md: its table of causes is that of causes.yaml."""

from pathlib import Path

from collector.causes.names import load_causes

PAGE = Path(__file__).parents[3] / "docs" / "explain.md"


def test_the_page_has_a_row_for_each_cause():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    expected = [f"| `{name}` | {one.group} | {one.means} | {one.source} |" for name, one in load_causes().items()]
    assert rows[: len(expected)] == expected
