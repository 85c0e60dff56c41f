"""Writes a Llama with random weights and words as tokens.

A machine without a package index has no trained model. The time of a step depends on the shape alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

SHAPES: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2},
    "135m": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
             "num_key_value_heads": 3},
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
           "num_key_value_heads": 8},
}  # fmt: skip
"""The shapes of SmolLM2-135M and of Llama 3.2 1B, and one for tests."""
WORDS = 32_000
"""Tokens: `<unk>`, `</s>`, and the words w2, w3, …"""


def write(folder: Path, shape: str, words: int = WORDS) -> Path:
    """Write the model, with the same weights each time; return the folder."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    library: Any = transformers
    tokenizer = Tokenizer(
        models.WordLevel({"<unk>": 0, "</s>": 1} | {f"w{n}": n for n in range(2, words)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = library.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>")
    fast.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    fast.save_pretrained(folder)
    config = library.LlamaConfig(
        vocab_size=words, max_position_embeddings=8192, eos_token_id=1, bos_token_id=None, **SHAPES[shape]
    )
    torch.manual_seed(0)
    library.LlamaForCausalLM(config).save_pretrained(folder)
    return folder
