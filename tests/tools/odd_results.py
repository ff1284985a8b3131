"""Tools that return the result in their argument: a tool file and, as a program, a server over stdio."""

import base64
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

PLACE = {
    "type": "object",
    "properties": {"x": {"type": "number"}, "y": {"type": "string"}},
    "required": ["x"],
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "any_object": {"type": "object"},
    "typed": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20_000},
            "count": {"type": "integer", "minimum": 0},
            "rows": {"type": "array", "items": {"type": "object"}},
            "note": {"type": ["string", "null"]},
        },
        "required": ["name", "count"],
        "additionalProperties": False,
    },
    "pattern": {
        "type": "object",
        "properties": {"id": {"type": "string", "pattern": "^[A-Za-z0-9+/=]*$"}, "text": {"type": "string"}},
        "required": ["id"],
    },
    "path": {
        "type": "object",
        "properties": {"path": {"type": "string", "pattern": "^/"}, "b64": {"type": "string"}},
        "required": ["path"],
    },
    "least": {
        "type": "object",
        "properties": {
            "text": {"type": "string", "minLength": 300},
            "items": {"type": "array", "items": {"type": "string"}, "minItems": 3},
        },
        "required": ["text", "items"],
    },
    "set": {
        "type": "object",
        "properties": {"set": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}},
        "required": ["set"],
    },
    "map": {"type": "object", "additionalProperties": {"type": "string"}},
    "map_of_lists": {
        "type": "object",
        "patternProperties": {"^[a-z]": {"type": "array", "items": {"type": ["string", "integer"]}}},
        "additionalProperties": {"type": "string"},
        "minProperties": 1,
    },
    "numbers": {
        "type": "object",
        "properties": {
            "bytes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 255}}
        },
        "required": ["bytes"],
    },
    "tuple": {
        "type": "object",
        "properties": {
            "pair": {
                "type": "array",
                "prefixItems": [{"type": "string"}, {"type": "integer"}],
                "minItems": 2,
                "maxItems": 2,
            }
        },
        "required": ["pair"],
    },
    "referenced": {
        "type": "object",
        "$defs": {
            "place": PLACE,
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "string"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                },
                "required": ["value"],
            },
        },
        "properties": {"place": {"$ref": "#/$defs/place"}, "tree": {"$ref": "#/$defs/node"}},
        "required": ["tree"],
    },
    "either": {
        "type": "object",
        "anyOf": [
            {"properties": {"ok": {"type": "string"}}, "required": ["ok"]},
            {"properties": {"error": {"type": "object"}}, "required": ["error"]},
        ],
    },
    "one_of": {
        "type": "object",
        "properties": {
            "value": {"oneOf": [{"type": "integer"}, {"type": "string", "minLength": 1}, {"type": "array"}]}
        },
        "required": ["value"],
    },
    "constants": {
        "type": "object",
        "properties": {
            "type": {"const": "image"},
            "kind": {"enum": ["a", "b", None]},
            "data": {"type": "string"},
        },
        "required": ["type", "data"],
    },
    "formats": {
        "type": "object",
        "properties": {
            "when": {"type": "string", "format": "date-time"},
            "where": {"type": "string", "format": "uri"},
            "mail": {"type": "string", "format": "email"},
            "bytes": {"type": "string", "contentEncoding": "base64"},
        },
    },
    "wrapped": {
        "type": "object",
        "properties": {"result": {"type": "array", "items": {"type": "string"}}},
        "required": ["result"],
        "x-fastmcp-wrap-result": True,
    },
    "contract": {
        "type": "object",
        "properties": {
            "results": {},
            "artifacts": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string", "minLength": 1},
                        "path": {"type": "string"},
                        "b64": {"type": "string"},
                    },
                    "required": ["name"],
                },
            },
            "meta_data": {"type": "object", "additionalProperties": {"type": ["string", "number"]}},
        },
        "required": ["results"],
    },
}
"""Output schemas, by the name of the tool that declares it; the tool `plain` declares none."""
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
FILES = {"made.csv": b"a,b\n1,2\n", "made.png": PNG, "empty": b"", "deep/made.json": b'{"a": 1}'}
NAMES = ["plain", *SCHEMAS]


def made(text: str, username: str) -> dict[str, Any]:
    """Return the result that a text is; it may name the home, in which there are files then."""
    if "@HOME@" in text:
        home = Path("/tmp", username)
        for name, content in FILES.items():
            with contextlib.suppress(OSError):
                (home / name).parent.mkdir(exist_ok=True)
                (home / name).write_bytes(content)
        text = text.replace("@HOME@", str(home))
    result: dict[str, Any] = json.loads(text)
    return result


def serve() -> None:
    """Answer as a server of the handshake era that checks nothing."""
    taken = {"type": "object", "properties": {name: {"type": "string"} for name in ("text", "username")}}
    tools = [{"name": name, "inputSchema": taken} for name in NAMES]
    for tool in tools[1:]:
        tool["outputSchema"] = SCHEMAS[str(tool["name"])]
    for line in sys.stdin:
        message = json.loads(line)
        params, answer = message.get("params") or {}, dict[str, Any]()
        match message["method"]:
            case "initialize":
                about = {"name": "odd", "version": "1"}
                answer = {
                    "protocolVersion": params["protocolVersion"],
                    "capabilities": {"tools": {}},
                    "serverInfo": about,
                }
            case "tools/list":
                answer = {"tools": tools}
            case "tools/call":
                arguments = params["arguments"]
                answer = made(arguments["text"], arguments.get("username", "nobody"))
        if "id" in message:
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer}), flush=True)


if __name__ == "__main__":
    serve()
else:
    from fastmcp import FastMCP
    from fastmcp.tools import ToolResult
    from mcp_types import CallToolResult
    from pydantic import ValidationError

    mcp = FastMCP("odd")

    # The names of its parameters are those of the tools.
    def give(text: str, username: str) -> ToolResult:
        """Return a result as given; what is not a result, as FastMCP makes one of any value."""
        result = made(text, username)
        try:
            return ToolResult.from_mcp_result(CallToolResult.model_validate(result, by_name=False))
        except (ValidationError, ValueError):
            return ToolResult(
                content=result.get("content"),
                structured_content=result.get("structuredContent"),
                is_error=result.get("isError") is True,
            )

    for each in NAMES:
        mcp.tool(give, name=each, output_schema=SCHEMAS.get(each))
