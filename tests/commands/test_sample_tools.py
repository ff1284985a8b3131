"""The sample tools, each served by `runner serve` and called by a client as its first lines say."""

import hashlib
import io
import json
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fastmcp import Client
from mcp_types import TextResourceContents
from support import SAMPLES, Ran

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

SALES = SAMPLES / "data" / "sales.csv"
MODEL_READS_AT_MOST = 50_000


@pytest.fixture
def serve(serve_http: Callable[..., str]) -> Callable[..., Client[Any]]:
    """Serve one sample; returns a client of it."""

    def client(name: str, *, mode: str = "auto", **more: str) -> Client[Any]:
        return Client(serve_http(SAMPLES / f"{name}.py", **more), mode=mode)

    return client


async def result_of(client: Client[Any], tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool; return its contract value."""
    result = await client.call_tool(tool, arguments)
    assert isinstance(result.structured_content, dict)
    return result.structured_content


async def content(client: Client[Any], reference: dict[str, Any]) -> bytes:
    """Read what a reference of a result stands for."""
    [block] = await client.read_resource(reference["uri"])
    if isinstance(block, TextResourceContents):
        return block.text.encode()
    return b64decode(block.blob)


def put(run: Callable[..., Ran], file: Path) -> None:
    done = run("files", "put", file)
    assert done.status == 0, done.err


async def test_sample_draft_deferred_then_finished_by_name(serve: Any) -> None:
    async with serve("drafts") as client:
        draft = await result_of(client, "draft", title="Spring sale")
        finished = await result_of(client, "finish", filename="Spring sale.md", text="Ten percent off.")
        [letter] = finished["artifacts"]
        written = await content(client, letter)

    assert draft["results"] == {"draft": "Spring sale.md"}
    assert draft["deferred_artifacts"][0]["reason"] == "needs_editing"
    assert written == b"# Spring sale\n\nTen percent off.\n"


async def test_sample_display_opens_file_and_page_only_if_allowed(serve: Any) -> None:
    async with serve("canvas", RUNNER_IFRAME_ORIGINS="https://status.example.com") as client:
        compared = await client.call_tool("compare", {"old": "ab", "new": "abcd"})
        opened = await client.call_tool("monitor", {})
    async with serve("canvas") as client:
        refused = await client.call_tool("monitor", {})

    plan = compared.meta["toolcell/display"]
    assert (plan["open"], plan["order"][0], plan["mode"]) == (True, "summary.html", "split")
    assert opened.meta["toolcell/display"]["iframe"]["src"] == "https://status.example.com/shop"
    assert "iframe" not in refused.meta["toolcell/display"]


async def test_sample_links_fetch_files_and_resource_link_is_read(
    serve: Any, run: Callable[..., Ran]
) -> None:
    put(run, SALES)
    async with serve("links") as client:
        fetched = await result_of(client, "digests", file_names=["sales.csv"])
        manual = await client.call_tool("manual", {})
        [link] = [block for block in manual.content if block.type == "resource_link"]
        [page] = await client.read_resource(link.uri)

    data = SALES.read_bytes()
    assert fetched["results"] == [{"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}]
    assert str(link.uri) == "manual://units"
    assert page.text.startswith("Lengths are in bytes")


async def test_sample_transformer_shortens_text_and_keeps_table_file(serve: Any) -> None:
    async with serve("transformer") as client:
        result = await client.call_tool("stock", {"rows": 20_000})
        left = await result_of(client, "articles", rows=20_000)
        table = result.structured_content["results"]["table"]
        table_text = await content(client, {"uri": f"artifact://{table['id']}"})

    assert left["results"] == {"articles": 20_000}
    assert result.structured_content["results"]["begins"] == ["article,pieces", "A00000,0", "A00001,1"]
    assert len(result.content[0].text) < 1_000
    assert len(table_text.splitlines()) == 20_001


async def test_sample_large_results_short_for_model_complete_in_files(serve: Any) -> None:
    async with serve("large_results") as client:
        orders = await client.call_tool("orders", {"count": 5_000})
        journal = await client.call_tool("journal", {"lines": 5_000})
        picture = await client.call_tool("picture", {"side": 400})
        reference = picture.structured_content["results"]["image"]["artifact"]
        png = await content(client, {"uri": f"artifact://{reference['id']}"})

    for result in (orders, journal, picture):
        shown = "".join(block.text for block in result.content if block.type == "text")
        assert len(shown) + len(json.dumps(result.structured_content)) <= MODEL_READS_AT_MOST
    assert picture.structured_content["results"]["title"] == "grey"
    assert (reference["mime_type"], reference["size_bytes"]) == ("image/png", len(png))


async def test_sample_state_kept_in_each_documented_place(serve: Any) -> None:
    # Only clients of the handshake era have sessions.
    async with serve("state", mode="legacy") as client:
        counted = [(await client.call_tool("count", {})).data for _ in range(2)]
        await client.call_tool("choose", {"language": "fr"})
        chosen = await client.call_tool("choose", {"language": None})
        await client.call_tool("note", {"text": "one"})
        noted = await client.call_tool("note", {"text": "two"})

    assert counted == [1, 2]
    assert chosen.data == "fr"
    assert noted.data == ["one", "two"]


async def test_sample_data_frame_becomes_parquet_and_report(serve: Any, run: Callable[..., Ran]) -> None:
    """The examples of document 001. Source: S1-58, S1-107 to S1-109 and S1-112."""
    put(run, SALES)
    async with serve("data_frames") as client:
        parquet = await result_of(client, "process_data", filename="sales.csv")
        report = await result_of(client, "analyze_dataset", filename="sales.csv")
        frame = pd.read_parquet(io.BytesIO(await content(client, parquet["artifacts"][0])))
        page = await content(client, report["artifacts"][0])

    assert parquet["results"] is None
    assert parquet["artifacts"][0]["name"] == "processed_data.parquet"
    pd.testing.assert_frame_equal(frame, pd.read_csv(SALES))
    assert report["results"] == {"rows_processed": len(frame)}
    assert "North" in page.decode()
