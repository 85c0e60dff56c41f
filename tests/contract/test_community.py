"""GitHub and pre-commit can use the files that they read."""

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FORMS = sorted(p for p in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if p.name != "config.yml")


@pytest.mark.parametrize("path", FORMS, ids=lambda p: p.stem)
def test_issue_forms_have_what_github_asks_for(path):
    form = yaml.safe_load(path.read_text())
    assert form.keys() == {"name", "description", "labels", "body"}
    asked = [element for element in form["body"] if element["type"] != "markdown"]
    assert {element["type"] for element in asked} <= {"input", "textarea", "dropdown", "checkboxes"}
    for key in ("id", "label"):
        given = [element["id"] if key == "id" else element["attributes"]["label"] for element in asked]
        assert len(set(given)) == len(given) > 0
    assert any(element.get("validations", {}).get("required") for element in asked)


def test_the_hooks_run_what_make_lint_runs():
    (source,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert source["repo"] == "local"
    lint = (ROOT / "Makefile").read_text().split("\nlint:")[1].split("\n\n")[0].replace("$(BIN)", ".venv/bin")
    for hook in source["hooks"]:
        assert hook["entry"].removesuffix(" --force-exclude") in lint
    assert len(source["hooks"]) == 3


def test_each_owned_path_exists():
    lines = [line.split() for line in (ROOT / ".github" / "CODEOWNERS").read_text().splitlines()]
    paths = [line[0] for line in lines if line and not line[0].startswith("#")]
    assert paths[0] == "*"
    assert [path for path in paths[1:] if not (ROOT / path.strip("/")).is_dir()] == []


def test_pull_requests_run_what_ci_runs():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yml").read_text())
    assert "pull_request" in workflow[True]  # YAML 1.1 reads `on` so
    (job,) = workflow["jobs"].values()
    assert ".ci/run" in [step.get("run") for step in job["steps"]]
