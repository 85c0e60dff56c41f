"""The version of `tokentrail/version.py` is the one that the changelog and the images name."""

import re
import tomllib
from pathlib import Path

import tokentrail

ROOT = Path(__file__).parents[2]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()


def test_the_newest_entry_of_the_changelog_is_this_version():
    versions = re.findall(r"^## \[(\d.*?)\] - (?:unreleased|\d{4}-\d\d-\d\d)$", CHANGELOG, re.MULTILINE)
    assert versions[0] == tokentrail.__version__
    assert len(versions) == len(set(versions))


def test_pyproject_reads_the_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"] == {"path": "tokentrail/version.py"}


def test_images_are_tagged_with_the_version():
    for name, count in {"docker-compose.yml": 3, "docs/deploy.md": 1}.items():
        tags = re.findall(r"tokentrail/(?:collector|engine|dashboard):(\S+)", (ROOT / name).read_text())
        assert tags == [tokentrail.__version__] * count, name
