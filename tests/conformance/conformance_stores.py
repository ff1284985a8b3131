"""Stores: `store_sequence` and `scope_check` of the conformance README, by the project's own functions."""

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from conformance_world import hear

from runner.errors import CallError
from runner.settings.settings import Settings
from runner.store.discovery import discover
from runner.store.opening import open_store
from runner.store.protocol import ArtifactStore, Put, Record, Retention, Scope
from runner.store.retention import Budgets, RetentionRules
from runner.store.store import BlobStore

__all__ = ["OPERATIONS"]

Observation = dict[str, Any]


def _scope(value: Mapping[str, Any] | None) -> Scope | None:
    return None if value is None else Scope(**value)


def _scope_check(case: Mapping[str, Any]) -> Observation:
    artifact = _scope(case["artifact_scope"]) or Scope()
    return {"allow": artifact.admits(_scope(case["caller_scope"]))}


def _budgets(config: Mapping[str, Any]) -> Budgets:
    return Budgets(**{name: config[name] for name in Budgets.model_fields if name in config})


@dataclass
class _Sequence:
    """Steps taken on one store, with a clock that only `advance` moves."""

    config: Mapping[str, Any]
    now: datetime = field(default_factory=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    puts: dict[str, Record] = field(default_factory=dict)
    scopes: set[Scope] = field(default_factory=set)
    output: dict[str, Any] = field(default_factory=dict)
    store: ArtifactStore = field(init=False)

    def __post_init__(self) -> None:
        rules = RetentionRules(observations=_budgets(self.config))
        noop = self.config.get("store") == "noop"
        none = Settings(store="none:")
        self.store = open_store(none, rules) if noop else BlobStore(rules=rules, clock=lambda: self.now)

    async def take(self, step: Mapping[str, Any]) -> None:
        if "put" in step:
            await self._put(step["put"], step.get("as"))
        elif "get" in step:
            content = await self._get(step["get"], _scope(step.get("as_scope")))
            self.output[step.get("as", "get")] = content
        elif "exists" in step:
            self.output[step.get("as", "exists")] = await self.exists(step["exists"])
        elif "advance" in step:
            self.now += timedelta(seconds=step["advance"])
        else:
            self.output["found"] = discover(_state_store(step["discover"])) is not None

    async def _put(self, put: Mapping[str, Any], name: str | None) -> None:
        options = {"namespace": put["namespace"]} if put.get("namespace") else {}
        about = Put(
            name=put.get("filename"), mime=put.get("mime_type"), retention=Retention.OBSERVATIONS, **options
        )
        scope = _scope(put.get("scope")) or Scope()
        self.scopes.add(scope.owner)
        record = await self.store.put_bytes(base64.b64decode(put["data_b64"]), about, scope=scope)
        if name is not None:
            self.puts[name] = record
            facts = {"namespace": put.get("namespace"), "scope": put.get("scope")}
            self.output[name] = record.ref.model_dump() | facts

    async def _get(self, name: str, scope: Scope | None) -> str | None:
        put = self.puts[name]
        caller = put.scope if scope is None else scope
        record = await self.store.stat(put.id, scope=caller)
        if record is None:
            return None
        async with self.store.open(record, scope=caller) as content:
            return base64.b64encode(b"".join([chunk async for chunk in content])).decode()

    async def exists(self, name: str) -> bool:
        put = self.puts[name]
        return await self.store.stat(put.id, scope=put.scope) is not None

    async def count(self) -> int:
        lists = [await self.store.list(scope=scope) for scope in self.scopes]
        return len({(record.scope.owner, record.id) for records in lists for record in records})


def _state_store(spec: Mapping[str, Any]) -> object:
    if "methods" not in spec:
        return SimpleNamespace(artifact_store=BlobStore() if spec["artifact_store"] == "InMemory" else None)

    async def method(*_arguments: object, **_options: object) -> None:
        return None

    return SimpleNamespace(**dict.fromkeys(spec["methods"], method))


async def _store_sequence(case: Mapping[str, Any]) -> Observation:
    sequence, error = _Sequence(case["config"]), None
    with hear() as logs:
        try:
            for step in case["steps"]:
                await sequence.take(step)
        except CallError as refused:
            error = refused.message
        exists = {name: await sequence.exists(name) for name in sequence.puts}
        count = await sequence.count()
    return {"output": sequence.output, "exists": exists, "count": count, "error": error, "logs": logs}


OPERATIONS = {
    "scope_check": _scope_check,
    "store_sequence": lambda case: asyncio.run(_store_sequence(case)),
}
