"""A file that serves itself when imported: `mcp.run()` without `if __name__ == "__main__"`.

This is correct in a program. On import it would read the standard input of the zygote, open a port, or start
threads. So during the import of a file, the serving methods return at once, and the code after them runs.
The methods are public, but replacing them is an internal matter. If one is renamed, such files serve
themselves again, and `tests/commands/test_bad_input.py -k serves_itself` fails.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from fastmcp import FastMCP
from mcp.server.mcpserver import MCPServer

__all__ = ["serving_nothing"]

_COMMON = ("run", "run_stdio_async")
_METHODS: dict[type[Any], tuple[str, ...]] = {
    FastMCP: (*_COMMON, "run_async", "run_http_async"),
    MCPServer: (*_COMMON, "run_sse_async", "run_streamable_http_async"),
}


@contextlib.contextmanager
def serving_nothing() -> Iterator[None]:
    """Keep servers from serving during the block, whatever starts them."""
    with contextlib.ExitStack() as stack:
        for kind, names in _METHODS.items():
            for name in names:
                stack.enter_context(_replaced(kind, name))
        yield


@contextlib.contextmanager
def _replaced(kind: type[Any], name: str) -> Iterator[None]:
    own = getattr(kind, name)
    setattr(kind, name, _at_once if name == "run" else _at_once_async)
    try:
        yield
    finally:
        setattr(kind, name, own)


def _at_once(self: object, *args: object, **kwargs: object) -> None:
    """Serve nothing."""


async def _at_once_async(self: object, *args: object, **kwargs: object) -> None:
    """Serve nothing."""
