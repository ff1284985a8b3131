"""A server that changes while it runs: what it offers to one session, or to all, and what it keeps."""

import mcp_types
from fastmcp import Context, FastMCP
from fastmcp.prompts import Prompt
from fastmcp.resources import TextResource
from fastmcp.server.middleware import Middleware
from pydantic import AnyUrl


class Counting(Middleware):
    """Counts the calls of its server, and of each session."""

    def __init__(self) -> None:
        self.calls = 0

    async def on_call_tool(self, context, call_next):
        """Count one."""
        self.calls += 1
        session = context.fastmcp_context
        await session.set_state("calls", (await session.get_state("calls") or 0) + 1)
        return await call_next(context)


counting = Counting()
mcp = FastMCP("changing", middleware=[counting])
mcp.disable(tags={"hidden"})


@mcp.tool
async def counted(ctx: Context) -> list[int]:
    """Return the number of calls, and of those of this session."""
    return [counting.calls, await ctx.get_state("calls")]


@mcp.tool
async def reveal(ctx: Context) -> str:
    """Show what is hidden to this session."""
    await ctx.enable_components(tags={"hidden"})
    return "revealed"


@mcp.tool
async def conceal(ctx: Context) -> str:
    """Hide it again."""
    await ctx.disable_components(tags={"hidden"})
    return "concealed"


@mcp.tool(tags={"hidden"})
def secret(number: int) -> str:
    """Be there for some."""
    return f"secret {number}"


@mcp.resource("hidden://page", tags={"hidden"})
def page() -> str:
    """Be there for some."""
    return "a hidden page"


@mcp.prompt(tags={"hidden"})
def whisper() -> str:
    """Be there for some."""
    return "a hidden prompt"


def added(number: int) -> str:
    """Be there after a while."""
    return f"added {number}"


@mcp.tool
async def grow(ctx: Context) -> str:
    """Offer more, to all."""
    mcp.add_tool(added)
    mcp.add_resource(TextResource(uri=AnyUrl("added://page"), name="added page", text="an added page"))
    mcp.add_prompt(Prompt.from_function(lambda: "an added prompt", name="added_prompt"))
    for changed in (
        mcp_types.ToolListChangedNotification(),
        mcp_types.ResourceListChangedNotification(),
        mcp_types.PromptListChangedNotification(),
    ):
        await ctx.send_notification(changed)
    return "grown"


@mcp.tool
def shrink() -> str:
    """Offer less, to all."""
    mcp.local_provider.remove_tool("added")
    mcp.local_provider.remove_tool("conceal")
    return "shrunk"


@mcp.tool
def grow_at_home(username: str) -> str:
    """Offer more, from a process that has a home, to its user alone."""

    def at_home(username: str) -> str:
        """Write where only a process with a home may."""
        with open(f"/tmp/{username}/made.txt", "w") as file:
            return str(file.write("made"))

    mcp.add_tool(at_home)
    mcp.local_provider.remove_tool("secret")
    return "grown"
