"""Uploads that do not fit are refused before they are on disk: by what is announced, and as they come."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from body_support import Sender, part_of
from disks import small_disk
from site_support import Served
from support import becomes

from runner.store.protocol import Origin

pytestmark = [pytest.mark.anyio, pytest.mark.needs_root]

MIB = 1024 * 1024
QUOTA = 10 * MIB
PUT = "/api/files?filename="
# A file of this length in a form.
HEAD = b'--x\r\nContent-Disposition: form-data; name="f"; filename="a"\r\n\r\n'
TAIL = b"\r\n--x--\r\n"
FORM = {"content_type": "multipart/form-data; boundary=x"}
PLAIN = {"content_type": "application/octet-stream"}


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served.at(tmp_path, max_user_bytes=QUOTA)


async def stored(sender: Sender, content: bytes = b"") -> int | None:
    """Send the rest of an upload; return the status of its answer."""
    if content:
        sender.pieces.put_nowait(content)
    sender.pieces.put_nowait(None)
    assert await becomes(lambda: sender.status is not None)
    return sender.status


async def flooded(sender: Sender, pieces: int = 100) -> int | None:
    """Send pieces of a MiB until there is an answer; return its status."""
    for _ in range(pieces):
        sender.pieces.put_nowait(os.urandom(MIB))
        assert await becomes(lambda: sender.pieces.empty() or sender.status is not None)
        if sender.status is not None:
            break
    return sender.status


@pytest.mark.parametrize("kind", [PLAIN, FORM], ids=["body", "form"])
async def test_announced_upload_above_the_quota_is_refused_unread(
    served: Served, kind: dict[str, str]
) -> None:
    # The parts of a form around its file are not a file yet.
    length = QUOTA + (MIB if kind is FORM else 0)
    async with part_of(served.web, PUT + "a", 0, content_length=str(length), **kind) as fits:
        assert await becomes(lambda: fits.pieces.qsize() == 0)
        async with part_of(served.web, PUT + "a", 0, "bob", content_length=str(length + 1), **kind) as other:
            assert await becomes(lambda: other.status is not None)

    assert (other.status, other.taken, fits.status) == (507, 0, None)
    assert f"the limit of {QUOTA} (max_user_bytes)" in other.error


@pytest.mark.parametrize("length", [{}, {"content_length": "10"}], ids=["chunked", "lying"])
@pytest.mark.parametrize("kind", [PLAIN, FORM], ids=["body", "form"])
async def test_upload_above_quota_refused_during_transfer(
    served: Served, kind: dict[str, str], length: dict[str, str]
) -> None:
    async with part_of(served.web, PUT + "a", 0, **kind, **length) as sender:
        sender.pieces.put_nowait(HEAD)
        assert await flooded(sender) == 507

    assert sender.taken <= QUOTA + 2 * MIB
    assert "max_user_bytes" in sender.error


async def test_json_upload_above_the_quota_is_refused(tmp_path: Path) -> None:
    served = Served.at(tmp_path, max_user_bytes=2)
    with served.visitor("ann") as ann:
        answers = [
            ann.post("/api/files", json={"filename": "a", "content_base64": content})
            for content in ("YWI=", "YWJj")
        ]

    assert [answer.status_code for answer in answers] == [201, 507]


async def test_uploads_that_fit_only_separately_are_refused(served: Served) -> None:
    half = {"content_length": str(6 * MIB), **PLAIN}
    async with part_of(served.web, PUT + "a", MIB, **half) as first:
        async with part_of(served.web, PUT + "b", 0, **half) as second:
            assert await becomes(lambda: second.status is not None)
        async with (
            part_of(served.web, PUT + "c", 0, **PLAIN) as chunked,
            part_of(served.web, PUT + "d", MIB, "bob", **half) as other,
        ):
            assert await flooded(chunked) == 507
            assert other.status is None
        assert (second.status, second.taken) == (507, 0)
        assert chunked.taken <= 6 * MIB
        assert first.status is None
    # Given up, it keeps nothing.
    async with part_of(served.web, PUT + "e", 0, **half) as third:
        assert await stored(third, os.urandom(6 * MIB)) == 201


async def test_stored_upload_counts_for_those_in_flight(served: Served) -> None:
    async with part_of(served.web, PUT + "slow", MIB, **PLAIN) as slow:
        async with part_of(served.web, PUT + "a", 0, **PLAIN) as first:
            assert await stored(first, os.urandom(6 * MIB)) == 201
        assert await flooded(slow) == 507

    assert slow.taken <= 6 * MIB


async def test_file_removed_meanwhile_makes_room(served: Served) -> None:
    old = await served.files().put(os.urandom(9 * MIB), name="old", origin=Origin.GENERATED)
    async with part_of(served.web, PUT + "new", MIB, **PLAIN) as new:
        assert await served.files().remove(old.shown)
        assert await stored(new, os.urandom(5 * MIB)) == 201


@pytest.mark.parametrize("kind", [PLAIN, FORM], ids=["body", "form"])
async def test_content_already_stored_needs_no_room(served: Served, kind: dict[str, str]) -> None:
    content = os.urandom(8 * MIB)
    await served.files().put(content, name="a", origin=Origin.GENERATED)
    whole = HEAD + content + TAIL if kind is FORM else content
    changed = HEAD + content[:-1] + b"?" + TAIL if kind is FORM else content[:-1] + b"?"

    for sent, status in ((whole, 201), (changed, 507)):
        length = str(len(sent))
        async with part_of(served.web, PUT + "again", 0, content_length=length, **kind) as sender:
            assert await stored(sender, sent) == status


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as folder:
        yield folder


def free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


@pytest.mark.parametrize("length", [{}, {"content_length": str(12 * MIB)}], ids=["chunked", "announced"])
async def test_upload_leaves_room_on_the_disk(disk: Path, length: dict[str, str]) -> None:
    served = Served.at(disk)
    async with part_of(served.web, PUT + "a", 0, **PLAIN) as fits:
        assert await stored(fits, b"a") == 201
    with (disk / "of others").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free(disk) - 4 * MIB)
    lowest = free(disk)

    async with part_of(served.web, PUT + "b", 0, **PLAIN, **length) as sender:
        while sender.status is None:
            sender.pieces.put_nowait(os.urandom(MIB))
            assert await becomes(lambda: sender.pieces.empty() or sender.status is not None)
            lowest = min(lowest, free(disk))

    assert sender.status == 507
    assert "disk is full" in sender.error
    # A fiftieth of 16 MiB.
    assert lowest >= 16 * MIB // 50
    assert not length or lowest >= 4 * MIB
