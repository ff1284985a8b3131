"""Tools that run programs and read variables, each under two names, so that one can have other rights."""

import os
import subprocess

from fastmcp import FastMCP

mcp = FastMCP("rights")
AT_IMPORT = os.environ.get("OPENED")


def run(words: list[str]) -> str:
    """Run a program and say what it said."""
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    return ended.stdout + ended.stderr


def run_each(programs: list[list[str]]) -> list[str]:
    """Run programs, and say for each what came of it."""
    results = []
    for words in programs:
        try:
            results.append(run(words))
        except OSError as error:
            results.append(type(error).__name__)
    return results


def see(name: str) -> list[str | None]:
    """Return a variable now and at import, here and in a program."""
    return [os.environ.get(name), AT_IMPORT, run(["/bin/sh", "-c", f'printf %s "${name}"'])]


def environment() -> str:
    """Return what Python and a program see of the environment."""
    return run(["env"]) + "\n".join(f"{name}={value}" for name, value in os.environ.items())


for act in (run, run_each, see):
    mcp.tool(act)
    mcp.tool(act, name=f"other_{act.__name__}")
mcp.tool(environment)
