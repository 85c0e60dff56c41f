"""KV-cache use, batch and queue over time, of processes that are sampled at moments of their own."""

import pytest

from tests.collector.rows import NOW, SECOND

MINUTE = 60 * SECOND


class Samples:
    """Rows of samples, as the scraper stores them. Ages are seconds before now."""

    def __init__(self, rows):
        self._rows = rows
        self._made = []

    def add(self, instance, *ages, name="running", value=5.0, scraper="me"):
        for age in ages:
            self._row(instance, age, name, value, scraper)
            if scraper:
                self._row(instance, age, "up", 1.0, scraper)
        return self

    def down(self, instance, *ages, scraper="me"):
        for age in ages:
            self._row(instance, age, "up", 0.0, scraper)
        return self

    def _row(self, instance, age, name, value, scraper):
        self._made.append(
            {"time": (NOW - round(age * SECOND)) // 10**6, "name": name, "service": "chat", "instance": instance,
             "engine": "vllm", "scraper": scraper, "raw_name": name, "labels": {}, "series": len(self._made),
             "kind": "gauge", "value": value, "sum": 0.0, "bounds": [], "buckets": []}
        )  # fmt: skip

    def store(self):
        self._rows.insert("samples", self._made)
        self._made.clear()


@pytest.fixture
def samples(rows):
    return Samples(rows)


@pytest.fixture
def over_time(api):
    """The points of a metric: seconds before now at which the bucket begins, and value."""

    def read(metric="running", *, step=10, start=300, end=0):
        window = {"start": f"-{start}s", "end": f"-{end}s"} if end else {"start": f"-{start}s"}
        points = api("timeseries", metric=metric, step=f"{step}s", **window)["points"]
        times = [int(p["t"][11:13]) * 3600 + int(p["t"][14:16]) * 60 + int(p["t"][17:19]) for p in points]
        return {10 * 3600 - t: p["value"] for t, p in zip(times, points, strict=True)}

    return read


@pytest.mark.parametrize(("every", "step"), [(10, 1), (10, 60), (15, 10), (30, 5), (60, 1), (60, 60)])
@pytest.mark.parametrize("scraper", ["me", ""])
def test_engines_that_are_sampled_apart_are_summed_in_each_bucket(samples, over_time, every, step, scraper):
    """Four engines run 5 requests each, all the time. They had shown 5 in most buckets, and 20 in none."""
    for n in range(4):
        ages = [n * every / 4 + turn * every for turn in range(600 // every)]
        samples.add(f"i:{n}", *ages, scraper=scraper)
    samples.store()
    shown = over_time(step=step)
    assert set(shown.values()) == {20}
    assert len(shown) >= 4 * 300 / max(every, 4 * step)
    assert max(shown) == 300, "the first bucket has what was sampled before the window"


def test_a_window_that_begins_within_a_bucket_has_the_samples_before_it(samples, over_time):
    samples.add("i:1", *range(0, 600, 60)).add("i:2", *range(50, 600, 60), value=7)
    samples.add("i:3", 290, value=9).add("i:3", 275, value=2)
    samples.add("was down", 295, 297).down("was down", 285, 275).store()
    shown = over_time(step=60, start=281, end=5)
    assert shown == {300: 14, 240: 14, 180: 12, 120: 12, 60: 12}, "i:2 was sampled at 290 and at 230"


def test_the_first_samples_of_all_are_no_climb(samples, over_time):
    """Engines that were first sampled one after the other, because the collector has begun then, ran before too."""
    for n in range(4):
        samples.add(f"i:{n}", *(240 - 15 * n - turn * 60 for turn in range(4)))
    samples.store()
    assert set(over_time(step=5).values()) == {20}
    assert max(over_time(step=5)) == 240, "nothing is known before"


def test_a_new_engine_is_in_no_wider_bucket_before_its_first_sample(samples, over_time):
    samples.add("i:1", *range(0, 300, 10)).add("new", *range(1, 61, 10), value=7).store()
    assert over_time(step=60) == {300: 5, 240: 5, 180: 5, 120: 5, 60: 12}
    assert [over_time()[age] for age in (80, 70, 60, 50)] == [5, 5, 12, 12]


def test_a_value_ends_when_a_scrape_fails(samples, over_time):
    samples.add("i:1", *range(5, 300, 10)).add("i:2", *range(153, 300, 30), value=7)
    samples.down("i:2", *range(3, 153, 30)).store()
    shown = over_time()
    assert {shown[age] for age in shown if age >= 130} == {12}, "the first scrape that failed was 123 s ago"
    assert {shown[age] for age in shown if age < 130} == {5}


def test_a_failed_scrape_is_no_sample(samples, over_time):
    """A bucket in which nothing was told has no point, and an engine that was down has no value from before."""
    samples.add("i:1", 290, 280, 270).down("i:1", 260, 250, 240).add("i:1", 230, 220, value=2).store()
    assert over_time() == {290: 5, 280: 5, 270: 5, 230: 2, 220: 2}
    samples.add("i:2", *range(5, 300, 5), value=7).store()
    assert {over_time(step=5)[age] for age in range(260, 230, -5)} == {7}, "nor one after it"


def test_one_missing_sample_is_bridged_and_three_are_not(samples, over_time):
    samples.add("i:1", *range(5, 300, 10)).add(
        "i:2", *(a for a in range(5, 300, 10) if a != 205 and a not in (105, 95, 85))
    )
    samples.store()
    shown = over_time()
    assert shown[210] == 10
    assert [shown[age] for age in (120, 110, 100, 90, 80)] == [10, 10, 10, 5, 10]


@pytest.mark.parametrize(("every", "gone_at"), [(10, 120), (30, 70), (60, 0)])
def test_an_engine_that_is_gone_without_a_word_is_carried_for_some_of_its_own_intervals(
    samples, over_time, every, gone_at
):
    """Two and a half of them: 25 s, 75 s, 150 s after its last sample, 145 s ago."""
    samples.add("i:1", *range(5, 600, 10)).add("gone", *range(145, 600, every), value=7).store()
    shown = over_time()
    assert {age for age, value in shown.items() if value == 12} == {a for a in range(300, 0, -10) if a > gone_at}
    assert set(shown.values()) == ({12, 5} if gone_at else {12})


def test_an_engine_with_long_intervals_is_carried_for_ten_minutes_at_most(samples, over_time):
    samples.add("i:1", *range(5, 1800, 10)).add("slow", *range(900, 3000, 300), value=7).store()
    shown = over_time(start=1200)
    assert (shown[310], shown[300]) == (12, 5)


def test_an_engine_that_was_sampled_once_is_not_carried(samples, over_time):
    samples.add("i:1", *range(5, 300, 10)).add("once", 155, value=7).store()
    shown = over_time()
    assert {age: value for age, value in shown.items() if value != 5} == {160: 12}


def test_where_nobody_was_sampled_there_is_no_point(samples, over_time):
    samples.add("i:1", *range(205, 300, 10), *range(5, 100, 10)).store()
    assert [age for age in over_time() if 100 < age <= 200] == []


def test_the_largest_batch_of_a_bucket_is_that_of_its_samples(samples, over_time):
    """The value before is over when there is a sample of the bucket."""
    samples.add("i:1", *range(65, 300, 10), value=9).add("i:1", *range(5, 65, 10), value=2).store()
    assert over_time(step=60)[60] == 2


def test_the_kv_cache_of_one_engine_does_not_hide_that_of_another(samples, over_time):
    samples.add("full", *range(5, 300, 30), name="kv_usage", value=0.99)
    samples.add("empty", *range(15, 300, 30), name="kv_usage", value=0.1).store()
    assert set(over_time("kv_usage").values()) == {0.99}
    assert over_time("waiting") == {}


def test_the_parts_of_a_data_parallel_engine_are_one_sample(samples, over_time):
    """Their batches add up, and their fullest cache counts."""
    for name in ("running", "kv_usage"):
        samples.add("i:1", *range(5, 300, 10), name=name, value=2).add("i:1", *range(5, 300, 10), name=name, value=3)
    samples.store()
    assert set(over_time("running").values()) == {5}
    assert set(over_time("kv_usage").values()) == {3}


def test_the_last_value_of_a_bucket_is_the_one_that_is_carried(samples, over_time):
    samples.add("i:1", *range(5, 300, 10), value=1).add("i:2", 295, value=9).add("i:2", 245).store()
    assert over_time(step=60) == {300: 10, 240: 6, 180: 6, 120: 1, 60: 1}


def test_two_collectors_that_scrape_one_engine_count_once_when_one_ends(samples, over_time):
    samples.add("i:1", *range(5, 300, 30), scraper="a", value=3).add("i:1", *range(158, 300, 30), scraper="b")
    samples.add("i:2", *range(1, 300, 10), value=100).store()
    shown = over_time()
    assert {shown[age] for age in (280, 250, 220, 190, 160)} == {105}
    assert {value for age, value in shown.items() if age < 160} == {103}, "the newest sample is right"


def test_an_engine_of_samples_adds_to_each_bucket_of_an_engine_of_spans(samples, rows, over_time):
    for age in range(5, 300, 10):
        rows.step(start=NOW - age * SECOND, running=1, waiting=2)
    samples.add("i:1", *range(5, 300, 30)).add("i:1", *range(5, 300, 30), name="waiting", value=4).store()
    assert set(over_time().values()) == {6}
    assert set(over_time("waiting").values()) == {6}
    assert len(over_time()) == 30
