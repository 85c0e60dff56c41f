"""Quantised products against float32 ones, for few rows (torch's kernels) and for many (a bfloat16 product)."""

import pytest
import torch

from instrumented_engine.model.linear import (
    DEQUANTIZED_ROWS,
    GROUP,
    DenseLinear,
    Fp8Linear,
    Int4Linear,
    Int8Linear,
    PackedLinear,
    linear,
)

KINDS = {"int8": (Int8Linear, 0.01), "int4": (Int4Linear, 0.12), "fp8": (Fp8Linear, 0.04)}


@pytest.fixture
def weight():
    return torch.randn(48, 4 * GROUP, generator=torch.Generator().manual_seed(3))


def some_rows(count):
    return torch.randn(count, 4 * GROUP, generator=torch.Generator().manual_seed(count)).bfloat16()


def relative_error(found, exact):
    return float((found.float() - exact).norm() / exact.norm())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 7, DEQUANTIZED_ROWS - 1, DEQUANTIZED_ROWS, 2 * DEQUANTIZED_ROWS])
def test_products_are_close_to_those_of_the_weight(kind, rows, weight):
    quantized, bound = KINDS[kind]
    x = some_rows(rows)
    found = quantized(weight)(x)
    assert found.dtype == torch.bfloat16
    assert relative_error(found, x.float() @ weight.T) < bound


@pytest.mark.parametrize("kind", KINDS)
def test_few_rows_and_many_give_the_same(kind, weight):
    layer = KINDS[kind][0](weight)
    x = some_rows(DEQUANTIZED_ROWS)
    few = torch.cat([layer(x[:9]), layer(x[9:])])
    assert relative_error(few, layer(x).float()) < 0.006


def test_numbers_of_q4_1_are_kept():
    """Each group of a Q4_1 file has a 0 and a 15, so that rounding its values finds its numbers again."""
    generator = torch.Generator().manual_seed(5)
    numbers = torch.randint(0, 16, (16, 3, GROUP), generator=generator)
    numbers[:, :, 4], numbers[:, :, 9] = 0, 15
    scale = torch.rand(16, 3, 1, generator=generator).half().float() + 0.01
    minimum = -torch.rand(16, 3, 1, generator=generator).half().float()
    layer = Int4Linear((numbers * scale + minimum).flatten(1))
    assert torch.equal(torch.stack([layer._pairs & 15, layer._pairs >> 4], dim=2).view(16, 3, GROUP), numbers)


def test_a_constant_group_is_no_division_by_zero():
    weight = torch.full((16, GROUP), 0.25)
    for kind in (Int4Linear, Int8Linear):
        assert torch.allclose(kind(weight)(torch.ones(1, GROUP).bfloat16()).float(), torch.tensor(8.0), rtol=0.01)
    assert not Int8Linear(torch.zeros(16, GROUP))(torch.ones(1, GROUP).bfloat16()).any()


def test_sizes(weight):
    assert Int4Linear(weight).nbytes == weight.numel() // 2 + 4 * weight.numel() // GROUP
    assert Fp8Linear(weight).nbytes == weight.numel() + 4 * len(weight)
    assert Int8Linear(weight).nbytes == weight.numel() + 2 * len(weight)


def test_the_layout_follows_dtype_and_quantisation(weight):
    assert isinstance(linear(weight, torch.float32), PackedLinear)
    assert isinstance(linear(weight, torch.float16), DenseLinear)
    assert isinstance(linear(weight, torch.bfloat16, "int8"), Int8Linear)
    assert isinstance(linear(weight, torch.bfloat16, "int4"), Int4Linear)
    assert isinstance(linear(weight, torch.bfloat16, "fp8"), Fp8Linear)
    assert isinstance(linear(weight[:40], torch.bfloat16, "fp8"), DenseLinear), "40 outputs are no multiple of 16"
    assert isinstance(linear(weight[:, :40], torch.bfloat16, "fp8"), DenseLinear)
    assert isinstance(linear(weight[:, :48], torch.bfloat16, "int4"), Int8Linear), "48 inputs are no groups of 32"
