"""Layer 5: a function of the operator's that may turn a result into what the model shall read.

It is called with the tool's name, the result and a `TransformContext`, and may be a coroutine function. None
means that it does not handle this result; if it raises, the other layers do their work instead.

Source: document 004, section 3.6; requirements S4-3, S4-39 to S4-41, S4-66; contradiction C24; rule X5 of the
conformance cases.
"""

import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runner.output_guard.keeping import Find, Keeper
from runner.store.protocol import ArtifactRef

__all__ = ["Artifacts", "TransformContext", "Transformer", "transformed"]

Transformer = Callable[[str, Any, "TransformContext"], Any]


@dataclass(frozen=True, slots=True)
class Artifacts:
    """Keeps bytes and text of the current call; what a transformer gets of the store."""

    _keeper: Keeper

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
        kept = await self._keeper.keep(find)
        if kept.record is not None:
            return kept.record.ref
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
    """What a transformer may use.

    Attributes:
        artifacts: Keeps bytes and text.
        tool: Name of the tool.
        server: Name of its server, if it has one.
    """

    artifacts: Artifacts
    tool: str
    server: str | None


async def transformed(transformer: Transformer | None, result: Any, keeper: Keeper) -> Any:
    """Return what the transformer makes of `result`, or None if it is not handled."""
    if transformer is None:
        return None
    context = TransformContext(Artifacts(keeper), keeper.tool, keeper.server)
    try:
        made = transformer(keeper.tool, result, context)
        return await made if inspect.isawaitable(made) else made
    except Exception as error:  # noqa: BLE001 - the operator's code; its failure must not let binary content through
        keeper.warnings.append(
            f"the transformer failed, the other layers are used: {type(error).__name__}: {error}"[:500]
        )
        return None
