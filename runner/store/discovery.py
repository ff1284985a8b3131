"""Discovery of the artifact store that an application's own state store provides.

It is either an attribute `artifact_store` that is a store, or three asynchronous methods, which are
then adapted:

    put_artifact(content, *, artifact_id, mime_type, filename, scope, source)
    get_artifact(artifact_id)     the bytes, or None
    delete_artifact(artifact_id)

The runner makes `artifact_id`: equal for equal bytes of one scope, and without anybody's name. `scope` is
an object with `tenant_id`, `user_id`, `session_id` and `trace_id`, each a string or null. Metadata of the
artifacts lasts as long as the process: such a state store holds bytes, not an index.

Source: document 004, section 5.2; requirements S4-64, S4-68 and S4-69.
"""

import asyncio
import hashlib
import inspect
import logging
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import Any, TypeVar

from runner.errors import CallError, Code
from runner.store.blobs import MemoryBlobs, utc_now
from runner.store.entries import mime_of
from runner.store.protocol import ArtifactStore, Put, Scope
from runner.store.retention import RetentionRules
from runner.store.store import BlobStore

__all__ = ["ANSWER_S", "discover"]

ANSWER_S = 60.0
"""Seconds that a method of a program's own state store may take."""

_log = logging.getLogger(__name__)

T = TypeVar("T")

_STORE = ("put_bytes", "put_text", "put_file", "stat", "find", "list", "delete", "sweep", "fault")
_METHODS = ("put_artifact", "get_artifact", "delete_artifact")


def discover(
    state_store: object,
    *,
    rules: RetentionRules | None = None,
    clock: Callable[[], datetime] = utc_now,
    answer_s: float = ANSWER_S,
) -> ArtifactStore | None:
    """Return the artifact store that a state store provides; None if it provides none.

    Args:
        state_store: Any object, or None.
        rules: Retention rules if methods are adapted; a store in `artifact_store` has its own rules.
        clock: Returns the current time, for adapted methods.
        answer_s: Time limit of each adapted method, in seconds: meanwhile no other file is put or read.
    """
    own: Any = getattr(state_store, "artifact_store", None)
    if _has(own, _STORE) and callable(getattr(own, "open", None)):
        store: ArtifactStore = own
        return store
    if _has(state_store, _METHODS):
        return _AdaptedStore(_AdaptedBlobs(state_store, answer_s), rules, clock=clock)
    return None


def _has(candidate: object, methods: tuple[str, ...]) -> bool:
    # A class passed instead of an instance has the methods too, but they cannot be called.
    return not isinstance(candidate, type) and all(
        inspect.iscoroutinefunction(getattr(candidate, name, None)) for name in methods
    )


class _AdaptedBlobs(MemoryBlobs):
    """Records in memory, and bytes stored through three methods, which run on the caller's event loop."""

    def __init__(self, methods: Any, answer_s: float) -> None:
        super().__init__()
        self.loop: asyncio.AbstractEventLoop | None = None
        self._methods = methods
        self._answer_s = answer_s
        self._sizes: dict[str, int] = {}

    def keep(self, key: str, content: bytes, about: Put, scope: Scope) -> None:
        self._call(
            "put_artifact",
            content,
            artifact_id=_id(key),
            mime_type=mime_of(about),
            filename=about.name,
            scope=asdict(scope),
            source=dict(about.source),
        )
        self._sizes[key] = len(content)

    def read(self, key: str) -> bytes | None:
        content = self._call("get_artifact", _id(key))
        if content is None:
            return None
        if not isinstance(content, bytes | bytearray | memoryview):
            kind = type(content).__name__
            raise CallError(
                Code.E_STORE, f"the state store's get_artifact returned {kind}, not bytes", retryable=False
            )
        if hashlib.sha256(content).hexdigest() != key.rpartition("/")[2]:
            raise CallError(
                Code.E_STORE, "the state store returned other bytes than were put", retryable=False
            )
        return bytes(content)

    def stat(self, key: str) -> int | None:
        return self._sizes.get(key)

    def delete(self, key: str) -> None:
        if self._sizes.pop(key, None) is None:
            super().delete(key)
        else:
            self._call("delete_artifact", _id(key))

    def _call(self, name: str, *arguments: Any, **keywords: Any) -> Any:
        async def call() -> Any:
            async with asyncio.timeout(self._answer_s):
                return await getattr(self._methods, name)(*arguments, **keywords)

        if self.loop is None:
            raise CallError(Code.E_STORE, "the state store's event loop has not run yet")
        start = time.monotonic()
        try:
            return asyncio.run_coroutine_threadsafe(call(), self.loop).result()
        except Exception as error:
            # The error text is only for the operator: it may contain an address with its password.
            _log.warning("program state store failed", extra={"method": name}, exc_info=error)
            is_late = isinstance(error, TimeoutError) and time.monotonic() - start >= self._answer_s
            how = f"did not answer within {self._answer_s:g} s" if is_late else "failed"
            message = f"the state store's {name} {how} ({type(error).__name__}); the log has the rest"
            raise CallError(Code.E_STORE, message) from error


class _AdaptedStore(BlobStore):
    """The store over three methods of a program."""

    blobs: _AdaptedBlobs

    async def _run(self, operation: str, scope: Scope | None, act: Callable[[], T]) -> T:
        self.blobs.loop = asyncio.get_running_loop()
        return await super()._run(operation, scope, act)


def _id(key: str) -> str:
    area, _, sha256 = key.rpartition("/objects/")
    return hashlib.sha256(f"{area} {sha256}".encode()).hexdigest()
