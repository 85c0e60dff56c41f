"""From logits to token ids, each row by its own request's parameters."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from instrumented_engine.core.sequence import Sequence


def sample(logits: Tensor, sequences: Seq[Sequence], eos_ids: Seq[int]) -> list[int]:
    """Choose a token for each row of logits (rows, vocabulary).

    Temperature scales first, then top-k, top-p (of what top-k left) and min-p cut; one uniform number of the request's
    own generator then picks from what is left, so neither batch nor device changes the draw.
    """
    for row, sequence in enumerate(sequences):
        if sequence.generated < sequence.params.min_tokens:
            logits[row, eos_ids] = -torch.inf
    tokens = logits.argmax(dim=-1).tolist()
    random_rows = [row for row, sequence in enumerate(sequences) if sequence.params.temperature > 0]
    if random_rows:
        drawn = _draw(logits[random_rows].float(), [sequences[row] for row in random_rows])
        for row, token in zip(random_rows, drawn, strict=True):
            tokens[row] = token
    return tokens


def _draw(logits: Tensor, sequences: Seq[Sequence]) -> list[int]:
    def column(values: Seq[float]) -> Tensor:
        return torch.tensor(values, device=logits.device).unsqueeze(1)

    params = [sequence.params for sequence in sequences]
    vocabulary = logits.shape[1]
    # float64: a temperature close to 0 must not overflow.
    scaled = logits.double() / column([p.temperature for p in params])
    probability, order = scaled.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    mass = probability.cumsum(dim=-1)
    top_k = column([min(p.top_k or vocabulary, vocabulary) for p in params])
    left_by_top_k = mass.gather(1, top_k - 1)
    # All three keep a head of the sorted row; a token is in the nucleus if the mass before it is below top_p.
    in_nucleus = (mass - probability < column([p.top_p for p in params]) * left_by_top_k).sum(dim=-1, keepdim=True)
    likely = (probability >= column([p.min_p for p in params]) * probability[:, :1]).sum(dim=-1, keepdim=True)
    kept = torch.minimum(torch.minimum(top_k, in_nucleus), likely).clamp(min=1)
    target = column([sequence.rng.random() for sequence in sequences]) * mass.gather(1, kept - 1)
    rank = torch.searchsorted(mass, target, right=True)
    return order.gather(1, torch.minimum(rank, kept - 1)).squeeze(1).tolist()
