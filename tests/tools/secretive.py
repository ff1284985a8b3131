"""Tools with and without secrets, and tools that look for secrets of others."""

import asyncio
import ctypes
import logging
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

from acts import perform
from fastmcp import Context, FastMCP

mcp = FastMCP("secretive")

AT_IMPORT = dict(os.environ)
KEPT: dict[str, str] = {}
NAMES = ("API_KEY", "OTHER_KEY")


def _seen() -> dict[str, str]:
    return {name: os.environ[name] for name in NAMES if name in os.environ}


@mcp.tool
def holds() -> dict:
    """Return the length of each secret that exists, and keep it in memory."""
    KEPT.update(_seen())
    sys.modules["__main__"].__dict__["kept"] = dict(KEPT)
    return {"lengths": {name: len(value) for name, value in KEPT.items()}, "pid": os.getpid()}


@mcp.tool
def hands_on() -> dict:
    """Do what an honest tool does with a key: give it to a program that it starts."""
    code = "import os; print(len(os.environ['API_KEY']))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {"length": int(run.stdout)}


@mcp.tool
def looks() -> dict:
    """Look everywhere that this process can read for what an earlier call had."""
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p
    try:
        initial = Path("/proc/self/environ").read_text()
    except OSError:
        initial = ""
    return {
        "environ": _seen(),
        "c": [name for name in NAMES if libc.getenv(name.encode())],
        "import": [name for name in NAMES if name in AT_IMPORT],
        "proc": [name for name in NAMES if name in initial],
        "module": dict(KEPT),
        "main": sys.modules["__main__"].__dict__.get("kept"),
        "pid": os.getpid(),
    }


@mcp.tool
async def says(ctx: Context) -> dict:
    """Emit the secret in every way that a tool has."""
    key = os.environ["API_KEY"]
    await ctx.info(f"using {key}")
    await ctx.report_progress(1, 2, f"half with {key}")
    await ctx.set_state("key", key)
    print(f"printed {key}")
    logging.getLogger("tool").warning("logged %s", key)
    return {"text": f"<{key}>", "list": [key], key: 1, "url": f"https://x/?k={quote(key, safe='')}"}


@mcp.tool
async def remembered(ctx: Context) -> str:
    """Return what another tool has put into the session."""
    return str(await ctx.get_state("key"))


@mcp.tool
def raises() -> str:
    """Raise an error with the secret in it."""
    raise ValueError(f"401 for {os.environ['API_KEY']}")


@mcp.tool
def dies() -> str:
    """End the process with the secret as its last word."""
    os.write(2, f"fatal: {os.environ['API_KEY']}\n".encode())
    os._exit(3)


@mcp.tool
def dies_talking(after: int) -> str:
    """End the process with so many bytes behind the secret."""
    os.write(2, b"before " + os.environ["API_KEY"].encode() + b"." * after)
    os._exit(3)


@mcp.tool
def leaves(before: int) -> str:
    """Leave with so many characters before the secret."""
    sys.exit("x" * before + os.environ["API_KEY"])


@mcp.tool(meta={"toolcell": {"background": True}})
def stays(username: str) -> int:
    """Request to continue between calls."""
    KEPT.update(_seen())
    return os.getpid()


@mcp.tool
def writes(username: str) -> str:
    """Write files that nobody returns, one with the secret in its name."""
    Path(os.environ["API_KEY"] + ".txt").write_text("x")
    Path("plain.txt").write_text("x")
    return "written"


@mcp.tool
async def uses(ctx: Context) -> str:
    """Use the secret for long, with a program that has it too, and say which processes these are."""
    KEPT.update(_seen())
    program = await asyncio.create_subprocess_exec("sleep", "600", env=dict(os.environ))
    await ctx.report_progress(1, None, f"{os.getpid()} {program.pid}")
    await program.wait()
    return "never"


@mcp.tool
def pries(pids: list[int], backwards: str) -> dict:
    """Try to look into processes, and search what /proc shows of any for a secret.

    It is given turned round, so that this process does not have it by being asked.
    """
    names = ("environ", "memory", "peek", "trace", "signal")
    reached = {f"{name} {pid}": perform(name, [pid]) for name in names for pid in pids}
    readable = []
    for file in (*Path("/proc").glob("[0-9]*/environ"), *Path("/proc").glob("[0-9]*/cmdline")):
        try:
            if backwards.encode() in file.read_bytes()[::-1]:
                readable.append(str(file))
        except OSError:
            continue
    return {
        "reached": [what for what, answer in reached.items() if "value" in answer],
        "readable": readable,
        "pid": os.getpid(),
    }
