"""Files of a result are kept, routed, or left out with a reason."""

import asyncio
import base64
import os
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from result_fakes import FakeHome, Shelf

from runner.artifacts.accept import NEVER_INLINE, Processed, failed, process_artifacts
from runner.artifacts.deferred import MAX_HOURS, deferral
from runner.contract.error_messages import envelope, outside_home, too_large
from runner.contract.normalise import normalise
from runner.errors import CallError, Code
from runner.files.my_files import Deferral
from runner.formats.base64 import CHUNK_BYTES, canonical, decode, encode_file
from runner.formats.mime import extension, guess

MIB = 1024 * 1024
NOON = datetime(2024, 8, 27, 12, tzinfo=UTC)


def processed(payload: Any, home: FakeHome | None, shelf: Any, *content: Any, **bounds: Any) -> Processed:
    normalised = normalise({"structuredContent": payload, "content": list(content)}, wrapped=False)
    bounds = {"inline_max_bytes": MIB, "max_bytes": 4 * MIB} | bounds
    return asyncio.run(process_artifacts(normalised, home=home, keep=shelf, **bounds))


def path_entry(home: FakeHome, name: str, content: bytes = b"hi", **more: Any) -> dict[str, Any]:
    (home.path / name).write_bytes(content)
    return {"name": name, "path": f"{home.path}/{name}", "mime": "text/html", **more}


def test_repr_of_result_holds_no_file_content(home: FakeHome, shelf: Shelf) -> None:
    content = base64.b64encode(b"secret" * 100).decode()
    artifact = {"name": "a.txt", "b64": content, "mime": "text/plain"}

    result = processed({"results": "words", "artifacts": [artifact]}, home, shelf)

    assert result.value["artifacts"][0]["b64"] == result.files[0].origin == content
    assert content not in repr(result)
    assert "a.txt" in repr(result)


# base64


@given(st.binary(max_size=200))
def test_canonical_base64_means_same_bytes(content: bytes) -> None:
    written = base64.urlsafe_b64encode(content).rstrip(b"=").decode()

    assert canonical(f" {written}\n") == base64.b64encode(content).decode()
    assert decode(base64.b64encode(content).decode()) == content


@pytest.mark.parametrize(
    "text", ["Q", "QQ=", "Q===", "QQ==QQ==", "@@@@", "QQ\x0bQ=", "é", None, 5, b"QQ=="], ids=repr
)
def test_invalid_base64_has_no_canonical_form(text: Any) -> None:
    assert canonical(text) is None


@pytest.mark.parametrize(
    "size", [0, 1, 2, 3, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 2]
)
def test_file_encoded_whole_at_every_chunk_edge(size: int) -> None:
    content = os.urandom(size)

    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        text = encode_file(file.fileno(), size)

    assert text == base64.b64encode(content).decode()


def test_shortened_file_not_encoded() -> None:
    with tempfile.TemporaryFile() as file, pytest.raises(EOFError, match="ended at byte 0"):
        encode_file(file.fileno(), 1)


@pytest.mark.parametrize(
    ("name", "mime"),
    [
        ("a.csv", "text/csv"),
        ("A.PNG", "image/png"),
        ("a.parquet", "application/vnd.apache.parquet"),
        ("a", "application/octet-stream"),
        ("a.", "application/octet-stream"),
    ],
)
def test_type_follows_from_extension(name: str, mime: str) -> None:
    assert guess(name) == mime


def test_extension_follows_from_type() -> None:
    assert [extension(mime) for mime in ("image/png", "audio/wav", "x/y")] == [".png", ".wav", ""]


# route


def way_of(home: FakeHome, shelf: Any, size: int, **bounds: Any) -> set[str] | None:
    entry = path_entry(home, "a.html", b"x" * size)
    artifacts = processed({"results": 1, "artifacts": [entry]}, home, shelf, **bounds).value.get("artifacts")
    return artifacts[0].keys() & {"b64", "s3_ref"} if artifacts else None


def test_inline_limit_is_inclusive(home: FakeHome, shelf: Shelf) -> None:
    """Source: S1-15 to S1-17."""
    ways = [way_of(home, shelf, size, inline_max_bytes=10) for size in (0, 10, 11)]

    assert ways == [{"b64"}, {"b64"}, {"s3_ref"}]


def test_never_inline_holds_for_empty_file(home: FakeHome, shelf: Shelf) -> None:
    assert way_of(home, shelf, 0, inline_max_bytes=NEVER_INLINE) == {"s3_ref"}


def test_hard_cap_is_inclusive(home: FakeHome, shelf: Shelf) -> None:
    ways = [way_of(home, shelf, size, inline_max_bytes=1, max_bytes=10) for size in (10, 11)]

    assert ways == [{"s3_ref"}, None]


# process


def test_small_file_becomes_base64_and_is_stored(home: FakeHome, shelf: Shelf) -> None:
    """Source: S1-25 and S1-69."""
    entry = path_entry(home, "r.html", category="report", auto_open=True, description="Q3")

    result = processed({"results": {"a": 1}, "artifacts": [entry]}, home, shelf)

    assert result.value == {
        "results": {"a": 1},
        "artifacts": [
            {
                "name": "r.html",
                "b64": "aGk=",
                "mime": "text/html",
                "size": 2,
                "category": "report",
                "auto_open": True,
                "description": "Q3",
            }
        ],
    }
    assert shelf.files == {"r.html": b"hi"}
    assert [(file.name, file.size, file.origin) for file in result.files] == [("r.html", 2, entry["path"])]


def test_large_file_becomes_reference_to_store(home: FakeHome, shelf: Shelf) -> None:
    """Source: S1-26, S1-70 and S1-75."""
    entry = path_entry(home, "r.html", size=1)

    result = processed({"results": 1, "artifacts": [entry]}, home, shelf, inline_max_bytes=1)

    assert result.value["artifacts"] == [
        {
            "name": "r.html",
            "s3_ref": {"bucket": "user-storage", "key": "alice/artifacts/20240827/r.html", "internal": True},
            "mime": "text/html",
            "size": 2,
        }
    ]


def test_base64_content_is_stored(shelf: Shelf) -> None:
    entry = {"name": "a.txt", "b64": "aGk", "mime": "text/plain"}

    result = processed({"results": 1, "artifacts": [entry]}, None, shelf)

    assert shelf.files == {"a.txt": b"hi"}
    assert result.value["artifacts"] == [{**entry, "b64": "aGk=", "size": 2}]


def test_refused_files_listed_without_affecting_good_ones(home: FakeHome, shelf: Shelf) -> None:
    entries = [
        {"name": "p", "path": "/etc/passwd", "mime": "text/plain"},
        {"name": "gone.txt", "path": f"{home.path}/gone.txt", "mime": "text/plain"},
        path_entry(home, "big.html", b"x" * 11),
        path_entry(home, "ok.html"),
    ]

    result = processed({"results": 1, "artifacts": entries}, home, shelf, max_bytes=10)

    assert [entry["name"] for entry in result.value["artifacts"]] == ["ok.html"]
    assert [(refused.name, refused.reason) for refused in result.errors] == [
        ("p", "invalid_path"),
        ("gone.txt", "missing_path"),
        ("big.html", "file_too_large"),
    ]
    errors = result.value["meta_data"]["artifact_errors"]
    assert errors[0]["error"] == envelope(outside_home("/etc/passwd", home.path))
    assert errors[2]["error"] == envelope(too_large(11, 10))
    assert (result.failure, result.is_error) == (None, False)


def test_refused_file_alone_is_the_result(home: FakeHome, shelf: Shelf) -> None:
    entry = {"name": "p", "path": "/etc/passwd", "mime": "text/plain"}

    result = processed({"artifacts": [entry]}, home, shelf)

    alone = envelope(outside_home("/etc/passwd", home.path))
    assert result.is_error
    assert result.failure is not None
    assert result.failure.code is Code.E_INVALID_PATH
    assert result.value == alone | {
        "meta_data": {
            **alone["meta_data"],
            "artifact_errors": [{"name": "p", "reason": "invalid_path", "error": alone}],
        }
    }


def test_refused_file_beside_text_leaves_text_as_result(home: FakeHome, shelf: Shelf) -> None:
    entry = {"name": "p", "path": "/etc/passwd", "mime": "text/plain"}

    result = processed({"artifacts": [entry]}, home, shelf, {"type": "text", "text": "Half of it is done."})

    assert result.failure is None


def test_tool_without_home_may_return_no_path(home: FakeHome, shelf: Shelf) -> None:
    entry = path_entry(home, "r.html")
    assert processed({"results": 1, "artifacts": [entry]}, home, shelf).errors == ()

    result = processed({"results": 1, "artifacts": [entry]}, None, shelf)

    assert [refused.reason for refused in result.errors] == ["invalid_path"]
    assert result.errors[0].error.details["allowed_prefix"] is None


def test_failing_store_reported_and_costs_only_the_file(home: FakeHome) -> None:
    async def keep(fd: int, **fields: Any) -> Any:
        raise CallError(Code.E_QUOTA, "the quota is used up")

    result = processed({"results": 1, "artifacts": [path_entry(home, "r.html")]}, home, keep)

    assert [refused.reason for refused in result.errors] == ["quota_exceeded"]
    assert result.value["results"] == 1


def test_deferred_file_stored_and_loses_its_path(home: FakeHome, shelf: Shelf) -> None:
    """Source: S1-77 and S1-87."""
    entry = path_entry(home, "d.docx", reason="draft", expires_hours=1, next_actions=["edit"])

    result = processed({"results": 1, "deferred_artifacts": [entry]}, home, shelf, now=NOON)

    assert result.value["deferred_artifacts"] == [
        {
            "name": "d.docx",
            "b64": "aGk=",
            "mime": "text/html",
            "size": 2,
            "reason": "draft",
            "expires_hours": 1,
            "next_actions": ["edit"],
            "status": "deferred",
            "expires_at": "2024-08-27T13:00:00Z",
        }
    ]
    one_oclock = NOON + timedelta(hours=1)
    assert shelf.deferrals["d.docx"] == Deferral(
        expires_at=one_oclock, reason="draft", next_actions=("edit",)
    )
    assert shelf.files == {"d.docx": b"hi"}


def test_large_deferred_file_becomes_reference_to_store(home: FakeHome, shelf: Shelf) -> None:
    entry = path_entry(home, "d.docx")

    result = processed(
        {"results": 1, "deferred_artifacts": [entry]}, home, shelf, inline_max_bytes=1, now=NOON
    )

    assert result.value["deferred_artifacts"] == [
        {
            "name": "d.docx",
            "s3_ref": {"bucket": "user-storage", "key": "alice/artifacts/20240827/d.docx", "internal": True},
            "mime": "text/html",
            "size": 2,
            "status": "deferred",
            "expires_at": "2024-08-30T12:00:00Z",
        }
    ]


@pytest.mark.parametrize("hours", [0, -1, True, "3", [1], float("inf"), float("nan")], ids=repr)
def test_invalid_hours_become_seventy_two_with_warning(hours: Any, caplog: pytest.LogCaptureFixture) -> None:
    deferred = deferral({"name": "d", "expires_hours": hours}, now=NOON)

    assert deferred.expires_at == NOON + timedelta(hours=72)
    assert "expires_hours" in str(vars(caplog.records[0])["detail"])


def test_file_deferred_beyond_calendar_ends_in_ten_years() -> None:
    deferred = deferral({"name": "d", "expires_hours": 10**300}, now=NOON)

    assert deferred.expires_at == NOON + timedelta(hours=MAX_HOURS)


def test_call_files_above_total_limit_refused_smaller_kept(home: FakeHome, shelf: Shelf) -> None:
    entries = [path_entry(home, name, b"x" * size) for name, size in (("a", 6), ("b", 5), ("c", 4))]

    result = processed({"results": 1, "artifacts": entries}, home, shelf, max_bytes=10)

    assert [file.name for file in result.files] == ["a", "c"]
    assert [(refused.name, refused.reason) for refused in result.errors] == [("b", "file_too_large")]
    assert result.errors[0].error.code is Code.E_FILE_TOO_LARGE


def test_many_sparse_files_refused_before_reading(home: FakeHome, shelf: Shelf) -> None:
    entries = []
    for number in range(20):
        entries.append(path_entry(home, f"{number}.bin", b""))
        os.truncate(home.path / f"{number}.bin", 1024**4)

    result = processed({"results": 1, "artifacts": entries}, home, shelf, max_bytes=1024**4 - 1)

    assert [refused.reason for refused in result.errors] == ["file_too_large"] * 20
    assert shelf.files == {}


def test_inline_total_has_limit_of_one_file(home: FakeHome, shelf: Shelf) -> None:
    entries = [path_entry(home, name, b"x" * size) for name, size in (("a", 6), ("b", 5), ("c", 4))]

    result = processed({"results": 1, "artifacts": entries}, home, shelf, inline_max_bytes=10)

    forms = [("b64" in entry, "s3_ref" in entry) for entry in result.value["artifacts"]]
    assert forms == [(True, False), (False, True), (True, False)]


def test_primary_file_follows_name_in_store(home: FakeHome, shelf: Shelf) -> None:
    async def keep(fd: int, *, name: str, mime: str, deferral: Any, temporary: bool) -> Any:
        return await shelf(fd, name=f"new {name}", mime=mime)

    payload = {"results": 1, "artifacts": [path_entry(home, "r.html")], "display": {"primary_file": "r.html"}}
    result = processed(payload, home, keep)

    assert result.value["display"]["primary_file"] == result.files[0].name == "new r.html"


@pytest.mark.parametrize(("action", "expected"), [("temporary", True), ("store", False), ("odd", False)])
def test_only_shown_and_unstored_files_are_temporary(
    home: FakeHome, shelf: Shelf, action: str, expected: bool
) -> None:
    flags: dict[str, bool] = {}

    async def keep(fd: int, *, name: str, mime: str, deferral: Any, temporary: bool) -> Any:
        flags[name] = temporary
        return await shelf(fd, name=name, mime=mime)

    payload = {
        "results": 1,
        "artifacts": [path_entry(home, "r.html")],
        "deferred_artifacts": [path_entry(home, "d.html")],
        "display": {"storage_action": action},
    }
    processed(payload, home, keep)

    assert flags == {"r.html": expected, "d.html": False}


def test_corrected_results_are_logged(home: FakeHome, shelf: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    processed({"results": 1, "artifacts": [path_entry(home, "r.html", size=5, viewer="x")]}, home, shelf)

    details = [vars(record)["detail"] for record in caplog.records]
    assert any("size" in detail for detail in details)
    assert any("viewer" in detail for detail in details)


def test_failed_call_has_envelope_as_value() -> None:
    error = outside_home("/etc/passwd", Path("/tmp/alice"))

    result = failed(error)

    assert (result.value, result.failure, result.is_error) == (envelope(error), error, True)


def test_empty_unfinished_workbook_is_reported(home: FakeHome, shelf: Shelf) -> None:
    workbook = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
    entries = [
        path_entry(home, "t.xlsx", b"", mime=workbook),
        path_entry(home, "t.csv", b"", mime="text/csv"),
    ]

    result = processed({"results": 1, "artifacts": entries}, home, shelf)

    assert [entry["name"] for entry in result.value["artifacts"]] == ["t.csv"]
    assert [(refused.name, refused.reason) for refused in result.errors] == [("t.xlsx", "missing_content")]
    assert "0 bytes" in result.errors[0].error.message
