"""Throughput and latency by batch size, 1 to 64: so many clients, each of which sends a request after each answer.

Each size is a variant of the engine, `batch 1` to `batch 64`, and all numbers are the collector's. `docs/tradeoffs.md`
has the table; the dashboard's page Compare draws the same curve while a collector has the runs.
"""

from __future__ import annotations

import asyncio
import json as codec
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from benchmarks.report import Quick, save
from benchmarks.tradeoffs import QUIET, Ask, answers_of, get, served, until_stored
from benchmarks.tradeoffs_page import PAGE, fill
from tests.support.collector import Collector

RESULT: Final = Path(__file__).parent / "results" / "batch_curve.json"
SIZES: Final = (1, 2, 4, 8, 16, 32, 64)
PROMPT: Final = "The harbour master writes into the ledger, ship by ship, what the tide has brought since dawn: "
TOKENS: Final = 32
ROUNDS: Final = {1: 6, 2: 5, 4: 4, 8: 3, 16: 3}
"""Requests of each client; 2 where there are more clients."""


def main(
    quick: Quick = False,
    json: Annotated[Path, typer.Option("--json", help="The result.")] = RESULT,
) -> None:
    """Measure each size, and write the result and the table of docs/tradeoffs.md."""
    sizes = SIZES[:3] if quick else SIZES
    numbers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, Collector(Path(folder) / "data", *QUIET) as collector:  # type: ignore[no-untyped-call]
        for size in sizes:
            numbers |= {f"batch_{size}_{key}": value for key, value in measured(collector, Path(folder), size).items()}
            print(codec.dumps({key: value for key, value in numbers.items() if key.startswith(f"batch_{size}_")}))
    save("batch_curve", numbers, packages=("torch",), quick=quick, path=json)
    if not quick:
        PAGE.write_text(fill(PAGE.read_text(), table(codec.loads(json.read_text())), "benchmarks.batch_curve"))


def measured(collector: Any, folder: Path, size: int) -> dict[str, float | int | None]:
    """The numbers of one batch size."""
    rounds = ROUNDS.get(size, 2)
    name = f"batch {size}"
    with served(collector, folder, name, ["--max-seqs", str(size)]) as (url, _):
        ask = Ask(0, PROMPT, TOKENS)
        asyncio.run(answers_of(url, [ask]))  # the first request pays for lazy starts
        began = time.time()
        asyncio.run(_clients(url, ask, size, rounds))
        ended = time.time()
        window = {"variant": name, "start": str(began), "end": str(ended + 1)}
        until_stored(collector, window, size * rounds)
        summary = get(collector, "summary", window)
    return {
        "requests": summary["requests"]["ok"],
        "output_tokens_per_s": size * rounds * TOKENS / (ended - began),
        **{f"{name}_{q}_s": summary[f"{name}_s"][q] for name in ("ttft", "tpot") for q in ("p50", "p99")},
    }


async def _clients(url: str, ask: Ask, size: int, rounds: int) -> None:
    async def client() -> None:
        for _ in range(rounds):
            await answers_of(url, [ask])

    await asyncio.gather(*(client() for _ in range(size)))


def table(report: dict[str, Any]) -> str:
    """The curve as a table, each size also as a multiple of batch 1."""
    numbers, machine = report["numbers"], report["machine"]
    sizes = [size for size in SIZES if f"batch_{size}_requests" in numbers]

    def of(size: int, key: str) -> float:
        return float(numbers[f"batch_{size}_{key}"])

    text = (
        f"{machine['cores']} cores of {machine['cpu']}, float32, answers of {TOKENS} tokens. In brackets: multiples of "
        "batch 1.\n\n"
        "| batch | requests | output tokens/s | TPOT p50, p99 | TTFT p50, p99 |\n| --- | --- | --- | --- | --- |\n"
    )
    for size in sizes:
        rate, tpot = of(size, "output_tokens_per_s"), of(size, "tpot_p50_s")
        text += (
            f"| {size} | {of(size, 'requests'):.0f} | {rate:.1f} ({rate / of(1, 'output_tokens_per_s'):.1f}×) "
            f"| {tpot * 1e3:.0f} ({tpot / of(1, 'tpot_p50_s'):.1f}×), {of(size, 'tpot_p99_s') * 1e3:.0f} ms "
            f"| {of(size, 'ttft_p50_s'):.2f}, {of(size, 'ttft_p99_s'):.2f} s |\n"
        )
    return text


if __name__ == "__main__":
    typer.run(main)
