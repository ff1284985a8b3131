"""Comparison of answers in the survey of others' servers: equality, differences and their texts."""

from pathlib import Path
from typing import Any

import pytest
from compat_compare import Difference, compared, failed, normalised
from compat_entries import Entry, FaultyEntry, Rule, read_entries
from compat_page import others, toolset_of

pytestmark = pytest.mark.needs_npm

MODERN, SESSION = "2026-07-28", "2025-06-18"


def block(text: str, **more: object) -> dict[str, object]:
    return {"result": {"content": [{"type": "text", "text": text}], **more}}


def test_equal_answers_have_no_difference() -> None:
    assert compared({"a": block("1")}, {"a": block("1")}) is None


def test_first_difference_names_call_path_and_both_values() -> None:
    found = compared({"a": block("1"), "b": block("x")}, {"a": block("1"), "b": block("y")})

    assert found == Difference("b.result.content[0].text", '"x"', '"y"')
    assert str(found) == 'b.result.content[0].text: plain "x", runner "y"'


def test_an_answer_that_is_missing_is_a_difference() -> None:
    assert compared({"a": block("1")}, {}) == Difference("a", "an answer", "none")


@pytest.mark.parametrize(("left", "right"), [(1, True), (1, 1.0), ("1", 1), ([1], [1, 2]), (None, False)])
def test_values_of_other_types_or_lengths_differ(left: object, right: object) -> None:
    assert compared({"a": {"result": {"x": left}}}, {"a": {"result": {"x": right}}}) is not None


def test_additions_of_the_runner_are_dropped() -> None:
    plain = block("1", _meta={"own": 1})
    ours = block(
        "1",
        _meta={"own": 1, "toolcell/result": {}, "io.modelcontextprotocol/serverInfo": {"name": "x"}},
        resultType="complete",
        isError=False,
    )

    assert normalised(ours, (), {}) == normalised(plain, (), {})


def test_own_meta_of_a_server_is_compared() -> None:
    plain, ours = normalised(block("1", _meta={"own": 1}), (), {}), normalised(block("1"), (), {})

    assert compared({"a": plain}, {"a": ours}) is not None


def test_normalised_drops_resources_and_prompts_of_runner_only() -> None:
    ours = {
        "result": {
            "resources": [{"uri": "runner://files"}, {"uri": "a://b"}],
            "prompts": [{"name": "available_files"}],
            "tools": [{"name": "echo"}, {"name": "artifact_read"}],
        }
    }

    assert normalised(ours, (), {}) == {
        "result": {"resources": [{"uri": "a://b"}], "prompts": [], "tools": [{"name": "echo"}]}
    }


def test_normalised_drops_envelope_only_after_error_text() -> None:
    envelope = {"type": "text", "text": '{"results": {}, "meta_data": {"error_code": "E_TOOL"}}'}
    words = {"type": "text", "text": "Error calling tool 'a': no"}

    behind = normalised({"result": {"isError": True, "content": [words, envelope]}}, (), {})
    alone = normalised({"result": {"isError": True, "content": [envelope]}}, (), {})

    assert behind == {"result": {"isError": True, "content": [words]}}
    assert alone == {"result": {"isError": True, "content": [envelope]}}


def test_folders_of_a_run_are_replaced_the_longer_one_first() -> None:
    answer = block("/tmp/u/lent/a and /tmp/u/b")

    found = normalised(answer, (), {"work": "/tmp/u", "lent": "/tmp/u/lent"})

    assert found == block("{lent}/a and {work}/b")


def test_rule_replaces_only_texts_and_integers() -> None:
    rule = Rule("[0-9]+ ms|12", "<time>", "how long it took")
    answer = {"result": {"text": "took 7 ms", "n": 12, "m": 123, "is": True}}

    found = normalised(answer, (rule,), {})

    assert found == {"result": {"text": "took <time>", "n": "<time>", "m": 123, "is": True}}


def test_an_error_is_known_in_both_of_its_shapes() -> None:
    assert failed({"error": {"code": -1, "message": "no"}}) == "no"
    assert failed({"result": {"isError": True, "content": [{"type": "text", "text": "no"}]}}) == "no"
    assert failed(block("yes")) == ""


@pytest.mark.parametrize(
    ("eras", "toolset"),
    [
        ({MODERN: {"bare": "same"}, SESSION: {"bare": "same"}}, "yes"),
        ({MODERN: {"bare": "a", "flagged": "same"}, SESSION: {"bare": "same"}}, "with options"),
        ({MODERN: {"bare": "a", "flagged": "b"}}, "no"),
        ({MODERN: {"bare": "same"}, SESSION: {"bare": "a"}}, "no (2025-06-18)"),
        ({}, "not tried"),
    ],
)
def test_toolset_is_derived_from_outcomes_of_eras(eras: dict[str, dict[str, str]], toolset: str) -> None:
    assert toolset_of({"plain": "", "toolsets": {"process": eras}}, "process") == toolset


def test_a_toolset_shows_nothing_where_the_plain_server_fails() -> None:
    assert toolset_of({"plain": "it ended", "toolsets": {}}, "process") == "plain fails"
    assert (
        toolset_of({"plain": "not installed: no such version", "toolsets": {}}, "process") == "not installed"
    )
    assert toolset_of({}, "process") == "not tried"


def test_recorded_outcome_expires_when_entry_changes(tmp_path: Path) -> None:
    entry = written(tmp_path, 'name = "one"\ncode = "x"\nwhy = "It may not."')
    differing = {
        tier: {MODERN: {"bare": "use: plain 1, runner 2"}} for tier in ("process", "user", "namespace")
    }
    found = {"digest": entry[0].digest, "version": "1.2", "plain": "", "toolsets": differing}

    page = others({"Packages": entry}, {"one": found})
    changed = others({"Packages": entry}, {"one": {**found, "digest": "another"}})

    assert (
        "| one | 1.2 | no | no | no |  | It may not. First difference: `use: plain 1, runner 2` |\n" in page
    )
    assert "| one |  | not tried | not tried | not tried |  |  |\n" in changed


def test_rows_of_other_machine_stay_until_entry_is_run_here(tmp_path: Path) -> None:
    one, two = written(tmp_path, 'name = "one"\ncode = "x"\n[[entry]]\nname = "two"\ncode = "x"')
    same = {tier: {MODERN: {"bare": "same"}} for tier in ("process", "user", "namespace")}
    found = {"digest": one.digest, "version": "1", "plain": "", "toolsets": same, "tried": "2026-01-01"}
    here = {"digest": two.digest, "version": "3", "plain": "", "toolsets": {}, "tried": "2026-02-02"}
    before = others({"Packages": [one, two]}, {"one": found, "two": {**found, "digest": two.digest}})

    page = others({"Packages": [one, two]}, {"two": here}, before)

    assert "| one | 1 | yes | yes | yes |  |  |\n" in page
    assert "| two | 3 | not tried | not tried | not tried |  |  |\n" in page
    assert "process: 1 alike with the defaults and 0 with options, of 1;" in page
    assert "Tried from 2026-01-01 to 2026-02-02." in page


def test_page_has_the_dates_of_the_entries(tmp_path: Path) -> None:
    entry = written(tmp_path, 'name = "one"\ncode = "x"')
    days: list[dict[str, Any]] = [
        {"digest": entry[0].digest, "version": "1", "plain": "", "toolsets": {}, "tried": day}
        for day in ("2026-11-24", "2026-11-20", "2026-11-24")
    ]

    assert "\nTried on 2026-11-24.\n" in others({"Packages": entry}, {"one": days[0]})
    assert "\nTried from 2026-11-20 to 2026-11-24.\n" in others(
        {"Packages": entry}, {"one": days[0], "two": days[1], "three": days[2]}
    )
    assert "Tried" not in others({"Packages": entry}, {})


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ('name = "a"', "a: give one of code, file, command, not 0 of them"),
        ('name = "a"\ncode = "x"\nfile = "y"', "a: give one of code, file, command, not 2 of them"),
        ('name = "a"\ncode = "x"\nflag = []', "a: no such field: flag"),
        ('name = "a"\ncode = "x"\ncalls = [{ what = "b" }]', "a: a call names a tool or a method"),
        ('name = "a"\ncode = "x"\nrules = [["p", "q"]]', "a: a rule is [pattern, becomes, why]"),
        ('name = "a"\ncode = "x"\n[[entry]]\nname = "a"\ncode = "x"', "several entries are named a"),
    ],
)
def test_a_faulty_entry_is_named_with_what_is_wrong(tmp_path: Path, table: str, sentence: str) -> None:
    with pytest.raises(FaultyEntry) as error:
        written(tmp_path, table)

    assert sentence in str(error.value)


def written(folder: Path, table: str) -> list[Entry]:
    file = folder / "entries.toml"
    file.write_text(f"[[entry]]\n{table}\n")
    return read_entries(file)


def test_survey_entries_parse_and_have_unique_names() -> None:
    here = Path(__file__).parent
    entries = [entry for name in ("packages.toml", "servers.toml") for entry in read_entries(here / name)]

    assert len({entry.name for entry in entries}) == len(entries) > 70
