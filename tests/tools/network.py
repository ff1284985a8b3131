"""Tools that use the network, each under several names, so that each can have rights of its own."""

import socket
import subprocess
import urllib.request

from fastmcp import FastMCP

mcp = FastMCP("network")


def fetch(url: str) -> str:
    """Fetch a page."""
    with urllib.request.urlopen(url, timeout=5) as response:
        return response.read().decode()


def fetch_each(urls: list[str]) -> list[str]:
    """Fetch pages one after the other, and say for each what came of it."""
    return [_tried(lambda u=url: fetch(u)) for url in urls]


def fetch_in_a_program(url: str) -> str:
    """Fetch a page with a program other than Python."""
    ended = subprocess.run(["curl", "-sS", "-m", "5", url], capture_output=True, text=True, check=False)
    return ended.stdout or ended.stderr


def connect(host: str, port: int) -> str:
    """Connect, and say to what."""
    with socket.create_connection((host, port), timeout=5) as connection:
        return connection.getpeername()[0]


def look_up(host: str) -> list[str]:
    """Look up a name, and go nowhere."""
    return sorted({entry[4][0] for entry in socket.getaddrinfo(host, None)})


def _tried(act) -> str:
    try:
        return act()
    except OSError as error:
        return f"{type(error).__name__}: {error}"


OWN = ("own_name", "own_named")
for right in ("named", "several", "beside", "wild", "port", "anywhere", "closed", *OWN):
    for act in (fetch, fetch_in_a_program, connect, look_up, fetch_each):
        mcp.tool(act, name=f"{right}_{act.__name__}")
