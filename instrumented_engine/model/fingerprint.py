"""Tells models apart by their files, without reading all of them."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

PIECES = 256
PIECE_BYTES = 4096


def fingerprint(path: Path, traits: str) -> str:
    """A hash of `traits`, and of sizes and evenly spaced pieces of a model's files: one, or those of a folder."""
    digest = blake2b(traits.encode(), digest_size=16)
    files = [path / "config.json", *sorted(path.glob("*.safetensors"))] if path.is_dir() else [path]
    for file in files:
        size = file.stat().st_size
        digest.update(size.to_bytes(8))
        with file.open("rb") as opened:
            for piece in range(PIECES):
                opened.seek(piece * max(0, size - PIECE_BYTES) // (PIECES - 1))
                digest.update(opened.read(PIECE_BYTES))
    return digest.hexdigest()
