"""Opens a model in whichever form it lies on disk."""

from __future__ import annotations

from pathlib import Path

from instrumented_engine.model.gguf import GgufFile
from instrumented_engine.model.hf import HfFolder


def open_model(path: Path) -> GgufFile | HfFolder:
    """A folder is a Hugging Face model, a file a GGUF model."""
    return HfFolder(path) if path.is_dir() else GgufFile(path)
