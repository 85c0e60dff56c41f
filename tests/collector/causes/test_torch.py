"""A freeze of the engine whose steps torch computes is a stall. `python -m benchmarks.explain_engine` has more."""

import pytest
import torch

from collector.causes.explain import explain_process
from collector.causes.learn import learn
from collector.causes.names import PARTS
from tests.support.simulated_engine import MS, Faults, S, chats, run
from tests.support.torch_engine import tiny_model, torch_device, within

BLOCKS = 400


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = tiny_model(tmp_path_factory.mktemp("model"), hidden=128, layers=2)

    def ran(seed, **options):
        load = within(chats(25, rate=20, seed=seed, prompt=(60, 0.5, 200), answer=(20, 0.4, 40)))
        return run(load, blocks=BLOCKS, make_device=torch_device(model, BLOCKS, []), **options)

    yield ran
    torch.set_num_threads(threads)


def test_a_freeze_of_the_real_engine_is_a_stall_of_its_length(ran):
    reference = learn(*ran(11).tables, former=None)
    frozen = ran(12, faults=Faults(freezes=((500 * MS, S),)))
    explained = explain_process(*frozen.tables, reference=reference)
    parts = (explained.ttft_us.astype(float) + explained.rest_us).sum(0) / 1e6
    by_cause = dict(zip(PARTS, parts.tolist(), strict=True))
    injected = frozen.faulty().sum() / 1e9
    assert injected > 1
    if reference.holds:
        assert by_cause["stall"] == pytest.approx(injected, rel=0.2)
    else:  # on a busy machine torch's steps scatter, and nothing is blamed without a law
        assert (by_cause["stall"], by_cause["drift"]) == (0, 0)
    whole = frozen.requests["end"] - frozen.requests["start"]
    assert (explained.ttft_us.sum(1) + explained.rest_us.sum(1)).tolist() == (-(-whole // 1000)).tolist()
