"""Three places in which a tool can keep something from one call to the next, and how long each lasts.

    runner serve sample_tools/state.py

| place | lasts | seen by |
| --- | --- | --- |
| a module variable | as long as the process, some minutes | one process of the user |
| `ctx.set_state` | as long as the session of the client, or one call where it has none | that session |
| a file in the home | until the user's last session ends | all calls of the user |
"""

from pathlib import Path

from fastmcp import Context, FastMCP

mcp = FastMCP("state")

_calls = 0


@mcp.tool
def count() -> int:
    """Return how many calls this process has had."""
    global _calls
    _calls += 1
    return _calls


@mcp.tool
async def choose(language: str | None, ctx: Context) -> str:
    """Set the language of this session, or return the one that was set."""
    if language is not None:
        await ctx.set_state("language", language)
    return str(await ctx.get_state("language"))


@mcp.tool
def note(text: str, username: str) -> list[str]:
    """Write a line into a file of the user, and return all lines."""
    path = Path(f"/tmp/{username}/notes.txt")
    with path.open("a", encoding="utf-8") as file:
        file.write(text + "\n")
    return path.read_text(encoding="utf-8").splitlines()
