"""`python -m tests.mutants --seed 37 --count 100 --room collector/wal`: do the tests notice when the code is wrong?

Each mutation changes one place of the product: a comparison is flipped or moved by its boundary, `and` becomes `or`,
`+` becomes `-`, a number grows by one, a truth is inverted, a statement is left out. Then the test files run that a
developer would run for that file: those of its name or room, and those that import it. A mutation that they pass
survives. The seed draws from each room (folder) in turn. Tests run in a copy of the checkout. Prints JSON.
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict, namedtuple
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from tests.conftest import SLOW

ROOT = Path(__file__).parents[1]
PRODUCT = ("alerts", "collector", "dashboard", "instrumented_engine", "tokentrail")
MOST_FILES = 6
LIMIT_S = 300
PYTEST = ("-q", "-rfE", "--tb=no", "-p", "no:cacheprovider")
FLIPPED = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,), ast.And: (ast.Or,), ast.Or: (ast.And,), ast.Add: (ast.Sub,), ast.Sub: (ast.Add,),
}  # fmt: skip
Mutation = namedtuple("Mutation", "file line begin end before after")  # begin and end in bytes
UNSEEN = {"debug", "info", "warning", "exception", "print"}  # only a reader of the log would notice


def variants(node: Any) -> Iterator[str]:
    """The code that may stand in the place of a node."""
    match node:
        case ast.Compare(ops=[op]):
            yield from (ast.unparse(ast.Compare(node.left, [new()], node.comparators)) for new in FLIPPED[type(op)])
        case ast.BoolOp():
            yield f"({ast.unparse(ast.BoolOp(FLIPPED[type(node.op)][0](), node.values))})"
        case ast.BinOp(op=ast.Add() | ast.Sub()) if not isinstance(node.right, ast.JoinedStr | ast.List | ast.Tuple):
            yield f"({ast.unparse(ast.BinOp(node.left, FLIPPED[type(node.op)][0](), node.right))})"
        case ast.UnaryOp(op=ast.Not()):
            yield f"bool({ast.unparse(node.operand)})"
        case ast.Constant(value=bool(value)):
            yield repr(not value)
        case ast.Constant(value=int(value)):
            yield repr(value + 1 if abs(value) < 10 else 2 * value)
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name))) if name not in UNSEEN:
            yield "pass"
        case ast.AugAssign() | ast.Raise() | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "pass"


def places(node: ast.AST) -> Iterator[Any]:
    """The nodes below one, without annotations and decorators, where a change is seldom one of behaviour."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or isinstance(node, ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and getattr(child, "arg", "") not in ("strict", "daemon"):
                yield from places(child)


def mutations(file: Path) -> Iterator[Mutation]:
    source = (ROOT / file).read_bytes()
    starts = [0, *(match.end() for match in re.finditer(rb"\n", source))]
    for node in places(ast.parse(source)):
        for after in variants(node):
            begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
            yield Mutation(str(file), node.lineno, begin, end, source[begin:end].decode(), after)


def draw(files: Iterable[Path], seed: int, count: int, rooms: list[str]) -> list[Mutation]:
    """A number of mutations, from each room in turn."""
    found = defaultdict(list)
    for room, file in ((str(file.parent), file) for file in files if file.parts[0] in PRODUCT):
        found[room] += mutations(file) if not rooms or room in rooms else []
    if unknown := [room for room in rooms if not found.get(room)]:
        sys.exit(f"no product code in {', '.join(unknown)}")
    chance = random.Random(seed)
    bags = [chance.sample(all_, min(count, len(all_))) for _, all_ in sorted(found.items()) if all_]
    chance.shuffle(bags)
    return [bag[turn] for turn in range(count) for bag in bags if turn < len(bag)][:count]


def tests_of(file: Path, texts: dict[Path, str]) -> list[str]:
    """Tests of a file: those of its name, of its room, and quick ones that import it or else one of its importers."""
    *room, parent, stem = file.with_suffix("").parts
    names = {f"test_{stem}.py", f"test_{stem}s.py", f"test_{parent}_{stem}.py"}
    tests = {test for test in texts if test.name.startswith("test_")}
    of_room = Path("tests", *room, parent)
    near = {test for test in tests if room and of_room in (*test.parents, test.with_name(test.stem[5:]))}
    found = sorted(test for test in tests if test.name in names and test.parts[1] == file.parts[0])
    asked, seen = {file}, set[Path]()
    while asked:
        seen |= asked
        importers = {one for one in texts if any(imports(texts[one], of) for of in asked)} - seen
        others = sorted((importers & tests | near) - {*found}, key=lambda test: (test not in near, len(texts[test])))
        found += [test for test in others if not any(test.is_relative_to(f"tests/{slow}") for slow in SLOW)]
        found = found or others[:2]
        asked = set() if found else {one for one in importers if one.parts[0] != "tests"}
    return [str(test) for test in found[:MOST_FILES]]


def imports(text: str, of: Path) -> bool:
    *package, name = of.with_suffix("").parts if of.name != "__init__.py" else of.parent.parts
    outer = re.escape(".".join(package))
    return bool(re.search(rf"\b{outer}\.{name}\b(?!\.)|from {outer} import [^\n]*\b{name}\b", text))


class Copy:
    """A copy of the checkout, in which tests run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._failing = folder / "tokentrail", list[str]()
        listed = subprocess.check_output(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, text=True)
        for name in filter(lambda name: (ROOT / name).is_file(), listed.split("\0")):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.folder / name)

    def judge(self, mutation: Mutation, tests: list[str]) -> str:
        """`caught`, `survived`, `unknown` when the tests ran out of time, or `no tests`."""
        source = (self.folder / mutation.file).read_bytes()
        changed = source[: mutation.begin] + mutation.after.encode() + source[mutation.end :]
        while tests:
            self._write(mutation.file, changed)
            status, output = self._run(["-x", *(f"--deselect={name}" for name in self._failing), *tests])
            self._write(mutation.file, source)
            if status in (ended := {0: "survived", 5: "no tests", None: "unknown"}):
                return ended[status]
            failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
            if not failed or self._run(failed)[0] in (0, 4):
                return "caught"
            self._failing += failed  # whatever the mutation
            tests = [test for test in tests if test not in failed]
        return "no tests"

    def _write(self, file: str, source: bytes) -> None:
        path = self.folder / file
        path.write_bytes(source)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()  # it knows its source by size and second only

    def _run(self, arguments: list[str]) -> tuple[int | None, str]:
        """Exit status of pytest (None: it took longer than LIMIT_S), and its output."""
        command = ["env", f"PYTHONPATH={self.folder}", sys.executable, "-m", "pytest", *arguments, *PYTEST]
        command += ["--basetemp", str(self.folder.with_name("basetemp"))]
        with self.folder.with_name("output").open("w+") as out:
            process = subprocess.Popen(command, cwd=self.folder, stdout=out, stderr=out, start_new_session=True)
            try:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(LIMIT_S)
                status = process.poll()
            finally:
                with suppress(ProcessLookupError):  # what the tests started, too
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            out.seek(0)
            return status, out.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--room", nargs="+", default=[], metavar="FOLDER")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--record", type=Path, default=Path(os.devnull), metavar="FILE")
    args = parser.parse_args()
    ends = time.monotonic() + 60 * args.minutes
    files = sorted(file for folder in (*PRODUCT, "tests") for file in (ROOT / folder).rglob("*.py"))
    texts = {file.relative_to(ROOT): file.read_text() for file in files}
    rooms, survivors = defaultdict[str, Counter[str]](Counter), []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy, drawn = Copy(Path(folder)), draw(texts, args.seed, args.count, args.room)
        for mutation in takewhile(lambda _: time.monotonic() < ends, drawn):
            tests = tests_of(Path(mutation.file), texts)
            rooms[str(Path(mutation.file).parent)][result := copy.judge(mutation, tests)] += 1
            told = {key: value for key, value in mutation._asdict().items() if key not in ("begin", "end")}
            print(result, json.dumps(told), *tests, flush=True)
            survivors += [told] if result in ("survived", "no tests") else []
    record = {"seed": args.seed, "asked": args.count, "results": sum(rooms.values(), Counter())}
    record |= {"rooms": dict(sorted(rooms.items())), "survivors": sorted(survivors, key=lambda one: one["file"])}
    print(told := json.dumps(record, indent=1))
    args.record.write_text(told + "\n")


if __name__ == "__main__":
    main()
