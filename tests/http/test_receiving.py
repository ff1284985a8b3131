import asyncio
import base64
import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asgi_support import asking
from site_support import TOKENS, Served
from starlette.requests import Request
from starlette.testclient import TestClient
from starlette.types import Message
from support import becomes

from runner.http.upload import receive
from runner.http.upload_room import UploadRooms
from runner.store.retention import Quota

DATA = bytes(range(256)) * 10_000
LIMIT = 3_000_000
ADDRESS = "/api/files?filename=half.txt"
FROM_ANN = {"authorization": f"Bearer {TOKENS['ann']}"}


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served.at(tmp_path, max_artifact_bytes=LIMIT, max_payload_bytes=1_000_000)


@pytest.fixture
def ann(served: Served) -> Iterator[TestClient]:
    with served.visitor("ann") as client:
        yield client


def form(*parts: tuple[str, bytes], boundary: str = "x-y-z") -> dict[str, Any]:
    """Return a form from the headers and the content of its parts."""
    body = b"".join(
        b"--%s\r\n%s\r\n\r\n%s\r\n" % (boundary.encode(), headers.encode(), content)
        for headers, content in parts
    )
    return {
        "content": body + b"--%s--\r\n" % boundary.encode(),
        "headers": {"content-type": f"multipart/form-data; boundary={boundary}"},
    }


def in_form(name: str) -> str:
    return f'Content-Disposition: form-data; name="file"; filename="{name}"'


@pytest.mark.parametrize(
    ("encoded", "name"),
    [
        ("filename*=UTF-8''Bericht%20M%C3%A4rz.pdf", "Bericht März.pdf"),
        ("filename*=iso-8859-1''M%E4rz.pdf", "März.pdf"),
        ("filename*=UTF-8''M%C3%A4rz.pdf; filename=\"Maerz.pdf\"", "März.pdf"),
        ("filename=\"Maerz.pdf\"; filename*=utf-8''M%C3%A4rz.pdf", "März.pdf"),
        ('filename*0="very "; filename*1="long.pdf"', "very long.pdf"),
        ("filename*=UTF-8''..%2F..%2Fpasswd", "passwd"),
    ],
)
def test_extended_file_name_kept(served: Served, ann: TestClient, encoded: str, name: str) -> None:
    header = f'Content-Disposition: form-data; name="file"; {encoded}'

    answer = ann.post("/api/files", **form((header, b"content")))

    assert (answer.status_code, served.contents()) == (201, {name: b"content"})


def left_behind(folder: Path) -> list[Path]:
    """Return the files of a store that are neither bytes nor records."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if not {"objects", "records"} & set(path.parts)]


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_body_stored_under_name_in_address(served: Served, ann: TestClient, method: str) -> None:
    """Source: S1-18 and S1-20."""
    answer = ann.request(method, "/api/files?filename=data.csv", content=DATA)

    record = answer.json()
    assert answer.status_code == 201
    assert (record["filename"], record["content_type"], record["size"]) == ("data.csv", "text/csv", len(DATA))
    assert answer.headers["location"] == f"/api/files/{record['key']}"
    assert served.contents() == {"data.csv": DATA}


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [("content-range", "bytes 5-6/7", 400), ("content-encoding", "gzip", 415)],
)
def test_part_or_coded_body_is_not_stored(
    served: Served, ann: TestClient, header: str, value: str, status: int
) -> None:
    answer = ann.put("/api/files?filename=a.txt", content=b"nt", headers={header: value})
    whole = ann.put("/api/files?filename=b.txt", content=b"x", headers={"content-encoding": "identity"})

    assert (answer.status_code, whole.status_code) == (status, 201)
    assert served.contents() == {"b.txt": b"x"}


def test_form_file_stored_without_boundaries(served: Served, ann: TestClient) -> None:
    tricky = b"\r\n--x-y\r\n" + DATA + b"\r\n--x-y-"
    field = ('Content-Disposition: form-data; name="note"', b"not a file")

    answer = ann.post("/api/files", **form(field, (in_form("photo.png"), tricky), field))

    assert answer.status_code == 201
    assert served.contents() == {"photo.png": tricky}


def test_form_of_client_library_accepted(served: Served, ann: TestClient) -> None:
    answer = ann.post("/api/files", files={"file": ("grüße.txt", DATA, "text/plain")})

    assert answer.status_code == 201
    assert list(served.contents().values()) == [DATA]


def test_json_file_decoded_and_stored(served: Served, ann: TestClient) -> None:
    fields = {"filename": "x.bin", "content_base64": base64.b64encode(DATA[:999]).decode()}

    answer = ann.post("/api/files", json=fields)

    assert answer.status_code == 201
    assert served.contents() == {"x.bin": DATA[:999]}


def test_undecodable_name_made_text(served: Served, ann: TestClient) -> None:
    body = b'{"filename": "a\\ud800b.txt", "content_base64": "eA=="}'

    answer = ann.post("/api/files", content=body, headers={"content-type": "application/json"})

    assert answer.status_code == 201
    assert list(served.contents().values()) == [b"x"]


def test_empty_file_is_stored(served: Served, ann: TestClient) -> None:
    assert ann.post("/api/files?filename=empty.txt").status_code == 201
    assert ann.post("/api/files", **form((in_form("none.txt"), b""))).status_code == 201
    assert served.contents() == {"empty.txt": b"", "none.txt": b""}


def test_unsafe_name_cleaned_and_second_content_numbered(served: Served, ann: TestClient) -> None:
    """Source: S1-19 and S1-20."""
    names = [
        ann.post("/api/files", params={"filename": "../../etc/pass wd.txt"}, content=content).json()[
            "filename"
        ]
        for content in (b"one", b"two", b"one")
    ]

    assert names[0] == names[2] != names[1]
    assert sorted(served.contents().values()) == [b"one", b"two"]
    assert not any("/" in name for name in names)


@pytest.mark.parametrize("stated", ["application/x-www-form-urlencoded", "application/octet-stream", ""])
def test_mime_type_from_name_if_client_gives_none(ann: TestClient, stated: str) -> None:
    headers = {"content-type": stated}

    unknown = ann.post("/api/files?filename=thing", content=b"1", headers=headers)
    known = ann.post("/api/files?filename=thing.pdf", content=b"2", headers=headers)
    response = ann.post(
        "/api/files?filename=other", content=b"3", headers={"content-type": "image/x-special"}
    )

    types = [answer.json()["content_type"] for answer in (unknown, known, response)]
    assert types == ["application/octet-stream", "application/pdf", "image/x-special"]


def test_upload_at_limit_accepted_one_byte_more_refused(served: Served, ann: TestClient) -> None:
    whole, more = b"a" * LIMIT, b"b" * (LIMIT + 1)

    exact = ann.post("/api/files?filename=a", content=whole)
    refused = [
        ann.post("/api/files?filename=b", content=more),
        ann.post("/api/files?filename=b", content=iter([more[:LIMIT], more[LIMIT:]])),
        ann.post("/api/files", **form((in_form("b"), more))),
    ]

    assert exact.status_code == 201
    assert [answer.status_code for answer in refused] == [413, 413, 413]
    assert all("max_artifact_bytes" in answer.json()["error"] for answer in refused)
    assert list(served.contents()) == ["a"]


def test_upload_declared_too_large_refused_before_body(ann: TestClient) -> None:
    sent = []

    def body() -> Iterator[bytes]:
        sent.append(1)
        yield b"x"

    answer = ann.post("/api/files?filename=a", content=body(), headers={"content-length": str(50 * 1024**4)})

    assert answer.status_code == 413
    assert str(LIMIT) in answer.json()["error"]


def test_json_body_bounded_by_request_limit(served: Served, ann: TestClient) -> None:
    fits = {"filename": "a", "content_base64": "A" * 900_000}
    large = {"filename": "b", "content_base64": "A" * 1_000_000}

    assert ann.post("/api/files", json=fits).status_code == 201
    answer = ann.post("/api/files", json=large)

    assert answer.status_code == 413
    assert "?filename=" in answer.json()["error"]
    assert list(served.contents()) == ["a"]


def test_used_up_quota_is_507_with_a_sentence(tmp_path: Path) -> None:
    served = Served.at(tmp_path, max_user_bytes=1000)
    with served.visitor("ann") as ann:
        fits = ann.post("/api/files?filename=a", content=b"a" * 900)
        full = ann.post("/api/files?filename=b", content=b"b" * 900)

    assert (fits.status_code, full.status_code) == (201, 507)
    assert "limit" in full.json()["error"]
    assert list(served.contents()) == ["a"]


def test_full_disk_is_507_with_a_sentence(
    served: Served, ann: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runner.http import upload

    assert ann.post("/api/files?filename=a", content=b"a").status_code == 201
    monkeypatch.setattr(upload, "least_free_bytes", lambda _disk: 2**63)
    answer = ann.post("/api/files?filename=b", content=b"b")

    assert answer.status_code == 507
    assert "disk is full" in answer.json()["error"]
    assert list(served.contents()) == ["a"]


@pytest.mark.parametrize(
    ("sentence", "address", "sent"),
    [
        ("no name", "/api/files", {"content": b"x"}),
        ("no name", "/api/files?filename=", {"content": b"x"}),
        ("no name", "/api/files", form((in_form(""), b"x"))),
        ("not JSON", "/api/files", {"content": b"{", "headers": {"content-type": "application/json"}}),
        (
            "more than 10,000 values",
            "/api/files",
            {"content": b"[" * 99_999, "headers": {"content-type": "application/json"}},
        ),
        ("JSON object with filename", "/api/files", {"json": []}),
        ("JSON object with filename", "/api/files", {"json": {"filename": 7, "content_base64": ""}}),
        ("JSON object with filename", "/api/files", {"json": {"content_base64": "eA=="}}),
        ("not base64", "/api/files", {"json": {"filename": "x.bin", "content_base64": "not base64!!"}}),
        (
            "not base64",
            "/api/files",
            {
                "content": b'{"filename": "x.bin", "content_base64": "eA==\\ud800"}',
                "headers": {"content-type": "application/json"},
            },
        ),
        ("not base64", "/api/files", {"json": {"filename": "x.bin"}}),
        ("has no file", "/api/files", form(('Content-Disposition: form-data; name="a"', b"x"))),
        ("more than one file", "/api/files", form((in_form("a"), b"x"), (in_form("b"), b"y"))),
        ("names no boundary", "/api/files", {"headers": {"content-type": "multipart/form-data"}}),
        (
            "before its last boundary",
            "/api/files",
            {
                "content": f"--x\r\n{in_form('a')}\r\n\r\nhalf of it",
                "headers": {"content-type": "multipart/form-data; boundary=x"},
            },
        ),
        (
            "not a multipart form",
            "/api/files",
            {"content": b"hello", "headers": {"content-type": "multipart/form-data; boundary=x"}},
        ),
        ("not a multipart form", "/api/files", form((in_form("a"), b"x"), boundary="b" * 5000)),
    ],
)
def test_malformed_upload_is_400_and_stores_nothing(
    served: Served, ann: TestClient, sentence: str, address: str, sent: dict[str, Any]
) -> None:
    answer = ann.post(address, **sent)

    assert answer.status_code == 400
    assert sentence in answer.json()["error"]
    assert served.contents() == {}


def test_refused_upload_leaves_nothing_in_store(served: Served, ann: TestClient, tmp_path: Path) -> None:
    ann.post("/api/files?filename=a", content=b"a")
    ann.post("/api/files?filename=b", content=b"b" * (LIMIT + 1))
    ann.post("/api/files", **form((in_form("a"), b"x"), (in_form("b"), b"y")))

    assert left_behind(tmp_path / "store") == []
    assert len(list((tmp_path / "store").glob("*/*/objects/*"))) == 1


@pytest.mark.anyio
async def test_disconnecting_client_stores_nothing(served: Served, tmp_path: Path) -> None:
    async with asking(served.web, "POST", ADDRESS, headers=FROM_ANN, body=b"half", cut_off=True) as answer:
        await answer.whole()

    assert answer.status == 400
    assert await served.files().all() == []
    assert left_behind(tmp_path / "store") == []


@pytest.mark.anyio
async def test_concurrent_uploads_of_user_bounded(served: Served) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(16):
            under_way = asking(served.web, "POST", ADDRESS, headers=FROM_ANN, body=b"half", hold=True)
            await stack.enter_async_context(under_way)
        async with asking(served.web, "POST", ADDRESS, headers=FROM_ANN, body=b"all") as refused:
            sentence = await refused.whole()
        from_bob = {"authorization": f"Bearer {TOKENS['bob']}"}
        async with asking(served.web, "POST", ADDRESS, headers=from_bob, body=b"all") as beside:
            await beside.whole()
    async with asking(served.web, "POST", ADDRESS, headers=FROM_ANN, body=b"all") as after:
        await after.whole()

    assert (refused.status, beside.status, after.status) == (429, 201, 201)
    assert b"16 uploads of yours are under way" in sentence


def test_json_body_above_value_limit_refused(served: Served, ann: TestClient) -> None:
    few = {"filename": "a", "content_base64": "YQ==", "more": [1] * 9_000}
    many = {"filename": "b", "content_base64": "YQ==", "more": [1] * 11_000}

    assert ann.post("/api/files", json=few).status_code == 201
    answer = ann.post("/api/files", json=many)

    assert answer.status_code == 400
    assert "more than 10,000 values" in answer.json()["error"]
    assert list(served.contents()) == ["a"]


@pytest.mark.anyio
async def test_cancelled_upload_waits_for_its_write(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    began, may_end, real = threading.Event(), threading.Event(), os.statvfs

    def slow(path: Any) -> os.statvfs_result:
        began.set()
        assert may_end.wait(60)
        return real(path)

    async def body() -> Message:
        return {"type": "http.request", "body": b"content"}

    async def upload() -> None:
        scope = {"type": "http", "method": "PUT", "headers": [], "query_string": b"filename=a.txt"}
        async with (
            UploadRooms(quota=Quota).one(served.files()) as room,
            receive(Request(scope, body), served.site.settings, room, max_json_bytes=1),
        ):
            raise AssertionError

    monkeypatch.setattr(os, "statvfs", slow)
    uploading = asyncio.create_task(upload())
    assert await becomes(began.is_set)
    uploading.cancel()
    for _turn in range(10):
        await asyncio.sleep(0)
    is_waiting = not uploading.done()
    may_end.set()

    assert is_waiting
    with pytest.raises(asyncio.CancelledError):
        await uploading
