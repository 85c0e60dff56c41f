"""The rows of a simulated run, in a store."""

import time

import numpy as np

STEP_NUMBERS = ("step", "prefill_tokens", "decode_tokens", "running", "waiting")


class StoredRun:
    """Puts the rows of a run into a store, moved by `shift` ns. `fields` of requests, or a function of a key."""

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
            **{name: int(row[name]) for name in row if name.startswith(("wait_", "gap_")) and not np.isnan(row[name])},
            **(self.fields(row["key"]) if callable(self.fields) else self.fields),
        }  # fmt: skip

    def put(self, *, steps):
        stored = self.rows.requests([self.requests[number] for number in self.kept])
        self.by_key = dict(zip(self.kept, stored, strict=True))
        phases = self.run.phases
        self.rows.insert(
            "phases",
            [
                {"minute": start + self.shift + length, "trace_id": self.by_key[key]["trace_id"],
                 "request_span_id": self.by_key[key]["span_id"], "process_tenant": self.by_key[key]["process_tenant"],
                 "start": start + self.shift, "name": name, "duration_ns": length}
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
