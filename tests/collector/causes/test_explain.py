"""Parts of requests: they add up to the latencies, whatever is known."""

import numpy as np
import pytest

from collector.causes.explain import explain_process
from collector.causes.names import PARTS

T = 1_800_000_000_000_000_000


def requests(**columns):
    count = len(columns["start"])
    return {"key": np.arange(count, dtype=np.uint64)} | columns


def test_a_request_of_which_only_latencies_are_known_is_unexplained_on_both_sides():
    explained = explain_process(requests(start=[T], end=[T + 5_000_001], ttft_ns=[2_000_500]), {}, {})
    assert explained.level.tolist() == ["none"]
    assert dict(zip(PARTS, explained.ttft_us[0].tolist(), strict=True))["unexplained"] == 2001
    assert explained.ttft_us.sum() == 2001
    assert explained.rest_us[:, -1].tolist() == [5001 - 2001]


def test_the_life_of_a_request_without_a_token_is_before_its_first_token():
    explained = explain_process(requests(start=[T], end=[T + 7_000_000], ttft_ns=[None]), {}, {})
    assert (explained.ttft_us.sum(), explained.rest_us.sum()) == (7000, 0)


def test_more_than_71_minutes_are_as_many_as_a_column_holds():
    explained = explain_process(requests(start=[T], end=[T + 10**13], ttft_ns=[10**12]), {}, {})
    assert explained.ttft_us.sum() == 1_000_000_000
    assert int(explained.ttft_us.astype(np.int64).sum() + explained.rest_us.astype(np.int64).sum()) == 4_294_967_294


def test_columns_of_different_length_are_refused_with_their_name():
    with pytest.raises(ValueError, match="ttft_ns has 1 rows"):
        explain_process(requests(start=[T, T], end=[T, T], ttft_ns=[5]), {}, {})
