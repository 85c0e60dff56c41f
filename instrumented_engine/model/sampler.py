"""Samples a token from each row of logits, by the parameters of its request."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from instrumented_engine.core.request import SamplingParams
from instrumented_engine.core.sequence import Sequence

HEAD = 1024
"""Number of most likely tokens that are sorted first. Top-k, top-p and min-p nearly always cut within them, and
selecting them costs a tenth of sorting the vocabulary."""


def sample(logits: Tensor, sequences: Seq[Sequence], eos_ids: Seq[int]) -> list[int]:
    """Choose a token for each row of logits (rows, vocabulary).

    Temperature scales first; then top-k, top-p (of the mass that top-k left) and min-p cut. One uniform number of the
    request's own generator picks from the rest, so neither the batch nor the device changes the draw.
    """
    for row, sequence in enumerate(sequences):
        if sequence.num_output_tokens < sequence.params.min_tokens:
            logits[row, eos_ids] = -torch.inf
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    rows = [row for row, sequence in enumerate(sequences) if sequence.params.temperature > 0]
    if rows:
        for row, token in zip(rows, _draw(logits[rows].float(), [sequences[row] for row in rows]), strict=True):
            tokens[row] = token
    return tokens


def _draw(logits: Tensor, sequences: Seq[Sequence]) -> list[int]:
    params = [sequence.params for sequence in sequences]
    uniform = _column([sequence.rng.random() for sequence in sequences], logits)
    # The maximum goes first: logits over a tiny temperature must not overflow.
    temperature = _column([max(p.temperature, 1e-6) for p in params], logits).float()
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
    probability = scaled.softmax(dim=-1)
    drawn: dict[int, int] = {}
    if rows := [row for row, p in enumerate(params) if not _cuts(p)]:
        mass = probability[rows].cumsum(dim=-1, dtype=torch.float64)
        drawn |= zip(rows, _pick(mass, mass[:, -1:], uniform[rows]), strict=True)
    for width in (min(HEAD, logits.shape[1]), logits.shape[1]):
        if rows := [row for row in range(len(params)) if row not in drawn]:
            found = _draw_from_head(probability[rows], [params[row] for row in rows], uniform[rows], width)
            drawn |= {row: token for row, token in zip(rows, found, strict=True) if token is not None}
    return [drawn[row] for row in range(len(params))]


def _cuts(params: SamplingParams) -> bool:
    return bool(params.top_k) or params.top_p < 1 or params.min_p > 0


# Five tokens of probability .4 .3 .1 .1 .1 and a head of 2:
#   top_k 2: two tokens are kept, as many as top-k allows        → draw from the head
#   top_p .6: the mass before the second is .4 < .6, that before the third .7; both are in the head → cannot tell yet
#   top_p .4: the mass before the second is not below .4, so one is kept, fewer than the head holds → draw from the head
#   top_k 3, top_p .6: the nucleus is .6 of the three tokens' mass, and the head lacks the third    → cannot tell yet
def _draw_from_head(probability: Tensor, params: Seq[SamplingParams], uniform: Tensor, width: int) -> list[int | None]:
    """Draw from each row's `width` most likely tokens; None where tokens beyond them might be kept too.

    Top-k, top-p and min-p each keep the first tokens of the sorted row. A token is in the nucleus if the mass before it
    is below `top_p` times the mass that top-k left.
    """
    vocabulary = probability.shape[1]
    head, order = probability.topk(width, dim=-1)
    mass = head.cumsum(dim=-1, dtype=torch.float64)
    top_k = _column([p.top_k if 0 < p.top_k < vocabulary else vocabulary for p in params], head).long()
    left_by_top_k = torch.where(top_k < vocabulary, mass.gather(1, top_k.clamp(max=width) - 1), 1.0)
    in_nucleus = (mass - head < _column([p.top_p for p in params], head) * left_by_top_k).sum(dim=-1, keepdim=True)
    likely = (head >= _column([p.min_p for p in params], head) * head[:, :1]).sum(dim=-1, keepdim=True)
    kept = torch.minimum(torch.minimum(top_k, in_nucleus), likely).clamp(1, width)
    nucleus_known = (top_k <= width) | (top_k == vocabulary)
    cut_found = (kept < width) | (kept == top_k)
    certain = (nucleus_known & cut_found).squeeze(1).tolist()
    rank = torch.tensor(_pick(mass, mass.gather(1, kept - 1), uniform), device=head.device).unsqueeze(1)
    tokens = order.gather(1, torch.minimum(rank, kept - 1)).squeeze(1).tolist()
    return [token if sure else None for token, sure in zip(tokens, certain, strict=True)]


def _pick(mass: Tensor, total: Tensor, uniform: Tensor) -> list[int]:
    """The index at which each row's running sum passes `uniform` times its total."""
    index: list[int] = torch.searchsorted(mass, uniform * total, right=True).clamp(max=mass.shape[1] - 1)[:, 0].tolist()
    return index


def _column(values: Seq[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device).unsqueeze(1)
