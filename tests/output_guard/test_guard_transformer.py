"""A transformer has the first word, and the guarantee the last."""

from typing import Any

import pytest
from guard_samples import PDF, b64
from guard_shelf import SCOPE, Shelf, guarded

from runner.output_guard.plain import text_of
from runner.output_guard.transformer import TransformContext
from runner.store.protocol import Retention


def test_what_it_returns_is_final(shelf: Shelf) -> None:
    def transform(tool: str, result: Any, ctx: TransformContext) -> Any:
        return {"tool": tool, "was": result, "server": ctx.server, "text": "x" * 20_000}

    value = guarded({"a": 1}, store=shelf, server="s", transformer=transform).value

    assert value == {"tool": "tool", "was": {"a": 1}, "server": "s", "text": "x" * 20_000}


def test_it_may_be_a_coroutine_function(shelf: Shelf) -> None:
    async def transform(tool: str, result: Any, ctx: TransformContext) -> Any:
        return {"async": True}

    assert guarded({}, store=shelf, transformer=transform).value == {"async": True}


def test_none_leaves_the_result_to_the_other_layers(shelf: Shelf) -> None:
    value = guarded([b64(PDF)], store=shelf, transformer=lambda tool, result, ctx: None).value

    assert shelf.contents == [PDF]
    assert "artifact" in value[0]


def test_where_it_fails_the_other_layers_work_and_a_warning_names_it(shelf: Shelf) -> None:
    def transform(tool: str, result: Any, ctx: TransformContext) -> Any:
        raise ValueError("no idea")

    done = guarded([b64(PDF)], store=shelf, transformer=transform)

    assert shelf.contents == [PDF]
    assert [warning for warning in done.warnings if "transformer" in warning and "no idea" in warning]


def test_neither_binary_content_nor_too_much_text_gets_past_it(shelf: Shelf) -> None:
    def transform(tool: str, result: Any, ctx: TransformContext) -> Any:
        return {"file": b64(PDF), "raw": PDF, "text": "x" * 200_000}

    text = text_of(guarded({}, store=shelf, transformer=transform).value)

    assert len(text) <= 50_000
    assert b64(PDF)[:100] not in text


def test_it_can_store_bytes_itself(shelf: Shelf) -> None:
    async def transform(tool: str, result: Any, ctx: TransformContext) -> Any:
        ref = await ctx.artifacts.put_bytes(PDF, mime_type="application/pdf", filename="w.pdf", meta={"n": 1})
        note = await ctx.artifacts.put_text("note")
        return {"artifact": ref, "note": note.id}

    done = guarded({}, store=shelf, transformer=transform)

    assert shelf.contents == [PDF, b"note"]
    assert done.value["artifact"]["filename"] == "w.pdf"
    assert done.stored == tuple(shelf.records)
    assert {record.scope for record in shelf.records} == {SCOPE}


@pytest.mark.parametrize("text", [True, False])
def test_without_a_store_it_gets_a_reference_that_says_so(text: bool) -> None:
    async def transform(tool: str, result: Any, ctx: TransformContext) -> Any:
        put = ctx.artifacts.put_text("abc") if text else ctx.artifacts.put_bytes(b"abc")
        return {"artifact": await put}

    done = guarded({}, store=None, transformer=transform)

    assert done.value["artifact"]["source"] == {"truncated": True, "original_size": 3}
    assert done.warnings


def test_everything_is_kept_as_an_observation_and_says_where_it_came_from(shelf: Shelf) -> None:
    guarded({"report": {"pdf": b64(PDF)}}, store=shelf, server="my.server", tool="get")

    about = shelf.records[0].said
    assert about.retention is Retention.OBSERVATIONS
    assert about.source == {"tool": "get", "server": "my.server", "field": "report.pdf"}
    assert shelf.records[0].id.startswith("my_server_")
