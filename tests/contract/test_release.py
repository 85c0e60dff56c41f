"""The version of `tokentrail/version.py` is the one that the changelog and the images name."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

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


def workflow():
    return yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())


def steps(job):
    return {step.get("name", step.get("uses", step.get("run"))): step for step in workflow()["jobs"][job]["steps"]}


def test_the_release_publishes_without_a_token_what_make_dist_built():
    jobs = workflow()["jobs"]
    assert jobs["pypi"]["permissions"] == {"id-token": "write"}
    assert jobs["pypi"]["environment"]["name"] == "pypi"
    publish = steps("pypi")["pypa/gh-action-pypi-publish@release/v1"]
    assert "with" not in publish, "no password"
    assert "make dist" in steps("build")["Build as make dist does, with the pinned tools alone"]["run"]
    assert {"pypi", "images"} <= set(jobs["github"]["needs"]), "the release is the last thing"


def test_the_release_makes_images_of_targets_that_exist():
    targets = workflow()["jobs"]["images"]["strategy"]["matrix"]["target"]
    stages = re.findall(r"^FROM .* AS (\S+)$", (ROOT / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    assert {*targets} <= {*stages}
    pushed = next(step["with"] for step in steps("images").values() if "build-push" in step.get("uses", ""))
    assert (pushed["push"], pushed["sbom"]) == (True, True)


@pytest.mark.parametrize(("tag", "ends"), [(f"v{tokentrail.__version__}", 0), ("v9.9.9", 1)])
def test_a_tag_of_another_version_publishes_nothing(tmp_path, tag, ends):
    (tmp_path / "chart").mkdir()
    for name in ("The tag is the version", "The section of this version in the changelog"):
        script = steps("build")[name]["run"].replace("chart/", f"{tmp_path}/chart/")
        done = subprocess.run(
            ["bash", "-e", "-c", script], cwd=ROOT, env={"GITHUB_REF_NAME": tag, "PATH": os.environ["PATH"]}
        )
        assert done.returncode == ends, name
    told = (tmp_path / "chart" / "notes.md").read_text()
    assert ("### Added" in told) is (ends == 0)
    assert "## [" not in told
