"""Runs vLLM's steps one by one for `benchmarks.engine_decode --vllm PYTHON`, in vLLM's own environment.

It reads a JSON line for each order and answers with one: `{"prompts": […]}` begins requests for prompts of token ids in
place of those before, and `{}` runs a step and answers its seconds. The engine core runs in this process, so a step is
the scheduler, the model and the output, without HTTP.
"""

import json
import os
import sys
import time


def main(folder: str) -> None:
    """Serve orders until the input ends."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # lines that vLLM prints are no answers
    import vllm

    engine = vllm.LLM(
        model=folder,
        dtype="float32",
        max_model_len=4096,
        max_num_batched_tokens=4096,
        max_num_seqs=16,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
    ).llm_engine
    params = vllm.SamplingParams(max_tokens=1000, temperature=0.0, ignore_eos=True, detokenize=False)
    print(json.dumps({"version": vllm.__version__}), file=answers)
    number = 0
    running: list[str] = []
    for line in sys.stdin:
        order = json.loads(line)
        begin = time.perf_counter()
        if "prompts" in order:
            engine.abort_request(running)
            running = []
            for prompt in order["prompts"]:
                number += 1
                running.append(str(number))
                engine.add_request(running[-1], {"prompt_token_ids": prompt}, params)
        else:
            engine.step()
        print(json.dumps(time.perf_counter() - begin), file=answers)


if __name__ == "__main__":
    main(sys.argv[1])
