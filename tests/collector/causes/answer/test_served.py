"""Advice to compare a variant that has most of a cause with another one of its service."""

import pytest

from collector.base.process import Process
from collector.causes.answer.answer import Culprit
from collector.causes.answer.served import Served, compared


@pytest.mark.parametrize(
    ("by", "share", "others", "told"),
    [
        ("variant", 0.51, [("chat", "v1"), ("chat", "v0")], True),
        ("variant", 0.5, [("chat", "v1")], False),
        ("variant", None, [("chat", "v1")], False),
        ("process", 0.9, [("chat", "v1")], False),
        ("variant", 0.9, [("chat", "")], False),
        ("variant", 0.9, [("batch", "v1")], False),
        ("variant", 0.9, [], False),
    ],
)
def test_a_variant_is_compared_with_the_first_other_one_of_its_service(by, share, others, told):
    served = [Served(Process(service, "i", ""), "vllm", variant) for service, variant in [("chat", "v 2"), *others]]
    advice = compared([Culprit(by=by, name="v 2", time_s=1.0, share=share)], served)
    assert ("compare --a variant=v0 --b 'variant=v 2'" in advice, advice == "") == (told, not told)
