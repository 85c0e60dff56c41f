"""Samples a token from each row of logits, by the parameters of its request, and tells log-probabilities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from math import isnan

import torch
from torch import Tensor

from instrumented_engine.core.request import SamplingParams
from instrumented_engine.core.sequence import Sequence, TokenLogprobs

HEAD = 1024
"""Number of most likely tokens that are sorted first. Top-k, top-p and min-p nearly always cut within them, and
selecting them costs a tenth of sorting the vocabulary."""


@dataclass(frozen=True, slots=True)
class Row:
    """The place of one token that is sampled: `token_ids` are those before it, prompt and output.

    `uniform` is a random number, 0 to 1, for this place alone.
    """

    params: SamplingParams
    token_ids: Seq[int]
    num_prompt_tokens: int
    uniform: float

    @classmethod
    def after(cls, sequence: Sequence, draft: Seq[int] = ()) -> Row:
        """The place behind the tokens of a sequence and a draft."""
        token_ids = [*sequence.token_ids, *draft] if draft else sequence.token_ids
        uniform = sequence.uniform(len(draft)) if sequence.params.temperature > 0 else 0.0
        return cls(sequence.params, token_ids, sequence.num_prompt_tokens, uniform)


def sample(logits: Tensor, rows: Seq[Row], eos_ids: Seq[int]) -> list[int]:
    """Choose a token for each row of logits (rows, vocabulary), which are changed in place.

    Bias and penalties change the logits, then temperature scales; then top-k, top-p (of the mass that top-k left) and
    min-p cut. One uniform number of the request's own generator picks from the rest, so neither the batch nor the
    device changes the draw. Raises ArithmeticError for a row whose greatest logit is no finite number.
    """
    for index, row in enumerate(rows):
        _adjust(logits, index, row, eos_ids)
    greatest = logits.max(dim=-1)
    tokens: list[int] = torch.where(greatest.values.isfinite(), greatest.indices, -1).tolist()
    if -1 in tokens:  # NaN is greater than every number
        raise ArithmeticError("the model's logits have numbers that are infinite or none (NaN)")
    drawn = [index for index, row in enumerate(rows) if row.params.temperature > 0]
    if drawn:
        # The maximum goes first: logits over a tiny temperature must not overflow.
        below = logits[drawn].float() - greatest.values[drawn].float().unsqueeze(1)
        for index, token in zip(drawn, _draw(below, [rows[index] for index in drawn]), strict=True):
            tokens[index] = token
    return tokens


def logprobs(logits: Tensor, token_ids: Seq[int], tops: Seq[int]) -> list[TokenLogprobs]:
    """The log-probability of a token in each row of logits (rows, vocabulary), those of the `tops` likeliest, and the
    entropy of the row. Raises ArithmeticError for logits that have none.
    """
    values = logits.float().log_softmax(dim=-1)
    entropy = torch.special.entr(values.exp()).sum(dim=-1).tolist()
    chosen = values.gather(1, torch.tensor(token_ids, device=logits.device).unsqueeze(1)).squeeze(1).tolist()
    if any(map(isnan, chosen)):
        raise ArithmeticError("the model's log-probabilities are not numbers (NaN)")
    best = values.topk(min(max(tops), logits.shape[1]), dim=-1)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [
        TokenLogprobs(token, logprob, tuple(zip(ids[:top], logs[:top], strict=True)), nats)
        for token, logprob, top, (ids, logs), nats in zip(token_ids, chosen, tops, pairs, entropy, strict=True)
    ]


def _adjust(logits: Tensor, index: int, row: Row, eos_ids: Seq[int]) -> None:
    """Apply the bias and the penalties of a row to its logits, `logits[index]`."""
    params = row.params
    if params.logit_bias:
        ids, values = zip(*params.logit_bias, strict=True)
        logits[index, list(ids)] += torch.tensor(values, dtype=logits.dtype, device=logits.device)
    if params.repetition_penalty != 1:
        seen = torch.tensor(sorted(set(row.token_ids)), device=logits.device)
        repeated = logits[index, seen]
        logits[index, seen] = torch.where(
            repeated > 0, repeated / params.repetition_penalty, repeated * params.repetition_penalty
        )
    if (params.presence_penalty or params.frequency_penalty) and len(row.token_ids) > row.num_prompt_tokens:
        counts = Counter(row.token_ids[row.num_prompt_tokens :])
        taken = [params.presence_penalty + params.frequency_penalty * count for count in counts.values()]
        logits[index, list(counts)] -= torch.tensor(taken, dtype=logits.dtype, device=logits.device)
    if len(row.token_ids) - row.num_prompt_tokens < params.min_tokens:
        logits[index, [*eos_ids, *params.stop_token_ids]] = -torch.inf


def _draw(logits: Tensor, places: Seq[Row]) -> list[int]:
    """Draw from logits of which the greatest of each row is 0."""
    params = [place.params for place in places]
    uniform = _column([place.uniform for place in places], logits)
    temperature = _column([max(p.temperature, 1e-6) for p in params], logits).float()
    probability = (logits / temperature).softmax(dim=-1)
    drawn: dict[int, int] = {}
    if rows := [row for row, p in enumerate(params) if not _cuts(p)]:
        mass = probability[rows].cumsum(dim=-1, dtype=torch.float64)
        drawn |= zip(rows, _pick(mass, mass[:, -1:], uniform[rows])[:, 0].tolist(), strict=True)
    for width in (min(HEAD, logits.shape[1]), logits.shape[1]):
        if rows := [row for row in range(len(params)) if row not in drawn]:
            tokens = _draw_from_head(probability[rows], [params[row] for row in rows], uniform[rows], width)
            drawn |= {row: token for row, token in zip(rows, tokens, strict=True) if token is not None}
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
    rank = _pick(mass, mass.gather(1, kept - 1), uniform)
    tokens = order.gather(1, torch.minimum(rank, kept - 1))
    picked = torch.where(nucleus_known & cut_found, tokens, -1)[
        :, 0
    ].tolist()  # the one time that the device is waited for
    return [None if token < 0 else token for token in picked]


def _pick(mass: Tensor, total: Tensor, uniform: Tensor) -> Tensor:
    """The index (rows, 1) at which each row's running sum passes `uniform` times its total."""
    return torch.searchsorted(mass, uniform * total, right=True).clamp(max=mass.shape[1] - 1)


def _column(values: Seq[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device).unsqueeze(1)
