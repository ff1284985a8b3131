"""Find the store that an application brings along with the keeper of its state.

It is either an attribute `artifact_store` that is a store, or three asynchronous methods, which are
then adapted:

    put_artifact(content, *, artifact_id, mime_type, filename, scope, source)
    get_artifact(artifact_id)     the bytes, or None
    delete_artifact(artifact_id)

`artifact_id` is ours, the same for the same bytes of one scope, and holds no name of anybody; `scope` is
an object with `tenant_id`, `user_id`, `session_id` and `trace_id`, each a string or null. What is known of
the artifacts lives as long as the process: such a keeper holds bytes, not an index.

Source: document 004, section 5.2; requirements S4-64, S4-68 and S4-69.
"""

import asyncio
import hashlib
import inspect
import logging
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import Any

from runner.errors import CallError, Code
from runner.store.local.row import Bytes
from runner.store.local.store import utc_now
from runner.store.memory import MemoryStore
from runner.store.protocol import ArtifactStore, Record
from runner.store.retention import RetentionRules

__all__ = ["ANSWER_S", "discover"]

ANSWER_S = 60.0
"""How long a method of a program's own state store may take."""

_log = logging.getLogger(__name__)

_STORE = ("put_bytes", "put_text", "put_file", "stat", "find", "list", "delete", "touch", "sweep", "fault")
_METHODS = ("put_artifact", "get_artifact", "delete_artifact")


def discover(
    state_store: object,
    *,
    rules: RetentionRules | None = None,
    clock: Callable[[], datetime] = utc_now,
    answer_s: float = ANSWER_S,
) -> ArtifactStore | None:
    """Return the artifact store that a state store is or has; None if there is none.

    Args:
        state_store: Any object, or None.
        rules: What may be kept, where its methods are adapted; a store of its own has its own rules.
        clock: Says the present time, for the same case.
        answer_s: How long each of its methods may take, in seconds, for the same case: meanwhile no other
            file is put or read.
    """
    own: Any = getattr(state_store, "artifact_store", None)
    if _has(own, _STORE) and callable(getattr(own, "open", None)):
        store: ArtifactStore = own
        return store
    if _has(state_store, _METHODS):
        return MemoryStore(rules, clock=clock, shelf=_Adapted(state_store, answer_s))
    return None


def _has(candidate: object, methods: tuple[str, ...]) -> bool:
    # A class, given for its instance, has the methods too, but nothing to call them on.
    return not isinstance(candidate, type) and all(
        inspect.iscoroutinefunction(getattr(candidate, name, None)) for name in methods
    )


class _Adapted:
    """The shelf that three methods of somebody else are."""

    def __init__(self, methods: Any, answer_s: float) -> None:
        self._methods = methods
        self._answer_s = answer_s

    async def put(self, at: Bytes, content: bytes, record: Record) -> None:
        await self._call(
            "put_artifact",
            content,
            artifact_id=_id(at),
            mime_type=record.mime,
            filename=record.name,
            scope=asdict(record.scope),
            source=dict(record.said.source),
        )

    async def get(self, at: Bytes) -> bytes | None:
        content = await self._call("get_artifact", _id(at))
        if content is None:
            return None
        if not isinstance(content, bytes | bytearray | memoryview):
            kind = type(content).__name__
            raise CallError(
                Code.E_STORE, f"the state store's get_artifact returned {kind}, not bytes", retryable=False
            )
        if hashlib.sha256(content).hexdigest() != at.sha256:
            raise CallError(
                Code.E_STORE, "the state store returned other bytes than were put", retryable=False
            )
        return bytes(content)

    async def delete(self, at: Bytes) -> None:
        await self._call("delete_artifact", _id(at))

    async def _call(self, name: str, *given: Any, **said: Any) -> Any:
        try:
            async with asyncio.timeout(self._answer_s) as limit:
                return await getattr(self._methods, name)(*given, **said)
        except Exception as error:
            # Its words are for the operator: they may name an address with its password.
            _log.warning("the program's state store failed", extra={"method": name}, exc_info=error)
            how = f"did not answer within {self._answer_s:g} s" if limit.expired() else "failed"
            message = f"the state store's {name} {how} ({type(error).__name__}); the log has the rest"
            raise CallError(Code.E_STORE, message) from error


def _id(at: Bytes) -> str:
    return hashlib.sha256(f"{at.area} {at.sha256}".encode()).hexdigest()
