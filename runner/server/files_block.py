"""The available-files block where clients pass it to models by default: in instructions and descriptions.

Clients show the model a server's instructions and the descriptions of its tools by default; few read a
resource or offer a prompt. Instructions are read once per connection, so they name the place of later lists.
Descriptions change with the files, and clients get a notification to list them again
(`runner.protocol.subscriptions`). Both belong to one user: no cache may share them.

Source: document 001, section 4; requirements S1-21, S1-38; MCP specification 2025-06-18, "Lifecycle";
2026-07-28, `server/discover`; `docs/guide.md`.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from runner.contract.available_files import available_files, files_block
from runner.files.file_events import FILES_URI
from runner.server.extras import AVAILABLE_FILES
from runner.toolset.call_services import CallServices
from runner.toolset.catalog import FILE_ARGUMENTS, LINK_ARGUMENTS
from runner.users.identity import User

__all__ = ["takes_files", "with_descriptions", "with_instructions"]

log = logging.getLogger(__name__)

# Part of every request to a model, so shorter than the block on request.
_MOST_IN_INSTRUCTIONS = 50
_MOST_IN_DESCRIPTION = 20
# Longest delay of a connection by a store that does not respond.
_PATIENCE_S = 3.0
_LATER = (
    f"These are the user's files as this connection began. Those of now are in the resource {FILES_URI} and "
    f"in the prompt {AVAILABLE_FILES}. Tools take them by name in `filename` and `filenames`."
)
_OF_ONE_USER = {"ttlMs": 0, "cacheScope": "private"}


async def with_instructions(answered: Mapping[str, Any], service: CallServices, user: User) -> dict[str, Any]:
    """Return the answer to `initialize` or `server/discover` with the user's files in its instructions."""
    settings = service.settings
    if settings.extras not in ("instructions", "descriptions"):
        return dict(answered)
    block = await _block(service, user, most=_MOST_IN_INSTRUCTIONS)
    if not block:
        return dict(answered)
    own = answered.get("instructions")
    parts = [own] if isinstance(own, str) and own else []
    instructions = "\n\n".join([*parts, f"{_LATER}\n{block}"])
    return {**answered, **_set_aside(answered), "instructions": instructions}


async def with_descriptions(
    answered: Mapping[str, Any],
    service: CallServices,
    user: User,
    *,
    takes: Callable[[Mapping[str, Any]], bool] | None = None,
) -> dict[str, Any]:
    """Return the answer to `tools/list` with the user's files in the descriptions of tools that take files.

    Args:
        answered: The answer.
        service: Services of the server.
        user: The caller.
        takes: Returns whether a listed tool takes the user's files; by default determined by its arguments.
    """
    settings, tools = service.settings, answered.get("tools")
    if settings.extras != "descriptions" or not isinstance(tools, list):
        return dict(answered)
    is_offered = takes or takes_files
    taking = [isinstance(tool, Mapping) and is_offered(tool) for tool in tools]
    block = await _block(service, user, most=_MOST_IN_DESCRIPTION) if any(taking) else ""
    lines = [
        {**tool, "description": "\n\n".join(filter(None, [tool.get("description"), block]))}
        if is_taking
        else tool
        for tool, is_taking in zip(tools, taking, strict=True)
    ]
    return {**answered, **_set_aside(answered), "tools": lines if block else tools}


def takes_files(tool: Mapping[str, Any]) -> bool:
    """Return whether a listed tool has an argument that names files of the user."""
    schema = tool.get("inputSchema")
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return isinstance(properties, Mapping) and any(
        name in properties for name in (*FILE_ARGUMENTS, *LINK_ARGUMENTS)
    )


async def _block(service: CallServices, user: User, *, most: int) -> str:
    """Return the block, or an empty text if the store cannot list the files."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return files_block(available_files(await service.files(user).all()), most=most)
    except Exception as fault:
        # The block was not requested: a fault of the store must not fail the connection or the list.
        log.warning("could not list files", extra={"user": user.name}, exc_info=fault)
        return ""


def _set_aside(answered: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the keys that keep caches from sharing an answer between users, if the protocol has them."""
    return _OF_ONE_USER if "cacheScope" in answered or "ttlMs" in answered else {}
