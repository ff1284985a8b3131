"""The module that tool files import: `artifacts` keeps bytes for the user while the tool is running.

    from runner.author import artifacts

    ref = await artifacts.put_bytes(pdf, mime_type="application/pdf", filename="report.pdf")
    return {"results": {"report": ref.model_dump()}}

An artifact is in the user's My Files at once, and its reference is small enough for any result.
The bytes go through a file in the call's home, never through the pipe of the call. In a sync tool, which
FastMCP runs in a thread: `anyio.from_thread.run(artifacts.put_bytes, pdf)`.

A tool with a `Context` can also use `ctx.artifacts.put_bytes(...)`, but only under the runner. A file that
has to run without it imports `artifacts`.

Without the runner, for example under plain FastMCP, nothing is kept: the reference has `truncated` in its
`source`, and a warning is issued once.

Source: document 004, sections 5.2 to 5.5 and Phase 0; requirements S4-3, S4-4, S4-63, S4-85, S4-107.
"""

import asyncio
import hashlib
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from runner.store.protocol import ArtifactRef

__all__ = ["PUT", "WARM_UPS", "ArtifactError", "ArtifactRef", "Artifacts", "artifacts", "connect", "warm_up"]

log = logging.getLogger(__name__)

Ask = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]

F = TypeVar("F", bound=Callable[[], Any])

WARM_UPS: list[Callable[[], Any]] = []
"""The functions that the tool file has registered with `warm_up`, in order."""

PUT = "artifacts/put"
"""Method of a worker's request to its host to keep a file."""

_FOLDER = ".artifacts"
_NO_HOME = (
    "artifacts are put through the call's home, and this tool has none; "
    "give it a parameter `username: str`, which the runner fills in"
)


class ArtifactError(Exception):
    """An artifact could not be kept; the message has the reason and a remedy."""


class Artifacts:
    """Access to My Files for a running tool: keeps bytes, text and files for its user."""

    def __init__(self) -> None:
        self._ask: Ask | None = None
        self._warned = False

    async def put_bytes(
        self,
        content: bytes,
        *,
        mime_type: str | None = None,
        filename: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> ArtifactRef:
        """Keep bytes.

        Args:
            content: The bytes.
            mime_type: Their MIME type; by default derived from `filename`.
            filename: A name for them in My Files; a number is added if the name is taken.
            meta: Small facts for the reference's `source`.

        Raises:
            ArtifactError: They cannot be kept: no home, a limit, or the store.
        """
        if self._ask is None:
            return self._unkept(content, mime_type, filename)
        path = _written(content)
        try:
            return await self._put(path, mime_type, filename or path.name, meta)
        finally:
            path.unlink(missing_ok=True)

    async def put_text(
        self,
        text: str,
        *,
        mime_type: str = "text/plain",
        filename: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> ArtifactRef:
        """Keep text, as UTF-8; otherwise like `put_bytes`.

        Raises:
            ArtifactError: It cannot be kept.
        """
        return await self.put_bytes(text.encode(), mime_type=mime_type, filename=filename, meta=meta)

    async def put_file(
        self,
        path: str | os.PathLike[str],
        *,
        mime_type: str | None = None,
        filename: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> ArtifactRef:
        """Keep a copy of a file in the call's home; otherwise like `put_bytes`.

        Raises:
            ArtifactError: It cannot be kept.
        """
        place = Path(os.getcwd(), path)
        if self._ask is None:
            content = await asyncio.to_thread(place.read_bytes)
            return self._unkept(content, mime_type, filename or place.name)
        return await self._put(place, mime_type, filename or place.name, meta)

    async def _put(
        self, path: Path, mime_type: str | None, filename: str, meta: Mapping[str, Any] | None
    ) -> ArtifactRef:
        assert self._ask is not None  # noqa: S101 - both callers have looked
        facts = {"path": str(path), "mime": mime_type, "name": filename, "source": dict(meta or {})}
        answer = await self._ask(PUT, facts)
        if "refused" in answer:
            raise ArtifactError(str(answer["refused"]))
        return ArtifactRef.model_validate(answer)

    def _unkept(self, content: bytes, mime_type: str | None, filename: str | None) -> ArtifactRef:
        if not self._warned:
            advice = "serve this file with `runner`"
            log.warning("No ArtifactStore configured: artifacts dropped", extra={"advice": advice})
            self._warned = True
        digest = hashlib.sha256(content).hexdigest()
        return ArtifactRef(
            id=f"art_{digest[:12]}",
            mime_type=mime_type,
            size_bytes=len(content),
            filename=filename,
            sha256=digest,
            source={"truncated": True, "original_size": len(content)},
        )


def _written(content: bytes) -> Path:
    """Write the bytes to a new file of the home, for the host to fetch."""
    folder = Path(os.environ.get("HOME", "/")) / _FOLDER
    path = folder / secrets.token_hex(8)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        if isinstance(error, PermissionError):
            raise ArtifactError(_NO_HOME) from error
        raise ArtifactError(f"the artifact cannot be written to the home: {error.strerror}") from error
    return path


artifacts = Artifacts()
"""The artifacts of the running call."""


def warm_up(act: F) -> F:
    """Register a function that runs once before the first call, in the process that calls are forked from.

    Its imports, objects and caches are available in every call. It is first tried in a separate process. If
    it fails there, starts a thread or takes longer than 20 seconds, it is skipped, with a line in the log.
    """
    WARM_UPS.append(act)
    return act


def connect(ask: Ask) -> None:
    """Connect `artifacts` to the host of this worker. Not for tools."""
    artifacts._ask = ask
