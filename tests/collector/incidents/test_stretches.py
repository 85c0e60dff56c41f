"""Stretches that are unusual beyond chance: pure functions over counts of blocks, and over days that are drawn."""

from types import SimpleNamespace

import numpy as np
import pytest

from collector.ask.window import Window
from collector.base.process import Process
from collector.incidents import odd
from collector.incidents.box import BoxOut
from collector.incidents.odd import is_told, stands_out
from collector.incidents.stretches import Stretch, runs, share, unusual
from collector.incidents.usual import BLOCK_NS, Unusual, quantile, slow_processes, slow_requests
from collector.sql.fragment import TRUE

DAY = range(144)


def counts(high=(), *, n=1, of=100, more=10):
    return {block: (more if block in high else n, of) for block in DAY}


@pytest.mark.parametrize(
    ("high", "told"),
    [
        ((), []),
        (range(30, 36), [(30, 35, 6)]),
        (range(30, 35), []),
        ([30, 31, 33, 34, 36, 37], [(30, 37, 6)]),
        ([30, 31, 32, 35, 36, 37], []),
        ([*range(6), *range(138, 144)], [(0, 5, 6), (138, 143, 6)]),
        (range(144), []),
    ],
    ids=["none", "an hour", "too short", "with gaps", "too far apart", "two, at both ends", "always so"],
)
def test_six_high_blocks_with_gaps_of_one_are_told(high, told):
    assert [(one.first, one.last, one.high) for one in unusual(counts(high))] == told


@pytest.mark.parametrize(
    ("blocks", "is_told"),
    [
        (counts(range(30, 42), more=10), True),
        (counts(range(30, 42), n=40, of=1000, more=110), False),
        (counts(range(30, 42), n=40, of=1000, more=150), True),
        (counts(range(30, 42), of=10, more=4), False),
        (counts(range(30, 42), n=0, of=1000, more=2), False),
        (counts(range(30, 42), n=0, of=10, more=3), True),
        (counts(range(30, 42), n=0, of=3, more=3), True),
        ({**counts(range(30, 42)), 30: (0, 0)}, True),
        (dict.fromkeys(range(12), (10, 100)), False),
    ],
    ids=[
        "ten times",
        "less than three times",
        "three times",
        "chance",
        "two are few",
        "small",
        "all of a block",
        "an empty block",
        "young",
    ],
)
def test_three_times_as_many_and_no_chance_are_told(blocks, is_told):
    assert bool(unusual(blocks)) == is_told


def test_a_share_is_never_nothing():
    assert (share(iter([])), share(iter([(1, 9), (0, 10)]))) == (1.0, 0.1)


@pytest.mark.parametrize(
    ("of_odd", "of_all", "does"), [(0.6, 0.3, True), (0.6, 0.31, False), (0.59, 0.0, False), (1.0, 0.5, True)]
)
def test_who_has_most_of_what_is_odd_and_twice_their_share_stands_out(of_odd, of_all, does):
    assert stands_out(of_odd, of_all) == does


@pytest.mark.parametrize(("kind", "tenant", "n"), [("slow", "acme", 6), ("process", "", 6), ("process", "acme", 0)])
def test_six_are_told_and_a_tenant_hears_of_no_process(monkeypatch, kind, tenant, n):
    process = Process("s", "b") if kind == "process" else None
    found = [Unusual(Stretch(10, 19, 10), kind, process=process)] * 9
    monkeypatch.setattr(odd, "unusual_of_day", lambda *_: found)
    monkeypatch.setattr(odd, "without_doubles", lambda _, window, __: window)
    for answer in ("_of_requests", "_of_process"):
        monkeypatch.setattr(odd, answer, lambda *_: "told")
    window = Window(15 * BLOCK_NS, 30 * BLOCK_NS, TRUE)
    assert len(odd.odd(SimpleNamespace(tenant=tenant), window, (), ())) == n
    assert odd.odd(SimpleNamespace(tenant=tenant), Window(20 * BLOCK_NS, 30 * BLOCK_NS, TRUE), (), ()) == []


def test_what_is_high_by_times_anyway_needs_a_longer_stretch():
    by_times = [*range(0, 100, 5)]
    assert unusual(counts([*by_times, *range(110, 116)], n=1, more=10)) == []
    (one,) = unusual(counts([*by_times, *range(110, 126)], n=1, more=10))
    assert (one.first, one.last) == (110, 125)
    six = [*range(30, 36)]
    assert [len([*runs(six, DAY, 6, 144, tried)]) for tried in (1, 10**6, 10**12)] == [1, 1, 0]


def test_quiet_days_have_none():
    """Days of requests that come one by one, in clusters of six, and with another share in each block."""
    random = np.random.default_rng(5)
    for _ in range(40):
        of = random.poisson(100 * (0.55 + 0.45 * np.cos(np.arange(144) / 72 * np.pi))) + 1
        alone = random.binomial(of, 0.01)
        clustered = np.minimum(random.poisson(of / 600) * random.geometric(1 / 6, 144), of)
        wandering = random.binomial(of, random.beta(0.3, 30, 144))
        for n in (alone, clustered, wandering):
            assert unusual(dict(enumerate(zip(n.tolist(), of.tolist(), strict=True)))) == []
        speed = np.exp(random.normal(0, 0.1, (3, 144)))
        assert [*slow_processes({Process("s", str(i)): dict(enumerate(one)) for i, one in enumerate(speed)})] == []


def quick(edge=40, *, slow=0, at=60):
    """A block: a hundred requests with a TTFT of a bucket, some of another one, and one with none."""
    return {edge: 100, at: slow, 255: 1}


def test_slow_is_two_octaves_above_the_usual_p95_of_the_model():
    blocks = {block: quick(slow=4 if 50 <= block < 60 else 0) for block in DAY}
    other = {block: quick(60) for block in DAY}
    (one,) = slow_requests({"m": blocks, "other": other})
    assert (one.stretch, one.model, one.others) == (Stretch(50, 59, 10), "m", (0, 13_400))
    assert one.slow_us == 5  # 2 ** (49 / 4) ns, up
    assert one.p99_s == pytest.approx((2 ** (60.5 / 4) / 1e9, 2 ** (40.5 / 4) / 1e9))
    near = {block: quick(slow=4 if 50 <= block < 60 else 0, at=48) for block in DAY}
    assert [*slow_requests({"m": near})] == [], "less than two octaves"
    few = {block: {40: 9, 60: 5 if 50 <= block < 60 else 0} for block in DAY if not 50 <= block < 60}
    assert [*slow_requests({"m": few, "none": {3: {255: 90}}})] == []


def test_the_quantile_is_the_bucket_that_reaches_it():
    assert [quantile({1: 98, 2: 1, 5: 1}, q) for q in (0.5, 0.98, 0.99, 1.0)] == [1, 1, 2, 5]
    assert (quantile({}, 0.5), quantile({1: 9}, 0.5, 10), quantile({1: 10}, 0.5, 10)) == (None, None, 1)


def fleet(times=2.7, blocks=range(60, 71), **more):
    speed = {name: dict.fromkeys(DAY, 20.0) for name in ("a", "b", "c")}
    speed["b"] |= dict.fromkeys(blocks, 20.0 * times)
    return {Process("s", name): its for name, its in (speed | more).items()}


def test_a_process_is_told_beside_its_siblings():
    (one,) = slow_processes(fleet())
    assert (one.process, one.stretch) == (Process("s", "b"), Stretch(60, 70, 11))
    assert one.beside is not None
    assert (one.beside.ratio, one.beside.low, one.beside.siblings) == (2.7, 2.7, 2)
    assert [*slow_processes(fleet(1.49))] == []
    assert [one.process for one in slow_processes(fleet(1.5, DAY))] == [Process("s", "b")], "all day"
    assert [*slow_processes({Process("s", "b"): fleet()[Process("s", "b")]})] == [], "nobody to compare it with"
    elsewhere = {Process("t" if name == "b" else "s", name): its for (_, name, _), its in fleet().items()}
    assert [*slow_processes(elsewhere)] == [], "of another service"
    assert [
        *slow_processes(
            {key: {at: its[at] for at in its if key.instance == "b" or at < 60} for key, its in fleet().items()}
        )
    ] == []


def box(kind, first, last, **of):
    until = None if last is None else last * BLOCK_NS
    known = {"title": "", "sentence": "", "why": None, "firing": False, "severity": None, "process_tenant": None,
             "dimension": None, "value": None, "slo": None, "tenant": None, "requests": 0, "bad": None, "links": [],
             "inside": [], "service": None, "instance": None}  # fmt: skip
    return BoxOut(kind=kind, since_ns=first * BLOCK_NS, until_ns=until, **{**known, **of})


@pytest.mark.parametrize(
    ("kind", "boxes", "told"),
    [
        ("slow", [], False),
        ("slow", [box("slo_burn", 15, 30)], True),
        ("slow", [box("slo_burn", 16, 30)], False),
        ("slow", [box("slo_burn", 0, None)], True),
        ("slow", [box("change", 0, None)], False),
        ("slow", [box("change", 0, None, inside=[box("slo_burn", 12, None)])], True),
        ("slow", [box("kv_eviction", 10, 20)], True),
        ("cancelled", [box("kv_eviction", 10, 20)], False),
        ("failed", [box("engine_hung", 10, 20)], True),
        ("process", [box("slo_burn", 0, None)], False),
        ("process", [box("engine_hung", 0, None, service="s", instance="b")], True),
        ("process", [box("engine_hung", 0, None, service="s", instance="c")], False),
        ("process", [box("process", 0, None, service="s", instance="b")], False),
    ],
)
def test_what_a_box_tells_of_half_of_the_time_is_not_told_again(kind, boxes, told):
    at = Window(10 * BLOCK_NS, 20 * BLOCK_NS, TRUE)
    process = Process("s", "b") if kind == "process" else None
    assert is_told(Unusual(Stretch(10, 19, 10), kind, process=process), at, boxes) == told
