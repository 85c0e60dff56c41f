"""`make gpu`: a step that fails or hangs does not take the others' time, and its packages are pinned."""

import re
from pathlib import Path

from benchmarks.gpu import Step, run

ROOT = Path(__file__).resolve().parents[2]


def test_each_step_says_how_it_ended(tmp_path):
    assert run(Step("good", ("-c", "print('fine')"), 60), tmp_path, 60)["status"] == 0
    assert (tmp_path / "good.log").read_text() == "fine\n"
    assert run(Step("bad", ("-c", "raise SystemExit(3)"), 60), tmp_path, 60)["status"] == 3
    assert run(Step("late", ("-c", "pass"), 60), tmp_path, 1)["reason"] == "no time was left"
    hangs = Step("hangs", ("-c", "import time; time.sleep(600)"), 60)
    assert run(hangs, tmp_path, 5)["reason"] == "cut off after 5 s"
    file = Step("file", ("-c", "import sys; open(sys.argv[1], 'w')", "{results}/it"), 60)
    assert run(file, tmp_path, 60)["status"] == 0
    assert (tmp_path / "it").exists()


def test_its_packages_are_pinned():
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    [names] = re.findall(r"^GPU_PACKAGES := (.*)$", makefile, re.MULTILINE)
    pins = (ROOT / "constraints.txt").read_text().lower()
    assert [name for name in names.split() if f"\n{name.lower()}==" not in f"\n{pins}"] == []
