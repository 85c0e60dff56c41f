"""The engine's real model runner under the simulated engine's clock: a step takes the CPU time that torch takes for it.

Neighbours on the machine make a step longer by what they take of caches, and by no more.
"""

import time
from pathlib import Path

import torch
import transformers

from instrumented_engine.model.llama import Llama
from instrumented_engine.model.runner import ModelRunner
from instrumented_engine.model.weights import open_model
from tests.support.simulated_engine import EPOCH, Load, SimulatedDevice, StepTruth

BLOCK_SIZE = 16
VOCABULARY = 512


def tiny_model(folder: Path, *, hidden: int = 256, layers: int = 4) -> Llama:
    """A Llama of random weights for one thread, whose steps take milliseconds."""
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=layers,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=4096, tie_word_embeddings=True,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    file = open_model(folder)
    cpu = torch.device("cpu")
    return Llama(file.config(), file.weights(torch.float32, cpu, "none"), 4096)


def within(load: Load) -> Load:
    """The load in the model's vocabulary."""
    return Load(load.at, [[1 + token % (VOCABULARY - 1) for token in prompt] for prompt in load.prompts], load.outputs)


class TorchDevice(SimulatedDevice):
    """A runner that computes, and moves the clock by the CPU time of its thread. `truth` has its times and faults."""

    def __init__(self, model, blocks, speeds, clock, law, faults, seed):
        super().__init__(clock, law, faults, seed)
        self._speeds, self._same = speeds, torch.ones(512, 512)
        self._runner = ModelRunner(model, kv_blocks=blocks, block_size=BLOCK_SIZE, eos_ids=[])
        self._runner.warm_up()

    def run(self, plan):
        start = self._clock.now
        for sequence in plan.admitted:
            self.waits.setdefault(sequence.request.trail.number, dict(sequence.waited))
        begun = time.thread_time_ns()
        result = self._runner.run(plan)
        usual = time.thread_time_ns() - begun
        self._speeds.append(self._time_of_the_same())
        prompts = [item for item in plan.batch if not item.sequence.decoding]
        total = sum(item.num_scheduled_tokens for item in prompts)
        chunks = [
            (item.sequence.request.trail.number, item.num_scheduled_tokens, usual * item.num_scheduled_tokens / total)
            for item in prompts
        ]
        decoding = [item.sequence.request.trail.number for item in plan.batch if item.sequence.decoding]
        fault = self._fault(start - EPOCH, usual, len(decoding))
        self._clock.now += int(usual + fault)
        self.truth.append(
            StepTruth(
                start=start - EPOCH, end=self._clock.now - EPOCH, base=usual, prompt=0.0, decode=0.0, fault=fault,
                gap=0, chunks=tuple(chunks), decoding=tuple(decoding), context=0,
            )
        )  # fmt: skip
        return result

    def _time_of_the_same(self):
        """Nanoseconds of a computation that is the same behind each step: how quick the machine is."""
        begun = time.thread_time_ns()
        self._same @ self._same
        return time.thread_time_ns() - begun


def torch_device(model, blocks, speeds):
    """For `simulated_engine.run(make_device=…)`. `speeds` gets the time of the same computation behind each step."""
    return lambda clock, law, faults, seed: TorchDevice(model, blocks, speeds, clock, law, faults, seed)
