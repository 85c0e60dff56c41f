"""Each code block of the documentation is read by its own program: Python, YAML, JSON, bash, our own commands.

`tests/collector/api/test_docs_requests.py` runs the requests to the API, `tests/tokentrail/test_sdk_docs.py` the SDK's
page, `tests/tokentrail/test_cli_ask.py` the commands that ask a collector, and
`tests/tokentrail/test_docs_commands.py` those that change files.
"""

import ast
import importlib
import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import chdb
import pytest
import typer
import typer.exceptions
import yaml
from playwright._impl._driver import compute_driver_executable

from collector.slo.model import load_slos
from dashboard.login import LoginSettingError
from dashboard.login import read as read_login
from tests.contract.commands import FENCE, PACKAGES, PAGES, cli, commands

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "cat", "cd", "clickhouse-client", "cp", "curl", "docker", "dynamo", "export", "git", "gunzip", "helm", "jq",
    "kubectl", "litellm", "llama-server", "make", "mkdir", "npm", "openssl", "opentelemetry-instrument", "pip",
    "promtool", "python", "python3", "rm", "streamlit", "text-generation-launcher", "tokentrail", "trtllm-serve",
    "twine", "vllm",
}  # fmt: skip
"""Programs that a page may run. Those that are not ours are not started by tests."""
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


class Block(NamedTuple):
    page: Path
    language: str
    text: str


BLOCKS = [Block(page, language, text) for page in PAGES for _, language, text in FENCE.findall(page.read_text())]


def of(*languages):
    chosen = [block for block in BLOCKS if block.language in languages]
    return pytest.mark.parametrize("block", chosen, ids=lambda block: block.page.name)


def test_every_language_has_a_reader():
    read = {"", "sh", "console", "python", "json", "yaml", "xml", "sql", "nginx", "js", "toml", "ts"}
    assert {block.language for block in BLOCKS} <= read
    assert len(BLOCKS) > 60


@of("python")
def test_python_compiles_and_imports_what_exists(block):
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PACKAGES:
            module = importlib.import_module(node.module)
            assert [name.name for name in node.names if not hasattr(module, name.name)] == []


@of("json")
def test_json_is_json_with_three_dots_for_the_rest(block):
    text = re.sub(r'(?<!")…(?=\s*[\]}])|(?<=[\[{,]) *…', "", block.text)
    text = re.sub(r"(?<=: )…", "null", re.sub(r",(\s*[\]}])", r"\1", text))
    assert isinstance(json.loads(text), dict | list)


AN_SLO = "slos: [{name: a, objective: 0.9, window: 30d, select: {}, thresholds: {ttft: 1s}}]"
A_ROUTE = "route: {receiver: page}"
CHECKS = {"scrape_configs": ["promtool", "check", "config", "--syntax-only"], "receivers": ["amtool", "check-config"]}
"""The programs that check files of Prometheus and of Alertmanager, by the key that the block has."""


@of("toml")
def test_the_login_of_the_page_is_one(block, tmp_path):
    """It is read until the first of its files, which is not there."""
    file = tmp_path / "login.toml"
    file.write_text(block.text)
    with pytest.raises(LoginSettingError, match="client_secret_file: /run/secrets/oidc cannot be read"):
        read_login(str(file))


OF_KUBERNETES = {"apiVersion", "servingEngineSpec", "decode", "spec"}
"""Blocks of docs/kubernetes.md that begin so are read by `tests/deploy/test_chart.py`."""


@of("yaml")
def test_a_yaml_block_is_read_by_its_program(block, tmp_path):
    key, *others = yaml.safe_load(block.text)
    if block.page.name == "kubernetes.md" and key in OF_KUBERNETES:
        return
    assert not others
    path = tmp_path / "file.yaml"
    path.write_text({"labels": f"{AN_SLO}\n", "receivers": f"{A_ROUTE}\n"}.get(key, "") + block.text)
    if key in ("slos", "labels"):
        assert load_slos(path)[0].labels or key == "slos"
    elif key == "rule_files":
        assert [name for name in yaml.safe_load(block.text)[key] if not (ROOT / "alerts" / name).is_file()] == []
    else:
        checked = subprocess.run([*CHECKS[key], str(path)], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr


@of("sql")
def test_each_statement_is_sql_that_clickhouse_parses(block):
    statements = [*filter(str.strip, re.sub(r"--.*", "", block.text).split(";"))]
    connection = chdb.connect(":memory:")
    try:
        trees = [str(connection.query(f"EXPLAIN AST {statement}")) for statement in statements]
    finally:
        connection.close()
    assert trees
    assert all(trees)


@of("xml")
def test_xml_is_xml(block):
    assert len(ElementTree.fromstring(f"<whole>{block.text}</whole>")) > 0


@of("nginx")
def test_nginx_blocks_are_closed(block):
    assert block.text.count("{") == block.text.count("}") > 0


@of("js")
def test_javascript_is_a_module(block, tmp_path):
    module = tmp_path / "block.mjs"
    module.write_text(block.text)
    node, _ = compute_driver_executable()
    checked = subprocess.run([node, "--check", module], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_shell_blocks_are_bash_and_start_known_programs(page):
    lines = [line for block in BLOCKS if block.page == page for line in shell(block)]
    done = subprocess.run(["bash", "-n"], input="\n".join(lines), capture_output=True, text=True, check=False)
    assert done.stderr == ""
    started = [words[0].rpartition("/")[2] for line in lines for words in commands(f"```sh\n{line}\n```")]
    names = {program for program in started if re.fullmatch(r"[a-z][\w-]*", program)}  # not the inside of jq's quotes
    assert sorted(names - PROGRAMS) == []


def shell(block):
    """The commands of a block: all of one in sh, those behind a prompt in console."""
    if block.language == "sh":
        return [block.text]
    joined = re.sub(r"\\\n\s*", "", block.text)
    return [line[2:] for line in joined.splitlines() if block.language == "console" and line.startswith("$ ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_our_commands_accept_the_arguments_that_a_page_gives(page):
    refused = [reason for words in commands(page.read_text()) if (reason := refusal(words))]
    assert refused == []


def refusal(words):
    """The reason why our command line, or the list of our extras, refuses these words; None when it takes them."""
    program, *arguments = words
    if program == "pip":
        extras = [
            name
            for word in arguments
            for found in re.findall(r"^tokentrail\[(.+)\]", word)
            for name in found.split(",")
        ]
        return next((f"no extra {name}" for name in extras if name and name not in EXTRAS), None)
    if program.rpartition("/")[2] != "tokentrail" or not arguments or {"…", "--install-completion"} & {*arguments}:
        return None
    group, context = cli(), None
    arguments = [re.sub(r"^\[([a-z]+)\]$", r"\1", word) for word in arguments]  # `tokentrail slos [init]`
    try:
        while hasattr(group, "resolve_command"):
            context = group.make_context(group.name, [*arguments], parent=context)
            rest = [*context._protected_args, *context.args]
            if not rest:
                return None
            _, group, arguments = group.resolve_command(context, rest)
        group.make_context(group.name, [*arguments], parent=context)
    except typer.Exit:  # --help and --version
        return None
    except typer.exceptions.TyperException as error:
        names_the_command = not arguments  # `tokentrail request`
        return None if names_the_command or "does not exist" in error.message else f"{words}: {error.message}"
    return None


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        ("tokentrail requests --limit 5 --sort e2e", True),
        ("tokentrail requests --limit five", False),
        ("tokentrail requests --limits 5", False),
        ("tokentrail nothing", False),
        ("tokentrail up --port-api 99999999", False),
        ("tokentrail request", True),
        ("tokentrail dead-letters show", True),
        ("tokentrail dead-letters shoe", False),
        ("tokentrail --version", True),
        ("pip install tokentrail[cli,collector]", True),
        ("pip install tokentrail[clie]", False),
    ],
)
def test_a_wrong_command_is_found(line, taken):
    assert (refusal(line.split()) is None) is taken
