"""An explainer on a store whose rows are of a simulated engine."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from collector.explainer.backlog import Waits
from collector.explainer.stage import Explainer
from collector.status import IngestStatus
from tests.collector.rows import SECOND
from tests.support.simulated_engine import chats, run

AT_ONCE = Waits(soon_s=0.0, patience_s=0.0, late_s=0.0, others_s=0.0)
STEP_NUMBERS = ("step", "prefill_tokens", "decode_tokens", "running", "waiting")
LATENCIES = ("ttft_us", "tpot_us", "e2e_us")


@pytest.fixture(scope="session")
def simulated():
    """300 chats in 30 s."""
    return run(chats(300, seed=4), seed=4)


@pytest.fixture
def status():
    return IngestStatus()


@pytest.fixture
def rows(rows):
    rows.store.client().command("TRUNCATE TABLE explained_segments")
    return rows


@pytest.fixture
def explainer(rows, status):
    return Explainer(rows.store, status, waits=AT_ONCE)


@pytest.fixture
def traffic(rows, simulated):
    """Puts the rows of a run into the store, as if the last request had ended now."""

    def put(one=simulated, *, segments=1, steps=True, ago_s=1.0, only=lambda row: True, **fields):
        shift = int(time.time_ns() - ago_s * SECOND) - int(one.requests["end"].max())
        return _Traffic(rows, one, shift, segments, only, fields).put(steps=steps)

    return put


class _Traffic:
    def __init__(self, rows, one, shift, segments, only, fields):
        self.rows, self.run, self.shift, self.fields = rows, one, shift, fields
        table = {name: column.tolist() for name, column in one.requests.items()}
        self.requests = [
            self.request(dict(zip(table, values, strict=True)), segments)
            for values in zip(*table.values(), strict=True)
        ]
        self.kept = [number for number, row in enumerate(self.requests) if only(row)]

    def request(self, row, segments):
        end, tokens = row["end"] + self.shift, int(row["output_tokens"])
        e2e = row["end"] - row["start"]
        return {
            "ended": end, "e2e": e2e, "ttft_ns": int(row["ttft_ns"]), "input_tokens": int(row["input_tokens"]),
            "output_tokens": tokens, "tpot_ns": (e2e - row["ttft_ns"]) / (tokens - 1) if tokens > 1 else None,
            "segment": f"s{row['key'] * segments // len(self.run.requests['key'])}", "ingested_at": time.time_ns(),
            **{name: int(row[name]) for name in row if name.startswith("wait_") and not np.isnan(row[name])},
            **self.fields,
        }  # fmt: skip

    def put(self, *, steps):
        stored = self.rows.requests([self.requests[number] for number in self.kept])
        self.by_key = dict(zip(self.kept, stored, strict=True))
        phases = self.run.phases
        self.rows.insert(
            "phases",
            [
                {"minute": start + self.shift + length, "trace_id": self.by_key[key]["trace_id"],
                 "request_span_id": self.by_key[key]["span_id"], "start": start + self.shift, "name": name,
                 "duration_ns": length}
                for key, start, length, name in zip(
                    phases["key"].tolist(), phases["start"].tolist(), phases["duration_ns"].tolist(),
                    phases["name"].tolist(), strict=True,
                )
                if key in self.by_key
            ],
        )  # fmt: skip
        if steps:
            self.put_steps()
        return self

    def put_steps(self, **fields):
        table = self.run.steps
        process = {"service": "engine", "instance": "i-1", "process_tenant": "", "variant": "baseline"}
        names = ("start", "duration_ns", *STEP_NUMBERS)
        self.rows.insert(
            "steps",
            [
                {**process, **dict(zip(names, map(int, values), strict=True)), **fields}
                | {"start": int(values[0]) + self.shift}
                for values in zip(*(table[name].tolist() for name in names), strict=True)
            ],
        )


@pytest.fixture
def explained(rows):
    """The rows of `causes`, as objects."""

    def read(where="1"):
        sql = f"SELECT *, {', '.join(LATENCIES)}, error_us FROM causes FINAL WHERE {where} ORDER BY end, request_key"
        return [SimpleNamespace(**row) for row in rows.store.query(sql).named_results()]

    return read


@pytest.fixture
def latencies(rows):
    """The latencies of all requests, and those of their causes: equal when each is explained once."""

    def read():
        key = "toUInt32(cityHash64(trace_id, span_id))"
        return [
            rows.store.query(
                f"SELECT end, {k} AS key, {', '.join(LATENCIES)} FROM {table} ORDER BY end, key"
            ).result_rows
            for k, table in ((key, "requests"), ("request_key", "causes FINAL"))
        ]

    return read
