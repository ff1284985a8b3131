"""Tools whose processes talk by UNIX sockets, as people write them without thinking of sockets."""

import multiprocessing
import os
import socket
from typing import Any

from fastmcp import FastMCP

mcp = FastMCP("sockets")
KEPT: list[socket.socket] = []


@mcp.tool
def shares(username: str) -> list[int]:
    """Share a list among processes, through one that manages it."""
    with multiprocessing.Manager() as manager:
        numbers = manager.list()
        workers = [multiprocessing.Process(target=numbers.append, args=(n,)) for n in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return sorted(numbers)


@mcp.tool
def listens(username: str, name: str) -> int:
    """Listen in the home, also after the call; say in which process."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(name)
    server.listen()
    KEPT.append(server)
    return os.getpid()


@mcp.tool
def visits(username: str, name: str) -> str:
    """Connect to who listens in the home."""
    with socket.socket(socket.AF_UNIX) as mine:
        mine.connect(os.path.abspath(name))
    return "let in"


@mcp.tool
def calls_it_a_file(username: str) -> dict[str, Any]:
    """Name a socket in the home as a file to be kept."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("report.txt")
    return {"results": "done", "artifacts": [{"name": "report.txt", "path": f"/tmp/{username}/report.txt"}]}
