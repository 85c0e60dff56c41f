"""Opens a model by its format on disk."""

from __future__ import annotations

from pathlib import Path

from instrumented_engine.model.gguf import GgufFile
from instrumented_engine.model.hf import HfFolder


def open_model(path: Path, keep_layers: str = "", flag: str = "--keep-layers") -> GgufFile | HfFolder:
    """Open a Hugging Face folder or a GGUF file, of which some layers may be kept alone: those that the `flag` says."""
    return (HfFolder if path.is_dir() else GgufFile)(path, keep_layers, flag)
