"""The law of steps: found in spite of faults, judged by earlier traffic, and brought up to date window by window."""

from dataclasses import replace

import numpy as np
import pytest

from collector.causes.split.learn import learn
from collector.causes.split.model import FEATURES, StepModel
from collector.causes.split.names import PARTS
from collector.causes.split.requests import explain_process
from tests.support.simulated_engine import MS, Faults, Law, S, chats, run

SLOW = Faults(slow=((10 * S, 50 * S, 1.5),))


@pytest.fixture(scope="module")
def windows():
    """Three windows of ordinary traffic, one behind the other in time."""
    return [run(chats(500, seed=seed), seed=seed) for seed in (11, 12, 13)]


@pytest.fixture(scope="module")
def model(windows):
    return learn(*windows[0].tables, former=None)


def milliseconds(model, name):
    return model.coefficients[FEATURES.index(name)] / MS


def share(found, *parts):
    both = found.ttft_us.astype(float) + found.rest_us
    return both[:, [PARTS.index(part) for part in parts]].sum() / both.sum()


def test_the_law_is_that_of_the_device(model):
    law = Law()
    assert milliseconds(model, "step") == pytest.approx(law.step / MS, rel=0.01)
    assert milliseconds(model, "prompt_tokens") == pytest.approx(law.token / MS, rel=0.03)
    assert milliseconds(model, "sequences") == pytest.approx(law.sequence / MS, rel=0.05)
    assert milliseconds(model, "some_prompt") + milliseconds(model, "prompts") == pytest.approx(1.0, rel=0.1)
    assert model.sigma == pytest.approx(law.noise, rel=0.1)
    assert model.r2 > 0.9
    assert model.holds


def test_long_freezes_do_not_bend_it(windows):
    load = chats(350, seed=11)
    frozen = learn(
        *run(load, seed=11, faults=Faults(freezes=tuple((i * S, S) for i in range(2, 40)))).tables, former=None
    )
    assert milliseconds(frozen, "step") == pytest.approx(8.0, rel=0.01)
    assert milliseconds(frozen, "sequences") == pytest.approx(0.25, rel=0.05)


def test_attention_of_long_prompts_has_a_coefficient_of_its_own():
    law = Law(attention=20.0)
    found = learn(*run(chats(400, seed=3, prompt=(400, 1.0, 4000), rate=4), law=law).tables, former=None)
    assert found.coefficients[FEATURES.index("attention")] == pytest.approx(20.0, rel=0.1)


def test_batches_that_are_padded_are_calibrated(windows):
    law = Law(padding=8, sequence=1.0 * MS)
    load = chats(400, seed=5)
    found = run(load, law=law)
    later = run(chats(400, seed=6), law=law)
    explained = explain_process(*later.tables, reference=learn(*found.tables, former=None))
    assert share(explained, "stall", "drift", "unexplained") < 0.01


def test_a_model_that_goes_on_is_as_good_as_one_of_all_windows(windows, model):
    went_on = model
    for window in windows[1:]:
        went_on = learn(*window.tables, former=went_on)
    assert went_on.n > 2.5 * model.n
    assert went_on.xtx[0] / went_on.n == pytest.approx(model.xtx[0] / model.n, rel=0.1), "a step weighs as any other"
    assert went_on.xty[0] / went_on.n == pytest.approx(model.xty[0] / model.n, rel=0.1)
    assert went_on.coefficients == pytest.approx(model.coefficients, rel=0.05, abs=2 * 10**4)
    assert went_on.sigma == pytest.approx(0.03, rel=0.1)
    assert not went_on.by_itself


def test_a_size_of_step_that_only_one_window_has_counts_by_that_window(windows, model):
    def gone_on(cells, steps):
        return learn(*windows[1].tables, former=replace(model, cells=cells, cell_steps=steps))

    never, often = gone_on({}, {}), gone_on({9999: 1.25}, {9999: 40.0})
    assert len(never.cells) > 3
    seldom = gone_on(dict.fromkeys(never.cells, 1.0), dict.fromkeys(never.cells, 0.0))
    assert (never.cells, never.cell_steps) == (seldom.cells, seldom.cell_steps)
    assert often.cells == pytest.approx(never.cells | {9999: 1.25})
    assert often.cell_steps == pytest.approx(never.cell_steps | {9999: 0.98 * 40})


def test_a_row_of_the_store_is_the_model(model):
    stored = model.row()
    assert "by_itself" not in stored
    assert len(stored["xtx"]) == len(FEATURES) * (len(FEATURES) + 1) // 2
    assert StepModel.of(stored | {"service": "s"}) == replace(model, by_itself=False)


def test_a_window_with_a_fault_teaches_nothing_until_it_lasts(windows, model):
    slow = run(chats(350, seed=12), seed=12, faults=Faults(slow=((0, 1000 * S, 1.5),)))
    found = model
    for number in range(1, 6):
        found = learn(*slow.tables, former=found)
        assert (found.coefficients, found.refused) == (model.coefficients, number)
    assert learn(*windows[1].tables, former=found).refused == 0
    usual = learn(*slow.tables, former=found)
    assert milliseconds(usual, "step") == pytest.approx(12.0, rel=0.02)
    assert usual.refused == 0


def test_a_reference_finds_what_its_own_window_would_take_for_usual(model):
    slow = run(chats(350, seed=14), seed=14, faults=SLOW)
    injected = slow.faulty().sum() / 1e9
    by_reference, by_itself = (explain_process(*slow.tables, reference=one) for one in (model, None))
    index = PARTS.index("drift")
    drift = (by_reference.ttft_us[:, index].astype(float) + by_reference.rest_us[:, index]).sum() / 1e6
    assert drift == pytest.approx(injected, rel=0.05)
    assert share(by_itself, "drift") == 0
    assert by_itself.model is None or by_itself.model.by_itself
    assert not by_reference.model.by_itself


def test_fewer_than_fifty_steps_make_no_law():
    found = run(chats(1, seed=1, answer=(30, 0.0, 30)))
    assert len(found.steps["start"]) < 50
    assert learn(*found.tables, former=None) is None
    assert set(explain_process(*found.tables).level) == {"phases"}


def test_nothing_new_changes_nothing(model):
    assert learn({}, {}, {}, former=model) == model
    assert learn({}, {}, {}, former=None) is None


@pytest.mark.parametrize(
    ("sigma", "r2", "holds"), [(0.05, 0.1, True), (0.2, 0.6, True), (0.2, 0.4, False), (0.31, 0.9, False)]
)
def test_a_law_holds_with_little_scatter_or_with_an_r2_of_a_half(model, sigma, r2, holds):
    assert replace(model, sigma=sigma, r2=r2).holds is holds


def test_a_law_that_does_not_hold_blames_nothing(windows, model):
    found = explain_process(*windows[1].tables, reference=replace(model, sigma=0.4))
    assert found.model is None
    assert "steps" not in found.level
    assert share(found, "stall", "drift") == 0


def test_all_requests_of_one_size_follow_a_law_though_it_explains_no_variance():
    load = chats(30, rate=0.2, prompt=(50, 0.0, 50), answer=(20, 0.0, 20))
    alone = run(load, law=Law(context=0.0))
    found = explain_process(*alone.tables)
    assert set(found.level) == {"steps"}


def test_the_law_does_not_depend_on_the_day(windows, model):
    requests, phases, steps = ({**table} for table in windows[0].tables)
    for table in (requests, phases, steps):
        for name in {"start", "end"} & table.keys():
            table[name] = table[name] + 86_400 * S
    moved = learn(requests, phases, steps, former=None)
    assert moved.coefficients == model.coefficients
    assert moved.end_ns == model.end_ns + 86_400 * S
    assert np.isfinite(moved.xtx).all()
