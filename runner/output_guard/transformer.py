"""Layer 5: a function of the operator that may convert a result for the model.

It is called with the tool's name, the result and a `TransformContext`, and may be a coroutine function. None
means that it does not handle this result. If it raises, takes too long, or returns too much, the other layers
run instead.

It runs in a thread of its own, a coroutine function in a loop of its own, so that the host is not blocked. A
thread cannot be ended: one that takes too long is abandoned, with a copy of the result. If too many threads
are abandoned, no further one is started.

Source: document 004, section 3.6; requirements S4-3, S4-39 to S4-41, S4-66; contradiction C24; rule X5 of the
conformance cases.
"""

import asyncio
import hashlib
import inspect
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, cast

from runner.output_guard.config import MAX_ELEMENTS
from runner.output_guard.json_view import JsonView, Unruly, thawed, view
from runner.output_guard.storing import Find, Keeper
from runner.store.protocol import ArtifactRef

__all__ = ["TransformContext", "Transformer", "TransformerArtifacts", "transformed"]

# A call waits for the transformer, whose thread cannot be ended: a longer time would delay the client.
_TIMEOUT_S = 10.0
# It gets a copy: more text than this takes too much memory of the server.
_MAX_CHARS = 16 * 1024 * 1024

Transformer = Callable[[str, Any, "TransformContext"], Any]


@dataclass(frozen=True, slots=True)
class TransformerArtifacts:
    """A transformer's access to the store: keeps bytes and text for the current call."""

    _keeper: Keeper
    _loop: asyncio.AbstractEventLoop

    async def put_bytes(
        self,
        data: bytes,
        *,
        mime_type: str = "application/octet-stream",
        filename: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> ArtifactRef:
        """Store bytes and return a reference that is safe to show to a model."""
        return await self._put(Find(content=data, mime=mime_type, name=filename, facts=dict(meta or {})))

    async def put_text(
        self,
        text: str,
        *,
        mime_type: str = "text/plain",
        filename: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> ArtifactRef:
        """Store text as UTF-8 and return a reference that is safe to show to a model."""
        return await self._put(Find(content=text, mime=mime_type, name=filename, facts=dict(meta or {})))

    async def _put(self, find: Find) -> ArtifactRef:
        # The store belongs to the host's loop, and a transformer has another.
        keeping = asyncio.run_coroutine_threadsafe(self._keeper.keep(find), self._loop)
        result = await asyncio.wrap_future(keeping)
        if result.record is not None:
            return result.record.ref
        content = find.content if isinstance(find.content, bytes) else find.content.encode("utf-8", "replace")
        return ArtifactRef(
            id=f"art_{hashlib.sha256(content).hexdigest()[:12]}",
            mime_type=find.mime,
            size_bytes=len(content),
            filename=find.name,
            source={"truncated": True, "original_size": len(content)},
        )


@dataclass(frozen=True, slots=True)
class TransformContext:
    """Context of a transformer.

    Attributes:
        artifacts: Keeps bytes and text.
        tool: Name of the tool.
        server: Name of its server, if it has one.
    """

    artifacts: TransformerArtifacts
    tool: str
    server: str | None


async def transformed(
    transformer: Transformer, seen: JsonView, keeper: Keeper, *, timeout_s: float = _TIMEOUT_S
) -> JsonView | None:
    """Return the transformer's value for a result, or None if it does not handle the result."""
    if seen.chars > _MAX_CHARS:
        keeper.warnings.append(f"the transformer was not called: more than {_MAX_CHARS} characters")
        return None
    try:
        made = await _run(transformer, seen.value, keeper, timeout_s)
        return None if made is None else _seen(made)
    except Exception as error:  # noqa: BLE001 - the operator's code; its failure must not let binary content through
        reason = f"took more than {timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
        keeper.warnings.append(
            f"the transformer failed, the other layers are used: {type(error).__name__}: {reason}"[:500]
        )
        return None


def _seen(made: Any) -> JsonView:
    final = view(made, max_elements=MAX_ELEMENTS)
    if final.chars > _MAX_CHARS:
        raise Unruly(f"returned more than {_MAX_CHARS} characters")
    return final


class _Busy(RuntimeError):
    """Too many transformers are running, or were abandoned."""


# For the whole process, since threads belong to the process.
_MOST_THREADS = 32
_PLACES = threading.BoundedSemaphore(_MOST_THREADS)


async def _run(transformer: Transformer, result: Any, keeper: Keeper, timeout_s: float) -> Any:
    loop = asyncio.get_running_loop()
    outcome = Future[tuple[Any, Exception | None]]()
    # Marked as running, so that it cannot be cancelled: the thread continues after the timeout.
    outcome.set_running_or_notify_cancel()
    context = TransformContext(TransformerArtifacts(keeper, loop), keeper.tool, keeper.server)
    value = thawed(result)

    async def call() -> Any:
        made = transformer(keeper.tool, value, context)
        if not inspect.isawaitable(made):
            return made
        # A coroutine ends at the timeout, unlike a thread.
        async with asyncio.timeout(timeout_s):
            return await made

    def work() -> None:
        made, failure = None, cast("Exception | None", None)
        try:
            made = asyncio.run(call())
        except SystemExit as error:
            # SystemExit must not end the host.
            failure = RuntimeError(f"it called exit: {error}")
        except Exception as error:  # noqa: BLE001 - raised to the waiter, see `transformed`
            failure = error
        finally:
            _PLACES.release()
        # The failure is a value, since some exceptions would cancel the waiter.
        outcome.set_result((made, failure))

    if not _PLACES.acquire(blocking=False):
        raise _Busy(f"{_MOST_THREADS} transformers are still running")
    threading.Thread(target=work, name="output transformer", daemon=True).start()
    async with asyncio.timeout(timeout_s):
        made, failure = await asyncio.wrap_future(outcome)
    if failure is not None:
        raise failure
    return made
