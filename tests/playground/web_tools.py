"""Tools to look at: one for each thing that the Playground shows."""

import asyncio
import io
import json
import os
import struct
import time
import wave
import zlib
from contextlib import suppress
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

from fastmcp import Context, FastMCP
from fastmcp.utilities.types import Image
from mcp_types import (
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    ToolAnnotations,
)
from pydantic import BaseModel, Field

from runner.widgets import Widget, add_widgets

mcp = FastMCP("gallery")

RESTLESS = """<!doctype html><title>Restless</title><p id="here">here</p><script>
fetch("https://elsewhere.example/").catch(() => { document.getElementById("here").textContent = "stopped"; });
</script>"""
restless = Widget(name="restless", html=RESTLESS, description="A widget that wants out")
add_widgets(mcp, [restless])


@mcp.tool(meta=restless.tool_meta(invoking="Looking...", invoked="Looked"))
def wander() -> dict[str, Any]:
    """Show a widget that reaches for another server."""
    return {"results": {"wanders": True}}


class Colour(Enum):
    """A colour."""

    RED = "red"
    GREEN = "green"


class Address(BaseModel):
    """An address of a person."""

    street: str
    number: int = Field(ge=1, le=9999, description="Of the house.")
    country: Literal["DE", "FR", "US"] = "DE"


class Circle(BaseModel):
    """A round thing."""

    kind: Literal["circle"] = "circle"
    radius: float


class Square(BaseModel):
    """A square thing."""

    kind: Literal["square"] = "square"
    side: float


@mcp.tool(annotations=ToolAnnotations(read_only_hint=True))
def order(
    customer: Annotated[str, Field(min_length=2, description="Who orders.")],
    address: Address,
    colour: Colour,
    shape: Circle | Square,
    tags: list[str],
    due: date | None = None,
    others: list[Address] | None = None,
    prices: dict[str, float] | None = None,
    gift: bool = False,
    number: int = 1,
) -> dict[str, Any]:
    """Take an order and say what was understood.

    Nothing is bought.
    """
    values = {"customer": customer, "address": address.model_dump(), "colour": colour.value}
    more = {"shape": shape.model_dump(), "tags": tags, "due": None if due is None else due.isoformat()}
    places = None if others is None else [each.model_dump() for each in others]
    return {"results": {**values, **more, "others": places, "prices": prices, "gift": gift, "number": number}}


@mcp.tool
def echo(value: Any = None) -> dict[str, Any]:
    """Return what was given."""
    return {"results": {"value": value, "json": json.dumps(value)}}


@mcp.tool(annotations=ToolAnnotations(destructive_hint=True, open_world_hint=True))
def publish(text: str) -> str:
    """Pretend to send a text to the world."""
    return f"sent {len(text)} characters"


@mcp.tool
async def count(ctx: Context, username: str, to: int = 4) -> str:
    """Count, and say how far it is; goes on when a file `go` lies in the home."""
    for each in range(to):
        await ctx.report_progress(each + 1, to, f"at {each + 1}")
        await ctx.info(f"counted {each + 1}")
        await asyncio.sleep(0.02)
    while not Path(f"/tmp/{username}/go").exists():
        await ctx.report_progress(to - 1, to, "waits")
        await asyncio.sleep(0.05)
    Path(f"/tmp/{username}/go").unlink()
    return f"counted to {to}"


@mcp.tool
def release(username: str) -> str:
    """Let a count go on."""
    Path(f"/tmp/{username}/go").touch()
    return "released"


@mcp.tool
def silent() -> str:
    """Wait without output until ended."""
    time.sleep(600)
    return "never"


@mcp.tool
def forbidden() -> str:
    """Write where it may not, and go on."""
    with suppress(OSError):
        Path("/etc/toolcell-forbidden").write_text("x")
    return "went on"


@mcp.tool
def broken(reason: str = "the moon is full") -> str:
    """Fail."""
    raise ValueError(reason)


@mcp.tool
async def ask(ctx: Context) -> Any:
    """Request a size from the person."""
    responses = ctx.input_responses
    if not responses:
        sizes = {"type": "string", "enum": ["small", "large"]}
        schema = {"type": "object", "properties": {"size": sizes}, "required": ["size"]}
        params = ElicitRequestFormParams(message="Which size shall it be?", requested_schema=schema)
        return InputRequiredResult(
            input_requests={"size": ElicitRequest(params=params)}, request_state="asked"
        )
    response = responses["size"]
    assert isinstance(response, ElicitResult)
    return {"results": {"action": response.action, "size": (response.content or {}).get("size")}}


@mcp.tool
def lines(filename: str, username: str) -> dict[str, Any]:
    """Count the lines of a file."""
    text = (Path(f"/tmp/{username}/input_files") / filename).read_text()
    return {"results": {"lines": len(text.splitlines())}}


@mcp.tool
def measures(filenames: list[str], username: str) -> dict[str, Any]:
    """Measure several files."""
    folder = Path(f"/tmp/{username}/input_files")
    return {"results": {name: (folder / name).stat().st_size for name in filenames}}


@mcp.tool
def gallery(username: str) -> dict[str, Any]:
    """Make one file of each kind."""
    made = {
        "picture.png": _png(),
        "drawing.svg": (
            b'<svg xmlns="http://www.w3.org/2000/svg" width="240" height="120">'
            b'<rect width="240" height="120" rx="18"'
            b' fill="#0b6b5d"/><circle cx="60" cy="60" r="34" fill="#f0b35d"/></svg>'
        ),
        "page.html": b"<!doctype html><title>Page</title><h1 id='top'>A page</h1><p>It does nothing.</p>"
        b"<script>document.title='ran'</script>",
        "paper.pdf": _pdf("A paper of one page"),
        "notes.md": b"# Notes\n\nSome *words*, a [link](https://example.com) and\n\n- one\n- two\n\n"
        b"> quoted\n\n"
        b"```python\nprint(1)\n```\n\n| a | b |\n| - | - |\n| 1 | 2 |\n",
        "sales.csv": (
            "region,units,price\n" + "".join(f"north,{n},{n}.50\n" for n in range(1, 400))
        ).encode(),
        "data.json": json.dumps(
            {"big": 12345678901234567890123, "list": list(range(120)), "deep": {"a": {"b": 1}}}
        ).encode(),
        "code.py": b'"""A module."""\n\n\ndef double(number: int) -> int:\n    return 2 * number\n',
        "build.log": b"\x1b[31mred\x1b[0m started\nfinished\n",
        "tone.wav": _wav(),
        "film.webm": b"\x1aE\xdf\xa3 no film",
        "blob.bin": bytes(range(256)),
    }
    home = Path(f"/tmp/{username}")
    for name, data in made.items():
        (home / name).write_bytes(data)
    return {
        "results": {"files": len(made)},
        "artifacts": [{"name": name, "path": str(home / name)} for name in made],
        "deferred_artifacts": [],
        "display": {"open_canvas": True},
    }


@mcp.tool
def large(username: str, megabytes: int = 50) -> dict[str, Any]:
    """Make a large JSON file."""
    path = Path(f"/tmp/{username}/large.json")
    row = json.dumps({"name": "row", "text": "x" * 960})
    with path.open("w") as file:
        file.write("[")
        file.write(",\n".join([row] * (megabytes * 1000)))
        file.write("]")
    return {"results": {"rows": megabytes * 1000}, "artifacts": [{"name": "large.json", "path": str(path)}]}


@mcp.tool
def brief(username: str, seconds: float = 2.0) -> dict[str, Any]:
    """Keep a draft for later, for a moment."""
    path = Path(f"/tmp/{username}/draft.txt")
    path.write_text("not finished")
    draft = {"name": "draft.txt", "path": str(path), "reason": "draft", "expires_hours": seconds / 3600}
    return {"results": {"drafts": 1}, "deferred_artifacts": [draft]}


@mcp.tool
def noise(rows: int = 500) -> Image:
    """Draw a picture that does not compress: 1,200 bytes a row."""
    return Image(data=_png(400, rows, os.urandom(1200 * rows)), format="png")


@mcp.tool
def wordy(kilobytes: int = 400) -> dict[str, Any]:
    """Return a long result."""
    return {"results": {"rows": [{"n": n, "text": "word " * 20} for n in range(kilobytes * 10)]}}


@mcp.tool
def board(
    url: str, name: str = "board", persistence: Literal["session", "ephemeral", "pinned"] = "session"
) -> dict[str, Any]:
    """Open a dashboard."""
    page = {"type": "iframe", "url": url, "title": f"Board {name}", "id": name, "persistence": persistence}
    return {"results": {"opened": name}, "canvas": page}


def _png(width: int = 320, height: int = 160, pixels: bytes | None = None) -> bytes:
    drawn = pixels or b"".join(
        bytes((x * 255 // width, 96, y * 255 // height)) for y in range(height) for x in range(width)
    )
    rows = b"".join(b"\0" + drawn[at : at + 3 * width] for at in range(0, len(drawn), 3 * width))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def _pdf(text: str) -> bytes:
    stream = f"BT /F1 28 Tf 40 120 Td ({text}) Tj ET".encode()
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 420 240]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        b"<</Length %d>>stream\n%s\nendstream" % (len(stream), stream),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    out, places = io.BytesIO(b"%PDF-1.4\n"), []
    out.seek(0, io.SEEK_END)
    for number, body in enumerate(objects, 1):
        places.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, body))
    table = out.tell()
    out.write(b"xref\n0 6\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % place for place in places))
    out.write(b"trailer<</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % table)
    return out.getvalue()


def _wav() -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(b"\x00\x10" * 4000)
    return out.getvalue()
