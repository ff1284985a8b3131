"""Smaller versions of pictures: which are made, and what a client gets of them."""

import asyncio
import base64
import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from PIL import Image
from support import TOOLS, open_toolset, settings_in

from runner.server.host import make_host
from runner.settings.settings import Settings
from runner.toolset.small_pictures import smaller_picture
from runner.users.identity import User

pytestmark = pytest.mark.kernel

FORMATS = ("JPEG", "PNG", "WEBP")
MARKED = ["PNG", *(pytest.param(kind, marks=pytest.mark.release) for kind in ("JPEG", "WEBP"))]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait as long for a smaller picture as it takes on a busy machine."""
    monkeypatch.setattr("runner.toolset.small_pictures._DEADLINE_S", 180.0)


def picture(kind: str = "PNG", width: int = 400, height: int = 200) -> bytes:
    """Return a picture that cannot be compressed."""
    made = io.BytesIO()
    Image.frombytes("RGB", (width, height), os.urandom(3 * width * height)).save(made, kind)
    return made.getvalue()


def png_of(width: int, height: int, rows: int) -> bytes:
    """Return a PNG whose header has one size and whose data another number of black rows."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    packer = zlib.compressobj(9)
    row = bytes(1 + (width + 7) // 8)
    data = b"".join([*(packer.compress(row) for _ in range(rows)), packer.flush()])
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def smaller(settings: Settings, user: str, content: bytes, most_bytes: int) -> bytes | None:
    return asyncio.run(smaller_picture(content, most_bytes, tool="show", user=User(user), settings=settings))


@pytest.mark.release
@pytest.mark.parametrize("kind", FORMATS)
def test_oversized_picture_keeps_its_format(kind: str, user: str, tmp_path: Path) -> None:
    original = picture(kind)
    most = len(original) // 3

    made = smaller(settings_in(tmp_path), user, original, most)

    assert made is not None
    assert len(made) <= most
    with Image.open(io.BytesIO(made)) as opened:
        assert opened.format == kind
        assert 1.9 < opened.width / opened.height < 2.1
        assert most / 4 < len(made)


@pytest.mark.release
def test_picture_of_too_many_pixels_is_not_decoded(user: str, tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    bomb = png_of(20_000, 20_000, 20_000)
    control = png_of(2_000, 2_000, 2_000)
    assert len(bomb) < 100_000

    assert smaller(settings, user, control, len(control) - 1) is not None
    assert smaller(settings, user, bomb, len(bomb) - 1) is None


@pytest.mark.release
@pytest.mark.parametrize(
    "faulty",
    [picture()[:60_000], picture("GIF"), b"\x89PNG\r\n\x1a\n", b"", b"text" * 9000],
    ids=["cut off", "another format", "a signature", "empty", "a text"],
)
def test_faulty_picture_has_no_smaller_version(faulty: bytes, user: str, tmp_path: Path) -> None:
    assert smaller(settings_in(tmp_path), user, faulty, 50_000) is None


@pytest.mark.release
def test_memory_limit_of_the_tool_holds_for_its_pictures(user: str, tmp_path: Path) -> None:
    large = png_of(4_900, 4_900, 4_900)

    assert smaller(settings_in(tmp_path), user, large, len(large) - 1) is not None
    assert smaller(settings_in(tmp_path, memory_mb=64), user, large, len(large) - 1) is None


async def shown(folder: Path, user: str, pictures: list[bytes], kind: str, **settings: Any) -> list[Any]:
    """Return the content blocks that a client gets of pictures."""
    encoded = [base64.b64encode(each).decode() for each in pictures]
    async with (
        open_toolset(TOOLS / "pictures.py", folder, user, **settings) as toolset,
        Client(make_host(toolset, transport="stdio", download_url=None)) as client,
    ):
        called = await client.call_tool_mcp("show", {"pictures": encoded, "kind": kind.lower()})
        return list(called.content)


@pytest.mark.parametrize("kind", MARKED)
def test_client_gets_the_smaller_picture_and_a_link(kind: str, user: str, tmp_path: Path) -> None:
    content = picture(kind, 1600, 800)

    link, image = asyncio.run(shown(tmp_path, user, [content], kind))

    assert (link.type, image.type) == ("resource_link", "image")
    assert image.mime_type == f"image/{kind.lower()}"
    with Image.open(io.BytesIO(base64.b64decode(image.data))) as opened:
        opened.load()
        assert opened.format == kind
    assert "original" in link.description
    assert link.size == len(content)


@pytest.mark.release
def test_client_gets_pictures_reduced_and_faulty_ones_as_links(user: str, tmp_path: Path) -> None:
    large = picture("PNG", 1000, 500)
    pictures = [large, large[:900_000], large]

    content = asyncio.run(shown(tmp_path, user, pictures, "PNG"))

    assert [block.type for block in content] == [
        "resource_link",
        "image",
        "resource_link",
        "resource_link",
        "image",
    ]
    assert "Not shown" in content[2].description
