"""Contents and references of a result reach the next tool and the model, also after a restart."""

import json
import sqlite3
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from answer_parts import text_of
from fastmcp import Client
from support import TOOLS, serving_over_http

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

FILE = TOOLS / "handing_on.py"
READING = {"artifact_info", "artifact_read", "artifact_search"}


def structured(result: Any) -> dict[str, Any]:
    assert isinstance(result.structured_content, dict), result
    return result.structured_content


@asynccontextmanager
async def served(environment: dict[str, str], folder: Path) -> AsyncIterator[Client[Any]]:
    with serving_over_http(FILE, environment, cwd=folder) as url:
        async with Client(url) as client:
            yield client


async def test_long_text_read_and_passed_on_after_restart(environment: dict[str, str], folder: Path) -> None:
    async with served(environment, folder) as client:
        listed = {tool.name for tool in await client.list_tools()}
        reference = json.loads(text_of((await client.call_tool("page")).content[0]))
    assert listed >= READING
    assert "artifact_read" in reference["read"]
    artifact, uri = reference["artifact"], f"artifact://{reference['artifact']['id']}"

    async with served(environment, folder) as client:
        listed = {tool.name for tool in await client.list_tools()}
        read = structured(await client.call_tool("artifact_read", {"id": uri, "length": 31}))
        (resource,) = await client.read_resource(uri)
        names = (uri, artifact["id"], artifact["filename"])
        sizes = [structured(await client.call_tool("analyse", {"filename": name})) for name in names]

    assert listed >= READING
    assert read["text"] == "A line of an ordinary page: ä."
    assert getattr(resource, "text", "").startswith("A line of an ordinary page: ä.\nA line")
    assert sizes == [{"bytes": artifact["size_bytes"]}] * 3


async def test_links_and_paths_of_stored_files_resolve(environment: dict[str, str], folder: Path) -> None:
    async with served(environment, folder) as client:
        text, link = (await client.call_tool("report")).content
        (linked,) = await client.read_resource(str(getattr(link, "uri", "")))
        book = structured(await client.call_tool("workbook"))
        later = structured(await client.call_tool("latest"))
        (read,) = await client.read_resource(book["filepath"])
        size = structured(await client.call_tool("analyse", {"filename": book["filepath"]}))

    assert text_of(text) == f"Saved to {getattr(link, 'uri', '')}."
    assert getattr(linked, "text", "") == "report"
    assert book["message"] == f"see {book['filepath']}"
    assert (getattr(read, "text", ""), size) == ("a", {"bytes": 1})
    assert later["filepath"] == book["filepath"]
    assert later["missing"].startswith("/tmp/")


async def test_database_in_use_stored_and_returned_whole(environment: dict[str, str], folder: Path) -> None:
    async with served(environment, folder) as client:
        uris = []
        for body in ("one", "two"):
            result = await client.call_tool("note", {"body": body})
            assert result.meta is not None
            (entry,) = result.meta["toolcell/result"]["meta_data"]["generated_files"]
            uris.append(entry["uri"])
        uris.append(structured(await client.call_tool("export"))["artifacts"][0]["uri"])
        (second,), (exported,) = [await client.read_resource(uri) for uri in uris[1:]]
        with pytest.raises(Exception, match="not found"):
            await client.read_resource(uris[0])

    for read in (second, exported):
        (folder / "read.db").write_bytes(b64decode(getattr(read, "blob", "")))
        with closing(sqlite3.connect(f"{(folder / 'read.db').as_uri()}?immutable=1", uri=True)) as database:
            assert database.execute("SELECT body FROM notes").fetchall() == [("one",), ("two",)]
