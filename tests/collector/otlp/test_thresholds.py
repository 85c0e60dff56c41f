"""Weights of spans that a consistent sampler kept."""

import pytest

from collector.otlp.checked import ItemLimits
from collector.otlp.thresholds import weight_of
from collector.otlp.validate import check
from tests.support.otlp import Request
from tokentrail.semconv import SAMPLING_WEIGHT


@pytest.mark.parametrize(
    ("trace_state", "weight"),
    [
        ("ot=th:c", 4), ("ot=th:8", 2), ("ot=th:c0", 4), ("ot=th:0", 1), ("vendor=x,ot=th:c;rv:d29d6a7215ced0", 4),
        ("ot=rv:d29d6a7215ced0;th:c , x=y", 4), ("ot=th:e6666666666668", pytest.approx(10)), ("ot=p:3;r:5", 8),
        ("ot=p:0", 1), ("ot=rv:d2", None), ("ot=th:", None), ("ot=th:x", None), ("ot=th:" + "c" * 15, None),
        ("not=th:c", None), ("vendor=ot=th:c", None), ("ot=p:63", None), ("", None),
    ],
)  # fmt: skip
def test_a_threshold_is_a_weight(trace_state, weight):
    assert weight_of(trace_state) == weight


@pytest.mark.parametrize("spans", [1, 40])
def test_a_span_gets_its_weight_unless_it_has_one(spans):
    request = Request(scope="any")
    for n in range(spans):
        request.span("chat m", trace=n + 1, trace_state="ot=th:c")
    request.span("chat m", trace=99, trace_state="ot=th:c", attributes={SAMPLING_WEIGHT: 7.0})
    request.span("chat m", trace=100, trace_state="vendor=1")
    checked = check(request.body(), ItemLimits())
    kept = type(request.message).FromString(checked.payload).resource_spans[0].scope_spans[0].spans
    found = [[one.value.double_value for one in span.attributes if one.key == SAMPLING_WEIGHT] for span in kept]
    assert found == [[4.0]] * spans + [[7.0], []]
