"""From logits to token ids, each row by its own request's parameters."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from instrumented_engine.core.sequence import SamplingParams, Sequence

HEAD = 1024
"""Most likely tokens that are sorted first: they nearly always hold what top-k, top-p and min-p keep, and selecting
them costs a tenth of sorting a vocabulary."""


def sample(logits: Tensor, sequences: Seq[Sequence], eos_ids: Seq[int]) -> list[int]:
    """Choose a token for each row of logits (rows, vocabulary).

    Temperature scales first, then top-k, top-p (of what top-k left) and min-p cut; one uniform number of the request's
    own generator then picks from what is left, so neither batch nor device changes the draw.
    """
    for row, sequence in enumerate(sequences):
        if sequence.generated < sequence.params.min_tokens:
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
    drawn = [0] * len(params)
    left = [row for row, p in enumerate(params) if _cuts(p)]
    whole = [row for row, p in enumerate(params) if not _cuts(p)]
    if whole:
        mass = probability[whole].cumsum(dim=-1, dtype=torch.float64)
        for row, token in zip(whole, _pick(mass, mass[:, -1:], uniform[whole]), strict=True):
            drawn[row] = token
    for width in (min(HEAD, logits.shape[1]), logits.shape[1]):
        if left:
            found = _draw_from_head(probability[left], [params[row] for row in left], uniform[left], width)
            drawn_now = {row: token for row, token in zip(left, found, strict=True) if token is not None}
            for row, token in drawn_now.items():
                drawn[row] = token
            left = [row for row in left if row not in drawn_now]
    return drawn


def _cuts(params: SamplingParams) -> bool:
    return bool(params.top_k) or params.top_p < 1 or params.min_p > 0


def _draw_from_head(probability: Tensor, params: Seq[SamplingParams], uniform: Tensor, width: int) -> list[int | None]:
    """Draw from each row's `width` most likely tokens; None where the cut may reach beyond them.

    Top-k, top-p and min-p each keep a head of the sorted row. A token is in the nucleus if the mass before it is below
    `top_p` times what top-k left.
    """
    vocabulary = probability.shape[1]
    head, order = probability.topk(width, dim=-1)
    mass = head.cumsum(dim=-1, dtype=torch.float64)
    top_k = _column([p.top_k if 0 < p.top_k < vocabulary else vocabulary for p in params], head).long()
    left_by_top_k = torch.where(top_k < vocabulary, mass.gather(1, top_k.clamp(max=width) - 1), 1.0)
    in_nucleus = (mass - head < _column([p.top_p for p in params], head) * left_by_top_k).sum(dim=-1, keepdim=True)
    likely = (head >= _column([p.min_p for p in params], head) * head[:, :1]).sum(dim=-1, keepdim=True)
    kept = torch.minimum(torch.minimum(top_k, in_nucleus), likely).clamp(1, width)
    enough = (width == vocabulary) | (((top_k <= width) | (top_k == vocabulary)) & (kept < width)) | (top_k == kept)
    rank = torch.tensor(_pick(mass, mass.gather(1, kept - 1), uniform), device=head.device).unsqueeze(1)
    tokens = order.gather(1, torch.minimum(rank, kept - 1)).squeeze(1).tolist()
    return [token if sure else None for token, sure in zip(tokens, enough.squeeze(1).tolist(), strict=True)]


def _pick(mass: Tensor, total: Tensor, uniform: Tensor) -> list[int]:
    """Index at which each row's running sum passes `uniform` times its total."""
    index: list[int] = torch.searchsorted(mass, uniform * total, right=True).clamp(max=mass.shape[1] - 1)[:, 0].tolist()
    return index


def _column(values: Seq[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device).unsqueeze(1)
