"""Targets of the setting and of `file_sd` files."""

import json
import os

import pytest

from collector.scrape.targets import Files, StaticTarget, Target, parse_static


def test_an_item_is_a_url_with_or_without_a_service():
    (plain,) = StaticTarget.parse("http://vllm:8000").targets(())
    assert plain == Target("http://vllm:8000/metrics", "vllm", "vllm:8000")
    (named,) = StaticTarget.parse(" chat=https://10.0.0.1/m?format=text ").targets(())
    assert named == Target("https://10.0.0.1/m?format=text", "chat", "10.0.0.1:443")


def test_items_are_divided_by_commas():
    assert [item.service for item in parse_static("a=http://x:1, b=http://y:2,")] == ["a", "b"]


@pytest.mark.parametrize(
    "item",
    [
        *("vllm:8000", "chat=", "ftp://x", "http://", "a=b=http://x", "http://x:65536", "a=http://x:80a", "http://x:0"),
        *("http://[::1", "dns+http://:80"),
    ],
)
def test_an_item_that_is_no_url_says_how_to_write_one(item):
    with pytest.raises(ValueError, match="SERVICE=http://host:8000"):
        parse_static(item)


def test_a_dns_item_is_one_target_per_address():
    item = StaticTarget.parse("chat=dns+http://vllm:8000")
    with_password = StaticTarget.parse("chat=dns+http://me:secret@vllm:8000").targets(["10.0.0.1"])
    assert [(t.url, t.safe_url) for t in with_password] == [
        ("http://me:secret@10.0.0.1:8000/metrics", "http://10.0.0.1:8000/metrics")
    ]
    assert list(item.targets(["10.0.0.2", "10.0.0.1", "10.0.0.2", "fe80::1"])) == [
        Target("http://10.0.0.1:8000/metrics", "chat", "10.0.0.1:8000"),
        Target("http://10.0.0.2:8000/metrics", "chat", "10.0.0.2:8000"),
        Target("http://[fe80::1]:8000/metrics", "chat", "[fe80::1]:8000"),
    ]
    assert list(item.targets(())) == []


def test_targets_spread_over_the_interval_and_each_keeps_its_place():
    offsets = [Target(f"http://h{n}/metrics", "", "").offset_s(10.0) for n in range(100)]
    assert offsets == [Target(f"http://h{n}/metrics", "other", "i").offset_s(10.0) for n in range(100)]
    assert min(offsets) >= 0
    assert max(offsets) < 10
    assert max(offsets) - min(offsets) > 5


class Folder:
    def __init__(self, path):
        self.path = path
        self.problems = {}
        self.files = Files([str(path / "*.json"), str(path / "*.yml")], self.report)
        self._written = 0

    def report(self, source, problem):
        """Problems by the name of their file or pattern."""
        name = source.removeprefix(f"{self.path}/")
        if problem:
            self.problems[name] = problem
        else:
            self.problems.pop(name, None)

    def write(self, name, text):
        (self.path / name).write_text(text)
        self._written += 1
        os.utime(self.path / name, (self._written, self._written))

    def targets(self):
        return self.files.targets()


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def test_file_sd_in_json_and_yaml(folder):
    labels = {
        "job": "chat",
        "__scheme__": "https",
        "__metrics_path__": "m",
        "__param_a": "b c",
        "zone": "x",
        "__meta_y": "z",
    }
    folder.write("a.json", json.dumps([{"targets": ["h1:1", "h2:2"], "labels": labels}]))
    folder.write("b.yml", "- targets: ['[::1]:9']\n  labels: {instance: i, engine: mine, service: s}\n")
    assert folder.targets() == [
        Target("https://h1:1/m?a=b+c", "chat", "h1:1", labels=(("zone", "x"),)),
        Target("https://h2:2/m?a=b+c", "chat", "h2:2", labels=(("zone", "x"),)),
        Target("http://[::1]:9/metrics", "s", "i", engine="mine"),
    ]
    assert folder.problems == {}


def test_a_changed_file_is_read_again_and_a_removed_one_forgotten(folder):
    folder.write("a.json", '[{"targets": ["h1:1"]}]')
    assert [t.instance for t in folder.targets()] == ["h1:1"]
    folder.write("a.json", '[{"targets": ["h2:1"]}]')
    assert [t.instance for t in folder.targets()] == ["h2:1"]
    (folder.path / "a.json").unlink()
    assert folder.targets() == []


@pytest.mark.parametrize(
    "wrong", ["[{", '{"targets": []}', '[{"targets": ["http://x"]}]', '[{"target": []}]', '["x"]', "\x00"]
)
def test_a_broken_file_keeps_its_last_targets_and_is_reported(folder, wrong):
    folder.write("a.json", '[{"targets": ["h1:1"]}]')
    folder.targets()
    folder.write("a.json", wrong)
    assert [t.instance for t in folder.targets()] == ["h1:1"]
    assert folder.problems["a.json"]
    folder.write("a.json", '[{"targets": ["h2:1"]}]')
    assert [t.instance for t in folder.targets()] == ["h2:1"]
    assert "a.json" not in folder.problems


def test_a_broken_file_that_is_removed_is_no_problem(folder):
    folder.write("a.json", "[{")
    folder.targets()
    (folder.path / "a.json").unlink()
    folder.targets()
    assert folder.problems == dict.fromkeys(("*.json", "*.yml"), "no file has this name")


def test_a_name_of_no_file_is_a_problem_until_there_is_one(folder):
    folder.targets()
    assert folder.problems == dict.fromkeys(("*.json", "*.yml"), "no file has this name")
    folder.write("a.json", "[]")
    folder.targets()
    assert folder.problems == {"*.yml": "no file has this name"}


def test_a_file_that_is_named_and_is_gone_is_a_problem(folder):
    folder.files = Files([str(folder.path / "a.json")], folder.report)
    folder.write("a.json", "[]")
    folder.targets()
    assert folder.problems == {}
    (folder.path / "a.json").unlink()
    for _ in range(2):
        folder.targets()
        assert folder.problems == {"a.json": "no file has this name"}


@pytest.mark.parametrize("written", ["7", "1.50", "0x1f", "1e3", "true", "yes", "2026-11-21", "10:30", '"7"'])
def test_labels_of_yaml_are_the_text_that_is_written(folder, written):
    """One of them had cost all targets of the file."""
    folder.write("b.yml", f"- targets: [h1:1]\n  labels: {{rack: {written}, 7: x}}\n- targets: [h2:1]\n")
    first, second = folder.targets()
    assert dict(first.labels) == {"rack": written.strip('"'), "7": "x"}
    assert (second.instance, folder.problems.get("b.yml")) == ("h2:1", None)


@pytest.mark.parametrize(
    ("written", "text"),
    [("7", "7"), ("1.50", "1.50"), ("-1e3", "-1e3"), ("true", "true"), ("false", "false"), ('"x"', "x")],
)
def test_labels_of_json_are_the_text_that_is_written(folder, written, text):
    folder.write("a.json", f'[{{"targets": ["h1:1"], "labels": {{"rack": {written}}}}}]')
    (target,) = folder.targets()
    assert target.labels == (("rack", text),)


@pytest.mark.parametrize("empty", ["null", '""'])
def test_an_empty_label_is_none(folder, empty):
    labels = (
        f'{{"rack": {empty}, "job": {empty}, "instance": {empty}, "__scheme__": {empty}, "__metrics_path__": {empty}}}'
    )
    folder.write("a.json", f'[{{"targets": ["h1:1"], "labels": {labels}}}]')
    folder.write("b.yml", f"- targets: [h1:1]\n  labels: {labels}\n")
    assert folder.targets() == 2 * [Target("http://h1:1/metrics", "h1", "h1:1")]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ('[{"targets": "h1:1"}]', "entry.0.targets: Input should be a valid list"),
        ('[{"target": []}]', "entry.0.targets: Field required"),
        ('[{"targets": ["h1:1"], "labels": {"zone": [1]}}]', "entry.0.labels.zone: must be one value"),
        ('[{"targets": [1]}, {"targets": [["x"]]}]', "entry.1.targets.0: Input should be a valid string"),
        ("[" * 100_000, "its lists are nested too deeply"),
        (r'[{"targets": ["h1:1"], "labels": {"zone": "\ud800"}}]', r"'\ud800' has half of a surrogate pair"),
        (r'[{"targets": ["h\udfff:1"]}]', r"'h\udfff:1' has half of a surrogate pair"),
        ('[{"targets": ["h1:65536"]}]', "'http://h1:65536/metrics' is not a target"),
    ],
)
def test_the_place_in_a_file_is_named(folder, wrong, told):
    folder.write("a.json", wrong)
    folder.targets()
    assert folder.problems["a.json"].startswith(told)


def test_a_file_that_is_too_large_is_not_read(folder):
    folder.write("a.json", " " * (4 * 1024 * 1024 + 1))
    assert folder.targets() == []
    assert "it has more than" in folder.problems["a.json"]
