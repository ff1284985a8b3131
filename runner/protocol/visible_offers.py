"""Offers of a server as clients list them: hidden characters in descriptions are written as escapes.

A description can hold instructions that a model reads and a reviewer does not see, in tag characters for
example. So lists, instructions and facts of a server pass through here.

Source: `runner.formats.terminal_text`; `docs/output-guard.md`.
"""

import logging
from collections.abc import Mapping
from typing import Any

from runner.formats.terminal_text import has_hidden, one_line, visible_schema, visible_value
from runner.system.turns import in_turns

__all__ = ["visible_introduction", "visible_list"]

log = logging.getLogger(__name__)

_LISTS = {
    "tools/list": ("tools", "name"),
    "prompts/list": ("prompts", "name"),
    "resources/list": ("resources", "uri"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate"),
}
_SCHEMAS = ("inputSchema", "outputSchema")
_INTRODUCTION = ("instructions", "serverInfo")


async def visible_list(method: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a list with its texts visible; any other result is returned unchanged.

    An item is left out if its name or URI holds hidden characters: a request with the escaped form would not
    find it.
    """
    key, identifier = _LISTS.get(method, ("", ""))
    items = result.get(key)
    if not isinstance(items, list):
        return dict(result)
    shown = []
    async for item in in_turns(items):
        named = item.get(identifier) if isinstance(item, Mapping) else None
        if isinstance(named, str) and has_hidden(named):
            log.warning("offer hidden", extra={"method": method, "offer": one_line(named)[:200]})
        else:
            shown.append(_visible_item(item) if isinstance(item, dict) else visible_value(item))
    return {**result, key: shown}


def _visible_item(item: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: visible_schema(value) if key in _SCHEMAS else visible_value(value) for key, value in item.items()
    }


def visible_introduction(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return an `initialize` or `server/discover` result with visible instructions and server info."""
    return {**result, **{key: visible_value(result[key]) for key in _INTRODUCTION if key in result}}
