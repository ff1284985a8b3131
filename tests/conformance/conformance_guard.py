"""The output guard: `transform`, `transform_and_observe` and `clamp` of the conformance README."""

import asyncio
import builtins
from collections.abc import Iterable, Mapping
from typing import Any

from clamping import clamp
from conformance_world import hear

from runner.output_guard.config import GuardConfig, from_mapping
from runner.output_guard.pipeline import Guarded, guard
from runner.output_guard.storing import Keeper
from runner.output_guard.transformer import Transformer
from runner.store.protocol import Scope
from runner.store.store import BlobStore

__all__ = ["OPERATIONS"]

Observation = dict[str, Any]

_SCOPE = Scope(user_id="alice", session_id="session", trace_id="call")


def _transformer(settings: Mapping[str, Any] | None) -> Transformer | None:
    """Return the function that a case describes."""
    if settings is None:
        return None

    def plain(*_arguments: object) -> Any:
        if "raises" in settings:
            raise getattr(builtins, settings["raises"])("the transformer of the case")
        return settings["returns"]

    async def awaited(*arguments: object) -> Any:
        return plain(*arguments)

    return awaited if settings.get("async") else plain


async def _guarded(case: Mapping[str, Any], store: BlobStore) -> Guarded:
    keeper = Keeper(
        config=from_mapping(case.get("config", {})),
        store=store,
        scope=_SCOPE,
        tool=case["tool"],
        server=case.get("server"),
    )
    return await guard(case["result"], keeper, transformer=_transformer(case.get("transformer")))


async def _stored(store: BlobStore) -> list[dict[str, Any]]:
    records = await store.list(scope=_SCOPE)
    return [
        {"mime_type": record.mime, "size_bytes": record.size, "sha256": record.sha256} for record in records
    ]


def _lines(logs: list[dict[str, str]], warnings: Iterable[str]) -> list[dict[str, str]]:
    """Return the log with what the guard hands its caller to log."""
    return [*logs, *({"level": "warning", "message": warning} for warning in warnings)]


async def _transform(case: Mapping[str, Any]) -> Observation:
    store = BlobStore()
    with hear() as logs:
        guarded = await _guarded(case, store)
    return {
        "output": guarded.value,
        "stored": await _stored(store),
        "logs": _lines(logs, guarded.warnings),
    }


async def _transform_and_observe(case: Mapping[str, Any]) -> Observation:
    store = BlobStore()
    guarded = await _guarded(case, store)
    observed = await clamp(guarded.value, config=GuardConfig(), store=store, scope=_SCOPE)
    return {"output": observed.value}


async def _clamp(case: Mapping[str, Any]) -> Observation:
    config = dict(case.get("config", {}))
    without_store = config.pop("store", None) == "none"
    store = BlobStore()
    with hear() as logs:
        clamped = await clamp(
            case["observation"],
            config=from_mapping(config),
            store=None if without_store else store,
            scope=_SCOPE,
        )
    return {
        "output": clamped.value,
        "clamped": bool(clamped.events),
        "stored": await _stored(store),
        "events": list(clamped.events),
        "logs": _lines(logs, clamped.warnings),
    }


OPERATIONS = {
    "transform": lambda case: asyncio.run(_transform(case)),
    "transform_and_observe": lambda case: asyncio.run(_transform_and_observe(case)),
    "clamp": lambda case: asyncio.run(_clamp(case)),
}
