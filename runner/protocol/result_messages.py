"""Conversion of a completed call to the message for its client: redacted, guarded, rendered.

It is shared by all executors whose results are contract values.

Source: architecture, "One call, in order", step 10.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from runner.artifacts.accept import NEVER_INLINE, ArtifactFile, Processed, failed
from runner.contract.own_paths import OwnPaths
from runner.errors import CallError
from runner.files.my_files import MyFiles
from runner.formats.base64 import canonical, decode, encode, without_header
from runner.formats.json_walks import least_chars
from runner.output_guard.guard import GuardedCall, OutputGuard
from runner.settings.execution import ServiceSettings
from runner.steps.client_message import MESSAGE_MAX_BYTES, Delivery, is_open_schema, render
from runner.steps.request import SHORT_BYTES, Completed, Request
from runner.steps.short_meta_data import little
from runner.system.logging_setup import CallScope
from runner.toolset.small_pictures import HAS_PILLOW, smaller_picture
from runner.users.identity import User

__all__ = [
    "DELIVERY_KEY",
    "DownloadUrl",
    "ResultMessages",
    "delivery_to",
    "failed_result",
    "inline_limit_of",
    "known_to",
    "redacted_error",
    "redacted_result",
]

DELIVERY_KEY = "toolcell/artifacts"
"""Key of `_meta` by which a request says how it takes artifacts: `inline` or `reference`."""

_OURS = ("artifact_errors", "denials")
"""Keys of a good result's `meta_data` that we set, not the tool."""

_FEW_FILES = 8
# Each takes a process.
_MOST_PICTURES = 8
# A picture that was made smaller has a link to the original beside it, and two entries in `_meta`.
_BESIDE_PICTURE = 2048
_MOST_FACTS_CHARS = 262_144
"""Characters of `meta_data`, as JSON, that a client gets whole."""

DownloadUrl = Callable[[User, ArtifactFile], str]
"""Makes the address at which a user can fetch a file."""


_PROTOCOL_META = ("progressToken", "io.modelcontextprotocol/related-task")
_WITHOUT_LINKS = ("2024-11-05", "2025-03-26")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultMessages:
    """Makes the messages of one server.

    Attributes:
        settings: The effective settings.
        guard: The output guard.
        own_paths: What no client is told.
        download_url: Makes download addresses, over HTTP.
    """

    settings: ServiceSettings
    guard: OutputGuard
    own_paths: OwnPaths
    download_url: DownloadUrl | None

    async def of(
        self,
        completed: Completed,
        request: Request,
        files: MyFiles,
        *,
        tool: str | None = None,
        server: str | None = None,
    ) -> dict[str, Any]:
        """Return the `tools/call` result of a call that is complete.

        Args:
            completed: How it ended.
            request: The call.
            files: Where what is taken out of the result is kept.
            tool: What the guard's settings know the tool by; by default as its client does.
            server: The other server that executed it, if one did.
        """
        # No paths of ours in our own texts.
        processed, redact = completed.processed, self.own_paths.redact
        facts = processed.value.get("meta_data")
        if isinstance(facts, Mapping):
            with CallScope(request.id):
                if processed.is_error:
                    processed = replace(processed, value=redact(processed.value))
                else:
                    ours = {key: redact(facts[key]) for key in _OURS if key in facts}
                    value = {**processed.value, "meta_data": {**facts, **ours}}
                    processed = replace(processed, value=value)
        schema = completed.spec.output_schema if completed.spec is not None else None
        guarded = GuardedCall(
            tool=tool or request.tool,
            files=files,
            server=server,
            schema=None if is_open_schema(schema) else schema,
            is_own=processed.is_own,
            is_contract=True,
        )
        url, user = self.download_url, request.user
        # Text and structured content are made of guarded `results`. Facts that would fill a message are
        # guarded too; others reach the client whole, in `_meta`.
        original, facts = processed.value.get("results"), processed.value.get("meta_data")
        results = await self.guard.results(original, guarded)
        value = processed.value if results is original else {**processed.value, "results": results}
        if isinstance(facts, Mapping) and len(json.dumps(facts)) > _MOST_FACTS_CHARS:
            value = {**value, "meta_data": {**little(facts), **await self.guard.facts(facts, guarded)}}
        short = processed if value is processed.value else replace(processed, value=value)
        rendered = partial(
            render,
            short,
            wire=completed.wire,
            output_schema=schema,
            delivery=delivery_to(self.settings, request.params),
            download_url=None if url is None else lambda file: url(user, file),
            allowed_origins=self.settings.iframe_origins,
            max_bytes=MESSAGE_MAX_BYTES,
        )
        # Each value is copied, and each text searched for what names a file: of many, that takes a while.
        sizes = (least_chars(value, SHORT_BYTES) for value in (short.value, completed.wire))
        is_long = len(short.files) + len(short.deferred) > _FEW_FILES or max(sizes) > SHORT_BYTES
        message = await asyncio.to_thread(rendered) if is_long else rendered()
        if HAS_PILLOW and any(file.block is not None for file in short.files):
            smaller = await self._smaller(message, short, completed.wire, request)
            if smaller:
                message = await asyncio.to_thread(rendered, smaller=smaller)
        request.steps.done("render")
        message = await self.guard.message(message, guarded, media_stay=True)
        request.steps.done("guard")
        return known_to(request.facts.protocol, message)

    async def _smaller(
        self, message: Mapping[str, Any], processed: Processed, wire: Mapping[str, Any], request: Request
    ) -> dict[int, str]:
        """Return smaller versions of pictures that do not fit into a message, by the index of their block."""
        blocks = {
            file.block: file
            for file in processed.files
            if file.block is not None and wire["content"][file.block].get("type") == "image"
        }
        beside = [block for block in message["content"] if block.get("type") != "image"]
        if not 0 < len(blocks) <= _MOST_PICTURES or len(message["content"]) - len(beside) >= len(blocks):
            return {}
        left = MESSAGE_MAX_BYTES - len(json.dumps({**message, "content": beside}).encode())
        most = (left // len(blocks) - _BESIDE_PICTURE) // 4 * 3
        smaller: dict[int, str] = {}
        for index, file in blocks.items():
            if file.size > most > 0:
                picture = await asyncio.to_thread(_picture_of, wire["content"][index].get("data"))
                made = await smaller_picture(
                    picture, most, tool=request.tool, user=request.user, settings=self.settings
                )
                if made is not None:
                    smaller[index] = encode(made)
        return smaller


def failed_result(error: CallError, *, protocol: str) -> dict[str, Any]:
    """Return the result of a tool call that ended with an error, and with nothing else.

    Args:
        error: The error.
        protocol: The client's protocol version.
    """
    message = render(failed(error), wire={}, output_schema=None, delivery=Delivery.REFERENCE)
    if protocol not in HANDSHAKE_PROTOCOL_VERSIONS:
        message.setdefault("resultType", "complete")
    return message


def redacted_result(own_paths: OwnPaths, result: dict[str, Any]) -> dict[str, Any]:
    """Return a result for clients; an error in it has no path of ours."""
    if result.get("isError") is not True:
        return result
    redacted: dict[str, Any] = own_paths.redact(result)
    return redacted


def redacted_error(own_paths: OwnPaths, error: MCPError) -> MCPError:
    """Return a JSON-RPC error for clients, without paths of ours."""
    return MCPError(
        code=error.error.code,
        message=str(own_paths.redact(error.error.message)),
        data=own_paths.redact(error.error.data),
    )


def known_to(protocol: str, message: dict[str, Any]) -> dict[str, Any]:
    """Return a result that every client of this version of the protocol reads.

    Links to resources came with 2025-06-18; clients before it refuse a whole result for one. Others refuse it
    for a word of the protocol's in `_meta` with a value that the protocol does not give it.
    """
    meta = message.get("_meta")
    if isinstance(meta, Mapping) and not meta.keys().isdisjoint(_PROTOCOL_META):
        passed = {key: item for key, item in meta.items() if _is_of_protocol(key, item)}
        message = {**message, "_meta": passed}
    content = message.get("content")
    if protocol not in _WITHOUT_LINKS or not isinstance(content, list):
        return message
    return {**message, "content": [_linkless(block) for block in content]}


def _is_of_protocol(key: str, item: Any) -> bool:
    if key == _PROTOCOL_META[0]:
        return isinstance(item, str) or (isinstance(item, int) and not isinstance(item, bool))
    return key != _PROTOCOL_META[1] or (isinstance(item, Mapping) and isinstance(item.get("taskId"), str))


def _picture_of(data: object) -> bytes:
    return decode(canonical(without_header(data)) or "")


def _linkless(block: Any) -> Any:
    if not isinstance(block, Mapping) or block.get("type") != "resource_link":
        return block
    size = f", {block['size']} bytes" if isinstance(block.get("size"), int) else ""
    about = f" ({block['mimeType']}{size})" if isinstance(block.get("mimeType"), str) else ""
    return {"type": "text", "text": f"{block.get('name')}{about}: read it as resource {block.get('uri')}"}


def delivery_to(settings: ServiceSettings, params: Mapping[str, Any]) -> Delivery:
    """Return the delivery of artifacts to a client: by setting, else by its request."""
    if settings.store_scheme == "none":
        # Nothing could be read by reference.
        return Delivery.INLINE
    if settings.artifact_delivery != "auto":
        return Delivery(settings.artifact_delivery)
    meta = params.get("_meta")
    delivery = meta.get(DELIVERY_KEY) if isinstance(meta, Mapping) else None
    return Delivery.INLINE if delivery == "inline" else Delivery.REFERENCE


def inline_limit_of(settings: ServiceSettings, params: Mapping[str, Any]) -> int:
    """Return the largest artifact that the client of a request wants inside its result.

    Encoding what would not be sent costs time and memory for nothing.
    """
    if delivery_to(settings, params) is Delivery.REFERENCE:
        return NEVER_INLINE
    return min(settings.inline_max_bytes, MESSAGE_MAX_BYTES)
