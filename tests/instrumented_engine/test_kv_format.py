"""Keys and values in fewer bits: errors have bounds by construction, and attention a bound that follows from them."""

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own spelling

from instrumented_engine.model.attention import Batch, Prefill, attend
from instrumented_engine.model.errors import ModelError
from instrumented_engine.model.kv_format import GROUP, Int4Format, Int8Format, kv_format
from instrumented_engine.model.operations import Operations

CPU = torch.device("cpu")
HEADS, KV_HEADS, HEAD_DIM, SIZE = 4, 2, 64, 4


def some(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 3e4])
@pytest.mark.parametrize("head_dim", [8, 48, HEAD_DIM])
def test_the_error_of_8_bits_is_half_a_scale(scale, head_dim):
    vectors = some(50, head_dim) * scale
    restored = Int8Format(head_dim, torch.float32)
    error = (restored.decode(restored.encode(vectors)) - vectors).abs()
    step = vectors.abs().amax(-1, keepdim=True) / 127 * (1 + 2**-8)  # a bfloat16 scale is rounded by 2⁻⁹
    assert (error <= step / 2 * (1 + 1e-5)).all()
    assert error.max() > step.max() / 4, "a smaller error would mean that more than 8 bits are stored"


@pytest.mark.parametrize("scale", [1e-6, 1.0, 3e4])
@pytest.mark.parametrize("head_dim", [8, 48, HEAD_DIM])
def test_the_error_of_4_bits_is_half_the_scale_of_a_group(scale, head_dim):
    vectors = (some(50, head_dim) + 0.5) * scale
    restored = Int4Format(head_dim, torch.float32, CPU)
    error = (restored.decode(restored.encode(vectors)) - vectors).abs()
    group = GROUP if head_dim % GROUP == 0 else head_dim
    groups = vectors.unflatten(-1, (-1, group))
    minimum = groups.amin(-1, keepdim=True)
    rounding = minimum.abs() * 2**-8
    step = (groups.amax(-1, keepdim=True) - minimum + rounding) / 15 * (1 + 2**-8)
    error = error.unflatten(-1, (-1, group))
    assert (error <= step / 2 * (1 + 1e-5) + rounding).all()
    assert error.max() > step.max() / 4


def test_a_group_with_an_outlier_does_not_disturb_the_others():
    vectors = torch.full((1, HEAD_DIM), 0.5)
    vectors[0, 0], vectors[0, GROUP:] = 100.0, torch.linspace(-1, 1, HEAD_DIM - GROUP)
    restored = Int4Format(HEAD_DIM, torch.float32, CPU)
    error = (restored.decode(restored.encode(vectors)) - vectors).abs()
    assert error[0, GROUP:].max() <= 1 / 15 + 2**-7
    assert error[0, 1:GROUP].max() <= 100 / 30


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_equal_numbers_and_zeros_come_back(name):
    stored = kv_format(name, HEAD_DIM, torch.float32, CPU)
    for value in (0.0, 0.5, -2.0):
        vectors = torch.full((3, HEAD_DIM), value)
        torch.testing.assert_close(stored.decode(stored.encode(vectors)), vectors, atol=1e-30, rtol=2**-7)


def test_bytes_of_a_vector():
    sizes = {}
    for name in ("auto", "bfloat16", "int8", "int4"):
        stored = kv_format(name, HEAD_DIM, torch.float32, CPU)
        encoded = stored.encode(some(1, HEAD_DIM))
        assert (encoded.shape, encoded.dtype) == ((1, stored.width), stored.dtype)
        sizes[name] = encoded.nbytes
        assert stored.decode(encoded).dtype == torch.float32
    assert kv_format("bfloat16", HEAD_DIM, torch.float32, CPU).dtype == torch.bfloat16
    assert sizes == {"auto": 256, "bfloat16": 128, "int8": 66, "int4": 40}
    with pytest.raises(ModelError, match="heads of 6 numbers"):
        kv_format("int4", 6, torch.float32, CPU)


def hidden(places):
    """The mask that hides these places."""
    return torch.zeros(places.shape).masked_fill(places, -torch.inf)


def attention(name, q, kv):
    """Attention of six rows of one sequence: four of a prompt, two behind them, and one that decodes."""
    stored = kv_format(name, HEAD_DIM, torch.float32, CPU)
    cache = torch.zeros((3, SIZE, 2 * KV_HEADS, stored.width), dtype=stored.dtype)
    table, found = torch.tensor([2, 0]), []
    nothing = torch.zeros((0, 2), dtype=torch.long)
    for start, stop in ((0, 4), (4, 6)):
        slots = torch.tensor([table[p // SIZE] * SIZE + p % SIZE for p in range(start, stop)])
        mask = hidden(torch.arange(stop) > torch.arange(start, stop).unsqueeze(1))
        later = {"block_table": table, "mask": mask} if start else {}
        batch = Batch(slots, slots, slots, slots, 0, nothing, nothing, None, (Prefill(0, stop - start, **later),))
        found.append(attend(q[start:stop], kv[start:stop], batch, cache, stored, Operations()))
    mask = hidden(torch.arange(2 * SIZE) >= 7)[None, None, None, :]
    batch = Batch(nothing, nothing, torch.tensor([2]), nothing, 1, torch.tensor([7]), table.unsqueeze(0), mask, ())
    found.append(attend(q[6:], kv[6:], batch, cache, stored, Operations()))
    return torch.cat(found).view(7, HEADS, HEAD_DIM), stored


@pytest.mark.parametrize("name", ["auto", "bfloat16", "int8", "int4"])
def test_attention_is_as_close_as_keys_and_values_are(name):
    """A score errs by ε = |q|·|Δk|/√d at most, so a weight by the factor e^2ε, and a mean of values by |Δv| besides."""
    q, kv = some(7, HEADS, HEAD_DIM, seed=2), some(7, 2 * KV_HEADS, HEAD_DIM, seed=3)
    q[..., 0] *= 4
    found, stored = attention(name, q.clone(), kv.clone())
    keys, values = (part.repeat_interleave(HEADS // KV_HEADS, dim=1) for part in kv.chunk(2, dim=1))
    rows = (part.transpose(0, 1) for part in (q, keys, values))
    exact = F.scaled_dot_product_attention(*rows, is_causal=True).transpose(0, 1)
    rotated = kv if stored.rotation is None else kv @ stored.rotation
    off_k, off_v = ((stored.decode(stored.encode(rotated)) - rotated).norm(dim=-1)).chunk(2, dim=1)
    epsilon = float(q.norm(dim=-1).max() * off_k.max()) / math.sqrt(HEAD_DIM)
    bound = math.expm1(2 * epsilon) * float(values.norm(dim=-1).max()) + float(off_v.max()) + 1e-5
    error = float((found - exact).norm(dim=-1).max())
    assert error <= bound
    assert (error > 1e-3) == (name != "auto")
    assert error < {"auto": 1e-5, "bfloat16": 0.03, "int8": 0.1, "int4": 1.2}[name]
