"""`python -m tests.changed`, `make test-changed`: the tests that reach what differs from `main`, in a minute of CPU.

A test reaches a function that differs if it enters it, as a run with tests/reached.py learned (tests/mutants.py makes
and keeps the same map). A constant or a field is reached by what enters the functions that mention it, an SQL file by
what enters the functions that ask it, and another file by the files of tests that name it. Each change gets in turn
the test that enters the least, then the next one. Tests that differ themselves run whatever they cost.
"""

import argparse
import ast
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path

from tests.mutants import REACHED, ROOT, Copy, Suite, statements
from tests.reached import PRODUCT


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, text=True, capture_output=True, check=False).stdout


def differing(before: str, now: str) -> Iterator[tuple[str, ast.stmt]]:
    """The statements of a module that it did not have before; comments and their places do not count."""
    had = Counter(ast.dump(node) for _, node in statements(ast.parse(before)))
    for name, node in statements(ast.parse(now)):
        if not had[ast.dump(node)]:
            yield name, node


def own(file: Path, changed: Iterable[tuple[str, ast.stmt]]) -> set[str]:
    """The tests of a file that differ; all of them if something else in it differs."""
    names = [name for name, _ in changed]
    is_test = [name.rpartition(".")[2].startswith("test_") for name in names]
    return {f"{file}::{name.replace('.', '::')}" for name in names} if all(is_test) else {str(file)}


def asking(sql: Path, texts: dict[Path, str], files: dict[Path, str]) -> set[str]:
    """The product's functions that ask an SQL file, or one that it is a part of."""
    names, seen = [sql.stem], set[str]()
    while names:
        seen.add(name := names.pop())
        names += [file.stem for file, text in files.items() if f"$parts.{name}" in text and file.stem not in seen]
    return {
        f"{file}:{name}"
        for file, text in texts.items()
        if file.parts[0] in PRODUCT and any(one in text for one in seen)
        for name, node in statements(ast.parse(text))
        if seen
        & {part for one in ast.walk(node) if isinstance(one, ast.Constant) for part in str(one.value).split("/")}
    }


def in_turn(queues: Iterable[list[str]], seconds: dict[str, float], most_s: float) -> list[str]:
    """The first test of each queue, then the second of each, and so on, as far as they take no longer."""
    found, sum_s = list[str](), 0.0
    for rank in zip_longest(*queues):
        for test in rank:
            if test and test not in found and sum_s + seconds[test] <= most_s:
                found, sum_s = [*found, test], sum_s + seconds[test]
    return found


def selected(
    changed: Iterable[Path],
    before: dict[Path, str],
    texts: dict[Path, str],
    sql: dict[Path, str],
    entered: dict[str, tuple[float, list[str]]],
    most_s: float,
) -> tuple[list[str], list[str]]:
    """The tests that reach files that differ, and the functions that no test enters. `before` has their Python."""
    suite, functions, tests = Suite(texts, entered), set[str](), set[str]()
    for file in changed:
        if file.parts[0] in PRODUCT and file.suffix == ".py":
            for _, node in differing(before[file], texts[file]):
                functions |= suite.users(str(file), node.lineno)
        elif file.suffix == ".sql":
            functions |= asking(file, texts, sql)
        elif file.name.startswith("test_"):
            tests |= own(file, differing(before[file], texts[file]))
        else:
            tests |= {str(test) for test, text in texts.items() if test.name.startswith("test_") and file.name in text}
    there = {f"{file}::{name.replace('.', '::')}" for file in texts for name, _ in statements(ast.parse(texts[file]))}
    there |= {*map(str, texts)}
    queues = {one: [test for test in suite.entering(one) if test in there] for one in sorted(functions)}
    seconds = {test: seconds for test, (seconds, _) in entered.items()}
    tests |= {*in_turn(queues.values(), seconds, most_s)}
    return sorted(tests), [function for function, queue in queues.items() if not queue]


def reached() -> dict[str, tuple[float, list[str]]]:
    """The seconds of each test and what it enters: of the last run of today or earlier, or of one now."""
    if not REACHED.exists():
        with tempfile.TemporaryDirectory() as folder:
            return Copy(Path(folder)).reached()
    found: dict[str, tuple[float, list[str]]] = json.loads(REACHED.read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", default="main", help="a branch or a commit")
    parser.add_argument("--seconds", type=float, default=60, help="CPU seconds of the tests that differ not themselves")
    args, options = parser.parse_known_args()
    since = git("merge-base", args.base, "HEAD").strip() or sys.exit(f"no commit is shared with {args.base}")
    listed = git("diff", "--name-only", since) + git("ls-files", "--others", "--exclude-standard")
    changed = [file for file in map(Path, listed.split()) if (ROOT / file).is_file()]
    texts, sql = (
        {file.relative_to(ROOT): file.read_text() for top in (*PRODUCT, "tests") for file in (ROOT / top).rglob(kind)}
        for kind in ("*.py", "*.sql")
    )
    before = {file: git("show", f"{since}:{file}") for file in changed if file.suffix == ".py"}
    tests, unreached = selected(changed, before, texts, sql, reached(), args.seconds)
    for function in unreached:
        print(f"no test of the map enters {function}", file=sys.stderr)
    command = [sys.executable, "-m", "pytest", "-q", *options, *tests]
    sys.exit(subprocess.call(command, cwd=ROOT) if tests else 0)


if __name__ == "__main__":
    main()
