"""A tool file that looks around in its isolation tier, and tries what the tier is there to stop."""

import errno
import os
import signal
import time
from pathlib import Path
from typing import Any

from acts import leave_all
from fastmcp import FastMCP

mcp = FastMCP("tiers")

MIB = 1024 * 1024


def _tried(name: str, path: str) -> Any:
    try:
        match name:
            case "read":
                return Path(path).read_text()
            case "write":
                return Path(path).write_text("written")
            case "list":
                return sorted(os.listdir(path))
            case "stat":
                return os.stat(path).st_mode
            case "signal":
                return os.kill(int(path), 0)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    raise ValueError(name)


@mcp.tool
def fine() -> str:
    """Answer."""
    return "fine"


@mcp.tool
def number() -> int:
    """Return the user id of this process, which has no home."""
    return os.getuid()


@mcp.tool
def keeps(text: str) -> dict[str, Any]:
    """Keep a text in the working folder, without asking who calls."""
    Path("kept.txt").write_text(text)
    return {"text": Path("kept.txt").read_text(), "folder": os.getcwd(), "uid": os.getuid()}


@mcp.tool
def who(username: str) -> dict[str, Any]:
    """Return the ids of this process."""
    return {"uid": os.getresuid(), "gid": os.getresgid(), "groups": os.getgroups(), "parent": os.getppid()}


@mcp.tool
def tries(acts: list[list[str]], username: str) -> list[Any]:
    """Try each act; return its value, or the name of its error."""
    return [_tried(name, path) for name, path in acts]


@mcp.tool
def forks(most: int, username: str) -> int:
    """Fork until it is refused, or often enough; return how often it went well."""
    children: list[int] = []
    try:
        while len(children) < most:
            child = os.fork()
            if child == 0:
                time.sleep(600)
            children.append(child)
    except OSError:
        pass
    for child in children:
        os.kill(child, signal.SIGKILL)
    return len(children)


@mcp.tool
def fills(children: int, mib: int, username: str) -> int:
    """Make several children touch memory at the same time; return how many lived."""
    pids = []
    for _ in range(children):
        pid = os.fork()
        if pid == 0:
            held = bytearray(mib * MIB)
            held[::4096] = b"x" * len(held[::4096])
            time.sleep(0.5)
            os._exit(0)
        pids.append(pid)
    return [os.waitpid(pid, 0)[1] for pid in pids].count(0)


@mcp.tool
def touches(mib: int, username: str) -> int:
    """Hold memory in this process alone."""
    held = bytearray(mib * MIB)
    held[::4096] = b"x" * len(held[::4096])
    return len(held) // MIB


@mcp.tool
def leaves(username: str, hang: bool = False) -> str:
    """Leave processes behind in every way there is."""
    leave_all(f"/tmp/{username}")
    Path(f"/tmp/{username}/left").touch()
    time.sleep(600 if hang else 0)
    return "left"


@mcp.tool
def adds(username: str) -> int:
    """Make one file more in the home; return how many there are."""
    home = Path(f"/tmp/{username}")
    count = len(list(home.glob("*.count"))) + 1
    (home / f"{count}.count").touch()
    return count


@mcp.tool
def passes_on(filename: str, username: str) -> dict[str, Any]:
    """Return what was staged, as it is and as a new file."""
    home = Path(f"/tmp/{username}")
    (home / "made").mkdir()
    (home / "made" / "new.txt").write_text(Path(filename).read_text() + ", passed on")
    paths = [filename, str(home / "made" / "new.txt")]
    return {
        "results": "passed",
        "artifacts": [{"name": Path(path).name, "type": "text/plain", "path": path} for path in paths],
    }
