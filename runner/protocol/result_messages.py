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
from runner.steps.model_view import little
from runner.steps.request import SHORT_BYTES, Completed, Request
from runner.system.logging_setup import CallScope
from runner.toolset.small_pictures import HAS_PILLOW, smaller_picture
from runner.users.identity import User

__all__ = [
    "DELIVERY_KEY",
    "DownloadUrl",
    "ResultMessages",
    "failed_result",
    "inline_limit_of",
    "known_to",
    "redacted_error",
    "redacted_result",
]

DELIVERY_KEY = "toolcell/artifacts"
"""Key of `_meta` with which a request selects the delivery of artifacts: `inline` or `reference`."""

_OURS = ("artifact_errors", "denials")
"""Keys of a successful result's `meta_data` that are set by us, not by the tool."""

_FEW_FILES = 8
# Shrinking each one takes a process.
_MOST_PICTURES = 8
# Room for the link to the original beside a shrunk picture, and for its two entries in `_meta`.
_BESIDE_PICTURE = 2048
_MOST_FACTS_CHARS = 262_144
"""Longest `meta_data`, in characters of JSON, that a client gets whole."""

DownloadUrl = Callable[[User, ArtifactFile], str]
"""Returns the URL at which a user can download a file."""


_PROTOCOL_META = ("progressToken", "io.modelcontextprotocol/related-task")
_WITHOUT_LINKS = ("2024-11-05", "2025-03-26")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultMessages:
    """Builder of the result messages of one server.

    Attributes:
        settings: The effective settings.
        guard: The output guard.
        own_paths: Paths to redact from messages.
        download_url: Returns download URLs; None if there is no HTTP.
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
        is_for_page: bool = False,
    ) -> dict[str, Any]:
        """Return the `tools/call` result of a completed call.

        Args:
            completed: How it ended.
            request: The call.
            files: Files of the user, to which content removed from the result is added.
            tool: Name of the tool in the guard's settings; by default the name in the request.
            server: The remote server that executed it, if any.
            is_for_page: Whether the result reaches a widget's page, and no model.
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
            is_for_page=is_for_page,
        )
        url, user = self.download_url, request.user
        # Text and structured content are made of guarded `results`. `meta_data` that would fill a message is
        # guarded too; otherwise it reaches the client whole, in `_meta`.
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
            delivery=Delivery.REFERENCE if request.inline_max_bytes == NEVER_INLINE else Delivery.INLINE,
            download_url=None if url is None else lambda file: url(user, file),
            allowed_origins=self.settings.iframe_origins,
            max_bytes=MESSAGE_MAX_BYTES,
        )
        # Rendering copies each value, and searches each text for names of files: many of them take a while.
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
    """Return the result of a tool call that produced nothing but an error.

    Args:
        error: The error.
        protocol: The client's protocol version.
    """
    message = render(failed(error), wire={}, output_schema=None, delivery=Delivery.REFERENCE)
    if protocol not in HANDSHAKE_PROTOCOL_VERSIONS:
        message.setdefault("resultType", "complete")
    return message


def redacted_result(own_paths: OwnPaths, result: dict[str, Any]) -> dict[str, Any]:
    """Return a result for clients, with our paths redacted if it is an error."""
    if result.get("isError") is not True:
        return result
    redacted: dict[str, Any] = own_paths.redact(result)
    return redacted


def redacted_error(own_paths: OwnPaths, error: MCPError) -> MCPError:
    """Return a JSON-RPC error for clients, with our paths redacted."""
    return MCPError(
        code=error.error.code,
        message=str(own_paths.redact(error.error.message)),
        data=own_paths.redact(error.error.data),
    )


def known_to(protocol: str, message: dict[str, Any]) -> dict[str, Any]:
    """Return a result that every client of a protocol version accepts.

    Resource links came with 2025-06-18; clients of earlier versions reject a whole result for one. Others
    reject it if a key of the protocol in `_meta` has a value of the wrong type.
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


def inline_limit_of(settings: ServiceSettings, params: Mapping[str, Any]) -> int:
    """Return the size in bytes of the largest artifact to send inside a result.

    Encoding larger ones, which would not be sent, would waste time and memory. Without a store, a reference
    could not be read. Otherwise the settings decide, or the client's request.
    """
    delivery: object = settings.artifact_delivery
    if delivery == "auto":
        meta = params.get("_meta")
        delivery = meta.get(DELIVERY_KEY) if isinstance(meta, Mapping) else None
    if delivery == "inline" or settings.store == "none:":
        return min(settings.inline_max_bytes, MESSAGE_MAX_BYTES)
    return NEVER_INLINE
