"""Whatever tools return, one contract value comes out."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from result_fakes import contract_like, json_values

from runner.contract.normalise import Normalised, normalise

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mP4z8AAAAMBAQD3A0FDAAAAAElFTkSuQmCC"


PNG_TEXT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mP4z8AAAAMBAQD3A0FDAAAAAElFTkSuQmCC"


def taken(payload: Any, *content: dict[str, Any], **more: Any) -> Normalised:
    wire = {"structuredContent": payload, "content": list(content), **more}
    return normalise(wire, wrapped=False)


def reasons(result: Normalised) -> list[str]:
    return [refusal.reason for refusal in result.refusals]


def warned(result: Normalised, word: str) -> bool:
    return any(word in warning for warning in result.warnings)


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


# payload


def test_bare_value_becomes_results_whole() -> None:
    """Source: S0-1, S2-1, S2-22 and S2-36."""
    payload = {"operation": "evaluate", "result": 22698}

    result = taken(payload, text(json.dumps(payload)))

    assert result.value == {"results": payload}
    assert result.texts == ()
    assert not result.speaks_contract


@pytest.mark.parametrize("key", ["artifacts", "deferred_artifacts"])
def test_artifacts_that_are_not_files_are_data(key: str) -> None:
    payload = {
        "total_count": 1,
        key: [{"id": 1, "name": "build", "archive_download_url": "https://a.example"}],
    }

    result = taken(payload)

    assert result.value == {"results": payload}
    assert result.refusals == ()
    assert not result.speaks_contract


@pytest.mark.parametrize(
    "beside",
    [
        {"display": "grid"},
        {"links": {"self": "https://a.example"}},
        {"meta_data": "page 1"},
        {"retryable": "never"},
    ],
    ids=["display", "links", "meta_data", "retryable"],
)
def test_results_beside_foreign_keys_are_tools_own(beside: dict[str, Any]) -> None:
    result = taken({"results": [1], **beside})

    assert not result.speaks_contract
    assert result.refusals == ()
    # Positive control: the value itself, without them.
    assert taken({"results": [1]}).speaks_contract


@pytest.mark.parametrize(
    "beside",
    [
        {"artifacts": []},
        {"artifacts": [], "total": 3},
        {"artifacts": None, "links": []},
        {"meta_data": {}, "display": {}},
        {"returned_file_names": [], "returned_file_contents": []},
        {"retryable": None},
    ],
    ids=str,
)
def test_results_beside_empty_keys_are_the_tools_own(beside: dict[str, Any]) -> None:
    assert not taken({"results": [1], **beside}).speaks_contract
    # Positive control: nothing but keys of the contract, one with content.
    ours = {key: item for key, item in beside.items() if key != "total"}
    assert taken({"results": [1], **ours, "incomplete": ["page 2"]}).speaks_contract


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize(
    "beside",
    [
        {"artifacts": [], "meta_data": {"page": 1}},
        {"deferred_artifacts": [], "links": ["https://a.example"]},
        {"links": [], "display": {"title": "a"}},
        {"meta_data": {}, "incomplete": ["page 2"]},
        {"canvas": None, "meta-data": {"page": 1}},
        {"returned_file_names": [], "retryable": False},
    ],
    ids=str,
)
def test_empty_keys_beside_filled_and_foreign_are_own(beside: dict[str, Any], failed: bool) -> None:
    def speaks(**payload: Any) -> bool:
        wire = {"content": [], "structuredContent": {"results": [1], **payload}, "isError": failed}
        return normalise(wire, wrapped=False).speaks_contract

    assert not speaks(**beside, total=3)
    # Positive control: the contract's keys alone.
    assert speaks(**beside)


def test_empty_artifacts_list_alone_is_data() -> None:
    payload = {"total_count": 0, "artifacts": []}

    assert taken(payload).value == {"results": payload}


def test_deferred_file_without_path_refused_with_reason() -> None:
    result = taken({"deferred_artifacts": [{"name": "draft.docx", "reason": "draft"}]})

    assert [refusal.reason for refusal in result.refusals] == ["missing_path"]


def test_one_file_among_items_without_content_makes_an_envelope() -> None:
    result = taken({"artifacts": [{"name": "a.txt", "b64": "YQ=="}, {"name": "lost.txt"}]})

    assert [file["name"] for file in result.value["artifacts"]] == ["a.txt"]
    assert [refused.name for refused in result.refusals] == ["lost.txt"]
    assert result.speaks_contract


def test_envelope_forwarded_unchanged() -> None:
    """Source: S0-77 and S2-24."""
    payload = {"results": 0, "meta_data": {"a": 1}, "mood": "good"}

    result = taken(payload)

    assert result.value == payload
    assert result.speaks_contract


def test_no_output_is_null() -> None:
    """Source: S2-27."""
    assert normalise({"content": []}, wrapped=False).value == {"results": None}


def test_empty_object_is_the_tools_value() -> None:
    assert taken({}).value == {"results": {}}


def test_first_json_text_is_payload_other_text_kept() -> None:
    result = normalise({"content": [text("Added 2 rows"), text('{"results": {"a": 1}}')]}, wrapped=False)

    assert result.value == {"results": {"a": 1}}
    assert result.texts == ("Added 2 rows",)


def test_texts_without_json_are_joined() -> None:
    result = normalise({"content": [text("a"), text(""), text("[b")]}, wrapped=False)

    assert result.value == {"results": "a\n[b"}
    assert result.texts == ()


def test_text_beside_structured_content_kept_unless_equal() -> None:
    result = taken({"results": 1}, text('{"results":1}'), text("Note: rounded"))

    assert result.texts == ("Note: rounded",)


def test_list_wrapped_as_results() -> None:
    """Source: S2-34."""
    assert taken([1, 2]).value == {"results": [1, 2]}


def test_structured_content_wins_over_json_text_with_warning() -> None:
    """Source: S2-20 and S2-26."""
    result = normalise({"structuredContent": {"a": 1}, "content": [text('{"a": 2}')]}, wrapped=False)

    assert result.value == {"results": {"a": 1}}
    assert warned(result, "structured_content and the data")


def test_lone_result_key_unwrapped_with_warning() -> None:
    result = taken({"result": {"x": 1}})

    assert result.value == {"results": {"x": 1}}
    assert warned(result, "`results`")


def test_fastmcp_wrapper_unwrapped_without_warning() -> None:
    result = normalise({"structuredContent": {"result": 3}, "content": [text("3")]}, wrapped=True)

    assert (result.value, result.texts, result.warnings) == ({"results": 3}, (), ())


def test_field_sharing_only_a_name_with_ours_stays_data() -> None:
    payload = {"artifacts": 12, "museum": "north"}

    assert taken(payload).value == {"results": payload}


def test_one_bad_file_entry_keeps_others_as_artifacts() -> None:
    file = {"name": "a.txt", "b64": "aGk=", "mime": "text/plain"}

    result = taken({"artifacts": [file, "junk"]})
    legacy = taken({"returned_file_names": ["a.txt", None], "returned_file_contents": ["aGk=", None]})

    assert (result.value["results"], result.value["artifacts"]) == (None, [{**file, "size": 2}])
    assert reasons(result) == ["missing_name"]
    assert legacy.value["artifacts"] == [{**file, "size": 2}]


def test_artifacts_alone_are_envelope_with_null_results() -> None:
    """Source: S1-3 and S1-58."""
    result = taken({"artifacts": [{"name": "a.txt", "b64": "aGk=", "mime": "text/plain"}]})

    assert result.value == {
        "results": None,
        "artifacts": [{"name": "a.txt", "b64": "aGk=", "mime": "text/plain", "size": 2}],
    }
    assert warned(result, "`results`")


# errors


def test_plain_text_error_becomes_version_1_error() -> None:
    """Source: S2-25."""
    result = normalise({"content": [text("boom")], "isError": True}, wrapped=False)

    assert result.value == {"results": {"error": "boom"}, "meta_data": {"is_error": True}}


def test_envelope_error_not_wrapped_again() -> None:
    envelope = {"results": {"error": "x"}, "meta_data": {"is_error": True, "error_code": "E_TIMEOUT"}}

    result = normalise({"content": [text(json.dumps(envelope))], "isError": True}, wrapped=False)

    assert result.value == envelope


def test_silent_error_still_has_a_sentence() -> None:
    value = normalise({"content": [], "isError": True}, wrapped=False).value

    assert value["results"]["error"].startswith("The tool reported an error")


def test_retryable_set_in_both_places() -> None:
    """Source: S1-5."""
    inside = taken({"results": 1, "meta_data": {"retryable": True}}).value
    outside = taken({"results": 1, "retryable": True}).value

    assert inside == outside == {"results": 1, "meta_data": {"retryable": True}, "retryable": True}


def test_non_json_result_becomes_error_envelope() -> None:
    value = taken({"results": b"\0\xff"}).value

    assert value["meta_data"]["error_code"] == "E_INVALID_RESULT"
    assert "bytes" in value["results"]["error"]


def test_endlessly_nested_result_becomes_error_envelope() -> None:
    deep: Any = 1
    for _ in range(900):
        deep = [deep]

    value = taken({"results": deep}).value

    assert value["meta_data"]["error_code"] == "E_INVALID_RESULT"


def test_nan_becomes_null_and_rest_stays() -> None:
    assert taken({"results": [1.5, math.nan, math.inf]}).value == {"results": [1.5, None, None]}


# facts and hints


def test_older_meta_data_spelling_renamed() -> None:
    """Source: S2-8."""
    assert taken({"results": 1, "meta-data": {"a": 1}}).value == {"results": 1, "meta_data": {"a": 1}}


def test_meta_data_wins_over_older_spelling_with_warning() -> None:
    result = taken({"results": 1, "meta-data": {"a": 1}, "meta_data": {"b": 2}})

    assert result.value == {"results": 1, "meta_data": {"b": 2}}
    assert warned(result, "meta-data")


def test_meta_data_above_4096_bytes_flagged_below_not() -> None:
    """Source: S0-4."""
    at = {"k": "x" * (4096 - len('{"k": ""}'))}
    above = {"k": at["k"] + "x"}

    assert "meta_data_truncated" not in taken({"results": 1, "meta_data": at}).value
    assert taken({"results": 1, "meta_data": above}).value["meta_data_truncated"] is True


def test_empty_and_malformed_optional_keys_are_absent() -> None:
    """Source: S0-3, S1-4 and S1-6 to S1-8."""
    payload = {
        "results": 1,
        "artifacts": [],
        "meta_data": {},
        "display": "big",
        "canvas": None,
        "retryable": "yes",
    }

    result = taken(payload)

    assert result.value == {"results": 1}
    assert warned(result, "display")
    assert warned(result, "retryable")


def test_primary_file_found_under_its_safe_name() -> None:
    artifact = {"name": "out/report.html", "b64": "aGk=", "mime": "text/html"}

    value = taken(
        {"results": 1, "artifacts": [artifact], "display": {"primary_file": "out/report.html"}}
    ).value

    assert (
        value["display"] == {"primary_file": value["artifacts"][0]["name"]} == {"primary_file": "report.html"}
    )


# artifacts


def test_each_artifact_fault_has_reason_and_keeps_other_files() -> None:
    """Source: S0-6 and S1-59."""
    good = {"name": "a.txt", "b64": "aGk=", "mime": "text/plain"}
    entries = [
        {"b64": "aGk="},
        {"name": "b.txt"},
        {"name": "c.txt", "b64": "@@@"},
        {"name": "d.txt", "s3_ref": {"key": "bob/x"}},
        7,
        good,
    ]

    result = taken({"results": "ok", "artifacts": entries})

    assert reasons(result) == [
        "missing_name",
        "missing_content",
        "invalid_base64",
        "s3_ref_not_allowed",
        "missing_name",
    ]
    assert result.value["meta_data"]["artifact_errors"] == [refusal.entry() for refusal in result.refusals]
    assert result.value["artifacts"] == [good | {"size": 2}]


def test_base64_of_either_alphabet_unpadded_is_accepted() -> None:
    entry = {"name": "a.bin", "b64": " -_8\r\n", "mime": "application/x-a"}

    value = taken({"results": 1, "artifacts": [entry]}).value

    assert value["artifacts"][0] == {**entry, "b64": "+/8=", "size": 2}


def test_empty_string_is_empty_file() -> None:
    value = taken({"results": 1, "artifacts": [{"name": "e.txt", "b64": "", "mime": "text/plain"}]}).value

    assert value["artifacts"][0]["size"] == 0


def test_wrong_size_type_or_viewer_corrected_with_warning() -> None:
    """Source: S0-8, S0-9, S0-11, S1-63 and S1-65."""
    entry = {"name": "a.csv", "b64": "YSxi", "size": 99, "viewer": "telescope", "category": "report"}

    result = taken({"results": 1, "artifacts": [entry]})

    assert result.value["artifacts"] == [
        {
            "name": "a.csv",
            "b64": "YSxi",
            "size": 3,
            "viewer": "auto",
            "category": "report",
            "mime": "text/csv",
        }
    ]
    assert [warned(result, word) for word in ("size", "mime", "viewer")] == [True] * 3


def test_type_that_could_break_header_replaced() -> None:
    entry = {"name": "a.txt", "b64": "aGk=", "mime": "text/html\r\nSet-Cookie: a=b"}

    assert taken({"results": 1, "artifacts": [entry]}).value["artifacts"][0]["mime"] == "text/plain"


def test_content_wins_over_path_with_warning() -> None:
    entry = {"name": "a.txt", "b64": "aGk=", "path": "/tmp/alice/a.txt", "mime": "text/plain"}

    result = taken({"results": 1, "artifacts": [entry]})

    assert "path" not in result.value["artifacts"][0]
    assert warned(result, "path")


def test_repeated_name_gets_suffix() -> None:
    entries = [{"name": "d.txt", "b64": "MQ==", "mime": "text/plain"}] * 2

    names = [entry["name"] for entry in taken({"results": 1, "artifacts": entries}).value["artifacts"]]

    assert names[0] == "d.txt"
    assert len(set(names)) == 2


def test_hundred_files_are_kept() -> None:
    entries = [{"name": f"{n}.txt", "b64": "MQ==", "mime": "text/plain"} for n in range(100)]

    assert len(taken({"results": 1, "artifacts": entries}).value["artifacts"]) == 100


def test_deferred_file_needs_path_and_may_have_any_reason() -> None:
    """Source: S1-76 to S1-78."""
    entries = [
        {"name": "a.docx", "path": "/tmp/alice/a.docx", "mime": "application/x-a", "reason": "because"},
        {"name": "b.docx", "b64": "aGk="},
    ]

    result = taken({"results": 1, "deferred_artifacts": entries})

    assert result.value["deferred_artifacts"] == [entries[0]]
    assert reasons(result) == ["missing_path"]
    assert warned(result, "reason")


# the two arrays of the first version


def test_legacy_arrays_become_artifacts() -> None:
    """Source: S0-17, S0-18, S0-78 and S2-28."""
    payload = {
        "results": "see files",
        "returned_file_names": ["a.json", "b.txt"],
        "returned_file_contents": ["e30=", {"name": "other.txt", "b64": "aGk="}],
    }

    value = taken(payload).value

    assert value == {
        "results": "see files",
        "artifacts": [
            {"name": "a.json", "b64": "e30=", "size": 2, "mime": "application/json"},
            {"name": "b.txt", "b64": "aGk=", "size": 2, "mime": "text/plain"},
        ],
    }


def test_artifacts_win_over_legacy_arrays() -> None:
    """Source: S0-21 and S0-67."""
    payload = {
        "results": 1,
        "artifacts": [{"name": "new.txt", "b64": "aGk=", "mime": "text/plain"}],
        "returned_file_names": ["old.txt"],
        "returned_file_contents": ["aGk="],
    }

    assert [entry["name"] for entry in taken(payload).value["artifacts"]] == ["new.txt"]


def test_unmatched_legacy_names_incomplete_and_contents_ignored() -> None:
    """Source: S2-28."""
    more_names = {"results": 1, "returned_file_names": ["a", "b"], "returned_file_contents": ["QQ=="]}
    more_contents = {"results": 1, "returned_file_names": ["a"], "returned_file_contents": ["QQ==", "Qg=="]}

    first, second = taken(more_names), taken(more_contents)

    assert first.value["incomplete"] == ["b"]
    assert [len(result.value["artifacts"]) for result in (first, second)] == [1, 1]
    assert [warned(result, "mismatch") for result in (first, second)] == [True, True]


def test_name_with_null_content_is_incomplete() -> None:
    payload = {"results": 1, "returned_file_names": ["a", "b"], "returned_file_contents": ["QQ==", None]}

    result = taken(payload)

    assert (result.value["incomplete"], reasons(result)) == (["b"], ["missing_content"])


def test_legacy_object_facts_about_file_kept() -> None:
    content = {"name": "a", "b64": "QQ==", "mime": "text/html", "description": "page"}

    (file,) = taken({"results": 1, "returned_file_contents": [content]}).value["artifacts"]

    assert file == {**content, "size": 1}


def test_boolean_is_not_a_size() -> None:
    file = {"name": "a.txt", "b64": "QQ==", "mime": "text/plain", "size": True}

    result = taken({"results": 1, "artifacts": [file]})

    assert result.value["artifacts"][0]["size"] == 1
    assert warned(result, "declares size True")


# typed content


def test_media_blocks_become_artifacts_beside_structured_content() -> None:
    blob = {"uri": "x://../../etc/passwd", "mimeType": "text/plain", "blob": "ZGF0YQ=="}

    result = taken(
        {"results": 1},
        {"type": "image", "data": PIXEL, "mimeType": "image/png"},
        {"type": "audio", "data": "UklG", "mimeType": "audio/wav"},
        {"type": "resource", "resource": blob},
    )

    assert result.value["artifacts"] == [
        {"name": "image_1.png", "b64": PIXEL, "mime": "image/png", "viewer": "image", "size": 69},
        {"name": "audio_1.wav", "b64": "UklG", "mime": "audio/wav", "size": 3},
        {
            "name": "passwd",
            "b64": "ZGF0YQ==",
            "mime": "text/plain",
            "source": {"uri": "x://../../etc/passwd"},
            "size": 4,
        },
    ]
    assert result.blocks == {0: "image_1.png", 1: "audio_1.wav", 2: "passwd"}
    assert result.origins == (None, None, None)


def test_blocks_of_wrong_type_or_without_base64_refused() -> None:
    result = normalise(
        {
            "content": [
                {"type": "image", "data": "TVqQAA==", "mimeType": "application/x-msdownload"},
                {"type": "image", "data": "@@not-base64@@", "mimeType": "image/png"},
                {"type": "image", "data": None, "mimeType": "image/png"},
                {"type": "hologram", "data": "zzz"},
                "text",
            ]
        },
        wrapped=False,
    )

    assert [refusal.reason for refusal in result.refusals] == ["unknown_type", "invalid_base64"]
    assert len(result.value["meta_data"]["artifact_errors"]) == 2
    assert [warned(result, word) for word in ("mime", "base64", "hologram")] == [True] * 3


@pytest.mark.parametrize("mime", ["", None, "png", 7, "image/png"])
@pytest.mark.parametrize("header", ["", "data:image/png;base64,"])
def test_pictures_recognised_by_bytes(mime: Any, header: str) -> None:
    block = {"type": "image", "data": header + PNG_TEXT, "mimeType": mime}

    result = normalise({"content": [block]}, wrapped=False)

    (entry,) = result.value["artifacts"]
    assert (entry["name"], entry["mime"], entry["b64"]) == ("image_1.png", "image/png", PNG_TEXT)


@pytest.mark.parametrize("data", ["https://a.example/x.png", PNG_TEXT[:-3], "data:image/png,x"])
def test_pictures_without_bytes_reported_as_refused(data: str) -> None:
    block = {"type": "image", "data": data, "mimeType": "image/png"}

    result = normalise({"content": [block]}, wrapped=False)

    assert [refusal.reason for refusal in result.refusals] == ["invalid_base64"]


def test_embedded_text_shown_with_uri_and_links_kept() -> None:
    link = {"type": "resource_link", "uri": "tableau://w/1/pdf", "name": "Sales", "size": 2400000}

    result = taken({"results": 1}, {"type": "resource", "resource": {"uri": "a://b", "text": "hi"}}, link)

    assert result.texts == ("a://b\nhi",)
    assert result.value == {"results": 1, "links": [link]}
    assert result.links == (link,)


# words of the contract that are nearly right


def test_misspelled_results_kept_and_named_in_warning() -> None:
    bare = taken({"Results": {"a": 1}, "note": "x"})
    beside = taken({"RESULT": 1, "artifacts": [{"name": "a.txt", "b64": "aGk=", "mime": "text/plain"}]})

    assert bare.value == {"results": {"Results": {"a": 1}, "note": "x"}}
    assert bare.warnings == ("the tool returned no `results`, but 'Results': it may be misspelled",)
    assert (beside.value["results"], beside.value["RESULT"]) == (None, 1)
    assert beside.warnings == ("the tool returned no `results`, but 'RESULT': it may be misspelled",)


def test_data_with_other_names_not_called_misspelled() -> None:
    for key in ("result", "rows", "reset", "record", "response", "resource", "r" * 7):
        assert taken({key: 1, "expression": "234*97"}).warnings == ()


@pytest.mark.parametrize("key", ["artifacts", "deferred_artifacts"])
@pytest.mark.parametrize(
    ("files", "refused"),
    [
        ([{"name": "c.txt", "content": "hello"}], "c.txt"),
        ([{"name": "k.txt", "file_path": "/tmp/u/k.txt"}], "k.txt"),
        ([{"path": "/tmp/u/n.txt", "mime": "text/plain"}], None),
        (["/tmp/u/x.csv"], None),
        ("/tmp/u/x.csv", None),
        ({"build": 1}, None),
    ],
    ids=str,
)
def test_files_beside_results_without_content_reported(key: str, files: Any, refused: str | None) -> None:
    result = taken({"results": "ok", key: files})

    assert result.speaks_contract
    assert [error["name"] for error in result.value["meta_data"]["artifact_errors"]] == [refused]


def test_one_file_in_place_of_list_is_taken() -> None:
    result = taken({"results": "ok", "artifacts": {"name": "a.txt", "b64": "aGk="}})

    assert [file["name"] for file in result.value["artifacts"]] == ["a.txt"]
    assert warned(result, "artifacts is not an array, taken as one file")


def test_malformed_file_lists_named_in_warning() -> None:
    result = taken(
        {
            "results": 1,
            "artifacts": "a.txt",
            "deferred_artifacts": {"name": "a"},
            "returned_file_names": "a.txt",
            "returned_file_contents": "aGk=",
        }
    )

    assert reasons(result) == ["missing_name", "missing_path"]
    for key in ("artifacts", "deferred_artifacts"):
        assert f"{key} is not an array, taken as one file" in result.warnings
    for key in ("returned_file_names", "returned_file_contents"):
        assert f"{key} is ignored beside artifacts" in result.warnings


def test_non_text_path_refused_with_reason() -> None:
    result = taken(
        {
            "results": 1,
            "artifacts": [{"name": "a.txt", "path": 5, "mime": "text/plain"}],
            "deferred_artifacts": [{"name": "b.txt", "path": ["/x"], "mime": "text/plain"}],
        }
    )

    assert reasons(result) == ["invalid_path", "invalid_path"]
    assert "artifacts" not in result.value


def test_hints_of_wrong_type_use_default_with_warning() -> None:
    result = taken(
        {
            "results": 1,
            "display": {"open_canvas": "yes", "mode": "diagonal", "viewer_hint": None, "colour": "red"},
            "canvas": {"url": "https://e.x", "persistence": "for ever", "title": 3},
            "artifacts": [
                {"name": "a", "b64": "aGk=", "mime": "a/b", "auto_open": "yes", "description": [], "own": 1}
            ],
        }
    )

    assert result.value["display"] == {"mode": "replace", "colour": "red"}
    assert result.value["canvas"] == {"url": "https://e.x", "persistence": "session"}
    assert result.value["artifacts"] == [
        {"name": "a", "b64": "aGk=", "mime": "a/b", "auto_open": False, "own": 1, "size": 2}
    ]
    assert sorted(result.warnings) == [
        "canvas: title is of the wrong type, left out",
        "canvas: unknown persistence, taken as session",
        "display: open_canvas is of the wrong type, left out",
        "display: unknown mode, taken as replace",
        "file 'a': description is of the wrong type, left out",
        "file 'a': unknown auto_open, taken as False",
    ]


def test_facts_reserved_for_runner_ignored_from_tool() -> None:
    result = taken(
        {
            "results": 1,
            "meta_data_truncated": True,
            "artifacts": [{"name": "a.txt", "b64": "aGk=", "mime": "text/plain", "sha256": "00", "uri": "x"}],
            "deferred_artifacts": [
                {
                    "name": "b.txt",
                    "path": "/x",
                    "mime": "text/plain",
                    "status": "kept",
                    "expires_at": "never",
                }
            ],
        }
    )

    assert result.value == {
        "results": 1,
        "artifacts": [{"name": "a.txt", "b64": "aGk=", "mime": "text/plain", "size": 2}],
        "deferred_artifacts": [{"name": "b.txt", "path": "/x", "mime": "text/plain"}],
    }


def test_text_contradicting_structure_kept_with_warning() -> None:
    contradicted = taken({"results": 1}, text('{"results": 2}'))
    repeated = taken({"results": 1}, text('{"results": 1}'))

    assert contradicted.value == {"results": 1}
    assert contradicted.texts == ('{"results": 2}',)
    assert warned(contradicted, "structured_content")
    assert repeated.warnings == ()


def test_large_results_kept_whole_with_size_warning() -> None:
    """Source: S0-60 and S2-14."""
    fits, above = {"results": "ü" * 4095}, {"results": "ü" * 4095 + "u"}
    assert normalise({"structuredContent": fits}, wrapped=False).warnings == ()

    result = normalise({"structuredContent": above}, wrapped=False)

    assert result.value == above
    assert result.warnings == ("`results` has 8193 bytes, more than 8192; large data belongs in artifacts",)


# any value


@given(json_values, st.booleans())
def test_any_json_value_becomes_writable_value(payload: Any, is_error: bool) -> None:
    """Source: S1-1 and S2-29."""
    value = normalise({"structuredContent": payload, "isError": is_error}, wrapped=False).value

    assert "results" in value
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()


@given(contract_like, st.lists(contract_like, max_size=4), st.booleans(), st.booleans())
def test_normalising_twice_changes_nothing(
    payload: Any, content: list[Any], wrapped: bool, is_error: bool
) -> None:
    wire = {"structuredContent": payload, "content": content, "isError": is_error}

    once = normalise(wire, wrapped=wrapped).value
    twice = normalise({"structuredContent": once}, wrapped=wrapped).value

    assert twice == once


@given(contract_like)
def test_tool_references_into_store_removed(payload: Any) -> None:
    value = taken({"results": 1, "artifacts": [payload]}).value

    assert all("s3_ref" not in entry for entry in value.get("artifacts", []))


def test_empty_envelope_is_envelope_of_nothing() -> None:
    assert taken({"results": None}).value == {"results": None}


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("file:///Bericht%20M%C3%A4rz.pdf", "Bericht März.pdf"),
        ("file:///a%2Fb.pdf", "b.pdf"),
        ("file:///100%.pdf", "100%.pdf"),
        ("file:///%FF.pdf", "\ufffd.pdf"),
    ],
)
def test_name_of_blob_in_uri_is_decoded(uri: str, name: str) -> None:
    blob = {"uri": uri, "mimeType": "application/pdf", "blob": "ZGF0YQ=="}

    result = taken({"results": 1}, {"type": "resource", "resource": blob})

    assert result.value["artifacts"][0]["name"] == name
