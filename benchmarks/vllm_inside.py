"""vLLM recorded from inside, against two witnesses: the official openai client and vLLM's own `/metrics`.

`make test-vllm` runs it. It starts a real vLLM of another environment (option `python`) with a random model, once for
each of `RUNS`, and fails where a count differs. `mixed` has 60 requests: chat and completions, streamed and not,
n = 2, stop strings, several prompts in one call, aborts, refusals, callers' traces, tenants. `death` kills the engine
core while six requests are open. In `explained`, vLLM tells the time and tokens of its steps, and the collector's
causes are those that happened. `cost`: the time that vLLM's event loop spends on one token, with and without the
recording (`benchmarks/vllm_loop.py`). The option `tape` keeps the calls of the hooks, which the tests replay.
"""

from __future__ import annotations

import asyncio
import gzip
import json as js
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import httpx
import typer

from benchmarks.report import JsonPath, Quick, publish
from benchmarks.sink import Sink
from benchmarks.vllm_clients import (
    MODEL,
    STOP,
    WORDS,
    Load,
    busy_requests,
    explained_requests,
    greedy_requests,
    killed_requests,
    long_requests,
    mixed_requests,
)
from benchmarks.vllm_compare import compare, truth
from benchmarks.vllm_explained import busy, explained

SERVE: Final = (
    *("--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--served-model-name", MODEL),
    *("--num-gpu-blocks-override", "24", "--max-num-seqs", "16"),
    *("--shutdown-timeout", "30"),  # without it, vLLM kills several API servers before they have sent their last spans
)
MIDDLEWARE: Final = ("--middleware", "tokentrail.integrations.asgi.RequestMiddleware")
BUSY: Final = ("--enable-logging-iteration-details", "--max-model-len", "6144", "--num-gpu-blocks-override", "100")
NGRAM: Final = '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":2,"prompt_lookup_min":1}'


class Run(NamedTuple):
    """A load, vLLM's flags for it, and its engines. A server that does not survive its load tells no metrics."""

    load: Load
    flags: tuple[str, ...] = MIDDLEWARE
    engines: int = 1
    survives: bool = True
    neighbours: int = 0
    """Processes that take all the CPU they get."""


RUNS: Final = {
    "pressure": Run(long_requests, ()),
    "mixed": Run(mixed_requests),
    "speculative": Run(greedy_requests, ("--speculative-config", NGRAM)),
    "data_parallel": Run(mixed_requests, (*MIDDLEWARE, "--data-parallel-size", "2"), engines=2),
    "api_servers": Run(mixed_requests, (*MIDDLEWARE, "--api-server-count", "2")),
    "explained": Run(explained_requests, ("--enable-logging-iteration-details",)),
    "busy_2": Run(busy_requests, BUSY, neighbours=2),
    "busy_8": Run(busy_requests, BUSY, neighbours=8),
    "death": Run(killed_requests, survives=False),
}


def main(
    python: Annotated[Path, typer.Option(help="Python of the environment with vLLM and tokentrail.")],
    quick: Quick = False,
    json: JsonPath = None,
    tape: Annotated[Path | None, typer.Option(help="Keep the calls of the hooks in this folder.")] = None,
    run: Annotated[list[str], typer.Option(help=f"One of {', '.join(RUNS)}; by default all.")] = list(RUNS),  # noqa: B006
    cost: Annotated[bool, typer.Option(help="Measure the event loop too.")] = True,
) -> None:
    """Run the loads and the cost, and compare."""
    python = python.absolute()  # vLLM starts in another folder; a resolved link would be outside of its environment
    numbers: dict[str, Any] = {}
    versions = subprocess.run(
        [python, "-c", "import vllm, torch; print(vllm.__version__, torch.__version__)"],
        check=True, capture_output=True, text=True,
    ).stdout.split()[-2:]  # fmt: skip
    numbers["vllm"], numbers["torch"] = versions
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder) / MODEL)
        for name in run:
            load, flags, engines, survives, neighbours = RUNS[name]
            print(f"-- {name}", flush=True)
            with Sink() as sink:
                with server(python, Path(folder), sink.url, flags, tape and tape / name) as url, busy_cpus(neighbours):
                    calls = asyncio.run(load(url, 4 if quick else 1))
                    metrics = httpx.get(url + "/metrics").text if survives else None
                spans, bodies = sink.spans(), sink.traces
            if tape:
                keep(tape / name, truth(calls, metrics))
            told = compare([call for call in calls if call.kind != STOP], metrics, spans, engines)
            if name == "explained":
                told |= explained(bodies)
            if neighbours:
                told |= busy(bodies, calls)
            numbers |= {f"{name}_{key}": value for key, value in told.items()}
    if cost:
        numbers |= event_loop_cost(python)
    publish("vllm_inside", numbers, packages=("tokentrail", "openai"), quick=quick, path=json)
    wrong = [key for key, value in numbers.items() if key.endswith("_wrong") and value]
    if wrong:
        sys.exit(f"these do not agree: {', '.join(wrong)}")


def event_loop_cost(python: Path) -> dict[str, float]:
    """CPU time of a token in vLLM's event loop."""
    script = Path(__file__).with_name("vllm_loop.py")
    said = subprocess.run(
        [python, script], check=True, capture_output=True, text=True, cwd=tempfile.gettempdir()
    ).stdout
    return {key: float(value) for key, value in re.findall(r"^(cost_\S+) ([\d.]+)$", said, re.MULTILINE)}


def keep(tape: Path, said: dict[str, Any]) -> None:
    """Packs the tape of each API server, those with requests first, and puts the truth beside them."""
    tapes = sorted(tape.parent.glob(f"{tape.name}.*.jsonl"), key=lambda file: -file.stat().st_size)
    for number, file in enumerate(tapes):
        packed = tape.with_name(f"{tape.name}{f'-{number}' if number else ''}.jsonl.gz")
        packed.write_bytes(gzip.compress(file.read_bytes(), mtime=0))
        file.unlink()
    tape.with_name(f"{tape.name}-truth.json").write_text(js.dumps(said, separators=(",", ":")) + "\n")


def make_model(folder: Path) -> None:
    """A random model. Its tokens are words, so that each token is visible text.

    It has 84 million parameters. A tiny one makes tokens faster than the client reads them on the same two cores, and
    then the client's clock tells of the client.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"w{number}": number for number in range(3, WORDS)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer_class: Any = PreTrainedTokenizerFast
    fast = tokenizer_class(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    fast.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    fast.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=1024, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=8, max_position_embeddings=8192, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


@contextmanager
def server(python: Path, folder: Path, sink: str, extra: tuple[str, ...], tape: Path | None) -> Iterator[str]:
    """A vLLM that serves the model and sends its spans to the sink."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OTEL_", "TOKENTRAIL_"))}
    environment |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": sink, "TOKENTRAIL_STRICT": "true", "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "PATH": f"{python.parent}:{os.environ['PATH']}",
    }  # fmt: skip
    if tape:
        tape.parent.mkdir(parents=True, exist_ok=True)
        environment |= {"PYTHONPATH": str(Path(__file__).parents[1]), "VLLM_TAPE": str(tape)}
        extra = ("--middleware", "benchmarks.vllm_tape.Tape", *extra)
    log = (folder / "vllm.log").open("ab+")
    command: list[str | Path] = [python.parent / "vllm", "serve", folder / MODEL, "--port", str(port), *SERVE, *extra]
    process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 420
        while not _answers(url + "/health"):
            if process.poll() is not None or time.monotonic() > deadline:
                log.seek(0)
                sys.exit(f"vLLM did not start:\n{log.read()[-4000:].decode(errors='replace')}")
            time.sleep(1)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        log.seek(0)
        said = [line for line in log.read().decode(errors="replace").splitlines() if "tokentrail" in line.lower()]
        print("\n".join(said[-20:]))


@contextmanager
def busy_cpus(count: int) -> Iterator[None]:
    """Processes that do nothing but take the CPU."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


if __name__ == "__main__":
    typer.run(main)
