"""A plugin of pytest, `-p tests.reached`: the seconds of each test that passes, and the functions that it enters.

A worker writes `{test: [seconds, ["collector/wal/segment.py:Segment.append", …]]}` into the folder that REACHED names.
A file is an entry, too: what the set-up of its tests enters counts for all of them.
"""

import json
import os
import sys
import threading
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType

ROOT = f"{Path(__file__).parents[1]}/"
PRODUCT = ("alerts", "collector", "dashboard", "instrumented_engine", "tokentrail")

_entered: dict[int, CodeType] = {}
_functions: dict[str, set[str]] = defaultdict(set)
_seconds: dict[str, float] = defaultdict(float)
_failed: set[str] = set()


def _trace(frame: FrameType, event: str, argument: object) -> None:
    """Note a call, and trace no line of it."""
    _entered[id(frame.f_code)] = frame.f_code


def pytest_sessionstart() -> None:
    threading.settrace(_trace)
    sys.settrace(_trace)


def pytest_runtest_makereport(item, call) -> None:
    test = item.nodeid.partition("[")[0]
    file, codes = test.partition("::")[0], [*_entered.values()]
    found = {f"{code.co_filename.removeprefix(ROOT)}:{code.co_qualname.partition('.<locals>')[0]}" for code in codes}
    _functions[file if call.when == "setup" else test] |= {one for one in found if one.startswith(PRODUCT)}
    _entered.clear()
    for name in (test, file):
        _seconds[name] += call.duration
        if call.excinfo:
            _failed.add(name)


def pytest_sessionfinish() -> None:
    sys.settrace(None)
    passed = {test: [round(seconds, 2), sorted(_functions[test])] for test, seconds in _seconds.items()}
    told = {test: value for test, value in passed.items() if test not in _failed and value[1]}
    Path(os.environ["REACHED"], f"{os.getpid()}.json").write_text(json.dumps(told))
