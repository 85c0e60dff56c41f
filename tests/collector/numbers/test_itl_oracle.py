"""ITL of random requests, against percentiles that plain Python computes from their tokens."""

import random
from itertools import cycle

import numpy as np
import pytest

from collector.ask.queries import Queries
from collector.ask.times import rfc3339
from tests.collector.rows import NOW, SECOND

HOUR, DAY = 3600 * SECOND, 24 * 3600 * SECOND
MIDNIGHT = NOW // DAY * DAY
EDGES = [MIDNIGHT, MIDNIGHT - DAY, *(MIDNIGHT + hours * HOUR for hours in (-3, 3, 4, 9))]
WINDOWS = [
    (MIDNIGHT - DAY, MIDNIGHT), (MIDNIGHT - DAY + 1, MIDNIGHT + 1), (MIDNIGHT - 2 * DAY - HOUR, MIDNIGHT + 9 * HOUR),
    (MIDNIGHT - 3 * HOUR, MIDNIGHT + 3 * HOUR), (MIDNIGHT + 3 * HOUR, NOW), (MIDNIGHT - 5 * DAY, NOW + DAY),
    (NOW + HOUR, NOW + DAY),
]  # fmt: skip
STEPS = (1, 6, 7, 24, 48, 72)
"""Hours: some divide a day, some are divided by it, and one is neither."""
FILTERS = [{}, {"model": "m"}, {"tenant": "a", "vantage": "server"}, {"model": "nobody"}]


def drawn(rng):
    """A request that ended around an edge or anywhere in three days, and the waits of each choice, µs."""
    ended = rng.choice(EDGES) + rng.choice([-1, 0, 1]) if rng.random() < 0.4 else NOW - rng.randrange(1, 3 * DAY)
    short = [0, 1, 20_000, rng.randrange(50_000), rng.randrange(5_000_000)]
    answers = [[rng.choice(short) for _ in range(rng.choice([0, 1, 2, 9]))] for _ in range(rng.choice([1, 1, 3]))]
    if answers[0] and rng.random() < 0.3:
        answers[0][0] = rng.choice([3, 30]) * 3600 * 10**6
    return answers, {
        "ended": ended, "e2e": 1000 * max(map(sum, answers)) + rng.choice([0, 1]), "model": rng.choice("mk"),
        "tenant": rng.choice("ab"), "status": rng.choice(["ok", "ok", "ok", "error"]),
        "vantage": rng.choice(["server", "client"]), "output_tokens": sum(map(len, answers)),
        "ttft_ns": None, "tpot_ns": None,
    }  # fmt: skip


def tokens_of(answers, row):
    for choice, waits_us in enumerate(answers):
        at_us = 0
        for index, wait_us in enumerate(waits_us):
            at_us += wait_us
            yield {
                "minute": row["start"] + 1000 * at_us, "trace_id": row["trace_id"], "request_span_id": row["span_id"],
                "choice": choice, "token_index": index, "duration_us": wait_us, "step": None,
            }  # fmt: skip


def percentiles(made, start, end, kept):
    waits = [
        wait_us / 1e6
        for answers, row in made
        if start <= row["end"] < end and row["status"] == "ok" and all(row[key] == kept[key] for key in kept)
        for waits_us in answers
        for wait_us in waits_us[1:]
    ]
    known = {"count": len(waits), "mean": None, "max": None} | dict.fromkeys(("p50", "p90", "p95", "p99", "p999"))
    if waits:
        values = np.percentile(waits, [50, 90, 95, 99, 99.9]).tolist()
        known |= dict(zip(("p50", "p90", "p95", "p99", "p999"), values, strict=True))
        known |= {"mean": np.mean(waits), "max": max(waits)}
    return {key: value if value is None else pytest.approx(value) for key, value in known.items()}


def points(made, start, end, step, kept):
    """The points of a chart, from the percentiles of each bucket."""
    for at in range(start // step * step, end, step):
        found = percentiles(made, max(at, start), min(at + step, end), kept)
        if found["count"] != 0:
            del found["mean"], found["p999"]
            is_whole = start <= at and at + step <= min(end, NOW)
            covered_s = (min(at + step, end, NOW) - max(at, start)) / SECOND
            yield {"t": rfc3339(at), "partial": not is_whole, "covered_s": covered_s, **found}


def test_itl_is_that_of_the_tokens(api, rows):
    """Requests and tokens come late and in any order, into days and hours whose answers are remembered by then."""
    rng = random.Random(1)
    made, late = [], []
    for _ in range(2):
        answers, fields = zip(*(drawn(rng) for _ in range(80)), strict=True)
        made += zip(answers, rows.requests(list(fields)), strict=True)
        tokens = [token for one in made[-80:] for token in tokens_of(*one)]
        rng.shuffle(tokens)
        rows.insert("tokens", late + tokens[:-60])
        late = tokens[-60:]
        for start, end in WINDOWS:
            api("summary", start=rfc3339(start), end=rfc3339(end), vantage="server")
    rows.insert("tokens", late)
    for (start, end), kept in zip(WINDOWS, cycle(FILTERS), strict=False):
        for asked in ({"vantage": "server"}, kept):
            answer = api("summary", start=rfc3339(start), end=rfc3339(end), **asked)
            assert answer["itl_s"] == percentiles(made, start, end, asked), (start, end, asked)
        for hours in rng.sample(STEPS, 3):
            asked = kept if hours == 24 else {"vantage": "server"} | kept
            chart = api("timeseries", metric="itl", step=f"{hours}h", start=rfc3339(start), end=rfc3339(end), **asked)
            assert chart["points"] == [*points(made, start, end, hours * HOUR, asked)], (start, end, hours, asked)


@pytest.mark.parametrize(("step", "asks"), [("1h", [4, 1]), ("24h", [0, 0])])
def test_a_chart_of_many_days_holds_the_tokens_of_one_in_memory(api, rows, monkeypatch, step, asks):
    """Two hundred million tokens of weeks were more than a query may have in memory."""
    for days in (0, 1, 2, 5):
        rows.tokens(rows.request(ended=NOW - days * DAY), [1, 1000, 2000])
    asked = []
    real = Queries.rows

    def spy(self, query, fragments=None, /, **parameters):
        if query == "timeseries_itl":
            asked.append(parameters["end_ns"] - parameters["start_ns"])
        return real(self, query, fragments, **parameters)

    monkeypatch.setattr(Queries, "rows", spy)
    for n in asks:
        asked.clear()
        chart = api("timeseries", metric="itl", step=step, start="-700h", end=rfc3339(NOW + 4 * HOUR))
        assert [point["count"] for point in chart["points"]] == [2, 2, 2, 2]
        assert len(asked) == n
        assert all(length <= DAY for length in asked)
