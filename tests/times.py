"""CPU seconds and wall seconds of each file of tests, children included, in a table after the run."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator

import pytest

ROWS = 25


def cpu_s() -> float:
    """CPU seconds of this process, its threads, and the children that it has waited for."""
    return sum(os.times()[:4])


class Times:
    """Measures the phases of tests in a worker, and adds them up by file where the run is reported."""

    def __init__(self) -> None:
        self._mark = cpu_s()
        self._files: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    def pytest_collection_finish(self) -> None:
        """Leaves the imports of all files out of the first test's time."""
        self._mark = cpu_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self):
        """Notes the CPU seconds since the report before; xdist carries them to the controller with the report."""
        report = yield
        now = cpu_s()
        report.cpu_s, self._mark = now - self._mark, now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds a phase to its file; a worker that crashed reports without CPU seconds."""
        times = self._files[report.nodeid.partition("::")[0]]
        times[0] += getattr(report, "cpu_s", 0.0)
        times[1] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Writes the table."""
        terminalreporter.section("the longest files by CPU time")
        for line in table(self._files.items()):
            terminalreporter.write_line(line)


def table(files: Iterable[tuple[str, list[float]]]) -> Iterator[str]:
    """The longest files, then each folder below tests/, then all: CPU seconds, wall seconds, name."""
    rows = sorted(files, key=lambda row: -row[1][0])
    folders: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for name, (cpu, wall) in rows:
        for folder in ("/".join(name.split("/")[:2]), "all"):
            folders[folder][0] += cpu
            folders[folder][1] += wall
    for name, (cpu, wall) in rows[:ROWS] + sorted(folders.items(), key=lambda row: row[1][0]):
        yield f"{cpu:7.1f} s CPU {wall:7.1f} s  {name}"
