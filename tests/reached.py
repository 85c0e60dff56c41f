"""A plugin of pytest, `-p tests.reached`: the CPU seconds of each test, and the product's functions that it enters.

Each process writes lines `["tests/alerts/test_x.py::test_y", 0.2, true, ["alerts/links.py:Links.of"]]` into a file of
the folder that REACHED names: a test, seconds, whether it passed, and functions that were not told of it before.
A file is an entry, too: what the set-up of its tests enters counts for all of them.
"""

import json
import os
import sys
import threading
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import IO, Any

from tests.times import cpu_s

ROOT = f"{Path(__file__).parents[1]}/"
PRODUCT = ("alerts", "collector", "dashboard", "instrumented_engine", "tokentrail")

_entered: dict[int, CodeType] = {}
_told: dict[str, set[str]] = defaultdict(set)
_lines: list[IO[str]] = []
_mark = [0.0]


def _trace(frame: FrameType, event: str, argument: object) -> None:
    """Note a call, and trace no line of it."""
    _entered[id(frame.f_code)] = frame.f_code


def pytest_sessionstart() -> None:
    _lines.append(Path(os.environ["REACHED"], f"{os.getpid()}.jsonl").open("w", buffering=1))  # noqa: SIM115
    threading.settrace(_trace)
    sys.settrace(_trace)


def pytest_collection_finish() -> None:
    _mark[:] = [cpu_s()]


def pytest_runtest_makereport(item: Any, call: Any) -> None:
    test = item.nodeid.partition("[")[0]
    file, codes, now = test.partition("::")[0], [*_entered.values()], cpu_s()
    _entered.clear()
    sys.settrace(_trace)  # Python ends it at a RecursionError
    found = {f"{code.co_filename.removeprefix(ROOT)}:{code.co_qualname.partition('.<locals>')[0]}" for code in codes}
    entry = file if call.when == "setup" else test
    new = {one for one in found if one.startswith(PRODUCT)} - _told[entry]
    _told[entry] |= new
    for name in (test, file):
        told = [name, round(now - _mark[0], 3), not call.excinfo, sorted(new) if name == entry else []]
        _lines[0].write(json.dumps(told) + "\n")
    _mark[:] = [now]


def merged(folder: Path) -> dict[str, tuple[float, list[str]]]:
    """The seconds and functions of the tests that passed, and of the files of which all did."""
    seconds, functions, failed = defaultdict[str, float](float), defaultdict[str, set[str]](set), set[str]()
    for line in (line for file in folder.iterdir() for line in file.read_text().splitlines()):
        test, took_s, passed, entered = json.loads(line)
        seconds[test] += took_s
        functions[test].update(entered)
        failed |= set() if passed else {test}
    return {test: (round(seconds[test], 2), sorted(functions[test])) for test in seconds.keys() - failed}
