"""A transformer has the first word, and the guarantee the last."""

import asyncio
import sys
import threading
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

import anyio
import pytest
from guard_samples import PDF, b64
from guard_shelf import SCOPE, Shelf, guarded

from runner.output_guard.config import MAX_ELEMENTS, GuardConfig
from runner.output_guard.json_view import JsonView, text_of, view
from runner.output_guard.pipeline import Guarded, guard
from runner.output_guard.storing import Keeper
from runner.output_guard.transformer import TransformContext, Transformer, transformed
from runner.store.protocol import Retention


def test_transformer_result_is_final(shelf: Shelf) -> None:
    """Source: S4-41."""

    def transform(tool: str, result: Any, ctx: TransformContext) -> Any:
        return {"tool": tool, "was": result, "server": ctx.server, "text": "x" * 20_000}

    value = guarded({"a": 1}, store=shelf, server="s", transformer=transform).value

    assert value == {"tool": "tool", "was": {"a": 1}, "server": "s", "text": "x" * 20_000}


def test_transformer_may_be_a_coroutine_function(shelf: Shelf) -> None:
    async def transform(tool: str, result: Any, ctx: TransformContext) -> Any:
        return {"async": True}

    assert guarded({}, store=shelf, transformer=transform).value == {"async": True}


def test_transformer_returning_none_leaves_other_layers(shelf: Shelf) -> None:
    value = guarded([b64(PDF)], store=shelf, transformer=lambda tool, result, ctx: None).value

    assert shelf.contents == [PDF]
    assert "artifact" in value[0]


@pytest.mark.parametrize("kind", [ValueError, CancelledError])
def test_failing_transformer_leaves_other_layers_and_warns(kind: type[Exception], shelf: Shelf) -> None:
    def transform(tool: str, result: Any, ctx: TransformContext) -> Any:
        raise kind("no idea")

    done = guarded([b64(PDF)], store=shelf, transformer=transform)

    assert shelf.contents == [PDF]
    assert [warning for warning in done.warnings if "transformer" in warning and "no idea" in warning]


def test_neither_binary_content_nor_too_much_text_gets_past_it(shelf: Shelf) -> None:
    def transform(tool: str, result: Any, ctx: TransformContext) -> Any:
        return {"file": b64(PDF), "raw": PDF, "text": "x" * 200_000}

    text = text_of(guarded({}, store=shelf, transformer=transform).value)

    assert len(text) <= 50_000
    assert b64(PDF)[:100] not in text


def test_transformer_can_store_bytes(shelf: Shelf) -> None:
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
def test_transformer_without_store_gets_truncated_reference(text: bool) -> None:
    async def transform(tool: str, result: Any, ctx: TransformContext) -> Any:
        put = ctx.artifacts.put_text("abc") if text else ctx.artifacts.put_bytes(b"abc")
        return {"artifact": await put}

    done = guarded({}, store=None, transformer=transform)

    assert done.value["artifact"]["source"] == {"truncated": True, "original_size": 3}
    assert done.warnings


def test_observations_have_retention_and_source(shelf: Shelf) -> None:
    guarded({"report": {"pdf": b64(PDF)}}, store=shelf, server="my.server", tool="get")

    about = shelf.records[0].metadata
    assert about.retention is Retention.OBSERVATIONS
    assert about.source == {"tool": "get", "server": "my.server", "field": "report.pdf"}
    assert shelf.records[0].id.startswith("my_server_")


def transformed_alone(
    value: Any, transform: Transformer, shelf: Shelf, **limits: float
) -> tuple[JsonView | None, list[str]]:
    keeper = Keeper(config=GuardConfig(), store=shelf, scope=SCOPE, tool="tool")
    seen = view(value, max_elements=MAX_ELEMENTS)
    return anyio.run(partial(transformed, transform, seen, keeper, **limits)), keeper.warnings


def warned(done: Guarded, *words: str) -> bool:
    return any(all(word in warning for word in ("transformer", *words)) for warning in done.warnings)


def test_transformer_that_never_returns_is_abandoned_at_timeout(shelf: Shelf) -> None:
    go_on = threading.Event()

    def transform(tool: str, result: Any, ctx: TransformContext) -> Any:
        result["list"].append("too late")
        go_on.wait(60)

    value = {"list": [b64(PDF)]}
    try:
        made, warnings = transformed_alone(value, transform, shelf, timeout_s=0.05)
    finally:
        go_on.set()

    assert made is None
    assert value == {"list": [b64(PDF)]}
    assert "more than 0.05 s" in warnings[0]


def test_a_coroutine_that_takes_too_long_is_ended(shelf: Shelf) -> None:
    ended = threading.Event()

    async def transform(tool: str, result: Any, ctx: TransformContext) -> Any:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    made, warnings = transformed_alone({"a": 1}, transform, shelf, timeout_s=0.05)

    assert ended.wait(60)
    assert made is None
    assert "TimeoutError" in warnings[0]


def test_the_host_goes_on_while_one_works(shelf: Shelf) -> None:
    went_on = threading.Event()

    def transform(tool: str, result: Any, ctx: TransformContext) -> Any:
        return {"the host went on": went_on.wait(60)}

    async def run() -> Guarded:
        working = asyncio.create_task(
            guard(1, Keeper(config=GuardConfig(), store=shelf, scope=SCOPE, tool="t"), transformer=transform)
        )
        await asyncio.sleep(0)
        went_on.set()
        return await working

    assert anyio.run(run).value == {"the host went on": True}


def test_transformer_is_not_started_with_too_many_left_running(shelf: Shelf) -> None:
    go_on = threading.Event()
    try:
        for _ in range(40):
            made, warnings = transformed_alone(
                {"a": 1}, lambda tool, result, ctx: go_on.wait(60), shelf, timeout_s=0.001
            )
    finally:
        go_on.set()

    assert "still running" in warnings[0]
    assert made is None


def test_oversized_values_bypass_the_transformer(shelf: Shelf) -> None:
    seen: list[Any] = []

    def transform(tool: str, result: Any, ctx: TransformContext) -> Any:
        seen.append(result)
        return "y" * 17 * 1024 * 1024

    large, of_large = transformed_alone(["x " * 9 * 1024 * 1024], transform, shelf)
    answer, of_answer = transformed_alone(["x"], transform, shelf)

    assert seen == [["x"]]
    assert (large, answer) == (None, None)
    assert "was not called: more than 16777216 characters" in of_large[0]
    assert "more than 16777216 characters" in of_answer[0]


def bottomless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize("made", [bottomless(), [[]] * 200_000], ids=["bottomless", "wide"])
def test_an_unruly_answer_counts_as_a_failure(shelf: Shelf, made: Any) -> None:
    done = guarded({"a": 1}, store=shelf, transformer=lambda tool, result, ctx: made)

    assert done.value == {"a": 1}
    assert warned(done, "Unruly")


def test_transformer_that_exits_ends_nothing(shelf: Shelf) -> None:
    done = guarded({"a": 1}, store=shelf, transformer=lambda tool, result, ctx: sys.exit(1))

    assert done.value == {"a": 1}
    assert warned(done, "exit")


def test_transformer_that_mutates_and_declines_changes_nothing(shelf: Shelf) -> None:
    value = {"a": [1]}

    done = guarded(value, store=shelf, transformer=lambda tool, result, ctx: result["a"].clear())

    assert done.value == {"a": [1]}
