"""Pages in the Prometheus text format, read as OTLP metrics."""

import math

import pytest

from collector.otlp.exposition import read_exposition
from collector.otlp.metric_names import common_names, engine_of, rule_for, rules
from tests.collector.scrape.engine import recorded

HISTOGRAM = """
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="1.0"} 3.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5"} 2.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 4.0
vllm:time_to_first_token_seconds_count{engine="0"} 4.0
vllm:time_to_first_token_seconds_sum{engine="0"} 5.5
"""


def read(text, **options):
    return read_exposition(text, **({"time_ns": 7, "all_names": False, "most_series": 100} | options))


def numbers(page):
    """The values of gauges and sums by name and labels."""
    found = {}
    for metric in page.metrics:
        data = getattr(metric, metric.WhichOneof("data"))
        for point in data.data_points if metric.WhichOneof("data") != "histogram" else ():
            labels = ",".join(f"{a.key}={a.value.string_value}" for a in point.attributes)
            found[metric.name, labels] = point.as_double
    return found


def test_only_metrics_with_a_common_name_are_read():
    page = read(
        'vllm:num_requests_running{engine="0"} 6\npython_gc_objects_collected_total 5\nthis line is no metric {\n'
    )
    assert numbers(page) == {("vllm:num_requests_running", "engine=0"): 6}
    assert page.engine == "vllm"
    assert (page.series, page.dropped) == (1, 0)


@pytest.mark.parametrize("line", ["{}\t6", "  {} 6", "\t{}\t6\t", "{}\t{{}}  6"])
def test_blanks_and_tabs_may_stand_around_a_name(line):
    page = read(
        "\t# TYPE a_thing counter\n" + line.format("vllm:num_requests_running") + "\n a_thing 5\n", all_names=True
    )
    assert numbers(page) == {("vllm:num_requests_running", ""): 6, ("a_thing", ""): 5}
    assert {metric.name: metric.WhichOneof("data") for metric in page.metrics}["a_thing"] == "sum"


def test_all_names_are_read_on_request_with_the_kind_that_the_page_gives():
    page = read(
        "# TYPE a_thing counter\na_thing 5\nb_total 2\n# TYPE c gauge\nc 1\n"
        '# TYPE h histogram\nh_bucket{le="+Inf"} 2\nh_sum 3\nh_count 2\n',
        all_names=True,
    )
    kinds = {metric.name: metric.WhichOneof("data") for metric in page.metrics}
    assert kinds == {"a_thing": "sum", "b_total": "sum", "c": "gauge", "h": "histogram"}


def test_a_histogram_is_one_point_with_the_observations_of_each_bucket():
    (metric,) = read(HISTOGRAM).metrics
    (point,) = metric.histogram.data_points
    assert metric.histogram.aggregation_temporality == 2, "cumulative"
    assert list(point.explicit_bounds) == [0.5, 1.0], "in order, whatever order the page has"
    assert list(point.bucket_counts) == [2, 1, 1]
    assert (point.count, point.sum, point.time_unix_nano) == (4, 5.5, 7)
    assert [(a.key, a.value.string_value) for a in point.attributes] == [("engine", "0")]


@pytest.mark.parametrize("wrong", ['le="0.5"} 3.5e0', 'le="0.5"} NaN'])
def test_a_histogram_whose_buckets_fall_is_left_out_and_counted(wrong):
    page = read(HISTOGRAM.replace('le="0.5"} 2.0', wrong) + "vllm:num_requests_running 1\n")
    assert [metric.name for metric in page.metrics if metric.WhichOneof("data") == "gauge"]
    assert page.series == 1
    assert page.dropped == 1


def lines_without(text, *parts):
    return "".join(
        line for line in HISTOGRAM.splitlines(keepends=True) if not any(part in line for part in (text, *parts))
    )


@pytest.mark.parametrize(
    ("page", "counts"),
    [
        (lines_without("_count"), [2, 1, 1]),
        (lines_without('le="+Inf"'), [2, 1, 1]),
        (lines_without("_count", "_bucket"), None),
        (lines_without("_count", 'le="+Inf"'), None),  # how many are above the highest bound is not known
        (HISTOGRAM.replace('_count{engine="0"} 4', '_count{engine="0"} 9'), [2, 1, 1]),
        (HISTOGRAM.replace("} 4.0", "} 1e300"), None),
        (HISTOGRAM.replace("} 4.0", "} 2.0"), None),
    ],
)
def test_a_histogram_needs_a_count_or_its_last_bucket(page, counts):
    found = read(page + "vllm:num_requests_running 1\n")
    points = [point for metric in found.metrics for point in metric.histogram.data_points]
    assert [list(point.bucket_counts) for point in points] == ([counts] if counts else [])
    assert (found.series, found.dropped) == (1 + bool(counts), 1 - bool(counts))
    assert numbers(found) == {("vllm:num_requests_running", ""): 1}


def test_of_many_lines_the_first_are_read_and_the_others_counted():
    """Six targets with pages of 8 MiB, of 180,000 lines each, left no time in which any other was read."""
    same = 'vllm:num_requests_running{engine="0"} 1\n' * 35
    page = read(same, most_series=3)
    assert (page.series, page.dropped) == (1, 5)
    buckets = "".join(f'vllm:time_to_first_token_seconds_bucket{{le="{n}"}} 0\n' for n in range(35))
    text = (
        f'{buckets}vllm:time_to_first_token_seconds_bucket{{le="+Inf"}} 1\nvllm:time_to_first_token_seconds_count 1\n'
    )
    assert read(text, most_series=4).series == 1
    cut = read(text, most_series=3)
    assert (cut.series, cut.dropped) == (0, 1 + 7)


def test_series_beyond_the_limit_are_left_out_and_counted():
    text = "".join(f'vllm:num_requests_running{{engine="{n}"}} 1\n' for n in range(5))
    page = read(text, most_series=3)
    assert [labels for _, labels in numbers(page)] == ["engine=0", "engine=1", "engine=2"]
    assert (page.series, page.dropped) == (3, 2)


def test_a_repeated_series_keeps_its_first_value():
    assert numbers(read("vllm:num_requests_running 1\nvllm:num_requests_running 2\n")) == {
        ("vllm:num_requests_running", ""): 1
    }


@pytest.mark.parametrize(
    "line", ["vllm:num_requests_running one", 'vllm:num_requests_running{a="b 1', 'vllm:num_requests_running{a="b"}']
)
def test_a_kept_line_that_is_no_sample_fails_the_page(line):
    with pytest.raises((ValueError, IndexError)):
        read(line + "\n")


@pytest.mark.parametrize(
    ("recording", "name", "engine"),
    [
        ("vllm-0.32-kv-pressure", None, "vllm"),
        ("sglang-0.5.23-retract", "sgl", "sglang"),
        ("dynamo-1.6.1-kv-pressure", "fe", "dynamo"),
        ("dynamo-1.6.1-kv-pressure", "w", "dynamo"),
        ("llama.cpp-b11434", "llama", "llama.cpp"),
    ],
)
def test_the_engine_of_every_recorded_page_is_told_by_its_names(recording, name, engine):
    page = read(recorded(recording, name)[-1][1])
    assert page.engine == engine
    assert page.metrics
    assert page.dropped == 0


def test_the_table_of_names_is_consistent():
    assert engine_of(["python_info"]) == ""
    for name, of_name in rules().items():
        assert len({(rule.common, tuple(rule.own_name.where.items())) for rule in of_name}) == len(of_name), name
        for rule in of_name:
            assert rule.common in common_names()
            assert math.isfinite(rule.own_name.scale)
    assert rule_for("nv_trt_llm_request_metrics", {"request_type": "waiting"}, "").common == "waiting"
    assert rule_for("nv_trt_llm_request_metrics", {"request_type": "max"}, "") is None


def test_a_line_that_is_too_long_to_be_read_fails_the_page_if_it_is_kept():
    labels = f'{{a="{"x" * 128 * 1024}"}} 1\n'
    assert read(f"python_info{labels}").series == 0
    with pytest.raises(ValueError, match=r"a line of vllm:num_requests_running has 1311[0-9]+ characters"):
        read(f"vllm:num_requests_running{labels}")


def test_the_first_kind_of_a_name_counts():
    page = read("# TYPE a counter\n# TYPE a gauge\na 1\n", all_names=True)
    assert [metric.WhichOneof("data") for metric in page.metrics] == ["sum"]


def test_a_label_may_have_characters_that_end_lines_elsewhere():
    page = read('vllm:num_requests_running{a="x\u2028y\x0c\x85"} 1\n')
    assert page.series == 1


def test_what_a_router_says_of_other_processes_is_not_kept():
    """They have these metrics on pages of their own, and both together would count each request twice."""
    page = 'vllm:num_requests_running{{server="{}"}} 3\nvllm:gpu_prefix_cache_hits_total{{server="{}"}} 9\n'
    for engine in ("http://10.0.0.1:8000", "https://llm"):
        assert read(page.format(engine, engine)).metrics == []
    assert [metric.name for metric in read(page.format("rack 7", "a")).metrics] == [
        "vllm:num_requests_running",
        "vllm:gpu_prefix_cache_hits_total",
    ]
    assert read(page.format("http://a", "http://a"), all_names=True).series == 2


def test_names_without_a_prefix_are_kept_of_a_page_of_nim_alone():
    page = 'num_requests_running{model_name="m"} 3\nprompt_tokens_total 7\n'
    assert read(page).metrics == []
    assert read(page, engine="nim").series == 2
    own = read(f"{page}num_request_max 2048\n")
    assert (own.engine, sorted(metric.name for metric in own.metrics)) == (
        "nim",
        ["num_requests_running", "prompt_tokens_total"],
    )
    newer = read(f'{page}num_request_max 2048\nvllm:num_requests_running{{engine="0"}} 3\n')
    assert (newer.engine, [metric.name for metric in newer.metrics]) == ("vllm", ["vllm:num_requests_running"])
