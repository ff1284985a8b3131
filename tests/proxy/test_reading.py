"""Reading back what was stored: by bytes, by lines, by pattern; bounded, and one's own only."""

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.errors import CallError, Code
from runner.files.my_files import Library, MyFiles
from runner.files.sessions import Sessions
from runner.protocol.artifact_resources import MAX_BLOB_BYTES, read_artifact
from runner.protocol.artifact_tools import READ_MAX_CHARS, offered, read_back, reading_result
from runner.settings.settings import Settings
from runner.store.protocol import Put, Retention
from runner.store.store import BlobStore

pytestmark = pytest.mark.anyio


@pytest.fixture
def files(tmp_path: Path) -> MyFiles:
    return Library(store=BlobStore(), sessions=Sessions(tmp_path)).of("alice")


async def stored(files: MyFiles, content: bytes, mime: str = "text/plain") -> str:
    about = Put(mime=mime, retention=Retention.OBSERVATIONS)
    return (await files.library.store.put_bytes(content, about, scope=files.scope)).id


async def test_text_read_in_parts_equals_whole_text(files: MyFiles) -> None:
    text = "äöü€𝄞 line\n" * 3000
    id_ = await stored(files, text.encode())
    parts: list[str] = []
    offset: int | None = 0

    while offset is not None:
        answer = await read_back("artifact_read", {"id": id_, "offset": offset, "length": 4001}, files)
        assert len(answer["text"]) <= READ_MAX_CHARS
        parts.append(answer["text"])
        offset = answer.get("next_offset")

    assert "".join(parts) == text


@pytest.mark.release
async def test_text_resource_ranges_join_to_whole_text(files: MyFiles) -> None:
    text = "äöü€𝄞\n" * 500
    id_, size = await stored(files, text.encode()), len(text.encode())

    for step in (1, 2, 3, 5, 4001):
        parts = [
            (await read_artifact(files, f"artifact://{id_}?offset={at}&length={step}"))["contents"][0]
            for at in range(0, size, step)
        ]
        assert "".join(part["text"] for part in parts) == text


@pytest.mark.parametrize("mime", ["text/csv", "application/json", "application/ld+json; charset=utf-8"])
async def test_text_resource_answers_text(files: MyFiles, mime: str) -> None:
    id_ = await stored(files, '{"ä": 1}'.encode(), mime)

    (answer,) = (await read_artifact(files, f"artifact://{id_.upper()}"))["contents"]

    assert (answer["text"], answer["mimeType"], "blob" in answer) == ('{"ä": 1}', mime, False)
    assert answer["_meta"]["toolcell/size"] == 9


@pytest.mark.parametrize(
    ("content", "mime"),
    [
        (b"%PDF-1.4 x", "application/pdf"),
        (b"<svg/>", "image/svg+xml"),
        (b"M\xfcller", "text/csv"),
        (b"a\0b", "text/plain"),
        (b'"' * MAX_BLOB_BYTES, "application/json"),
    ],
)
async def test_resource_without_legible_text_answers_bytes(files: MyFiles, content: bytes, mime: str) -> None:
    id_ = await stored(files, content, mime)

    (answer,) = (await read_artifact(files, f"artifact://{id_}"))["contents"]

    assert (base64.b64decode(answer["blob"]), "text" in answer) == (content, False)


async def test_read_offset_within_character_starts_at_next(files: MyFiles) -> None:
    id_ = await stored(files, "€uro".encode())

    answer = await read_back("artifact_read", {"id": id_, "offset": 1}, files)

    assert (answer["offset"], answer["text"]) == (3, "uro")


async def test_lines_counted_from_one_and_next_named(files: MyFiles) -> None:
    id_ = await stored(files, "".join(f"line {n}\r\n" for n in range(1, 301)).encode())

    async def lines(first: int, count: int) -> dict[str, object]:
        return await read_back("artifact_read", {"id": id_, "first_line": first, "lines": count}, files)

    middle, last = await lines(100, 2), await lines(299, 10)
    assert (middle["text"], middle["next_line"]) == ("line 100\nline 101", 102)
    assert (last["text"], last.get("next_line")) == ("line 299\nline 300", None)


async def test_search_states_place_of_each_match(files: MyFiles) -> None:
    text = "one\ntwo\nthree two\n"
    id_ = await stored(files, text.encode())

    answer = await read_back("artifact_search", {"id": id_, "pattern": "two$"}, files)

    assert [match["offset"] for match in answer["matches"]] == [4, 14]
    assert [match["text"] for match in answer["matches"]] == ["two", "three two"]
    assert "next_offset" not in answer


async def test_catastrophic_pattern_ends(files: MyFiles) -> None:
    id_ = await stored(files, b"a" * 3_000_000 + b"b")

    answer = await read_back("artifact_search", {"id": id_, "pattern": "(a+)+$"}, files)

    assert len(json.dumps(answer)) < 20_000


async def test_search_stops_at_match_limit_with_next_offset(files: MyFiles) -> None:
    id_ = await stored(files, b"x" * 400_000)

    answer = await read_back("artifact_search", {"id": id_, "pattern": "x", "max_matches": 5}, files)

    assert len(answer["matches"]) == 5
    assert 0 < answer["next_offset"] <= 65_536


@pytest.mark.parametrize("name", ["artifact_read", "artifact_search"])
async def test_binary_content_not_read_as_text(name: str, files: MyFiles) -> None:
    id_ = await stored(files, b"%PDF-1.7\0\xff" * 100, "application/pdf")

    with pytest.raises(CallError, match=f"is binary .*artifact://{id_}"):
        await read_back(name, {"id": id_, **({"pattern": "P"} if "search" in name else {})}, files)
    assert (await read_back("artifact_info", {"id": id_}, files))["kind"] == "binary"


async def test_info_states_type_start_and_end(files: MyFiles) -> None:
    rows = json.dumps([{"a": n, "b": "x"} for n in range(500)])
    id_ = await stored(files, rows.encode(), "application/json")

    info = await read_back("artifact_info", {"id": f"artifact://{id_}"}, files)

    assert info["shape"] == {"kind": "table", "rows": 500, "columns": ["a", "b"]}
    assert (info["preview"], info["tail"]) == (rows[:200], rows[-80:])
    assert info["artifact"]["size_bytes"] == len(rows)


async def test_content_of_another_user_not_found(files: MyFiles) -> None:
    id_ = await stored(files, b"secret")
    stranger = files.library.of("bob")

    assert (await read_back("artifact_read", {"id": id_}, files))["text"] == "secret"
    with pytest.raises(CallError) as caught:
        await read_back("artifact_read", {"id": id_}, stranger)
    assert caught.value.code is Code.E_FILE_NOT_FOUND


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("artifact_read", {}, "id: Field required"),
        ("artifact_read", {"id": "x", "length": 9001}, "less than or equal to 8000"),
        ("artifact_read", {"id": "x", "offset": "3"}, "valid integer"),
        ("artifact_info", {"id": "x", "more": 1}, "more: Extra"),
        ("artifact_search", "text", "valid dictionary"),
    ],
)
async def test_wrong_arguments_are_explained(
    name: str, arguments: object, words: str, files: MyFiles
) -> None:
    with pytest.raises(CallError, match=words):
        await read_back(name, arguments, files)


async def test_invalid_re2_pattern_is_explained(files: MyFiles) -> None:
    id_ = await stored(files, b"text")

    result = await reading_result(
        {"name": "artifact_search", "arguments": {"id": id_, "pattern": "(?=a)"}}, files
    )

    assert result["isError"]
    assert "is not an RE2 expression" in result["content"][0]["text"]


def test_reading_tools_are_marked_read_only() -> None:
    tools = offered(Settings())

    assert [tool["name"] for tool in tools] == ["artifact_info", "artifact_read", "artifact_search"]
    assert all(tool["annotations"]["readOnlyHint"] for tool in tools)
    assert all(tool["inputSchema"]["type"] == "object" for tool in tools)


@settings(deadline=None)
@given(text=st.text(max_size=300), offset=st.integers(0, 400), length=st.integers(1, 50))
async def test_part_of_text_is_exact(text: str, offset: int, length: int) -> None:
    files = Library(store=BlobStore(), sessions=Sessions(Path("unused"))).of("alice")
    content = text.replace("\0", "").encode("utf-8", "replace")
    id_ = await stored(files, content)

    answer = await read_back("artifact_read", {"id": id_, "offset": offset, "length": length}, files)

    assert answer["text"].encode() in content
    assert answer.get("next_offset", len(content)) >= min(offset + 1, len(content))


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-16-be", "shift_jis"])
async def test_text_of_other_encoding_read_and_named(encoding: str, files: MyFiles) -> None:
    line = "名前;東京都;とても" if encoding == "shift_jis" else "Müller;größe;1,5"
    text = f"{line}\r\n" * 3000
    id_ = await stored(files, text.encode(encoding), "text/csv")
    parts: list[str] = []
    offset: int | None = 0

    while offset is not None:
        answer = await read_back("artifact_read", {"id": id_, "offset": offset, "length": 4001}, files)
        parts.append(answer["text"])
        offset = answer.get("next_offset")
    lines = await read_back("artifact_read", {"id": id_, "first_line": 2999, "lines": 9}, files)
    found = await read_back("artifact_search", {"id": id_, "pattern": line[3:7], "max_matches": 2}, files)
    about = await read_back("artifact_info", {"id": id_}, files)

    assert "".join(parts) == text
    assert lines["text"].split("\n") == [line, line]
    assert found["matches"][1]["offset"] - found["matches"][0]["offset"] == len(
        f"{line}\r\n".encode(encoding.replace("utf-16", "utf-16-le") if encoding == "utf-16" else encoding)
    )
    assert about["preview"].startswith(line)
    assert {answer["encoding"], lines["encoding"], found["encoding"], about["encoding"]} <= {
        *("cp1252", "cp932", "utf-16-le", "utf-16-be"),
    }
