"""`python -m tests.mutants --seed 37 --count 100 --room collector/wal`: do the tests notice when the code is wrong?

Each mutation changes one place of the product: a comparison is flipped or moved by its boundary, `and` becomes `or`,
`+` becomes `-`, a number grows by one, a truth is inverted, a statement is left out. A mutation that the tests pass
survives. The seed draws from each room (folder) in turn. Tests run in copies of the checkout. Prints JSON.

A run of `make test-stores` with tests/reached.py, kept for a day, tells which functions each test enters, and its CPU
seconds. A mutation's tests are those that enter its function, or the functions that mention the constant or field: 45 s
of them, first those of its name and room, then those that enter the least. If they pass, tests that the run left out
come next, as they start processes: three files, those of its name first, then those that share the rarest words with
its function. Its room and its importers count as a word of one file.
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

from tests.reached import PRODUCT, merged

ROOT = Path(__file__).parents[1]
MOST_FILES, MOST_TOLD, SLOW_S, DAY_S = 3, 8, 200, 86_400
PAGES = Path("tests/contract/test_reference.py")  # it compares defaults and names with docs/, and enters nothing
REACHED = ROOT / ".pytest_cache" / "reached.json"
PYTEST = ("-q", "-rfE", "--tb=no", "-p", "no:cacheprovider", "-o", "timeout_method=thread")
FLIPPED = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,), ast.And: (ast.Or,), ast.Or: (ast.And,), ast.Add: (ast.Sub,), ast.Sub: (ast.Add,),
}  # fmt: skip
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
Mutation = namedtuple("Mutation", "file line begin end before after")  # begin and end in bytes
Run = namedtuple("Run", "tests most_s test_s")  # it is given up after most_s, and fails a test after test_s
LOGS = {"debug", "info", "warning", "exception", "print"}  # only a reader of the log would notice
NEVER = {"AssertionError", "NotImplementedError"}  # says that a place is not reached
UNSEEN = {"height", "width", "strict", "daemon", "stacklevel", "indent", "maxsize"}


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
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name))) if name not in LOGS:
            yield "pass"
        case ast.Raise(exc=ast.Name(id=name) | ast.Call(func=ast.Name(id=name))) if name in NEVER:
            return
        case ast.AugAssign() | ast.Raise() | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "pass"


def places(node: ast.AST) -> Iterator[Any]:
    """The nodes below one, without annotations, decorators, types and logs, where a change is seldom seen."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="logger" | "_log"))):
            return
        case ast.Subscript(value=ast.Name(id="Literal" | "Annotated")) | ast.Call(func=ast.Name(id="cast" | "TypeVar")):
            return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or isinstance(node, ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and getattr(child, "arg", "") not in UNSEEN:
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


def statements(node: Any, outer: str = "") -> Iterator[tuple[str, Any]]:
    """The functions and other statements of a module and its classes, by qualified name."""
    for child in node.body:
        name = f"{outer}{getattr(child, 'name', '')}"
        yield from statements(child, f"{name}.") if isinstance(child, ast.ClassDef) else [(name, child)]


class Suite:
    """Which tests a mutation may fail, by their seconds and functions of tests/reached.py."""

    def __init__(self, texts: dict[Path, str], reached: dict[str, tuple[float, list[str]]], most_s: float = 45) -> None:
        self._most_s = most_s
        self._texts, self._reached, self._entering = texts, reached, defaultdict[str, set[str]](set)
        for test, (_, functions) in reached.items():
            for function in functions:
                self._entering[function].add(test)
        product = [file for file in texts if file.parts[0] in PRODUCT]
        self._statements = {str(file): [*statements(ast.parse(texts[file]))] for file in product}
        self._left_out = defaultdict[Path, list[str]](list)
        for file in (file for file in texts if file.name.startswith("test_")):
            for test in (f"{file}::{'::'.join(name.split('.'))}" for name, _ in statements(ast.parse(texts[file]))):
                if "::test_" in test and test not in reached:
                    self._left_out[file].append(test)
        self._said = {file: {*re.findall(r"\w+", text)} for file, text in texts.items() if file.parts[0] == "tests"}
        self._files = Counter(word for said in self._said.values() for word in said)
        self._words = [
            (f"{file}:{name}", {getattr(one, "attr", getattr(one, "id", "")) for one in ast.walk(node)} - {""})
            for file, found in self._statements.items()
            for name, node in found
            if isinstance(node, FUNCTION)
        ]

    def tests_of(self, mutation: Mutation) -> tuple[Run, Run]:
        """The tests that enter its function, and those that the run left out."""
        file = Path(mutation.file)
        (*room, parent), stem = file.parent.parts, file.stem.lstrip("_")
        names = {f"test_{name}.py" for name in (stem, f"{stem}s", f"{parent}_{stem}")}
        of_part = {test for test in self._said if test.parts[1] == file.parts[0]}
        its, outer = ({one for one in of_part if Path("tests", at) in one.parents} for at in (file.parent, Path(*room)))
        of_name = {one for one in of_part if one.name in names}
        near = of_name | ((its or outer) if room else set())
        users = self.users(mutation.file, mutation.line)
        entering = set().union(*(self._entering[function] for function in users))
        by_use = {test: (Path(test.partition("::")[0]) not in near, len(self._reached[test][1])) for test in entering}
        found, seconds, longest_s = list[str](), 0.0, 0.0
        for test in sorted(entering, key=by_use.__getitem__):
            if seconds + (its_s := self._reached[test][0]) <= self._most_s:
                found, seconds, longest_s = [*found, test], seconds + its_s, max(longest_s, its_s)
        words = set().union(*(its for user, its in self._words if user in users))
        module = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
        package, _, name = module.rpartition(".")
        imported = re.compile(rf"\b{module}\b|from {package} import [^\n]*\b{name}\b")
        near |= its | {test for test in self._said if imported.search(self._texts[test])}
        rare = {one: sum(1 / self._files[word] for word in words & self._said[one]) for one in self._left_out}
        files = sorted(rare, key=lambda one: (one not in of_name, -rare[one] - (one in near)))[:MOST_FILES]
        files = [*({PAGES} & self._said.keys()), *files]
        left_out = [test for one in files for test in self._left_out.get(one, [str(one)])]
        return Run(found, 20 + 5 * seconds, 20 + 5 * longest_s), Run(left_out, SLOW_S, SLOW_S / 2)

    def entering(self, function: str) -> list[str]:
        """The tests that enter a function, `FILE:NAME`: those that enter the least come first."""
        return sorted(self._entering[function], key=lambda test: (len(self._reached[test][1]), test))

    def users(self, file: str, line: int) -> set[str]:
        """The function that a line is in, or those that mention what is assigned there."""
        name, node = next(one for one in self._statements[file] if one[1].lineno <= line <= one[1].end_lineno)
        if isinstance(node, FUNCTION):
            return {f"{file}:{name}"}
        assigned = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
        public = {one for one in assigned if not one.startswith("_")}
        return {user for user, words in self._words if words & (assigned if user.startswith(file) else public)}


class Copy:
    """A copy of the checkout, in which tests run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._failing = folder / "tokentrail", list[str]()
        listed = subprocess.check_output(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, text=True)
        for name in filter(lambda name: (ROOT / name).is_file(), listed.split("\0")):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.folder / name)

    def judge(self, mutation: Mutation, quick: Run, left_out: Run) -> str:
        """`caught`, `survived`, `unknown` when the tests ran out of time, or `no tests`."""
        results = ("caught", "survived", "unknown", "no tests")
        result = self._judge(mutation, *quick)
        return result if result == "caught" else min(result, self._judge(mutation, *left_out), key=results.index)

    def _judge(self, mutation: Mutation, tests: list[str], most_s: float, test_s: float) -> str:
        source = (self.folder / mutation.file).read_bytes()
        changed = source[: mutation.begin] + mutation.after.encode() + source[mutation.end :]
        busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # as much slower are the tests
        run = partial(self._run, limit_s=busy * most_s, PYTEST_TIMEOUT=str(busy * test_s))
        while tests:
            self._write(mutation.file, changed)
            status, output = run(["-x", *(f"--deselect={name}" for name in self._failing), *tests])
            self._write(mutation.file, source)
            if status in (ended := {0: "survived", 5: "no tests", None: "unknown"}):
                return ended[status]
            if gone := re.findall(r"^ERROR: not found: .*/(tests/[^\[\n]+)", output, re.MULTILINE):
                tests = [name for name in tests if name.partition("[")[0] not in gone]  # renamed since the map was made
                continue
            failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
            if not failed or run(failed)[0] in (0, 4):
                return "caught"
            self._failing += failed  # whatever the mutation
            tests = [test for test in tests if test not in failed]
        return "no tests"

    def _write(self, file: str, source: bytes) -> None:
        path = self.folder / file
        path.write_bytes(source)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()  # it knows its source by size and second only

    def _run(self, arguments: list[str], limit_s: float, **variables: str) -> tuple[int | None, str]:
        """Exit status of pytest (None: it took longer than the limit), and its output."""
        command = [sys.executable, "-m", "pytest", "--basetemp", str(self.folder.with_name("basetemp")), *arguments]
        environment = os.environ | {"PYTHONPATH": str(self.folder)} | variables
        with self.folder.with_name("output").open("w+") as out:
            where: Any = {"cwd": self.folder, "env": environment, "stdout": out, "stderr": out}
            process = subprocess.Popen([*command, *PYTEST], start_new_session=True, **where)
            try:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(limit_s)
                status = process.poll()
            finally:
                with suppress(ProcessLookupError):  # what the tests started, too
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            out.seek(0)
            return status, out.read()

    def reached(self) -> dict[str, tuple[float, list[str]]]:
        """The seconds of each test, and the functions that it enters, as learned here or in another run of today."""
        least = max(time.time() - DAY_S, (ROOT / "tests" / "reached.py").stat().st_mtime)
        if not REACHED.exists() or REACHED.stat().st_mtime < least:
            print("tests run once, to learn what each of them enters; 3 minutes on two idle cores", file=sys.stderr)
            (found := self.folder.with_name("reached")).mkdir()
            tier = ["-m", "not slow or store", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
            _, output = self._run(["-p", "tests.reached", *tier], DAY_S, REACHED=str(found))
            if not (entering := merged(found)):
                sys.exit(f"the tests did not run:\n{output}")
            REACHED.parent.mkdir(exist_ok=True)
            REACHED.write_text(json.dumps(entering))
        return json.loads(REACHED.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=45, help="CPU seconds of tests for each mutation")
    parser.add_argument("--room", nargs="+", default=[], metavar="FOLDER")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--record", type=Path, default=Path(os.devnull), metavar="FILE")
    args = parser.parse_args()
    ends = time.monotonic() + 60 * args.minutes
    files = sorted(file for folder in (*PRODUCT, "tests") for file in (ROOT / folder).rglob("*.py"))
    texts = {file.relative_to(ROOT): file.read_text() for file in files}
    rooms, survivors = defaultdict[str, Counter[str]](Counter), []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(args.processes) as pool:
        copies = [Copy(Path(folder, str(number))) for number in range(args.processes)]
        suite, free = Suite(texts, copies[0].reached(), args.seconds), Queue[Copy]()
        for copy in copies:
            free.put(copy)

        def judge(mutation: Mutation) -> None:
            if time.monotonic() > ends:
                return
            copy, runs, began = free.get(), suite.tests_of(mutation), time.monotonic()
            result = copy.judge(mutation, *runs)
            free.put(copy)
            told = {key: value for key, value in mutation._asdict().items() if key not in ("begin", "end")}
            tests = [test for run in runs for test in run.tests[:MOST_TOLD]]
            print(result, f"{time.monotonic() - began:.0f} s", json.dumps(told), *tests, flush=True)
            rooms[str(Path(mutation.file).parent)][result] += 1
            survivors.extend([told] if result in ("survived", "no tests") else [])

        list(pool.map(judge, draw(texts, args.seed, args.count, args.room)))
    record = {"seed": args.seed, "asked": args.count, "seconds": args.seconds}
    record |= {"results": sum(rooms.values(), Counter()), "rooms": dict(sorted(rooms.items()))}
    record |= {"survivors": sorted(survivors, key=lambda one: one["file"])}
    print(told := json.dumps(record, indent=1))
    args.record.write_text(told + "\n")


if __name__ == "__main__":
    main()
