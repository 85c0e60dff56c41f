"""Linear layers in the memory layout that is fastest for their device and dtype."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from functools import partial
from typing import Literal, Protocol

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own spelling
from torch import Tensor

Quantization = Literal["none", "int8", "int4"]
TYPICAL_ROWS = 8
"""Rows that oneDNN lays a packed matrix out for: a small decode batch."""
MKL_ROWS = 64
"""Rows that MKL is told when it lays a matrix out. Its manual promises the best speed for this number alone."""
FEW_ROWS = (1, 2)
"""Rows for which oneDNN has kernels of their own. On some CPUs they take longer than that of more rows."""
PADDED_ROWS = 4
"""Few rows are padded to this number where that is quicker."""
PADDING_BYTES = 128 << 20
"""Bytes of the matrices in the products that decide that: more than caches have, as in a step."""
COMPARED_ROWS = (1, TYPICAL_ROWS)
"""Rows of the products that are timed to decide between MKL's layout and oneDNN's."""
COMPARISONS = 9
"""So often each of these products is timed; the quickest counts."""
MKL_CHECKED_ROWS = (0, 1, 2, 8, 9, 65)
"""Rows of the products that MKL's layout is compared for with plain ones, once for each shape of a matrix."""
INT8_KERNEL_ROWS = 19
INT4_KERNEL_ROWS = 63
"""Most rows for which torch's quantised kernels are used. They compute row by row, so for more rows it is quicker to
turn the weight into the `product_dtype` first. Measured with SmolLM2-135M."""
BFLOAT16_ROWS = 6
"""Most rows for which a CPU without instructions for bfloat16 multiplies in it, which it does row by row."""
PIECE = 1 << 21
"""Numbers of a weight that such a CPU turns into float32 at a time. Memory for a large matrix costs more than that."""
GROUP = 32
"""Weights of a row that share a scale in 4 bits, as in GGUF's Q4_1."""
EXACT_ROWS = 64
"""Most rows of which each number has its own kernels: batches that decode, where each row more takes time."""


def product_rows(rows: int) -> int:
    """The rows with which a CPU multiplies so many: up to 6 % more, or up to 7 of fewer than 128.

    oneDNN makes kernels for each number of rows of each shape, in 30 to 50 ms a step, and remembers a thousand of them,
    half a megabyte each. With every length of a prompt a number of its own, an engine grows by a gigabyte.
    """
    if rows <= EXACT_ROWS:
        return rows
    unit = max(8, 1 << (rows.bit_length() - 5))
    return -(-rows // unit) * unit


class Linear(Protocol):
    """x (rows, in) → x · weightᵀ (rows, out). One product of few rows reads `nbytes` bytes of the weight."""

    nbytes: int

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply."""
        ...


class DenseLinear:
    """The weight as it is, (out, in)."""

    def __init__(self, weight: Tensor) -> None:
        self.nbytes = weight.nbytes
        self._weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply."""
        return F.linear(x, self._weight)


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for products of bfloat16. CPUs without AVX-512 have none."""
    return device.type != "cpu" or bool(torch._C._has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def product_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype in which products of many rows of `dtype` are quickest: float32 in place of a slow bfloat16."""
    return torch.float32 if dtype == torch.bfloat16 and not multiplies_bfloat16(device) else dtype


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply many rows: x (…, in) → x · weightᵀ (…, out) in the dtype of x. The weight may be int8."""
    dtype = product_dtype(x.dtype, x.device)
    if dtype == x.dtype:
        return F.linear(x, weight.to(dtype))
    wide = x.to(dtype)
    pieces = torch.split(weight, max(1, PIECE // weight.shape[1]))
    return torch.cat([F.linear(wide, piece.to(dtype)).to(x.dtype) for piece in pieces], dim=-1)


class WidenedLinear:
    """A bfloat16 weight on a CPU without instructions for bfloat16. Products of many rows are computed in float32."""

    def __init__(self, weight: Tensor) -> None:
        self.nbytes = weight.nbytes
        self._weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply."""
        return F.linear(x, self._weight) if len(x) <= BFLOAT16_ROWS else multiply(x, self._weight)


class PackedLinear:
    """A float32 or bfloat16 weight in oneDNN's blocked layout.

    torch packs weights like this when it freezes a compiled model. It has no public function for it. `pads`: few rows
    are padded with zeros to `PADDED_ROWS`.
    """

    def __init__(self, weight: Tensor) -> None:
        self.nbytes = weight.nbytes
        self.inputs = weight.shape[1]
        self.dtype = weight.dtype
        self.pads = False
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_ROWS)

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply."""
        rows = x.shape[0]
        if self.pads and rows in FEW_ROWS:
            return self(F.pad(x, (0, 0, 0, PADDED_ROWS - rows)))[:rows]
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, None, "none", [], "")
        return product


class MklLinear:
    """A float32 weight in MKL's layout. On Intel's CPUs it takes 0.6 to 0.9 of oneDNN's time, on AMD's up to twice.

    torch takes the weight instead of the layout for another number of rows than the one that it is told, so it is told
    the rows of each product. It then reads no more than the shape of the weight.
    """

    def __init__(self, weight: Tensor) -> None:
        self.nbytes = weight.nbytes
        self._packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, MKL_ROWS)
        self._shape = torch.empty(1).expand(weight.shape)

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply."""
        product: Tensor = torch.ops.mkl._mkl_linear(x, self._packed, self._shape, None, x.shape[0])
        return product


class Int8Linear:
    """8-bit weights with one scale for each output, symmetric, rounded to nearest. Activations are bfloat16."""

    def __init__(self, weight: Tensor) -> None:
        weight = weight.float()
        scale = weight.abs().amax(dim=1).clamp(min=1e-12) / 127
        self._weight = (weight / scale.unsqueeze(1)).round().to(torch.int8)
        self._scale = scale.bfloat16()
        self.nbytes = self._weight.nbytes + self._scale.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply."""
        if len(x) <= INT8_KERNEL_ROWS:
            return torch._weight_int8pack_mm(x, self._weight, self._scale)
        return multiply(x, self._weight) * self._scale


# A group of four weights -3 0 1 12 has the scale 15/15 = 1 and the minimum -3, and is kept as 0 3 4 15.
# The kernel computes (q - 8) · scale + zero, so zero is the minimum + 8 scales: (0 - 8) · 1 + 5 = -3.
# The kernel's layout cannot be read back, so `_halves` keeps 0 3 4 15 once more: 0 and 4 share a byte, 3 and 15 too.
# There, the outputs of an input lie beside each other, and so do their scales: torch multiplies such rows quickly.
class Int4Linear:
    """4-bit weights in groups of 32 inputs with a scale and a minimum, rounded to nearest. Activations are bfloat16.

    A weight that comes from GGUF's Q4_1 keeps its 4-bit numbers, since the ends of each group are 0 and 15 there too.
    """

    def __init__(self, weight: Tensor) -> None:
        outputs, inputs = weight.shape
        groups = weight.float().view(outputs, inputs // GROUP, GROUP)
        minimum = groups.amin(dim=2, keepdim=True)
        scale = (groups.amax(dim=2, keepdim=True) - minimum).clamp(min=1e-12) / 15
        numbers = ((groups - minimum) / scale).round().to(torch.uint8)
        self._packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers.flatten(1).int(), 2)
        first, second = numbers.permute(1, 2, 0).chunk(2, dim=1)
        self._halves = (first | second << 4).contiguous()
        zero = minimum + 8 * scale
        self._scales = torch.cat([scale, zero], dim=2).transpose(0, 1).bfloat16().contiguous()
        self._scale, self._zero = (part.transpose(1, 2).contiguous() for part in self._scales.chunk(2, dim=2))
        self.nbytes = self._packed.nbytes + self._scales.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply."""
        if len(x) <= INT4_KERNEL_ROWS:
            product: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, self._packed, GROUP, self._scales)
            return product
        dtype = product_dtype(x.dtype, x.device)
        numbers, scale, zero = (part.to(dtype) for part in (self._numbers(), self._scale, self._zero))
        return (x.to(dtype) @ torch.addcmul(zero, numbers - 8, scale).flatten(0, 1)).to(x.dtype)

    def _numbers(self) -> Tensor:
        """The 4-bit numbers (groups, 32, outputs)."""
        return torch.cat([self._halves & 15, self._halves >> 4], dim=1)


def linear(weight: Tensor, dtype: torch.dtype, quantization: Quantization = "none") -> Linear:
    """Choose the fastest layout of a weight (out, in) for its device, the dtype of activations and the quantisation.

    A matrix that 4 bits do not fit, because its inputs are no multiple of 32, gets 8 bits.
    """
    if quantization == "int4" and weight.shape[1] % GROUP == 0:
        return Int4Linear(weight)
    if quantization != "none":
        return Int8Linear(weight)
    weight = weight.to(dtype)
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return DenseLinear(weight)
    if dtype == torch.bfloat16:
        return PackedLinear(weight) if multiplies_bfloat16(weight.device) else WidenedLinear(weight)
    return _float32_linear(weight) if dtype == torch.float32 else DenseLinear(weight)


def _float32_linear(weight: Tensor) -> Linear:
    """The weight in MKL's layout, if torch has MKL and it is right and quicker for this shape; else in oneDNN's."""
    if not (torch._C.has_mkl and hasattr(torch.ops.mkl, "_mkl_linear")):
        return PackedLinear(weight)
    shape = (weight.shape[0], weight.shape[1])
    if shape not in _mkl_shapes:
        mkl = MklLinear(weight)
        right = all(_multiplies(mkl, weight, rows) for rows in MKL_CHECKED_ROWS)
        _mkl_shapes[shape] = right and _seconds(mkl, weight) < _seconds(PackedLinear(weight), weight)
    return MklLinear(weight) if _mkl_shapes[shape] else PackedLinear(weight)


_mkl_shapes: dict[tuple[int, int], bool] = {}
"""Whether MKL's layout is the one to take, by the shape of the matrix."""


def _multiplies(layer: Linear, weight: Tensor, rows: int) -> bool:
    x = torch.randn(rows, weight.shape[1], generator=torch.Generator().manual_seed(rows))
    right = F.linear(x, weight)
    return float((layer(x) - right).norm()) <= 1e-4 * float(right.norm())


def _seconds(layer: Linear, weight: Tensor, clock: Callable[[], float] = time.perf_counter) -> float:
    """The time of a product for each of `COMPARED_ROWS`, together."""
    inputs = [weight.new_ones(rows, weight.shape[1]) for rows in COMPARED_ROWS]
    return sum(_quickest([partial(layer, x)], clock)[0] for x in inputs)


def pad_few_rows(layers: Iterable[Linear], clock: Callable[[], float] = time.perf_counter) -> None:
    """Let oneDNN's layouts pad few rows if the products of the first of them, one behind the other, are quicker so."""
    packed = [layer for layer in layers if isinstance(layer, PackedLinear)]
    before = itertools.accumulate((layer.nbytes for layer in packed), initial=0)
    timed = [layer for layer, nbytes in zip(packed, before, strict=False) if nbytes < PADDING_BYTES]

    def multiply_all(rows: int, pads: bool) -> None:
        for layer in timed:
            layer.pads = pads
            layer(inputs[rows, layer.inputs])

    sizes = {layer.inputs: layer.dtype for layer in timed}
    inputs = {(rows, size): torch.ones(rows, size, dtype=dtype) for rows in FEW_ROWS for size, dtype in sizes.items()}
    times = [_quickest([partial(multiply_all, rows, pads) for pads in (False, True)], clock) for rows in FEW_ROWS]
    plain, padded = (sum(column) for column in zip(*times, strict=True))
    for layer in packed:
        layer.pads = padded < plain


def _quickest(works: Seq[Callable[[], object]], clock: Callable[[], float]) -> list[float]:
    """The shortest time of each of some works that take turns."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(COMPARISONS):
        for work, found in zip(works, times, strict=True):
            begin = clock()
            work()
            found.append(clock() - begin)
    return [min(found) for found in times]
