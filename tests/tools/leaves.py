"""Tools that write files into their home and do not return them."""

import asyncio
import fcntl
import os
import struct
from pathlib import Path

from fastmcp import FastMCP

mcp = FastMCP("leaves")
jobs: list[asyncio.Task[None]] = []


@mcp.tool
def leaves_write(username: str, files: dict[str, str], returned: list[str] | None = None) -> dict:
    """Write files, of which some are returned."""
    home = Path(f"/tmp/{username}")
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    listed = [{"name": os.path.basename(name), "path": str(home / name)} for name in returned or ()]
    return {"results": len(files), **({"artifacts": listed} if listed else {})}


@mcp.tool
def leaves_plain(username: str, name: str) -> str:
    """Write a file and return a plain text."""
    Path(f"/tmp/{username}/{name}").write_text("plain")
    return "written"


@mcp.tool
def leaves_unreadable_name(username: str) -> str:
    """Write a file whose name is not UTF-8, as in old archives."""
    with open(f"/tmp/{username}/".encode() + b"\xe9t\xe9.txt", "w") as file:
        file.write("old")
    return "written"


@mcp.tool
async def leaves_locked(username: str, count: int) -> str:
    """Hold locks on the home, each from a time before the one before it, until a file `.go` is there."""
    home = Path(f"/tmp/{username}")
    held = []
    for place in range(count, 0, -1):
        held.append(fd := os.open(home, os.O_RDONLY))
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, place, 1, 0))
    (home / "begun.lock").touch()
    while not (home / ".go").exists():
        await asyncio.sleep(0.01)
    for fd in held:
        os.close(fd)
    return "let go"


@mcp.tool(meta={"toolcell": {"generated": "ignore"}})
def leaves_unminded(username: str, name: str) -> str:
    """Write a file that its author excludes from records."""
    Path(f"/tmp/{username}/{name}").write_text("scratch")
    return "written"


@mcp.tool
def leaves_odd(username: str, outside: str) -> str:
    """Leave what must not be read: a link out, a file with two names."""
    home = Path(f"/tmp/{username}")
    (home / "link.txt").symlink_to(outside)
    (home / "one.txt").write_text("two names")
    (home / "two.txt").hardlink_to(home / "one.txt")
    return "made"


@mcp.tool
def leaves_old(username: str, count: int) -> int:
    """Make many files, in a folder whose name never counts."""
    folder = Path(f"/tmp/{username}/cache")
    folder.mkdir()
    for number in range(count):
        (folder / f"{number}.txt").write_text("old")
    return count


@mcp.tool
def leaves_nothing(username: str) -> str:
    """Write nothing."""
    return username


@mcp.tool
def leaves_renamed(username: str, old: str, new: str) -> str:
    """Rename a file."""
    os.rename(f"/tmp/{username}/{old}", f"/tmp/{username}/{new}")
    return new


@mcp.tool
async def leaves_slowly(username: str, name: str) -> str:
    """Begin a file, and finish it once there is a file `go`."""
    home = Path(f"/tmp/{username}")
    with (home / name).open("w") as file:
        file.write("first half, ")
        file.flush()
        while not (home / ".go").exists():
            await asyncio.sleep(0.01)
        file.write("second half")
    return "finished"


@mcp.tool
def leaves_go(username: str) -> str:
    """Let `leaves_slowly` go on, beside a file of its own."""
    Path(f"/tmp/{username}/beside.txt").write_text("whole")
    Path(f"/tmp/{username}/.go").touch()
    return "go"


@mcp.tool
async def leaves_failing(username: str, how: str) -> str:
    """Leave half a file, and fail once there is a file `go`, or wait for ever."""
    home = Path(f"/tmp/{username}")
    (home / "half.txt").write_text("half")
    (home / "begun.lock").touch()
    while how == "hang" or not (home / ".go").exists():
        await asyncio.sleep(0.01)
    (home / "late.txt").write_text("late")
    if how == "crash":
        os._exit(3)
    raise ValueError("it did not work")


@mcp.tool(meta={"toolcell": {"generated": "ignore"}})
async def leaves_unminded_slowly(username: str) -> str:
    """Write an excluded file, and end once there is a file `go`."""
    home = Path(f"/tmp/{username}")
    (home / "scratch.txt").write_text("scratch")
    (home / "begun.lock").touch()
    while not (home / ".go").exists():
        await asyncio.sleep(0.01)
    return "done"


@mcp.tool
def leaves_look(username: str) -> str:
    """Write a file of its own, and nothing else."""
    Path(f"/tmp/{username}/look.txt").write_text("whole")
    return "looked"


@mcp.tool(meta={"toolcell": {"background": True}})
async def leaves_job(username: str) -> str:
    """Write a file, and begin what goes on after the answer."""
    Path(f"/tmp/{username}/job.txt").write_text("not yet whole")
    jobs.append(asyncio.create_task(asyncio.sleep(600)))
    return "begun"


@mcp.tool
def leaves_homeless() -> str:
    """Run without a home."""
    return "nothing"
