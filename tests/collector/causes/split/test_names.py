"""causes.yaml: the names, their order, and advice that names switches which exist."""

import re

from collector.causes.answer.served import advice
from collector.causes.split.names import PARTS, load_causes
from collector.store.definitions import SQL_DIR
from instrumented_engine.settings import Settings

ENGINES = {"any", "tokentrail", "vllm", "sglang", "dynamo"}


def test_the_last_part_is_what_nothing_explains():
    assert len(PARTS) == 19
    assert PARTS[-1] == "unexplained"


def test_the_latencies_of_a_row_are_the_sums_of_all_causes():
    for of in ("ttft", "rest"):
        told = (SQL_DIR / "schema" / "parts" / f"sum_of_{of}.sql").read_text()
        assert re.findall(rf"{of}_(\w+)_us", told) == [*PARTS]


def test_causes_of_one_group_have_one_colour_and_no_two_groups_share_it():
    colours = {(cause.group, cause.colour) for cause in load_causes().values()}
    assert len(colours) == len({group for group, _ in colours}) == len({colour for _, colour in colours})


def test_advice_is_for_known_engines_and_begins_with_what_holds_for_all():
    for name, cause in load_causes().items():
        assert set(cause.advice) <= ENGINES, name
        assert not cause.advice or "any" in cause.advice, name


def test_only_a_slow_device_has_engines_without_a_switch():
    without = {name: ENGINES - cause.advice.keys() for name, cause in load_causes().items() if cause.advice}
    assert {name: engines for name, engines in without.items() if engines} == {
        "drift": {"tokentrail", "vllm", "sglang"}
    }


def test_the_own_engines_switches_exist():
    known = {"--" + name.replace("_", "-") for name in Settings.model_fields}
    for name, cause in load_causes().items():
        named = set(re.findall(r"--[a-z-]+", cause.advice.get("tokentrail", "")))
        assert {switch.replace("--no-", "--") for switch in named} <= known, name


def test_the_engines_own_switches_follow_the_general_advice():
    of_cause = load_causes()["wait_batch"].advice
    assert advice("wait_batch", ["tgi", "vllm"]) == f"{of_cause['any']} vllm: {of_cause['vllm']}"
    assert advice("busy", ["vllm"]) == ""
