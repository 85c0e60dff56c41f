import pytest

from instrumented_engine.device import open_device
from instrumented_engine.model.download import cache_folder
from instrumented_engine.settings import Settings
from tokentrail import now_ns
from tokentrail.testing import MemoryTrail

from .reference import smollm_path
from .support import byte_tokenizer


@pytest.fixture
def trail():
    return MemoryTrail(clock=now_ns)


@pytest.fixture(scope="session")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="session")
def smollm_file():
    """The default model's GGUF file, downloaded once per machine."""
    return smollm_path()


@pytest.fixture(scope="session")
def smollm(smollm_file):
    """(model, tokenizer) of the default model on the CPU."""
    from instrumented_engine.model.gguf import GgufFile
    from instrumented_engine.model.llama import Llama
    from instrumented_engine.model.tokenizer import load_tokenizer

    settings = Settings(device="cpu", threads=2)
    device = open_device(settings)
    file = GgufFile(smollm_file)
    model = Llama(file.config(), file.weights(device.dtype, device.target), 8192)
    model.operations = device.operations(settings, model)
    return model, load_tokenizer(smollm_file, cache_folder(), file.eos_ids)
