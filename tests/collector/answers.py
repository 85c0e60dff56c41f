"""Writes what each GET route of the API answers about one set of rows, so that two checkouts can be compared.

    python -m tests.collector.answers --out before.jsonl      in one checkout
    python -m tests.collector.answers --out after.jsonl       in the other
    cmp before.jsonl after.jsonl

The rows and the clock are the same each time: about 10,000 requests of 30 days, some sampled, some in flight, some
lost, with their tokens, phases, steps, KV events, cold starts, samples and spans. One line has the caller, the
question, the status and the body. Numbers have twelve digits: the store adds in the order in which its threads end.
"""

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlencode

from fastapi.testclient import TestClient

from collector.app.service import build_api
from collector.base.status import IngestStatus
from collector.slo.model import load_slos
from tests.collector.rows import NOW, SECOND, Rows
from tests.support.keys import access_to, add_key
from tests.support.stores import open_new_store

HOUR = 3600 * SECOND
DAY = 24 * HOUR
RECENT, OF_DAY, OLDER = 4000, 3000, 3000
SLOS = """
slos:
  - {name: chat, objective: "0.95", window: 30d, select: {slo_class: [chat]}, thresholds: {ttft: 500ms, tpot: 60ms}}
  - {name: all, objective: "0.9", window: 7d, thresholds: {e2e: 20s}, group_by: [tenant]}
  - {name: ours, objective: "0.99", window: 3d, select: {tenant: [acme, globex]}, thresholds: {ttft: 2s, e2e: 30s}}
  - {name: globex-only, objective: "0.9", window: 30d, select: {tenant: [globex]}, thresholds: {tpot: 20ms}}
  - {name: servers, objective: "0.9", window: 3d, select: {vantage: [server]}, thresholds: {ttft: 1s}}
  - {name: nobody, objective: "0.9", window: 3d, select: {model: [none]}, thresholds: {ttft: 1s}}
"""
WINDOWS = (
    {},
    {"start": "-10h"},
    {"start": "-30d"},
    {"start": "-3d", "end": "-90m"},
    {"start": "-30d", "model": "small"},
    {"start": "-1d", "tenant": ["", "acme", "globex"], "vantage": "client"},
    {"start": "-20m", "slo_class": "chat", "variant": "canary", "engine": "vllm"},
)
STEPS = {"-30d": "1d", "-3d": "7h", "-1d": "1h", "-10h": "10m"}
PER_ROUTE = {
    "/goodput": ({"ttft": "1s", "tpot": "25ms", "e2e": "9s"}, {"ttft": "300ms"}),
    "/requests": (
        {"limit": "30"},
        *({"limit": "20", "sort": sort} for sort in ("ttft", "tpot", "e2e")),
        *({"limit": "20", "verdict": verdict} for verdict in ("good", "bad", "undetermined", "excused", "unselected")),
        *({"limit": "20", "status": status} for status in ("error", "cancelled", "in_flight", "lost")),
        {"limit": "20", "status": "in_flight", "verdict": "pending", "slo": "chat"},
        {"limit": "20", "slo": "all", "verdict": "bad"},
        {"limit": "20", "cause": "kv_eviction"},
        {"limit": "20", "cause": "cold_start", "service": "engine", "instance": "i-1"},
    ),
    "/summary": ({}, {"group_by": "variant"}, {"group_by": "tenant", "top": "2"}),
    "/timeseries": tuple(
        {"metric": metric}
        for metric in (
            "ttft", "tpot", "itl", "e2e", "queue", "gap", "requests", "failed", "cancelled", "output_tokens", "goodput",
            "kv_evictions", "preemptions", "attainment", "kv_usage", "running", "waiting",
        )
    ) + ({"metric": "goodput", "slo": "all"}, {"metric": "ttft", "slo": "ours"}),
    "/slos/{name}": ({},),
    "/explain": ({}, {"slo": "chat", "without": "wait_kv,stall"}, {"metric": "ttft"}, {"e2e": "2s"}),
}  # fmt: skip
"""Parameters of a route beside those of the window. Other routes have none."""
NOT_COMPARED = {"/storage"}
"""It tells how many bytes there are on the disk."""


def fill(rows: Rows) -> dict[str, list[str]]:
    """Insert all rows; the values of parameters in paths."""
    rng = random.Random(37)
    made = rows.requests([_request(rng, place) for place in range(RECENT + OF_DAY + OLDER)])
    seen_by_clients = rows.requests([_by_client(rng, row) for row in made[:400]])
    for row in made[::25]:
        rows.tokens(row, [rng.randrange(2_000, 90_000) for _ in range(12)])
        rows.phases(row, [("queued", row["e2e_ns"] // 10), ("prefill", row["e2e_ns"] // 4), ("decode", SECOND // 7)])
    rows.causes([(row, {"ttft_own_prompt_us": rng.randrange(1, 1000)}) for row in made[: RECENT // 2]])
    for age in range(0, 3600, 3):
        counts = {name: rng.randrange(50) for name in ("prefill_tokens", "decode_tokens", "running", "waiting")}
        kv = {"kv_blocks_used": rng.randrange(900), "kv_blocks_total": 1000, "kv_blocks_evicted": rng.randrange(3)}
        rows.step(start=NOW - (age + 1) * SECOND, step=3600 - age, instance=f"i-{age % 2}", **counts, **kv)
    for i, row in enumerate(made[:60]):
        rows.kv_event(start=row["end"] - SECOND // 2, trace_id=row["trace_id"], request_span_id=row["span_id"],
                      instance=row["instance"], reason="preemption" if i % 2 else "capacity")  # fmt: skip
    for age in (200, 4000, 90_000):
        root = rows.cold_start(start=NOW - age * SECOND, duration=30 * SECOND)
        rows.cold_start(start=NOW - age * SECOND, duration=9 * SECOND, phase="weights", trace_id=root["trace_id"],
                        span_id="00000000000000cd", parent_span_id=root["span_id"])  # fmt: skip
    not_ended = [
        rows.open(**_open(rng, age)) for age in [*range(1, 25), *range(40, 900, 20), *range(2000, 90_000, 7000)]
    ]
    rows.insert("samples", [*_samples(rng)])
    rows.insert("spans", [*_spans(rng)])
    theirs = [row for row in made if row["tenant"] == "globex"]
    listed = (*theirs[:2], theirs[-1], made[RECENT], seen_by_clients[0], not_ended[0], not_ended[-1])
    return {"trace_id": [row["trace_id"] for row in listed], "name": ["chat", "all", "missing"]}


def _request(rng: random.Random, place: int) -> dict:
    longest = 15 * 60 * SECOND if place < RECENT else DAY if place < RECENT + OF_DAY else 30 * DAY
    e2e = round(min(rng.lognormvariate(1.2, 0.9), 60) * SECOND)
    status = rng.choices(("ok", "error", "cancelled", "unknown"), (90, 4, 4, 2))[0]
    tokens = None if rng.random() < 0.02 else rng.randrange(0 if status == "cancelled" else 1, 400)
    sampled = place >= RECENT and place % 3 == 0
    ttft = round(e2e * rng.uniform(0.02, 0.6)) if tokens else None
    later = (tokens or 0) - 1
    queue = round(e2e * rng.uniform(0, 0.02))
    return {
        "ended": NOW - 1 - rng.randrange(longest), "e2e": e2e, "status": status, "output_tokens": tokens,
        "error_type": "timeout" if status == "error" else "", "finish_reason": "stop" if status == "ok" else "",
        "ttft_ns": ttft, "tpot_ns": (e2e - ttft) / later if ttft and later > 0 else None,
        "tenant": rng.choice(("", "acme", "globex", "initech")), "slo_class": rng.choice(("chat", "batch", "")),
        "model": "sampled" if sampled else rng.choice(("small", "large")), "weight": 4.0 if sampled else 1.0,
        "variant": rng.choice(("baseline", "canary")), "engine": rng.choice(("tokentrail", "vllm")),
        "instance": f"i-{rng.randrange(3)}", "request_id": f"r-{place}", "preemptions": rng.choice((0, 0, 0, 2)),
        "queue_ns": queue, "cold_start_ns": 20 * SECOND if rng.random() < 0.01 else None,
        "input_tokens": rng.randrange(1, 2000), "wait_batch_ns": queue // 2, "wait_kv_ns": queue // 3,
        "gap_ns": (None, 0, queue)[place % 3],
    }  # fmt: skip


def _by_client(rng: random.Random, row: dict) -> dict:
    added = rng.randrange(SECOND // 50, SECOND // 5)
    same = {name: row[name] for name in ("status", "output_tokens", "tenant", "slo_class", "model", "request_id")}
    return {**same, "ended": row["end"] + added // 2, "e2e": row["e2e_ns"] + added, "vantage": "client",
            "engine": "openai", "service": "app", "instance": "app-1", "parent_span_id": ""}  # fmt: skip


def _open(rng: random.Random, age: int) -> dict:
    start = NOW - age * SECOND
    return {
        "start": start, "seen": min(NOW - 1, start + rng.randrange(1, 3 * age) * SECOND), "output_tokens": age % 40,
        "ttft_ns": None if age % 3 else SECOND // 3, "tenant": rng.choice(("", "acme", "globex")),
        "slo_class": rng.choice(("chat", "")), "model": rng.choice(("small", "large")), "instance": f"i-{age % 4}",
        "engine": "tokentrail", "request_id": f"open-{age}",
    }  # fmt: skip


def _samples(rng: random.Random) -> list[dict]:
    """A vLLM process without spans: a gauge, a counter and a histogram every 15 seconds."""
    process = {"service": "scraped", "instance": "vllm:8000", "process_tenant": "", "engine": "vllm", "scraper": "me",
               "labels": {"model_name": "small"}}  # fmt: skip
    found, total = [], 0.0
    observations = [0] * 5
    for i in range(80):
        at = (NOW - (1200 - 15 * i) * SECOND) // 1_000_000
        total += rng.randrange(5)
        observations = [n + rng.randrange(3) for n in observations]
        plain = {**process, "time": at, "sum": 0.0, "bounds": [], "buckets": []}
        for number, (name, kind, value) in enumerate(
            [("up", "gauge", float(i % 17 != 0)), ("running", "gauge", float(rng.randrange(9))),
             ("waiting", "gauge", float(rng.randrange(4))), ("kv_usage", "gauge", rng.random()),
             ("preemptions", "counter", total), ("generation_tokens", "counter", 40.0 * i)]
        ):  # fmt: skip
            found.append({**plain, "name": name, "raw_name": name, "series": number, "kind": kind, "value": value})
        histogram = {**plain, "name": "ttft", "raw_name": "ttft", "series": 9, "kind": "counter"}
        n = sum(observations)
        grown = {"sum": 0.3 * n, "value": float(n), "bounds": [0.1, 0.2, 0.5, 1.0], "buckets": [*observations]}
        found.append(histogram | grown)
    return found


def _spans(rng: random.Random) -> list[dict]:
    return [
        {"start": NOW - (i + 1) * 7 * SECOND, "duration_ns": rng.randrange(SECOND), "trace_id": f"{i:032x}",
         "span_id": f"{i + 1:016x}", "parent_span_id": "", "service": rng.choice(("router", "cache")), "instance": "x",
         "scope": "lib", "name": f"work-{i % 7}", "kind": i % 6, "status_code": i % 3, "status_message": "",
         "attributes": {"n": str(i)}, "resource": {"tokentrail.tenant": rng.choice(("", "acme"))}, "events": []}
        for i in range(120)
    ]  # fmt: skip


def questions(paths: list[str], known: dict[str, list[str]], windows_asked: Sequence[dict] = WINDOWS) -> list[str]:
    """The paths with their parameters, with each window."""
    found = []
    for path in paths:
        names = [name for name in known if f"{{{name}}}" in path]
        filled = [path.format(**{name: value}) for name in names for value in known[name]] or [path]
        windows = [{}, {"start": "-3d"}] if path == "/requests/{trace_id}" else windows_asked
        if path in ("/spans", "/spans/names"):
            windows = [{}, {"start": "-1d", "service": "router"}]
        for one in filled:
            for window in windows:
                step = {"step": STEPS.get(window.get("start", ""), "10s")} if path == "/timeseries" else {}
                found += [f"{one}?{urlencode(window | step | more, doseq=True)}" for more in PER_ROUTE.get(path, ({},))]
    return found


def main(arguments: list[str]) -> int:
    """Write one line for each caller and question."""
    parser = argparse.ArgumentParser(prog="python -m tests.collector.answers", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the file to write, one JSON document in each line")
    out = parser.parse_args(arguments).out
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        store = open_new_store(folder / "db")
        known = fill(Rows(store))
        (folder / "slos.yaml").write_text(SLOS)
        keys = folder / "keys.json"
        callers = {
            "everyone": (add_key(keys, "read"), WINDOWS),
            "globex": (add_key(keys, "read", "globex"), WINDOWS[::4]),
        }
        app, _ = build_api(
            store, load_slos(folder / "slos.yaml"), IngestStatus(), lost_after_s=30.0, clock=lambda: NOW,
            access=access_to(keys),
        )  # fmt: skip
        paths = [
            path.removeprefix("/api/v1")
            for path, operations in app.openapi()["paths"].items()
            if path.startswith("/api/v1") and "get" in operations
        ]
        paths = [path for path in paths if path not in NOT_COMPARED]
        client = TestClient(app)
        with out.open("w") as file:
            for caller, (headers, windows) in callers.items():
                waiting = questions(paths, known, windows)
                while waiting:
                    question = waiting.pop(0)
                    answer = client.get(f"/api/v1{question}", headers=headers)
                    body = json.loads(answer.text, parse_float=lambda text: float(f"{float(text):.12g}"))
                    file.write(json.dumps([caller, question, answer.status_code, body], sort_keys=True) + "\n")
                    if "cursor=" not in question and body.get("next"):
                        waiting.append(f"{question}&cursor={body['next']}")
        store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
