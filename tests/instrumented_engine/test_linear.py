"""Quantised products against float32 ones, for few rows (torch's kernels) and for many (a bfloat16 product)."""

import itertools

import pytest
import torch

from instrumented_engine.model import linear as module
from instrumented_engine.model.linear import (
    BFLOAT16_ROWS,
    COMPARED_ROWS,
    FEW_ROWS,
    GROUP,
    INT4_KERNEL_ROWS,
    INT8_KERNEL_ROWS,
    MKL_CHECKED_ROWS,
    PADDED_ROWS,
    PIECE,
    DenseLinear,
    Int4Linear,
    Int8Linear,
    MklLinear,
    PackedLinear,
    WidenedLinear,
    linear,
    pad_few_rows,
    product_dtype,
    product_rows,
)

KINDS = {"int8": (Int8Linear, 0.01), "int4": (Int4Linear, 0.12)}


@pytest.fixture
def weight():
    return torch.randn(48, 4 * GROUP, generator=torch.Generator().manual_seed(3))


def some_rows(count):
    return torch.randn(count, 4 * GROUP, generator=torch.Generator().manual_seed(count)).bfloat16()


@pytest.fixture(params=["bfloat16", "float32"])
def products_in(request, monkeypatch):
    """A CPU with instructions for bfloat16, and one without."""
    monkeypatch.setattr(module, "multiplies_bfloat16", lambda _: request.param == "bfloat16")
    return getattr(torch, request.param)


@pytest.fixture
def multiplied(monkeypatch):
    """The dtypes of all products that torch's general kernel computes."""
    dtypes, product = [], torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", lambda x, w: dtypes.append((x.dtype, w.dtype)) or product(x, w))
    return dtypes


def relative_error(found, exact):
    return float((found.float() - exact).norm() / exact.norm())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "rows", [1, 7, 31, 32, *(n + more for n in (INT8_KERNEL_ROWS, INT4_KERNEL_ROWS) for more in (0, 1))]
)
def test_products_are_close_to_those_of_the_weight(kind, rows, weight, products_in):
    quantized, bound = KINDS[kind]
    x = some_rows(rows)
    found = quantized(weight)(x)
    assert found.dtype == torch.bfloat16
    assert relative_error(found, x.float() @ weight.T) < bound


@pytest.mark.parametrize("kind", KINDS)
def test_few_rows_and_many_give_the_same(kind, weight, products_in):
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
    assert Int8Linear(weight).nbytes == weight.numel() + 2 * len(weight)


def test_the_layout_follows_dtype_and_quantisation(weight):
    assert isinstance(linear(weight, torch.float32), MklLinear | PackedLinear)
    fast_bfloat16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()  # not without AVX-512
    assert isinstance(linear(weight, torch.bfloat16), PackedLinear if fast_bfloat16 else WidenedLinear)
    assert isinstance(linear(weight, torch.float16), DenseLinear)
    assert isinstance(linear(weight, torch.bfloat16, "int8"), Int8Linear)
    assert isinstance(linear(weight, torch.bfloat16, "int4"), Int4Linear)
    assert isinstance(linear(weight[:, :48], torch.bfloat16, "int4"), Int8Linear), "48 inputs are no groups of 32"


def test_a_cpu_without_bfloat16_multiplies_many_rows_in_float32(weight, multiplied, monkeypatch):
    monkeypatch.setattr(module, "multiplies_bfloat16", lambda _: False)
    monkeypatch.setattr(module, "PIECE", 20 * weight.shape[1])
    layer = linear(weight, torch.bfloat16)
    assert isinstance(layer, WidenedLinear)
    assert layer.nbytes == 2 * weight.numel()
    x = some_rows(BFLOAT16_ROWS + 1)
    few, many = layer(x[1:]), layer(x)
    assert multiplied == [(torch.bfloat16,) * 2] + 3 * [(torch.float32,) * 2], "48 outputs, in pieces of 20"
    assert few.dtype == many.dtype == torch.bfloat16
    assert relative_error(few, many[1:].float()) < 0.006
    assert relative_error(many, x.float() @ weight.T) < 0.006


def test_quantised_products_of_many_rows_take_the_quick_dtype(weight, multiplied, products_in):
    layer = Int8Linear(weight)
    assert layer(some_rows(INT8_KERNEL_ROWS + 1)).dtype == torch.bfloat16
    assert multiplied == [(products_in, products_in)]
    assert Int4Linear(weight)(some_rows(INT4_KERNEL_ROWS + 1)).dtype == torch.bfloat16


def test_a_matrix_that_is_wider_than_a_piece_is_multiplied_output_by_output(monkeypatch, weight):
    monkeypatch.setattr(module, "multiplies_bfloat16", lambda _: False)
    monkeypatch.setattr(module, "PIECE", weight.shape[1] - 1)
    x = some_rows(BFLOAT16_ROWS + 1)
    assert relative_error(WidenedLinear(weight.bfloat16())(x), x.float() @ weight.T) < 0.006
    assert PIECE > 1 << 16, "each piece costs a call"


def test_the_dtype_of_products(monkeypatch):
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    monkeypatch.setattr(torch._C, "_has_mkldnn", False)
    assert product_dtype(torch.bfloat16, cpu) == torch.float32
    assert product_dtype(torch.bfloat16, cuda) == torch.bfloat16
    assert product_dtype(torch.float16, cpu) == torch.float16
    assert product_dtype(torch.float32, cpu) == torch.float32


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


@pytest.fixture
def mkl_is_quick(monkeypatch):
    monkeypatch.setattr(module, "_mkl_shapes", {})
    monkeypatch.setattr(module, "_seconds", lambda layer, _: 1.0 if isinstance(layer, MklLinear) else 1.1)


@needs_mkl
@pytest.mark.usefixtures("mkl_is_quick")
@pytest.mark.parametrize("wrong", MKL_CHECKED_ROWS[1:])
def test_a_wrong_product_of_mkl_leaves_its_shape_to_onednn(wrong, weight, monkeypatch):
    rows = []
    multiply = MklLinear.__call__

    def product(layer, x):
        rows.append(len(x))
        return multiply(layer, x) * (1.001 if len(x) == wrong else 1)

    monkeypatch.setattr(MklLinear, "__call__", product)
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


@needs_mkl
@pytest.mark.parametrize(("mkl", "onednn", "chosen"), [(1.0, 1.1, MklLinear), (1.1, 1.0, PackedLinear)])
def test_the_quicker_layout_is_taken(mkl, onednn, chosen, weight, monkeypatch):
    monkeypatch.setattr(module, "_mkl_shapes", {})
    timed = []
    monkeypatch.setattr(
        module, "_seconds", lambda layer, _: timed.append(layer) or (mkl if isinstance(layer, MklLinear) else onednn)
    )
    assert isinstance(linear(weight, torch.float32), chosen)
    assert isinstance(linear(weight + 1, torch.float32), chosen)
    assert len(timed) == 2, "a shape is compared once"


def test_the_quickest_of_some_products_counts(weight, monkeypatch):
    monkeypatch.setattr(module, "COMPARISONS", 5)
    rows, ticks = [], itertools.count()

    def clock():
        tick, end = divmod(next(ticks), 2)
        return 100.0 * tick + end * [5.0, 3.0, 9.0, 2.0, 4.0, 7.0, 6.0, 8.0, 6.5, 9.0][tick % 10]

    assert module._seconds(lambda x: rows.append(len(x)), weight, clock) == 2.0 + 6.0
    assert rows == [count for count in COMPARED_ROWS for _ in range(5)]


def test_a_torch_without_mkl_multiplies_with_onednn(weight, monkeypatch):
    monkeypatch.setattr(torch._C, "has_mkl", False)
    assert isinstance(linear(weight, torch.float32), PackedLinear)


def test_few_rows_are_padded_where_that_is_chosen(weight, monkeypatch):
    layer, rows = PackedLinear(weight), []
    multiply = torch.ops.mkldnn._linear_pointwise

    def product(x, *rest):
        rows.append(len(x))
        return multiply(x, *rest)

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", product)
    for layer.pads in (False, True):
        for count in (0, 1, 2, 3, 4, 5):
            x = some_rows(count).float()
            assert torch.allclose(layer(x), x @ weight.T, rtol=1e-4, atol=1e-4)
            assert layer(x).shape == (count, len(weight))
    assert rows[::2] == [0, 1, 2, 3, 4, 5, 0, PADDED_ROWS, PADDED_ROWS, 3, 4, 5]


class Timed(PackedLinear):
    """A layer that takes so many seconds, by the rows of its input and whether they are padded."""

    seconds, now, rows = {}, 0.0, []

    def __call__(self, x):
        Timed.now += Timed.seconds[len(x), self.pads]
        Timed.rows.append((id(self), len(x), self.pads))
        return super().__call__(x)


@pytest.mark.parametrize(
    ("seconds", "pads"),
    [
        ({(1, False): 3.0, (2, False): 5.0, (1, True): 4.0, (2, True): 3.5}, True),
        ({(1, False): 3.0, (2, False): 5.0, (1, True): 4.0, (2, True): 4.5}, False),
        ({(1, False): 3.0, (2, False): 5.0, (1, True): 4.0, (2, True): 4.0}, False),
    ],
)
def test_the_products_of_the_first_matrices_decide_about_padding(seconds, pads, weight, monkeypatch):
    monkeypatch.setattr(module, "PADDING_BYTES", 2 * weight.nbytes)
    monkeypatch.setattr(Timed, "seconds", seconds | {(PADDED_ROWS, True): 0.0})
    monkeypatch.setattr(Timed, "rows", [])
    layers = [Timed(weight) for _ in range(3)]
    pad_few_rows([DenseLinear(weight), *layers], lambda: Timed.now)
    assert [layer.pads for layer in layers] == 3 * [pads]
    asked = [(layer, rows) for layer, rows, _ in Timed.rows if rows in FEW_ROWS]
    assert {*asked} == {(id(layer), rows) for layer in layers[:2] for rows in FEW_ROWS}, "two have so many bytes"


def test_a_disturbed_product_decides_nothing_about_padding(weight, monkeypatch):
    monkeypatch.setattr(
        Timed, "seconds", {(1, False): 2.0, (2, False): 2.0, (1, True): 1.0, (2, True): 1.0, (4, True): 0.0}
    )
    disturbed = itertools.chain([9.0], itertools.repeat(0.0))
    layer, product = Timed(weight), Timed.__call__

    def slow_at_first(layer, x):
        Timed.now += next(disturbed) if layer.pads and len(x) == 1 else 0.0
        return product(layer, x)

    monkeypatch.setattr(Timed, "__call__", slow_at_first)
    pad_few_rows([layer], lambda: Timed.now)
    assert layer.pads


def test_weights_without_onednns_layout_need_no_decision(weight):
    layer = DenseLinear(weight)
    before = dict(vars(layer))
    pad_few_rows([])
    pad_few_rows([layer])
    assert vars(layer) == before


@pytest.mark.parametrize(
    ("rows", "multiplied"),
    [
        (1, 1),
        (17, 17),
        (64, 64),
        (65, 72),
        (72, 72),
        (127, 128),
        (128, 128),
        (129, 136),
        (255, 256),
        (257, 272),
        (2047, 2048),
        (2049, 2176),
    ],
)
def test_rows_that_a_cpu_multiplies(rows, multiplied):
    assert product_rows(rows) == multiplied
