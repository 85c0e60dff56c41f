"""A field of the API's answers has a reader: a page, a command, a rule, an example, the docs, or the collector."""

import ast
import re
from pathlib import Path

from tests.support.api import openapi

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ("dashboard", "tokentrail", "alerts", "examples", "benchmarks")
KINDS = (".py", ".js", ".yml", ".yaml", ".sh")
GENERATED = re.compile(r"<!-- reference.*?<!-- end -->", re.DOTALL)
READERS = {
    **dict.fromkeys(
        ("kv_transfer_s", "wait_batch_s", "wait_kv_s", "wait_priority_s", "wait_tokens_s"),
        ("dashboard/views/requests.py", '_s")'),
    ),
    **dict.fromkeys(("evidence_of_good", "evidence_of_worse"), ("tokentrail/mcp/tools.py", '"check", slo=slo')),
    "requests_good": ("tokentrail/mcp/tools.py", '"slos", start'),
}
"""Readers that name no field: where they are, and what they do with all of an answer, or with fields of a kind."""


def fields():
    """The names of fields in answers."""
    return {field for model in openapi()["components"]["schemas"].values() for field in model.get("properties", ())}


def words():
    """The words of all clients, and of what is written by hand in the docs."""
    files = [file for top in CLIENTS for file in (ROOT / top).rglob("*") if file.suffix in KINDS]
    docs = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    texts = [*(file.read_text() for file in files), *(GENERATED.sub("", file.read_text()) for file in docs)]
    return set(re.findall(r"\w+", "\n".join(texts)))


def attributes():
    """What the collector reads of its own objects, as a sentence of an answer does."""
    trees = (ast.parse(file.read_text()) for file in (ROOT / "collector").rglob("*.py"))
    return {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_a_field_has_a_reader():
    """Delete a field that nobody reads; else a page of the docs says what it is for."""
    assert fields() - words() - attributes() == READERS.keys()


def test_the_readers_are_there():
    for file, text in READERS.values():
        assert text in (ROOT / file).read_text(), (file, text)
