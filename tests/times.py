"""CPU seconds and wall seconds of each file of tests, children included, in a table after the run."""

import os
from collections import defaultdict

import pytest

ROWS = int(os.environ.get("TIMES_ROWS", "15"))


def cpu_s() -> float:
    """CPU seconds of this process, its threads, and the children that it has waited for."""
    return sum(os.times()[:4])


class Times:
    """Measures the phases of tests in a worker, and adds them up by file where the run is reported."""

    def __init__(self) -> None:
        self._mark = cpu_s()
        self._files: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self):
        """The CPU seconds since the report before; xdist carries them to the controller with the report."""
        report = yield
        now = cpu_s()
        report.cpu_s, self._mark = now - self._mark, now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        times = self._files[report.nodeid.partition("::")[0]]
        times[0] += getattr(report, "cpu_s", 0.0)
        times[1] += report.duration

    def pytest_terminal_summary(self, terminalreporter) -> None:
        rows = sorted(self._files.items(), key=lambda row: -row[1][0])
        terminalreporter.section("files by CPU time")
        for name, (cpu, wall) in rows[:ROWS]:
            terminalreporter.write_line(f"{cpu:7.1f} s CPU {wall:7.1f} s  {name}")
        total = sum(cpu for _, (cpu, _) in rows)
        terminalreporter.write_line(f"{total:7.1f} s CPU in {len(rows)} files")
