"""Quantised products against float32 ones, for few rows (torch's kernels) and for many (a bfloat16 product)."""

import pytest
import torch

from instrumented_engine.model import linear as module
from instrumented_engine.model.linear import (
    GROUP,
    INT4_KERNEL_ROWS,
    INT8_KERNEL_ROWS,
    MKL_CHECKED_ROWS,
    DenseLinear,
    Fp8Linear,
    Int4Linear,
    Int8Linear,
    MklLinear,
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
@pytest.mark.parametrize(
    "rows", [1, 7, 31, 32, *(n + more for n in (INT8_KERNEL_ROWS, INT4_KERNEL_ROWS) for more in (0, 1))]
)
def test_products_are_close_to_those_of_the_weight(kind, rows, weight):
    quantized, bound = KINDS[kind]
    x = some_rows(rows)
    found = quantized(weight)(x)
    assert found.dtype == torch.bfloat16
    assert relative_error(found, x.float() @ weight.T) < bound


@pytest.mark.parametrize("kind", KINDS)
def test_few_rows_and_many_give_the_same(kind, weight):
    layer = KINDS[kind][0](weight)
    x = some_rows(INT4_KERNEL_ROWS + 1)
    few = torch.cat([layer(part) for part in x.split(9)])
    assert relative_error(few, layer(x).float()) < 0.006


def test_few_rows_go_to_torchs_kernels_and_many_do_not(weight, monkeypatch):
    int8, int4 = Int8Linear(weight), Int4Linear(weight)
    monkeypatch.setattr(int4, "_halves", None)
    int4(some_rows(INT4_KERNEL_ROWS))
    with pytest.raises(TypeError):
        int4(some_rows(INT4_KERNEL_ROWS + 1))
    monkeypatch.setattr(torch, "_weight_int8pack_mm", lambda x, *_: "the kernel")
    assert int8(some_rows(INT8_KERNEL_ROWS)) == "the kernel"
    assert len(int8(some_rows(INT8_KERNEL_ROWS + 1))) == INT8_KERNEL_ROWS + 1


def test_numbers_of_q4_1_are_kept():
    """Each group of a Q4_1 file has a 0 and a 15, so that rounding its values finds its numbers again."""
    generator = torch.Generator().manual_seed(5)
    numbers = torch.randint(0, 16, (16, 3, GROUP), generator=generator)
    numbers[:, :, 4], numbers[:, :, 9] = 0, 15
    scale = torch.rand(16, 3, 1, generator=generator).half().float() + 0.01
    minimum = -torch.rand(16, 3, 1, generator=generator).half().float()
    layer = Int4Linear((numbers * scale + minimum).flatten(1))
    assert torch.equal(layer._numbers().permute(2, 0, 1), numbers)


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
    assert isinstance(linear(weight, torch.float32), MklLinear if torch.backends.mkl.is_available() else PackedLinear)
    fast_bfloat16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()  # not without AVX-512
    assert isinstance(linear(weight, torch.bfloat16), PackedLinear if fast_bfloat16 else DenseLinear)
    assert isinstance(linear(weight, torch.float16), DenseLinear)
    assert isinstance(linear(weight, torch.bfloat16, "int8"), Int8Linear)
    assert isinstance(linear(weight, torch.bfloat16, "int4"), Int4Linear)
    assert isinstance(linear(weight, torch.bfloat16, "fp8"), Fp8Linear)
    assert isinstance(linear(weight[:40], torch.bfloat16, "fp8"), DenseLinear), "40 outputs are no multiple of 16"
    assert isinstance(linear(weight[:, :40], torch.bfloat16, "fp8"), DenseLinear)
    assert isinstance(linear(weight[:, :48], torch.bfloat16, "int4"), Int8Linear), "48 inputs are no groups of 32"


needs_mkl = pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this torch has no MKL")


@needs_mkl
def test_mkl_takes_any_number_of_rows_and_threads(weight):
    layer, threads = MklLinear(weight), torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            for rows in (0, 1, 2, 7, 8, 9, 63, 64, 65, 200):
                x = some_rows(rows).float()
                assert torch.allclose(layer(x), x @ weight.T, rtol=1e-4, atol=1e-4)
    finally:
        torch.set_num_threads(threads)
    assert layer.nbytes == weight.nbytes


@needs_mkl
@pytest.mark.parametrize("wrong", MKL_CHECKED_ROWS[1:])
def test_a_wrong_product_of_mkl_leaves_its_shape_to_onednn(wrong, weight, monkeypatch):
    rows = []
    multiply = MklLinear.__call__

    def product(layer, x):
        rows.append(len(x))
        return multiply(layer, x) * (1.001 if len(x) == wrong else 1)

    monkeypatch.setattr(MklLinear, "__call__", product)
    monkeypatch.setattr(module, "_mkl_shapes", {})
    assert isinstance(linear(weight, torch.float32), PackedLinear)
    assert rows[-1] == wrong, "the first wrong product decides"
    checked = len(rows)
    assert isinstance(linear(weight, torch.float32), PackedLinear)
    assert len(rows) == checked, "a shape is compared once"
    wrong = 0
    assert isinstance(linear(weight[:40], torch.float32), MklLinear), "another shape"
    assert rows[checked:] == list(MKL_CHECKED_ROWS)
    assert isinstance(linear(weight[:40] * 2, torch.float32), MklLinear)
    assert len(rows) == checked + len(MKL_CHECKED_ROWS)


def test_a_torch_without_mkl_multiplies_with_onednn(weight, monkeypatch):
    monkeypatch.setattr(torch._C, "has_mkl", False)
    assert isinstance(linear(weight, torch.float32), PackedLinear)
