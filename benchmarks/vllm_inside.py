"""vLLM recorded from inside, against two witnesses: the official openai client and vLLM's own `/metrics`.

`make test-vllm` runs it. It starts a real vLLM of another environment (option `python`) with a tiny random model, once
under KV-cache pressure (32 long requests, 24 blocks) and once with 60 mixed requests: chat and completions, streamed
and not, n = 2, stop strings, several prompts in one call, aborts, refusals, callers' traces, tenants. It fails where a
count differs. `cost`: the time that vLLM's event loop spends on one token, with and without the recording
(`benchmarks/vllm_loop.py`). The option `tape` keeps the calls of the hooks, which the tests replay.
"""

from __future__ import annotations

import asyncio
import gzip
import json as js
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any, Final

import httpx
import typer
from openai import APIStatusError, AsyncOpenAI

from benchmarks.report import JsonPath, Quick, publish
from tokentrail import now_ns
from tokentrail.testing import Span, parse_spans

MODEL: Final = "tiny-random-llama"
WORDS: Final = 2_000
PARENT: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SERVE: Final = (
    *("--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--served-model-name", MODEL),
    *("--num-gpu-blocks-override", "24", "--max-num-seqs", "16"),
)


@dataclass
class Call:
    """One request as the client saw it. `arrivals`: for each token, the unix ns at which its chunk came."""

    kind: str
    request_id: str = ""
    arrivals: list[int] = field(default_factory=list)
    output_tokens: int | None = None
    input_tokens: int | None = None
    sent_ns: int = 0
    ended_ns: int = 0
    status: str = "ok"
    choices: int = 1


def main(
    python: Annotated[Path, typer.Option(help="Python of the environment with vLLM and tokentrail.")],
    quick: Quick = False,
    json: JsonPath = None,
    tape: Annotated[Path | None, typer.Option(help="Keep the calls of the hooks in this folder.")] = None,
) -> None:
    """Run both loads and the cost, and compare."""
    numbers: dict[str, Any] = {}
    versions = subprocess.run(
        [python, "-c", "import vllm, torch; print(vllm.__version__, torch.__version__)"],
        check=True, capture_output=True, text=True,
    ).stdout.split()[-2:]  # fmt: skip
    numbers["vllm"], numbers["torch"] = versions
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder) / MODEL)
        for name, load, extra in (
            ("pressure", long_requests, ()),
            ("mixed", mixed_requests, ("--middleware", "tokentrail.integrations.asgi.RequestMiddleware")),
        ):
            with Sink() as sink:
                recorded = tape / f"{name}.jsonl" if tape else None
                with server(python, Path(folder), sink.url, extra, recorded) as url:
                    calls = asyncio.run(load(url, 4 if quick else 1))
                    metrics = httpx.get(url + "/metrics").text
                spans = sink.spans()
            if recorded:
                keep(recorded, truth(calls, metrics, spans))
            numbers |= {f"{name}_{key}": value for key, value in compare(calls, metrics, spans).items()}
    cost = subprocess.run(
        [python, Path(__file__).with_name("vllm_loop.py")],
        check=True, capture_output=True, text=True, cwd=tempfile.gettempdir(),
    )  # fmt: skip
    for line in cost.stdout.splitlines():
        if found := re.fullmatch(r"(cost_\S+) ([\d.]+)", line):
            numbers[found[1]] = float(found[2])
    publish("vllm_inside", numbers, packages=("tokentrail", "openai"), quick=quick, path=json)
    wrong = [key for key, value in numbers.items() if key.endswith("_wrong") and value]
    if wrong:
        sys.exit(f"these do not agree: {', '.join(wrong)}")


def keep(tape: Path, said: dict[str, Any]) -> None:
    """Packs a tape and puts the truth beside it."""
    tape.with_suffix(".jsonl.gz").write_bytes(gzip.compress(tape.read_bytes(), mtime=0))
    tape.with_name(f"{tape.stem}-truth.json").write_text(js.dumps(said, separators=(",", ":")) + "\n")
    tape.unlink()


def make_model(folder: Path) -> None:
    """A random model of two layers whose tokens are words, so that each token is visible text."""
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
        vocab_size=WORDS, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2,
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


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


class Sink:
    """An OTLP endpoint that keeps what it gets."""

    def __enter__(self) -> Sink:
        bodies = self._bodies = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                bodies.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    _bodies: list[bytes]

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def spans(self) -> list[Span]:
        """All spans so far."""
        return [span for body in self._bodies for span in parse_spans(body)]


def _prompt(words: int, rng: random.Random) -> str:
    return " ".join(f"w{rng.randrange(3, WORDS)}" for _ in range(words))


async def _all(calls: Sequence[Awaitable[list[Call]]], at_once: int) -> list[Call]:
    places = asyncio.Semaphore(at_once)

    async def one(call: Awaitable[list[Call]]) -> list[Call]:
        async with places:
            return await call

    return [call for some in await asyncio.gather(*map(one, calls)) for call in some]


async def long_requests(url: str, share: int) -> list[Call]:
    """32 long chats at once: far more than 24 blocks hold."""
    rng = random.Random(1)
    async with AsyncOpenAI(base_url=url + "/v1", api_key="-", max_retries=0, timeout=600) as client:
        chats = [
            _chat(client, "chat", _prompt(rng.randint(100, 400), rng), rng.randint(150, 400))
            for _ in range(32 // share)
        ]
        return await _all(chats, 32)


async def mixed_requests(url: str, share: int) -> list[Call]:
    """60 requests of all kinds, eight at a time."""
    rng = random.Random(2)
    async with AsyncOpenAI(base_url=url + "/v1", api_key="-", max_retries=0, timeout=600) as client:
        kinds = [_chat, _traced, _whole, _two, _stopped, _completion, _prompts, _aborted, _too_long, _chat]
        calls = [
            kind(client, kind.__name__[1:], _prompt(rng.randint(5, 300), rng), rng.randint(1, 60))
            for _ in range(6 // share or 1)
            for kind in kinds
        ]
        return await _all(calls, 8)


async def _chat(client: AsyncOpenAI, kind: str, prompt: str, tokens: int, **given: Any) -> list[Call]:
    call = Call(kind, sent_ns=now_ns(), choices=given.get("n", 1))
    usage = {"include_usage": True, "continuous_usage_stats": True}
    extra = {"ignore_eos": True, "return_token_ids": True} | given.pop("extra_body", {})
    create: Any = client.chat.completions.create  # vLLM takes more than the official signature
    stream = await create(
        model=MODEL, messages=[{"role": "user", "content": prompt}], max_tokens=tokens, stream=True,
        stream_options=usage, extra_body=extra, **given,
    )  # fmt: skip
    async for chunk in stream:
        call.request_id = chunk.id
        now = now_ns()
        for choice in chunk.choices:
            call.arrivals += [now] * len(getattr(choice, "token_ids", None) or ())
        if chunk.usage is not None:
            call.output_tokens, call.input_tokens = chunk.usage.completion_tokens, chunk.usage.prompt_tokens
        if kind == "aborted" and len(call.arrivals) >= 3:
            call.status = "cancelled"
            break
    await stream.close()
    call.ended_ns = now_ns()
    return [call]


async def _traced(client: AsyncOpenAI, kind: str, prompt: str, tokens: int) -> list[Call]:
    headers = {"traceparent": PARENT, "x-tokentrail-tenant": "acme", "x-tokentrail-slo-class": "chat"}
    return await _chat(client, kind, prompt, tokens, extra_headers=headers)


async def _two(client: AsyncOpenAI, kind: str, prompt: str, tokens: int) -> list[Call]:
    return await _chat(client, kind, prompt, tokens, n=2)


async def _stopped(client: AsyncOpenAI, kind: str, prompt: str, tokens: int) -> list[Call]:
    return await _chat(client, kind, prompt, 200, stop=[f"w{number}" for number in (1, 12, 123, 50)])


async def _aborted(client: AsyncOpenAI, kind: str, prompt: str, tokens: int) -> list[Call]:
    return await _chat(client, kind, prompt, 400)


async def _whole(client: AsyncOpenAI, kind: str, prompt: str, tokens: int) -> list[Call]:
    sent = now_ns()
    answer = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": prompt}], max_tokens=tokens, extra_body={"ignore_eos": True}
    )
    assert answer.usage
    return [Call(kind, answer.id, [], answer.usage.completion_tokens, answer.usage.prompt_tokens, sent, now_ns())]


async def _completion(client: AsyncOpenAI, kind: str, prompt: str, tokens: int) -> list[Call]:
    return await _complete(client, kind, [prompt], tokens)


async def _prompts(client: AsyncOpenAI, kind: str, prompt: str, tokens: int) -> list[Call]:
    return await _complete(client, kind, [prompt, prompt + " w7"], tokens)


async def _complete(client: AsyncOpenAI, kind: str, prompts: list[str], tokens: int) -> list[Call]:
    sent = now_ns()
    answer = await client.completions.create(
        model=MODEL, prompt=prompts, max_tokens=tokens, extra_body={"ignore_eos": True}
    )
    return [Call(kind, answer.id, [], tokens, len(prompt.split()), sent, now_ns()) for prompt in prompts]


async def _too_long(client: AsyncOpenAI, kind: str, prompt: str, tokens: int) -> list[Call]:
    call = Call(kind, sent_ns=now_ns(), status="answered")
    try:
        await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "w5 " * 2_000}], max_tokens=9
        )
    except APIStatusError as error:
        call.status = "error" if error.status_code == 400 else f"HTTP {error.status_code}"
    call.ended_ns = now_ns()
    return [call]


def compare(calls: list[Call], metrics: str, spans: list[Span]) -> dict[str, Any]:
    """What the recording says beside what its witnesses say. `…_wrong` counts disagreements."""
    rows = [
        span for span in spans if "gen_ai.operation.name" in span.attributes and span.name.partition(" ")[2] == MODEL
    ]
    rows = [row for row in rows if "tokentrail.status" in row.attributes]
    children: dict[tuple[int, int], list[Span]] = {}
    for span in spans:
        if span.name in ("tokentrail.token", "tokentrail.phase"):
            children.setdefault((span.trace_id, span.parent_id), []).append(span)
    tokens = {
        key: sorted((s for s in of if s.name == "tokentrail.token"), key=lambda s: s.end_ns)
        for key, of in children.items()
    }
    by_id: dict[str, list[Span]] = {}
    for row in rows:
        by_id.setdefault(row.attributes.get("gen_ai.response.id", ""), []).append(row)
    wrong: Counter[str] = Counter()
    first, each = [], []
    ids = Counter(call.request_id for call in calls)
    for call in calls:
        found = by_id.get(call.request_id, [])
        of_call = [token for row in found for token in tokens.get((row.trace_id, row.span_id), [])]
        if call.kind == "too_long":
            continue
        if call.kind == "prompts":
            wrong["requests"] += len(found) != ids[call.request_id]
            wrong["tokens"] += sum(row.attributes["gen_ai.usage.output_tokens"] for row in found) != 2 * (
                call.output_tokens or 0
            )
            continue
        wrong["requests"] += len(found) != 1
        wrong["status"] += any(row.attributes["tokentrail.status"] != call.status for row in found)
        wrong["input_tokens"] += any(row.attributes["gen_ai.usage.input_tokens"] != call.input_tokens for row in found)
        wrong["engine"] += any(row.resource.get("tokentrail.engine") != "vllm" for row in found)
        if call.kind == "traced":
            wrong["trace"] += any(
                (f"{row.trace_id:032x}", f"{row.parent_id:016x}") != tuple(PARENT.split("-")[1:3]) for row in found
            )
            wrong["tenant"] += any(row.attributes.get("tokentrail.tenant") != "acme" for row in found)
        said = sum(row.attributes["gen_ai.usage.output_tokens"] for row in found)
        if call.status == "ok":
            wrong["tokens"] += said != call.output_tokens or len(of_call) != said
            wrong["chunks"] += bool(call.arrivals) and len(call.arrivals) != said
        else:
            wrong["tokens"] += said < len(call.arrivals)
        if call.arrivals and of_call and call.choices == 1:
            late = [
                (there - here.end_ns) / 1e6
                for there, here in zip(call.arrivals, sorted(of_call, key=lambda s: s.end_ns), strict=False)
            ]
            first.append(late[0])
            each += late
            wrong["order"] += min(late) < -1
    for row in rows:
        parts = [
            span.duration_ns
            for span in children.get((row.trace_id, row.span_id), [])
            if span.name == "tokentrail.phase"
        ]
        wrong["phases"] += bool(parts) and sum(parts) != row.duration_ns
    refused = [row for row in rows if row.attributes.get("error.type") == "400"]
    wrong["refused"] += len(refused) != sum(call.kind == "too_long" and call.status == "error" for call in calls)
    steps = [span for span in spans if span.name == "tokentrail.step"]
    preempted = sum(row.attributes.get("tokentrail.preemptions", 0) for row in rows)
    emitted = sum(row.attributes["gen_ai.usage.output_tokens"] for row in rows)
    theirs = {name: _metric(metrics, name) for name in ("generation_tokens_total", "num_preemptions_total")}
    wrong["generation_tokens"] += emitted != theirs["generation_tokens_total"]
    wrong["preemptions"] += preempted != theirs["num_preemptions_total"]
    served = [row for row in rows if "tokentrail.time_to_first_token" in row.attributes]
    ttft = sum(row.attributes["tokentrail.time_to_first_token"] for row in served)
    return {
        "requests": len(rows), "tokens": emitted, "steps": len(steps), "preemptions": preempted,
        "vllm_generation_tokens": theirs["generation_tokens_total"],
        "vllm_preemptions": theirs["num_preemptions_total"],
        "ttft_sum_s": ttft, "vllm_ttft_sum_s": _metric(metrics, "time_to_first_token_seconds_sum"),
        "cold_starts": sum(span.name == "tokentrail.cold_start" for span in spans),
        "client_minus_first_token_ms_p50": statistics.median(first), "client_minus_first_token_ms_max": max(first),
        "client_minus_token_ms_p50": statistics.median(each),
        "client_minus_token_ms_p95": sorted(each)[int(0.95 * len(each))], "client_minus_token_ms_max": max(each),
        "kv_used_max": max(span.attributes["tokentrail.step.kv_blocks_used"] for span in steps),
        "kv_total": max(span.attributes["tokentrail.step.kv_blocks_total"] for span in steps),
        "waiting_max": max(span.attributes["tokentrail.step.waiting"] for span in steps),
        **{f"{key}_wrong": count for key, count in sorted(wrong.items())},
    }  # fmt: skip


def truth(calls: list[Call], metrics: str, spans: list[Span]) -> dict[str, Any]:
    """What the client and vLLM's `/metrics` say, for the replay of a tape."""
    of_ids: dict[str, list[Call]] = {}
    for call in calls:
        if call.kind != "too_long":
            of_ids.setdefault(call.request_id, []).append(call)
    names = (
        "generation_tokens_total", "prompt_tokens_total", "num_preemptions_total", "time_to_first_token_seconds_count",
        "time_to_first_token_seconds_sum", "e2e_request_latency_seconds_count", "e2e_request_latency_seconds_sum",
    )  # fmt: skip
    return {
        "calls": [
            {
                "request_id": key,
                "rows": len(some),
                "status": some[0].status,
                "choices": some[0].choices,
                "output_tokens": sum(call.output_tokens or 0 for call in some),
                "input_tokens": sorted({call.input_tokens for call in some}),
            }
            for key, some in of_ids.items()
        ],
        "metrics": {name: _metric(metrics, name) for name in names},
        "steps": sum(span.name == "tokentrail.step" for span in spans),
    }


def _metric(text: str, name: str) -> float:
    return sum(float(value) for value in re.findall(rf"^vllm:{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE))


if __name__ == "__main__":
    typer.run(main)
