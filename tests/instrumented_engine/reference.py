"""Records the answers of transformers with the default model, token by token.

`python -m tests.instrumented_engine.reference` computes them again, which takes a minute of CPU, and writes
tests/data/smollm2-135m/greedy.json.
"""

import json
from pathlib import Path

from instrumented_engine.model.download import DEFAULT_MODEL, cache_folder, download, local_path
from instrumented_engine.model.gguf import GgufFile
from instrumented_engine.model.tokenizer import load_tokenizer

FILE = Path(__file__).parents[1] / "data" / "smollm2-135m" / "greedy.json"
TEXT = """The lighthouse keeper counted ships the way other men count coins. Every evening he climbed the 199 steps, lit
the lamp, and wrote into a ledger what the sea had brought: three trawlers, a naïve yacht, one barge with no name. On
the 4th of March the fog came in so thick that he could not see his own hands, and he rang the bell until dawn. def
fog(x): return [y for y in x if y is not None]. In the morning a boy stood at the door, wet to the bone, and asked
whether this was where the bell lived. «Oui», said the keeper, who had once been to Marseille. Предложение. 漢字も。
The boy ate four eggs, slept for eleven hours, and then asked how many ships there were in the whole world. The keeper
thought about it: the ledger went back to 1871, and nobody had ever added it up. So they began, page by page, year by
year, carrying the tens. It took all winter. Questions: 1) How many steps? 2) What did the boy eat? 3) Who rang?"""
LENGTHS = (1, 2, 3, 4, 5, 7, 8, 11, 15, 16, 17, 24, 32, 33, 47, 64, 96, 128, 190, 330)
NEW_TOKENS = 16


def smollm_path():
    """The default model's GGUF file, downloaded once per machine."""
    return local_path(DEFAULT_MODEL) or download(DEFAULT_MODEL)


def make_prompts(tokenizer):
    """One prompt of token ids for each of LENGTHS, cut from different places of TEXT."""
    ids = tokenizer.encode(TEXT)
    starts = [7 * i % 40 for i in range(len(LENGTHS))]
    prompts = [(ids * 2)[start : start + length] for start, length in zip(starts, LENGTHS, strict=True)]
    assert [len(prompt) for prompt in prompts] == list(LENGTHS)
    return prompts


def record():
    """Continue each prompt greedily with transformers in float32."""
    import torch
    import transformers

    path = smollm_path()
    prompts = make_prompts(load_tokenizer(path, cache_folder(), GgufFile(path).eos_ids))
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)

    def generate(prompt):
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            out = model.eval().generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False
            )
        return out[0, len(prompt) :].tolist()

    answers = [{"prompt": prompt, "answer": generate(prompt)} for prompt in prompts]
    return {"transformers": transformers.__version__, "torch": torch.__version__, "answers": answers}


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(record()) + "\n")
