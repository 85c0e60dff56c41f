"""The collector's rooms: each has a row in the table, and imports point downward only."""

import ast
import re

from tests.contract.rooms import ROOMS, ROOT, files, imported, room_of, said


def test_every_file_lies_in_a_room():
    outside = {path.relative_to(ROOT / "collector").as_posix() for path in files() if not room_of(path)}
    assert outside == {"__init__.py", "causes/__init__.py"}
    assert {room_of(path) for path in files()} - {""} == ROOMS.keys()


def test_a_room_imports_the_rooms_of_its_row_and_no_others():
    actual = {room: set() for room in ROOMS}
    for path in files():
        if room_of(path):
            actual[room_of(path)].update(imported(path))
    assert actual == {room: set(row.split()) for room, row in ROOMS.items()}


def test_a_room_imports_rooms_that_stand_before_it():
    before = list(ROOMS)
    upward = {
        room: [name for name in row.split() if before.index(name) > before.index(room)] for room, row in ROOMS.items()
    }
    assert {room: names for room, names in upward.items() if names} == {}


def test_sql_lies_in_files_but_for_statements_about_the_store_itself():
    statement = re.compile(r"\b(SELECT|INSERT INTO|ALTER TABLE|CREATE (TABLE|OR REPLACE)|DROP TABLE|TRUNCATE)\b")
    found = {}
    for path in files():
        if room_of(path) in ("store", "keep"):
            continue  # these care for tables, parts and disks
        tree = ast.parse(path.read_text())
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings]
        if wrong := [text for text in texts if isinstance(text, str) and statement.search(text)]:
            found[path.relative_to(ROOT).as_posix()] = wrong
    made_up_day = {"collector/app/history.py"}
    assert found.keys() == made_up_day, found


def test_every_room_says_what_it_is():
    assert [room for room in ROOMS if len(said(room)) < 20] == []


def test_an_import_of_another_room_is_found(monkeypatch, tmp_path):
    (tmp_path / "collector/slo").mkdir(parents=True)
    monkeypatch.setattr("tests.contract.rooms.ROOT", tmp_path)
    bad = tmp_path / "collector/slo/bad.py"
    bad.write_text(
        "import json\nfrom collector.slo import model\nimport collector.store.lock\nfrom collector import api\n"
    )
    assert sorted(imported(bad)) == ["api", "store"]
