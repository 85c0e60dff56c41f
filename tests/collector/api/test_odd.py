"""What is odd though every SLO is kept, in `/verdict`: a quiet day of rows, and one with a fault of each kind."""

import pytest

from tests.collector.rows import NOW, SECOND, Rows

MS = 1_000_000
BLOCK = 600 * SECOND
PROCESSES = ("a", "b", "c")
TENANTS = ("acme", "globex", "initech", "umbrella")
EACH = 18


def day(faults=()):
    """18 requests in each ten minutes of a day; their times differ by a fifth. `faults` change some of them.

    A fault is a function of the block, 0 the newest one, and of the number of the request in it.
    """
    many = []
    for block, i in ((block, i) for block in range(144) for i in range(EACH)):
        jitter = 90 + (block * 7 + i * 13) % 21
        fields = {
            "ended": NOW - block * BLOCK - (i + 1) * (BLOCK // (EACH + 1)), "instance": PROCESSES[i % 3],
            "tenant": TENANTS[i % 4], "e2e": 2 * SECOND, "input_tokens": 300, "variant": "v1",
            "ttft_ns": MS * jitter, "tpot_ns": float(MS * jitter) / 5,
        }  # fmt: skip
        for fault in faults:
            fields |= fault(block, i)
        many.append(fields)
    return many


def long_prompts(block, i):
    """From 02:00 to 04:00, globex sends long prompts."""
    slow = {"ttft_ns": 3_600 * MS, "e2e": 5 * SECOND, "input_tokens": 60_000}
    return slow if 36 <= block < 48 and i % 4 == 1 else {}


def behind_others(block, i):
    """From 02:00 to 04:00, requests of all tenants wait."""
    return {"ttft_ns": 3_600 * MS, "e2e": 5 * SECOND} if 36 <= block < 48 and i < 8 else {}


def cancels(block, i):
    """For an hour up to 06:40."""
    return {"status": "cancelled", "tenant": "impatient"} if 20 <= block < 26 and i % 2 else {}


def errors(block, i):
    """For the last 70 minutes, of all tenants."""
    return {"status": "error", "ttft_ns": None, "tpot_ns": None, "error_type": "x"} if block < 7 and not i % 5 else {}


def slow_host(block, i):
    """Process b from 22:10 to 00:00."""
    return {"tpot_ns": float(54 * MS)} if 60 <= block < 71 and i % 3 == 1 else {}


def steps(times):
    """A step of each process each ten seconds of that time; `b` takes so many times as long."""
    return [
        Rows.step_row(
            start=NOW - 71 * BLOCK + i * 10 * SECOND + number, instance=name, decode_tokens=4,
            duration_ns=int((times if name == "b" else 1) * (20 + i % 3) * MS),
        )
        for i in range(11 * 60)
        for number, name in enumerate(PROCESSES)
    ]  # fmt: skip


FAULTS = (long_prompts, cancels, errors, slow_host)


@pytest.fixture
def odd(rows, api):
    """What is told of the last day with some faults, or of another window, beside the API."""

    def told(*faults, times=None, **asked):
        rows.clear()
        rows.requests(day(faults))
        if times:
            rows.insert("steps", steps(times))
        return api("verdict", **{"start": "-1d", **asked})["odd"]

    return told


def test_a_quiet_day_has_nothing_odd(odd):
    assert odd() == []


def test_each_fault_is_told_with_whose_since_when_and_a_list_of_as_many(odd, api):
    told = odd(*FAULTS, times=2.7)
    assert [(one["kind"], one["sentence"], one["who"]) for one in told] == [
        ("failed", "Since 08:50 UTC. 28 of 126 requests failed; at other times 0 of 2\u202f466.", None),
        (
            "cancelled",
            "From 05:40 UTC to 06:40 UTC. 54 of 108 requests were cancelled; at other times 0 of 2\u202f484.",
            "100 % of them are of tenant impatient, with prompts of 300 tokens at the median.",
        ),
        (
            "slow",
            "From 02:00 UTC to 04:00 UTC. 60 of 216 requests of m waited 451 ms or longer for the first token (P99 "
            "about 3.30 s, usual 100 ms); at other times 0 of 2\u202f348.",
            "100 % of them are of tenant globex, with prompts of 60\u202f000 tokens at the median.",
        ),
        (
            "process",
            "From 20 Nov 22:10 UTC to 00:00 UTC. engine b took × 2.7 the step time of its 2 siblings (2.7 to 2.7).",
            None,
        ),
    ]
    for one in told:
        lists = [link for link in one["links"] if link["page"] == "explore"]
        assert [api("requests", **link["params"])["total"] for link in lists] == [one["n"]]
    failed, *_, slow, host = told
    assert (failed["until_ns"], slow["until_ns"]) == (None, NOW - 36 * BLOCK)
    assert (host["beside"]["siblings"], host["n"], host["instance"]) == (2, 66, "b")
    asked = api("verdict", start="-5h", end="-2h", tenant="impatient")["odd"]
    assert asked == [], "of a tenant with no other time nothing is usual"
    assert [one["kind"] for one in api("verdict", start="-4h30m", end="-2h")["odd"]] == ["cancelled"]


def test_whose_prompts_made_others_wait_is_told(rows, api):
    many = rows.requests(day([behind_others]))
    slow = [one for one in many if one["ttft_ns"] > SECOND]

    def told(times):
        rows.all_causes([(one, {"inflicted_us": times if one["tenant"] == "globex" else 1000}) for one in slow])
        (one,) = api("verdict", start="-1d")["odd"]
        return one["n"], one["tenant"], one["who"]

    assert told(1000) == (96, None, None), "of each tenant as much as it has requests"
    whose = "Prompts of tenant globex took 96.15 % of what others waited for prompts."
    rows.store.client().command("TRUNCATE TABLE causes")
    assert told(75_000) == (96, "globex", whose)


def test_a_process_whose_steps_are_as_quick_as_those_of_others_is_not_told(odd):
    """Its requests have others prompts beside them."""
    assert odd(slow_host, times=1) == []


def test_without_steps_the_time_of_its_tokens_is_told(odd):
    (one,) = odd(slow_host)
    assert "took × 2.7 the time of a token after the first of its 2 siblings (2.7 to 2.8)" in one["sentence"]
