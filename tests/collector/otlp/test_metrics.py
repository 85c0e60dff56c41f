"""OTLP metrics, checked and renamed."""

import math
from dataclasses import replace

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from collector.otlp.checked import ItemLimits
from collector.otlp.errors import MalformedError
from collector.otlp.metrics import check, halves, without_misread
from tests.collector.scrape.engine import DATA

NOW = 1_795_255_200 * 10**9
LIMITS = ItemLimits(max_days=2, unix_ns=lambda: NOW)
CUMULATIVE, DELTA = 2, 1


class Push:
    """A request of one process."""

    def __init__(self, **resource):
        self.request = ExportMetricsServiceRequest()
        self.made = self.request.resource_metrics.add()
        for key, value in resource.items():
            self.made.resource.attributes.add(key=key.replace("_", ".")).value.string_value = value
        self.scope = self.made.scope_metrics.add()

    def gauge(self, name, value, time_ns=NOW, **labels):
        return self._point(self.scope.metrics.add(name=name).gauge, time_ns, labels, as_double=value)

    def sum(self, name, value, *, time_ns=NOW, temporality=CUMULATIVE, monotonic=True, **labels):
        data = self.scope.metrics.add(name=name).sum
        data.aggregation_temporality, data.is_monotonic = temporality, monotonic
        return self._point(data, time_ns, labels, as_int=value)

    def histogram(self, name, bounds, counts, total=1.0, *, temporality=CUMULATIVE):
        data = self.scope.metrics.add(name=name).histogram
        data.aggregation_temporality = temporality
        fields = {"explicit_bounds": bounds, "bucket_counts": counts, "count": sum(counts), "sum": total}
        return self._point(data, NOW, {}, **fields)

    def exponential(self, name, **fields):
        data = self.scope.metrics.add(name=name).exponential_histogram
        data.aggregation_temporality = CUMULATIVE
        return self._point(data, NOW, {}, **fields)

    def _point(self, data, time_ns, labels, **fields):
        point = data.data_points.add(time_unix_nano=time_ns, **fields)
        for key, value in labels.items():
            point.attributes.add(key=key).value.string_value = value
        return self

    def check(self, limits=LIMITS):
        return check(self.request.SerializeToString(), limits)


def points(checked):
    """Kind, common name, own name, labels and value of each point."""
    found = []
    for made in ExportMetricsServiceRequest.FromString(checked.payload).resource_metrics:
        for metric in made.scope_metrics[0].metrics:
            kind = metric.WhichOneof("data")
            for point in getattr(metric, kind).data_points:
                labels = {a.key: a.value.string_value for a in point.attributes}
                value = point.count if kind == "histogram" else point.as_double
                found.append((kind, metric.name, metric.description, labels, value))
    return found


def resource(checked):
    (made,) = ExportMetricsServiceRequest.FromString(checked.payload).resource_metrics
    return {a.key: a.value.string_value for a in made.resource.attributes}


@pytest.mark.parametrize(
    ("spelled", "engine"),
    [
        ("ray_vllm:num_requests_running", "vllm"),
        ("ray_vllm_num_requests_running", "vllm"),
        ("vllm_num_requests_running", "vllm"),
        ("sglang_num_running_reqs", "sglang"),
        ("llamacpp_requests_processing", "llama.cpp"),
    ],
)
def test_other_spellings_of_a_name_are_read(spelled, engine):
    checked = Push().gauge(spelled, 4).check()
    assert points(checked) == [("gauge", "running", spelled, {}, 4)]
    assert resource(checked) == {"tokentrail.engine": engine}


def test_every_name_has_the_spellings_of_its_engine():
    """Labels that choose, histograms and totals of sums too."""
    for name in ("ray_vllm_time_to_first_token_seconds", "vllm_request_queue_time_seconds"):
        assert points(Push().histogram(name, [1], [1, 1]).check())[0][0] == "histogram"
    chosen = (
        Push().sum("sglang_realtime_tokens_total", 5, mode="decode").sum("sglang_realtime_tokens_total", 7, mode="x")
    )
    for push, value in ((Push().sum("ray_vllm_generation_tokens_total", 30), 30), (chosen, 5)):
        assert [(common, told) for _, common, _, _, told in points(push.check())] == [("generation_tokens", value)]


def test_two_spellings_of_one_name_count_once():
    push = Push().gauge("vllm:num_requests_running", 4).gauge("vllm_num_requests_running", 4)
    checked = push.gauge("ray_vllm_num_requests_running", 4).check()
    assert points(checked) == [("gauge", "running", "vllm:num_requests_running", {}, 4)]
    assert checked.unwanted == {"other_name": 2}


def test_what_a_router_says_of_another_process_is_left_out():
    push = Push().gauge("vllm:num_requests_running", 4, server="http://10.0.0.1:8000")
    checked = push.gauge("vllm:num_requests_running", 3, server="rack-7").check()
    assert [value for *_, value in points(checked)] == [3]
    assert checked.unwanted == {"unknown_name": 1}


def test_names_without_a_prefix_are_those_of_nim_alone():
    assert points(Push().gauge("num_requests_running", 4).check()) == []
    assert points(Push(tokentrail_engine="mine").gauge("num_requests_running", 4).check()) == []
    told = Push(tokentrail_engine="nim").gauge("num_requests_running", 4).check()
    by_names = Push().gauge("num_requests_running", 4).gauge("num_request_max", 2048).check()
    for checked in (told, by_names):
        assert points(checked) == [("gauge", "running", "num_requests_running", {}, 4)]
        assert resource(checked)["tokentrail.engine"] == "nim"


def test_points_get_their_common_names_and_the_process_its_engine():
    checked = (
        Push(service_name="chat", service_instance_id="i", host_name="secret")
        .gauge("vllm:num_requests_running", 3, engine="0")
        .sum("vllm:num_preemptions_total", 14)
        .check()
    )
    assert points(checked) == [
        ("gauge", "running", "vllm:num_requests_running", {"engine": "0"}, 3),
        ("sum", "preemptions", "vllm:num_preemptions_total", {}, 14),
    ]
    assert resource(checked) == {"service.name": "chat", "service.instance.id": "i", "tokentrail.engine": "vllm"}
    assert (checked.items, checked.rejected, checked.unwanted, checked.message) == (2, {}, {}, "")
    assert checked.days == (20778, 20778)


def test_an_engine_that_says_its_product_keeps_it():
    assert resource(Push(tokentrail_engine="mine").gauge("vllm:num_requests_running", 3).check()) == {
        "tokentrail.engine": "mine"
    }


def test_other_names_are_only_counted_unless_a_setting_asks_for_them():
    push = Push().gauge("jvm.memory", 3).gauge("up", 1)
    checked = push.check()
    assert [name for _, name, *_ in points(checked)] == ["up"]
    assert (checked.items, checked.unwanted, checked.message) == (2, {"unknown_name": 1}, "")
    kept = push.check(ItemLimits(unix_ns=lambda: NOW, all_names=True))
    assert [(name, own) for _, name, own, *_ in points(kept)] == [("jvm.memory", "jvm.memory"), ("up", "up")]
    assert kept.unwanted == {}


def test_nothing_is_left_of_a_request_without_known_names():
    checked = Push().gauge("jvm.memory", 3).check()
    assert checked.payload == b""
    assert checked.days == (0, 0)


def test_of_several_own_names_the_best_is_kept():
    checked = Push().gauge("vllm:gpu_cache_usage_perc", 0.9).gauge("vllm:kv_cache_usage_perc", 0.9).check()
    assert [own for _, _, own, *_ in points(checked)] == ["vllm:kv_cache_usage_perc"]
    assert checked.unwanted == {"other_name": 1}
    assert [own for _, _, own, *_ in points(Push().gauge("vllm:gpu_cache_usage_perc", 0.9).check())] == [
        "vllm:gpu_cache_usage_perc"
    ]


def test_ranks_of_one_engine_are_one_series_and_the_largest_counts():
    push = Push()
    for rank, value in (("0", 3), ("1", 4), ("2", 2)):
        push.gauge("sglang:num_running_reqs", value, tp_rank=rank, dp_rank="0")
    checked = push.gauge("sglang:num_running_reqs", 9, tp_rank="0", dp_rank="1").check()
    assert [(labels, value) for *_, labels, value in points(checked)] == [({"dp_rank": "0"}, 4), ({"dp_rank": "1"}, 9)]
    assert checked.unwanted == {"other_name": 2}


def test_counts_and_labels_may_be_as_large_as_their_limits():
    most = Push().histogram("vllm:time_to_first_token_seconds", (1.0,), (2**53, 0))
    assert points(most.check())[0][-1] == 2**53
    more = Push().histogram("vllm:time_to_first_token_seconds", (1.0,), (2**53 + 1, 0))
    assert more.check().rejected == {"kind": 1}
    assert len(points(Push().gauge("up", 1, a="x" * 1024).check())) == 1
    assert Push().gauge("up", 1, a="x" * 1025).check().rejected == {"labels": 1}


def test_two_buckets_with_one_bound_do_not_fit():
    assert Push().histogram("vllm:time_to_first_token_seconds", (1.0, 1.0), (1, 2, 3)).check().rejected == {"kind": 1}


def test_points_of_several_times_stay_apart():
    push = Push().gauge("up", 1, NOW - 10**9).gauge("up", 0, NOW)
    assert [value for *_, value in points(push.check())] == [1, 0]


def test_labels_choose_and_factors_scale():
    checked = (
        Push()
        .gauge("nv_trt_llm_request_metrics", 5, request_type="waiting")
        .gauge("nv_trt_llm_request_metrics", 512, request_type="max")
        .gauge("DCGM_FI_DEV_GPU_UTIL", 50)
        .gauge("DCGM_FI_DEV_FB_USED", 2)
        .check()
    )
    assert [(name, value) for _, name, _, _, value in points(checked)] == [
        ("waiting", 5),
        ("gpu_utilization", 0.5),
        ("gpu_memory_used", 2 * 2**20),
    ]
    assert checked.unwanted == {"unknown_name": 1}


def test_a_sum_of_a_histogram_is_a_counter():
    checked = Push().histogram("tgi_request_generated_tokens", [1.0], [1, 2], total=300.0).check()
    assert points(checked) == [("sum", "generation_tokens", "tgi_request_generated_tokens", {}, 300)]


@pytest.mark.parametrize("temporality", [CUMULATIVE, DELTA])
def test_temporality_is_kept(temporality):
    checked = Push().sum("vllm:num_preemptions_total", 1, temporality=temporality).check()
    (made,) = ExportMetricsServiceRequest.FromString(checked.payload).resource_metrics
    assert made.scope_metrics[0].metrics[0].sum.aggregation_temporality == temporality


def test_a_total_that_arrives_as_a_gauge_is_a_counter_and_a_level_that_arrives_as_a_sum_a_gauge():
    checked = Push().gauge("vllm:num_preemptions_total", 2).sum("vllm:num_requests_running", 3, monotonic=False).check()
    assert [kind for kind, *_ in points(checked)] == ["sum", "gauge"]


def test_exponential_histograms_become_explicit_ones():
    push = Push().exponential(
        "vllm:e2e_request_latency_seconds",
        scale=0, zero_count=3, count=14, sum=40.0, positive={"offset": 1, "bucket_counts": [5, 6]},
    )  # fmt: skip
    (made,) = ExportMetricsServiceRequest.FromString(push.check().payload).resource_metrics
    (point,) = made.scope_metrics[0].metrics[0].histogram.data_points
    assert list(point.explicit_bounds) == [2, 4, 8]
    assert list(point.bucket_counts) == [3, 5, 6, 0]
    assert (point.count, point.sum) == (14, 40)


@pytest.mark.parametrize(
    "fields",
    [
        {"scale": 0, "negative": {"offset": 0, "bucket_counts": [1]}},
        {"scale": 21, "positive": {"offset": 0, "bucket_counts": [1]}},
        {"scale": -10, "positive": {"offset": 2, "bucket_counts": [1]}},
        {"scale": 0, "positive": {"offset": 0, "bucket_counts": [1] * 2000}},
    ],
)
def test_an_exponential_histogram_that_cannot_be_converted_is_rejected_as_unsupported(fields):
    assert Push().exponential("vllm:e2e_request_latency_seconds", **fields).check().rejected == {"unsupported": 1}


def test_summaries_and_falling_deltas_are_rejected_and_the_sender_is_told():
    push = Push().sum("vllm:num_preemptions_total", -1, temporality=DELTA, monotonic=False)
    push.scope.metrics.add(name="vllm:e2e_request_latency_seconds").summary.data_points.add(time_unix_nano=NOW)
    checked = push.check()
    assert checked.rejected == {"unsupported": 2}
    assert checked.message.startswith("2 data points: summaries")


@pytest.mark.parametrize(
    ("push", "reason"),
    [
        (Push().gauge("up", 1, 0), "time"),
        (Push().gauge("up", 1, 4_102_444_800 * 10**9), "time"),
        (Push().gauge("up", 1, NOW + 86_400 * 10**9 + 1), "future"),
        (Push().gauge("up", 1, a="x" * 1025), "labels"),
        (Push().gauge("up", 1, **{f"l{n}": "" for n in range(33)}), "labels"),
        (Push().gauge("vllm:e2e_request_latency_seconds", 1), "kind"),
        (Push().histogram("vllm:num_requests_running", [1.0], [1, 2]), "kind"),
        (Push().histogram("vllm:e2e_request_latency_seconds", [1.0], [1, 2, 3]), "kind"),
        (Push().histogram("vllm:e2e_request_latency_seconds", [2.0, 1.0], [1, 2, 3]), "kind"),
        (Push().histogram("vllm:e2e_request_latency_seconds", [1.0, math.inf], [1, 2, 3]), "kind"),
        (Push().histogram("vllm:e2e_request_latency_seconds", [1.0], [2**53 + 2, 0]), "kind"),
        (Push().histogram("vllm:e2e_request_latency_seconds", [], [2**64 - 1]), "kind"),
        (Push().exponential("vllm:e2e_request_latency_seconds", sum=math.nan), "kind"),
        (Push().sum("vllm:num_requests_running", 1, temporality=DELTA), "kind"),
    ],
)
def test_points_that_cannot_be_stored_are_rejected_alone(push, reason):
    checked = push.gauge("vllm:num_requests_waiting", 1).check()
    assert checked.rejected == {reason: 1}
    assert [name for _, name, *_ in points(checked)] == ["waiting"]
    assert checked.message


@pytest.mark.parametrize(
    "push",
    [
        Push().gauge("up", 1, 946_684_800 * 10**9),
        Push().gauge("up", 1, NOW + 86_400 * 10**9),
        Push().gauge("up", 1, a="x" * 1024),
        Push().gauge("up", 1, **{f"l{n}": "" for n in range(32)}),
        Push().histogram("vllm:e2e_request_latency_seconds", [1.0], [2**53, 0]),
        Push().histogram("vllm:e2e_request_latency_seconds", list(map(float, range(1023))), [0] * 1024),
    ],
)
def test_a_point_at_a_limit_is_stored(push):
    assert push.check().rejected == {}


@pytest.mark.parametrize("name", ["service_name", "service_instance_id", "tokentrail_engine"])
def test_the_names_of_a_process_are_as_long_as_a_label_may_be(name):
    """A name of 1 MB of 4,000 points took 3 GB, and then /metrics stood still for want of memory."""
    assert not Push(**{name: "x" * 1024}).gauge("up", 1).check().rejected
    assert Push(**{name: "x" * 1025}).gauge("up", 1).check().rejected == {"labels": 1}
    assert not Push(other="x" * 1025).gauge("up", 1).check().rejected


def test_a_metrics_name_is_as_long_as_a_label_may_be():
    push = Push().gauge("n" * 1025, 1)
    assert push.check().unwanted == {"unknown_name": 1}
    assert push.check(replace(LIMITS, all_names=True)).rejected == {"labels": 1}


def test_a_point_at_the_latest_time_that_is_taken_is_stored():
    assert not Push().gauge("up", 1, NOW + 86_400 * 10**9).check().rejected


def test_labels_that_are_no_text_are_written_as_json_has_them():
    push = Push().gauge("vllm:num_requests_running", 1)
    attributes = push.scope.metrics[0].gauge.data_points[0].attributes
    for key, kind, value in (("a", "bool_value", True), ("b", "bool_value", False), ("c", "int_value", 7)):
        setattr(attributes.add(key=key).value, kind, value)
    ((*_, labels, _),) = points(push.check())
    assert labels == {"a": "true", "b": "false", "c": "7"}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_point_without_a_number_is_left_out(value):
    checked = Push().gauge("up", value).check()
    assert (checked.payload, checked.unwanted, checked.rejected) == (b"", {"no_value": 1}, {})


def test_a_histogram_without_buckets_has_its_count():
    assert points(Push().histogram("vllm:e2e_request_latency_seconds", [], []).check())[0][-1] == 0


def test_bounds_without_buckets_are_left_out():
    checked = Push().histogram("vllm:e2e_request_latency_seconds", [1.0, 2.0], []).check()
    (metric,) = ExportMetricsServiceRequest.FromString(checked.payload).resource_metrics[0].scope_metrics[0].metrics
    assert list(metric.histogram.data_points[0].explicit_bounds) == []


def test_a_value_that_is_infinite_in_the_common_unit_is_left_out():
    assert Push().gauge("DCGM_FI_DEV_FB_USED", 1e308).check().unwanted == {"no_value": 1}


def test_a_point_that_says_that_it_has_no_value_is_left_out():
    push = Push().gauge("up", 0)
    push.scope.metrics[0].gauge.data_points[0].flags = 1
    assert push.check().unwanted == {"no_value": 1}


def test_a_request_has_points_of_a_bounded_number_of_days():
    push = Push()
    for days_ago in range(4):
        push.gauge("up", 1, NOW - days_ago * 86_400 * 10**9)
    checked = push.check()
    assert checked.rejected == {"too_many_days": 2}
    assert checked.days == (20777, 20778)


def test_bytes_that_are_no_request_are_refused():
    with pytest.raises(MalformedError):
        check(b"\x0a\x05abc", LIMITS)


def test_a_checked_request_stays_as_it_is_and_is_halved_by_metrics():
    payload = (
        Push()
        .gauge("up", 1)
        .gauge("vllm:num_requests_running", 2)
        .gauge("vllm:num_requests_waiting", 3)
        .check()
        .payload
    )
    assert without_misread(payload) == (payload, b"")
    parts = [ExportMetricsServiceRequest.FromString(part) for part in halves(payload)]
    names = [[m.name for m in part.resource_metrics[0].scope_metrics[0].metrics] for part in parts]
    assert names == [["up"], ["running", "waiting"]]
    assert parts[1].resource_metrics[0].resource == parts[0].resource_metrics[0].resource
    assert halves(parts[0].SerializeToString()) is None


def test_dynamos_own_otlp_metrics_are_understood():
    checked = check((DATA / "dynamo-1.6.1-kv-pressure" / "metrics" / "0002.bin").read_bytes(), ItemLimits())
    assert resource(checked) == {"service.name": "dynamo-worker", "tokentrail.engine": "dynamo"}
    values = {name: value for _, name, _, _, value in points(checked)}
    assert values.keys() == {"running", "waiting", "kv_usage", "preemptions", "ttft", "itl", "e2e"}
    assert checked.rejected == {}


def test_a_clients_otlp_metrics_have_no_name_that_is_kept():
    checked = check((DATA / "client-v2" / "metrics" / "0000.bin").read_bytes(), ItemLimits())
    assert checked.items > 0
    assert checked.unwanted == {"unknown_name": checked.items}


def test_a_process_keeps_its_names_and_its_tenant_and_other_attributes_are_left_out():
    names = {"service_name": "chat", "service_instance_id": "i:1", "tokentrail_tenant": "acme"}
    checked = Push(**names, host_name="h").gauge("vllm:num_requests_running", 4).check()
    found = resource(checked)
    assert found.pop("tokentrail.engine") == "vllm"
    assert found == {"service.name": "chat", "service.instance.id": "i:1", "tokentrail.tenant": "acme"}
