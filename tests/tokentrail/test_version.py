"""What `tokentrail --version` tells of the commit that it runs."""

import pytest

from tokentrail import version

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOLD = f"{version.__version__} (commit 01234567)"


@pytest.fixture
def git(tmp_path, monkeypatch):
    """The folder .git beside the package's."""
    monkeypatch.setattr(version, "__file__", str(tmp_path / "tokentrail" / "version.py"))
    return tmp_path / ".git"


def test_an_installed_package_has_no_commit(git):
    assert version.told() == version.__version__


@pytest.mark.parametrize("packed", [False, True])
def test_a_clone_tells_the_commit_of_its_branch(git, packed):
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    if packed:
        (git / "packed-refs").write_text(f"# pack-refs\n{'f' * 40} refs/heads/other\n{COMMIT} refs/heads/main\n")
    else:
        (git / "refs" / "heads" / "main").write_text(f"{COMMIT}\n")
    assert version.told() == TOLD


def test_a_detached_head_is_the_commit_itself(git):
    git.mkdir()
    (git / "HEAD").write_text(f"{COMMIT}\n")
    assert version.told() == TOLD


def test_a_work_tree_finds_its_branch_in_the_clone(git, tmp_path):
    own, shared = tmp_path / "clone" / "worktrees" / "a", tmp_path / "clone"
    own.mkdir(parents=True)
    (shared / "refs" / "heads").mkdir(parents=True)
    git.write_text(f"gitdir: {own}\n")
    (own / "HEAD").write_text("ref: refs/heads/a\n")
    (own / "commondir").write_text("../..\n")
    (shared / "refs" / "heads" / "a").write_text(f"{COMMIT}\n")
    assert version.told() == TOLD


def test_a_branch_without_a_commit_tells_none(git):
    git.mkdir()
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert version.told() == version.__version__
