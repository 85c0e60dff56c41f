"""Histograms that a page has no room for: tenants take turns."""

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import HistogramMetricFamily

from collector.metrics.room import with_room

LABELS = ("gen_ai_request_model", "process_tenant")
TTFT, E2E = "gen_ai_server_time_to_first_token_seconds", "gen_ai_server_request_duration_seconds"


class Page:
    """Families as prometheus_client's encoders read them."""

    def __init__(self, families):
        self.collect = lambda: families


def encode(families):
    return generate_latest(Page(families))


def histograms(models):
    """Two histograms of each of these models, as pairs of its name and its tenant; one has more labels."""
    ttft, e2e = (
        HistogramMetricFamily(TTFT, "", labels=LABELS),
        HistogramMetricFamily(E2E, "", labels=("error_type", *LABELS)),
    )
    for model, tenant in models:
        buckets = [(str(le), 3.0) for le in (0.1, 1, 10, "+Inf")]
        ttft.add_metric((model, tenant), buckets, 1.0)
        for error in ("", "500"):
            e2e.add_metric((error, model, tenant), buckets, 1.0)
    return [ttft, e2e]


FLOOD = [(f"flood-{i}", "mallory") for i in range(200)]
OWN = [("small", "bolt"), ("large", "bolt")]


@pytest.mark.parametrize("models", [[*FLOOD, *OWN], [*OWN, *FLOOD]], ids=["last", "first"])
def test_a_tenant_with_few_models_keeps_its_histograms_beside_one_with_many(models):
    whole, alone = encode(histograms(models)), encode(histograms(OWN))
    text, left_out = with_room(histograms(models), encode, len(whole) // 4)
    assert len(text) <= len(whole) // 4
    assert len(text) + left_out == pytest.approx(len(whole), rel=0.01)
    assert len(text) > len(whole) // 6, "the room is used"
    assert {*alone.splitlines()} <= {*text.splitlines()}
    kept = [model for model, _ in FLOOD if f'"{model}"' in text.decode()]
    assert kept == [model for model, _ in FLOOD[: len(kept)]], "those that were there first stay"
    per_model = {model: text.decode().count(f'"{model}"') for model in kept}
    assert {*per_model.values()} == {alone.decode().count('"small"')}, "a model has all of its series or none"


def test_what_fits_is_whole_and_without_room_there_is_nothing():
    whole = encode(histograms(OWN))
    assert with_room(histograms(OWN), encode, 100_000) == (whole, 0)
    assert with_room(histograms(OWN), encode, 2 * len(whole)) == (whole, 0)
    text, left_out = with_room(histograms(OWN), encode, 0)
    assert text == b""
    assert left_out == pytest.approx(len(whole), rel=0.01)
    assert with_room([], encode, 0) == (b"", 0)
