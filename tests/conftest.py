"""Settings that must be made before a test module is imported, and the order in which the files run."""

import gc
import os
import shutil
import signal
import socketserver
import tempfile
from functools import cache
from pathlib import Path

import httpx
import hypothesis
import pytest
import typer.testing
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from tests.times import Times

# The engine does this for itself (instrumented_engine/startup.py). It counts only before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# NumPy's threads wait busily, and no test multiplies large matrices with NumPy.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Triton's kernels need a GPU, or its interpreter. It reads this when it is first imported.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A shell without job control lets what it starts in the background ignore Ctrl-C, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# CliRunner makes all commands of a command line for each that it runs, and httpx reads the CAs for each client: 0.02 s.
for _module, _name in ((typer.testing, "_get_command"), (httpx._transports.default, "create_ssl_context")):
    setattr(_module, _name, cache(getattr(_module, _name)))

# A server of a test looks each half second whether it shall end, and the test waits for it.
socketserver.BaseServer.serve_forever.__defaults__ = (0.02,)

# An example that took longer than 0.2 s failed its test on a busy machine.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")

# The imports of all files make objects that stay: the collector would look at them again and again.
gc.disable()

ROOT = Path(__file__).parent


def memory(folder: Path = Path("/dev/shm"), *, least: int = 2 * 2**30) -> Path | None:
    """A folder of Linux that is in memory, when it may be written and has room for the files of all tests."""
    fits = os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= least
    return folder if fits else None


# A store writes and removes thousands of small files. A disk makes a test of it wait for each.
if "TMPDIR" not in os.environ and (in_memory := memory()):
    os.environ["TMPDIR"] = tempfile.tempdir = str(in_memory)

BROWSER = (
    "dashboard/test_day.py",
    "dashboard/test_engines_and_request.py",
    "dashboard/test_brush.py",
    "dashboard/test_pages.py",
    "dashboard/test_small.py",
    "dashboard/test_away.py",
    "dashboard/test_login.py",
)
"""Files that share a browser, and a day of `tokentrail demo --day`."""

PROCESSES = (
    *BROWSER,
    "e2e",
    "collector/test_two_collectors.py",
    "collector/access/test_hostile_tenants.py",
    "collector/store/test_cluster.py",
    "collector/store/test_server_store.py",
    "collector/test_oracle.py",
    "collector/app/test_process.py",
    "collector/store/test_migrations_at_once.py",
    "collector/test_power_cut.py",
    "collector/causes/split/test_faults.py",
    "tokentrail/mcp/test_faults.py",
    "collector/causes/split/test_replay.py",
    "collector/base/test_data_dir.py",
    "collector/keep/test_live.py",
    "collector/keep/test_command.py",
    "collector/scrape/test_end_to_end.py",
    "instrumented_engine/test_smollm.py",
    "instrumented_engine/test_process.py",
    "contract/test_wheel.py",
    "tokentrail/test_cli_ask.py",
    "alerts/test_rules.py",
    "alerts/test_packs.py",
    "examples",
    "deploy",
    "collector/access/test_exposed.py",
    "collector/access/test_forged_processes.py",
    "alerts/test_prometheus.py",
    "collector/test_outages_live.py",
    "collector/store/test_connections.py",
    "collector/otlp/test_signals.py",
    "contract/test_docs.py",
    "collector/sql/engines/test_vllm.py",
    "tokentrail/test_process.py",
    "tokentrail/test_with_collector.py",
    "tokentrail/integrations/test_with_collector.py",
    "collector/api/test_otlp.py",
    "alerts/test_alertmanager.py",
    "alerts/test_command.py",
    "contract/test_suite.py",
)
"""Files and folders that start processes or browsers, or load real models, the longest first."""

STORES = (
    "collector/store/test_migrations.py",
    "collector/metrics/test_births.py",
    "collector/metrics/test_in_flight.py",
    "collector/access/test_tenants.py",
    "collector/keep",
    "collector/api/test_remembered_answers.py",
    "collector/test_outages.py",
    "collector/api/test_incidents.py",
    "collector/api/test_burns.py",
    "collector/api/test_past_burns.py",
    "collector/api/test_day.py",
    "dashboard/test_links.py",
    "tokentrail/mcp",
    "collector/api/test_verdict.py",
    "collector/api/test_engines.py",
    "collector/api/test_summary.py",
    "collector/scrape/test_api.py",
    "collector/scrape/test_over_time.py",
    "collector/store/writing",
    "collector/sql/decoding",
    "collector/api/test_verdicts.py",
    "collector/otlp/test_logs.py",
    "collector/api/test_goodput.py",
    "alerts/test_benchmark.py",
)
"""Files and folders that open a store, the longest first."""

SLOW = (*PROCESSES, *STORES)
"""The order of the long files: the table after a run shows which these are. `make test-fast` skips them, and the tests
elsewhere that use a fixture of STARTING or OPENING. `make test-stores` skips PROCESSES and fixtures of STARTING."""

STARTING = {"collector", "node", "prometheus", "smollm", "stack", "wheel"}
"""Fixtures that start a process or load a real model."""

OPENING = {"engine_store", "module_store"}
"""Fixtures that open a store."""

MODELS = (
    "test_beams.py",
    "test_draft.py",
    "test_encoder.py",
    "test_model.py",
    "test_techniques.py",
    "test_transformers.py",
)
"""Files that compare with a model of transformers."""

FAULTS = ("split/test_faults.py", "mcp/test_faults.py")
"""Files that explain the same runs of the simulated engine, which take 8 s of CPU."""


def pytest_configure(config: pytest.Config) -> None:
    """Times each file (tests/times.py)."""
    config.pluginmanager.register(Times())


def pytest_collection_finish() -> None:
    """Keeps the imported modules from the garbage collector, which would look at all of them again and again."""
    gc.freeze()
    gc.enable()


class _Scheduling(LoadFileScheduling):
    """Each file runs in one worker. Those of MODELS, whose import takes 3 s, share one; so do BROWSER and FAULTS."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        shared = {"models": MODELS, "browser": BROWSER, "faults": FAULTS}
        return next((name for name, files in shared.items() if file.endswith(files)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling:
    """The order of the files, as `--dist loadfile` with MODELS together, BROWSER, and FAULTS."""
    return _Scheduling(config, log)


LEFT_OUT = {"not slow": SLOW, "not slow or store": PROCESSES}
"""What `make test-fast` and `make test-stores` select, and the files of which they need not import one."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves files out of which no test is selected: each worker would import them."""
    left_out = LEFT_OUT.get(config.option.markexpr, ())
    if not left_out or not collection_path.is_relative_to(ROOT):
        return None
    return collection_path.relative_to(ROOT).as_posix() in left_out or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks slow tests, and puts the files of SLOW first: a long file that starts last leaves other workers idle."""
    for item in items:
        rank, fixtures = _rank(item), {*getattr(item, "fixturenames", ())}
        if rank < len(SLOW) or (STARTING | OPENING) & fixtures:
            item.add_marker("slow")
        opens = len(PROCESSES) <= rank < len(SLOW) or (rank == len(SLOW) and OPENING & fixtures)
        if opens and not STARTING & fixtures:
            item.add_marker("store")
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    return _rank_of_file(item.path)


@cache
def _rank_of_file(file: Path) -> int:
    """The place of a file in SLOW, or behind it. Thousands of items ask, and paths are slow to compare."""
    path = file.relative_to(ROOT)
    matches = (rank for rank, part in enumerate(SLOW) if path == Path(part) or Path(part) in path.parents)
    return next(matches, len(SLOW))
