"""The line that says which requests: words to parameters, and back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokentrail.shared.query import WrongWord, is_id, parse, written

LINES = {
    "tenant:globex ttft>2s 14:00-15:00 slo:chat": {
        "tenant": ["globex"], "metric": "ttft", "at_least": "2s", "start": "14:00", "end": "15:00", "slo": "chat",
    },
    "tenant:a tenant:b -model:llama label.region:eu": {
        "tenant": ["a", "b"], "not.model": ["llama"], "label.region": ["eu"],
    },
    "-label.app-version:2.4": {"not.label.app-version": ["2.4"]},
    'tenant:""': {"tenant": [""]},
    "tenant:a:b/c>d,e": {"tenant": ["a:b/c>d,e"]},
    r'tenant:"a \"b\" \\ c"': {"tenant": ['a "b" \\ c']},
    r"tenant:C:\dir": {"tenant": ["C:\\dir"]},
    "e2e>100ms e2e<1m30s": {"metric": "e2e", "at_least": "100ms", "at_most": "1m30s"},
    "first_visible<5us": {"metric": "first_visible", "at_most": "5us"},
    "input_tokens>100 input_tokens<4000": {"min_input_tokens": "100", "max_input_tokens": "4000"},
    "-1h verdict:bad status:error": {"start": "-1h", "verdict": "bad", "status": "error"},
    "-2h/-1h sort:ttft": {"start": "-2h", "end": "-1h", "sort": "ttft"},
    "9:00 cause:kv_wait missed:gap": {"start": "9:00", "cause": "kv_wait", "missed": "gap"},
    "2026-11-21": {"start": "2026-11-21", "end": "2026-11-22"},
    "2026-12-31 14:00-15:00": {"start": "2026-12-31 14:00", "end": "2026-12-31 15:00"},
    "2026-11-21T09:00:00Z/2026-11-21T10:00:00Z": {"start": "2026-11-21T09:00:00Z", "end": "2026-11-21T10:00:00Z"},
    "1795251600/now": {"start": "1795251600", "end": "now"},
    'start:"21 Nov 14:00" end:15:00': {"start": "21 Nov 14:00", "end": "15:00"},
    "end:14:00": {"end": "14:00"},
    "metric:ttft": {"metric": "ttft"},
    "": {},
}  # fmt: skip


@pytest.mark.parametrize(("line", "params"), LINES.items())
def test_a_line_gives_parameters_and_they_give_the_line(line, params):
    assert parse(line) == params
    assert written(params) == line


@pytest.mark.parametrize(
    ("line", "same"),
    [
        ("tenant: acme", "tenant:acme"),
        ('tenant: "a b"', 'tenant:"a b"'),
        ('tenant:"acme"', "tenant:acme"),
        ("ttft>=2s ttft≤3s", "ttft>2s ttft<3s"),
        ("14:00\u201315:00", "14:00-15:00"),
        ("14:00-15:00 2026-11-21", "2026-11-21 14:00-15:00"),
        ("2026-11-21 23:00-1:00", 'start:"2026-11-21 23:00" end:"2026-11-22 1:00"'),
        ("2026-11-21 9:00-10:00", "2026-11-21 9:00-10:00"),
        ("2026-11-21 14:00", 'start:"2026-11-21 14:00"'),
        ("slo:chat\n  tenant:a\tslo:chat", "tenant:a slo:chat"),
    ],
)
def test_words_can_be_written_in_other_ways(line, same):
    assert parse(line) == parse(same)


VALUES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(
    st.dictionaries(st.sampled_from(["tenant", "not.model", "label.a-b.c", "service"]), st.lists(VALUES, min_size=1))
)
def test_any_value_is_read_back(params):
    assert parse(written(params)) == params


@settings(max_examples=60)
@given(st.text(max_size=30))
def test_any_line_is_read_or_names_its_wrong_word(line):
    try:
        params = parse(line)
    except WrongWord:
        return
    assert parse(written(params)) == params


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("slo:chat tenat:globex", "'tenat:globex': there is no tenat: did you mean tenant"),
        ("slo:chat globex", "'globex': no word of a query; write tenant:NAME"),
        ("tenant", "'tenant': no word of a query: did you mean tenant"),
        ("ttf>2s", "'ttf>2s': there is no ttf: did you mean ttft"),
        ("tenant>2s", "'tenant>2s': there is no tenant; there are ttft, tpot"),
        ("ttft>2", "'ttft>2': '2' is not a duration: write a number and a unit"),
        ("ttft>", "'ttft>': no word of a query"),
        ("ttft:2s", "'ttft:2s': there is no ttft"),
        ("ttft>2s e2e<5s", "'e2e<5s': one latency at a time, and 'ttft' stands before it"),
        ("slo:a slo:b", "'slo:b': one value at a time, and 'a' stands before it"),
        ("verdict:bda", "'verdict:bda': no verdict is 'bda': did you mean bad?"),
        ("-slo:chat", "'-slo:chat': only a filter can have a - before it"),
        ("-ttft>2s", "'-ttft>2s': only a filter can have a - before it"),
        ("tenant:", "'tenant:': a value is missing; tenant:\"\" is none"),
        ("label.9:x", "'label.9:x': there is no label.9"),
        ('tenant:"a b', "'tenant:\"a': a value with spaces or quotes stands in"),
        (r'tenant:"\x"', "write .* for a quote"),
        (r'tenant:"\ud800"', "write .* for a quote"),
        ("input_tokens>many", "'many' is no number of tokens"),
        ("25:00", "'25:00': '25:00' is not a time"),
        ("14:00-25:00", "'14:00-25:00': '25:00' is not a time"),
        ("2026-02-30", "'2026-02-30' is not a time"),
        ("-1y", "'-1y': '1y' is not a duration"),
        ("-1h -2h", "'-2h': start is given by a word before it"),
        ("2026-11-21 -1h", "'-1h': one time, and 2026-11-21 is another"),
        ("2026-11-21 start:-1h", "'start:-1h': another word is a time too"),
        ("end:noon", "'noon' is not a time"),
    ],
)  # fmt: skip
def test_a_wrong_word_is_named_with_what_could_be_meant(line, told):
    with pytest.raises(WrongWord, match=told.replace("?", r"\?")):
        parse(line)


@pytest.mark.parametrize(
    ("word", "name"), [("verdict:bad", "verdict"), ("ttft>2s", "metric"), ("-1h", "start"), ("end:now", "end")]
)
def test_a_question_says_which_words_it_has_no_use_for(word, name):
    with pytest.raises(WrongWord, match=f"'{word}': this question takes no {name}, but filters, slo$"):
        parse(f"tenant:a {word}", ["slo"])
    with pytest.raises(WrongWord, match=r"but filters$"):
        parse(word, ())
    assert parse(f"tenant:a {word}", [name, "start"] + ["metric", "at_least"])["tenant"] == ["a"]


def test_parameters_that_no_word_gives_are_refused():
    with pytest.raises(WrongWord, match="there is no colour"):
        written({"colour": "red"})
    assert written({"tenant": "acme"}) == "tenant:acme"


def test_a_line_can_be_printed():
    assert written({"tenant": "a\x1b\u202eb"}) == r'tenant:"a\u001b\u202eb"'


@pytest.mark.parametrize(
    ("text", "is_one"),
    [("4bf92f35", True), ("chatcmpl-9_x.1", True), ("tenant:a", False), ("ttft>2s", False), ("-1h", False)]
    + [("2026-11-21", False), ("14:00-15:00", False), ("a b", False), ("", False)],
)
def test_an_id_is_told_from_a_line(text, is_one):
    assert is_id(text) == is_one
