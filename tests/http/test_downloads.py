import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.testclient import TestClient
from starlette.types import Message

from runner.files.download_links import PURPOSE, DownloadLinks
from runner.files.my_files import Library
from runner.files.sessions import Sessions
from runner.http.file_response import (
    OpenedResponse,
    UnsatisfiableRangeError,
    content_disposition,
    parse_range,
)
from runner.http.link_downloads import routes
from runner.store.local.blobs import LocalBlobs
from runner.store.protocol import Origin, Record
from runner.store.store import BlobStore
from runner.users.capability_tokens import Tokens

DATA = bytes(range(256)) * 4096
NOW = 1_800_000_000.0


@dataclass
class Site:
    client: TestClient
    tokens: Tokens
    library: Library

    def keep(
        self, user: str = "alice", *, name: str = "data.bin", mime: str = "image/png", data: bytes = DATA
    ) -> str:
        put = self.library.of(user).put(data, name=name, mime=mime, origin=Origin.GENERATED)
        return asyncio.run(put).id

    def link(self, key: str, *, user: str = "alice", purpose: str = PURPOSE, made: float = NOW) -> str:
        token = self.tokens.sign(user=user, key=key, purpose=purpose, now=made, ttl_s=60)
        return f"/api/files/download/{key}?token={token}"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "state").mkdir()
    tokens = Tokens(tmp_path / "state" / "tokens.json")
    library = Library(
        store=BlobStore(LocalBlobs(tmp_path / "store")), sessions=Sessions(tmp_path / "sessions")
    )
    with TestClient(Starlette(routes=routes(tokens, library, clock=lambda: NOW))) as client:
        yield Site(client=client, tokens=tokens, library=library)


def open_files(folder: Path) -> list[str]:
    """Return what this process has open below a folder."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [path for path in found if path.startswith(f"{folder}/")]


def test_token_holder_gets_bytes(site: Site) -> None:
    answer = site.client.get(site.link(site.keep(name="chart.png")))

    assert (answer.status_code, answer.content) == (200, DATA)
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["content-length"] == str(len(DATA))


def test_invalid_media_type_becomes_plain_bytes(site: Site) -> None:
    answer = site.client.get(site.link(site.keep(mime="text/html\r\nset-cookie: a=b")))

    assert answer.headers["content-type"] == "application/octet-stream"
    assert "set-cookie" not in answer.headers


def test_download_is_attachment_never_run_cached_or_sniffed(site: Site) -> None:
    headers = site.client.get(site.link(site.keep(name="page.html", mime="text/html"))).headers

    assert headers["content-disposition"] == 'attachment; filename="page.html"'
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"] == "sandbox; default-src 'none'"
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"
    assert "set-cookie" not in headers


def test_request_without_right_token_reveals_nothing(site: Site) -> None:
    key, other = site.keep(), site.keep(name="other.bin", data=b"other")
    good = site.link(key)
    wrong = [
        f"/api/files/download/{key}",
        f"/api/files/download/{key}?token=",
        f"/api/files/download/{key}?token=%00%C3%A9",
        good[:-1] + ("A" if good[-1] != "A" else "B"),
        site.link(other).replace(other, key),
        site.link(key, purpose="read"),
        site.link(key, made=NOW - 61),
        "/api/files/download/art_000000000000?token=a.b",
    ]

    answers = [site.client.get(url) for url in wrong]

    assert site.client.get(good).status_code == 200
    assert [answer.status_code for answer in answers] == [403] * len(wrong)
    assert all(set(answer.json()) == {"error"} for answer in answers)


def test_token_of_one_user_opens_no_file_of_another(site: Site) -> None:
    key = site.keep("bob")

    assert site.client.get(site.link(key, user="bob")).status_code == 200
    assert site.client.get(site.link(key, user="alice")).status_code == 404


def test_refused_download_logs_short_key_and_no_token(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="runner.http")
    for key in ("art_1", "a" * 50_000):
        assert site.client.get(f"/api/files/download/{key}?token=hunter2.hunter2").status_code == 403

    records = [record for record in caplog.records if record.name == "runner.http.link_downloads"]
    assert {record.getMessage() for record in records} == {"download refused"}
    assert [vars(record)["key"] for record in records] == ["art_1", "a" * 64]
    assert all("hunter2" not in str(vars(record)) for record in records)


@pytest.mark.parametrize(
    ("range_header", "part", "content_range"),
    [
        ("bytes=0-99", DATA[:100], f"bytes 0-99/{len(DATA)}"),
        ("bytes=1048000-", DATA[1048000:], f"bytes 1048000-{len(DATA) - 1}/{len(DATA)}"),
        ("bytes=-5", DATA[-5:], f"bytes {len(DATA) - 5}-{len(DATA) - 1}/{len(DATA)}"),
        (f"bytes=10-{len(DATA) * 2}", DATA[10:], f"bytes 10-{len(DATA) - 1}/{len(DATA)}"),
    ],
)
def test_range_served_as_requested(site: Site, range_header: str, part: bytes, content_range: str) -> None:
    answer = site.client.get(site.link(site.keep()), headers={"range": range_header})

    assert (answer.status_code, answer.content) == (206, part)
    assert answer.headers["content-range"] == content_range
    assert answer.headers["content-length"] == str(len(part))


def test_range_past_end_is_416_with_size(site: Site) -> None:
    answer = site.client.get(site.link(site.keep()), headers={"range": f"bytes={len(DATA)}-"})

    assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{len(DATA)}")


def test_resumed_download_restarts_if_file_changed(site: Site) -> None:
    link = site.link(site.keep())
    etag = site.client.get(link).headers["etag"]

    same = site.client.get(link, headers={"range": "bytes=5-9", "if-range": etag})
    changed = site.client.get(link, headers={"range": "bytes=5-9", "if-range": '"another"'})

    assert (same.status_code, same.content) == (206, DATA[5:10])
    assert (changed.status_code, changed.content) == (200, DATA)


@pytest.mark.parametrize(("known", "status"), [('"other"', 206), ('"other", W/{}', 304), ("*", 206)])
def test_file_that_client_has_is_not_sent_again(site: Site, known: str, status: int) -> None:
    link = site.link(site.keep())
    etag = site.client.get(link).headers["etag"]

    answer = site.client.get(link, headers={"range": "bytes=5-9", "if-none-match": known.format(etag)})

    assert (answer.status_code, answer.headers["etag"]) == (status, etag)


def test_head_gives_headers_of_whole_file_without_bytes(site: Site) -> None:
    answer = site.client.head(site.link(site.keep()), headers={"range": "bytes=0-9"})

    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-length"] == str(len(DATA))


def test_head_reads_no_byte() -> None:
    sent: list[Message] = []
    read: list[bytes] = []

    async def content() -> AsyncIterator[bytes]:
        read.append(b"bytes")
        yield b"bytes"

    @asynccontextmanager
    async def opened() -> AsyncIterator[Any]:
        yield content()

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    answer = OpenedResponse(
        file=cast("Record", None),
        opened=opened(),
        shaped=lambda pieces: StreamingResponse(pieces, headers={"content-length": "5"}),
    )
    asyncio.run(answer({"type": "http", "method": "HEAD"}, receive, send))

    assert ([message.get("body", b"") for message in sent], read) == ([b"", b""], [])
    assert (b"content-length", b"5") in sent[0]["headers"]


def test_no_answer_leaves_descriptor_open(site: Site, tmp_path: Path) -> None:
    link = site.link(site.keep())
    site.client.get(link)
    before = open_files(tmp_path / "store")
    stored = next((tmp_path / "store").glob("users/alice/objects/*"))
    with stored.open():
        assert open_files(tmp_path / "store") == [*before, str(stored)]

    for headers in ({}, {"range": "bytes=1-2"}, {"range": f"bytes={len(DATA)}-"}):
        site.client.get(link, headers=headers)
        site.client.head(link, headers=headers)

    assert open_files(tmp_path / "store") == before


def test_file_missing_in_store_is_404_and_damaged_503(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    link, other = site.link(site.keep()), site.link(site.keep(name="b", data=b"other"))
    assert [site.client.get(url).status_code for url in (link, other)] == [200, 200]

    for stored in (tmp_path / "store").glob("users/alice/objects/*"):
        os.truncate(stored, 3)
    asyncio.run(site.library.of("alice").remove("b"))
    answers = [site.client.get(url) for url in (link, other)]

    assert [answer.status_code for answer in answers] == [503, 404]
    assert "download failed" in caplog.text


@pytest.mark.parametrize(
    "header", [None, "", "bytes=", "bytes=-", "bytes=5-2", "bytes=0-1,3-4", "items=0-1", "bytes=a-b"]
)
def test_other_range_headers_serve_whole_file(header: str | None) -> None:
    assert parse_range(header, 100) is None


@pytest.mark.parametrize(
    ("header", "size"), [("bytes=0-", 0), ("bytes=-0", 10), ("bytes=10-", 10), ("bytes=-5", 0)]
)
def test_range_without_byte_is_unsatisfiable(header: str, size: int) -> None:
    with pytest.raises(UnsatisfiableRangeError):
        parse_range(header, size)


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("a b.txt", 'attachment; filename="a b.txt"'),
        ("grüße.txt", "attachment; filename=\"gr__e.txt\"; filename*=UTF-8''gr%C3%BC%C3%9Fe.txt"),
        ('a";x="b', "attachment; filename=\"a_;x=_b\"; filename*=UTF-8''a%22%3Bx%3D%22b"),
        ("a\r\nb", "attachment; filename=\"a__b\"; filename*=UTF-8''a%0D%0Ab"),
        ("\udcff", "attachment; filename=\"_\"; filename*=UTF-8''%3F"),
    ],
)
def test_name_cannot_break_out_of_header(name: str, header: str) -> None:
    assert content_disposition(name) == header


def test_link_to_one_of_two_equal_files_keeps_its_name(site: Site) -> None:
    first, second = site.keep(name="Angebot A.txt"), site.keep(name="Angebot B.txt")
    links = DownloadLinks(tokens=site.tokens, clock=lambda: NOW)
    site.keep(name="other.txt", data=b"of another content")

    names = [
        site.client.get(links.to("alice", key, name=name)).headers["content-disposition"]
        for key, name in ((first, "Angebot A.txt"), (second, "Angebot B.txt"), (first, "other.txt"))
    ]

    assert first == second
    assert names[:2] == ['attachment; filename="Angebot A.txt"', 'attachment; filename="Angebot B.txt"']
    # A name that belongs to another file is not given to this one.
    assert "other" not in names[2]
