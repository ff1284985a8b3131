"""`artifact://` resources, through which MCP clients read files that tools made.

`artifact://ID` returns the whole file if it fits in one message, else an error that names the range to
request: `artifact://ID?offset=0&length=500000`, both in bytes. Text and JSON are returned as text, everything
else as base64. A multi-byte character belongs to the range in which it begins.

Source: MCP `resources/read`; the architecture's decision "Blobs".
"""

import json
from typing import Any
from urllib.parse import parse_qs

import mcp_types
import pybase64
from mcp.shared.exceptions import MCPError

from runner.errors import CallError
from runner.files.my_files import SCHEME, MyFiles, artifact_id
from runner.formats.bounded_text import whole_characters
from runner.formats.mime import is_text
from runner.store.protocol import Record

__all__ = ["MAX_BLOB_BYTES", "read_artifact"]

MAX_BLOB_BYTES = 600_000
"""Most bytes of a file in one message; base64 makes them a third longer."""


async def read_artifact(files: MyFiles, uri: str) -> dict[str, Any]:
    """Return the wire result of reading one of the user's files, or a range of it.

    Raises:
        MCPError: The URI names no file of this user, or the range is malformed or too long for a message.
    """
    file = await files.by_id(artifact_id(uri) or "")
    if file is None:
        message = f"Resource not found: {uri!r}; it is not a file of this user, or was removed"
        raise MCPError(code=mcp_types.INVALID_PARAMS, message=message, data={"uri": uri})
    offset, length = _range(uri, uri.partition("?")[2], file)
    # Up to three bytes more, to complete the last character.
    more = min(3, file.size - offset - length) if is_text(file.mime) else 0
    try:
        async with files.open(file, offset=offset, length=length + more) as content:
            data = b"".join([chunk async for chunk in content])
    except CallError as error:
        details = {"error_code": error.code.name, **error.details}
        raise MCPError(code=mcp_types.INTERNAL_ERROR, message=error.message, data=details) from error
    text = _text(data, length, is_first=offset == 0) if is_text(file.mime) else None
    read = {"blob": pybase64.b64encode(data[:length]).decode("ascii")} if text is None else {"text": text}
    about = {"toolcell/size": file.size, "toolcell/name": file.name}
    return {"contents": [{"uri": uri, "mimeType": file.mime, **read, "_meta": about}]}


def _text(data: bytes, length: int, *, is_first: bool) -> str | None:
    """Return a range of a file as text; None if it is not UTF-8, or base64 is shorter in a message."""
    try:
        text = data[whole_characters(data, length, is_first=is_first)].decode()
    except UnicodeDecodeError:
        return None
    if "\0" in text or len(json.dumps(text, ensure_ascii=False).encode()) > MAX_BLOB_BYTES * 4 // 3:
        return None
    return text


def _range(uri: str, query: str, file: Record) -> tuple[int, int]:
    wanted = _numbers(query)
    offset = wanted.get("offset", 0)
    length = wanted.get("length", file.size - offset)
    if not wanted.keys() <= {"offset", "length"} or not 0 <= offset <= file.size or length < 0:
        message = f"{uri!r}: a range is written ?offset=BYTES&length=BYTES within {file.size} bytes"
        raise MCPError(code=mcp_types.INVALID_PARAMS, message=message)
    if length > MAX_BLOB_BYTES:
        message = (
            f"{file.name} has {file.size} bytes, and one message carries {MAX_BLOB_BYTES} at most; "
            f"read it in parts: {SCHEME}{file.id}?offset={offset}&length={MAX_BLOB_BYTES}"
        )
        raise MCPError(code=mcp_types.INVALID_PARAMS, message=message, data={"size": file.size})
    return offset, length


def _numbers(query: str) -> dict[str, int]:
    """Return the integers of a query; other values become -1, which no range accepts."""
    pairs = parse_qs(query, keep_blank_values=True)
    return {
        key: int(values[-1]) if values[-1].isdecimal() and len(values[-1]) < 20 else -1
        for key, values in pairs.items()
    }
