"""Removal of the identity, which the runner fills in, from the schemas for clients.

Source: contradiction C4 of the requirements.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from runner.system.turns import in_turns

__all__ = ["without_identity", "without_parameter"]


async def without_identity(tools: Iterable[Any], name: str) -> list[Any]:
    """Return the tools of a list without the parameter for the caller's identity, which we fill in."""
    return [
        {**tool, "inputSchema": without_parameter(tool["inputSchema"], name)}
        if isinstance(tool, Mapping) and "inputSchema" in tool
        else tool
        async for tool in in_turns(tools)
    ]


def without_parameter(schema: Any, name: str) -> Any:
    """Return the schema of a tool's arguments without a parameter that no client fills in."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping) or name not in properties:
        return schema
    left = {**schema, "properties": {key: item for key, item in properties.items() if key != name}}
    required = schema.get("required")
    if isinstance(required, list):
        left["required"] = [key for key in required if key != name]
        if not left["required"]:
            del left["required"]
    return left
