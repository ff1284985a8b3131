"""Tool file whose tool takes a step, and asks its client something before it goes on."""

from fastmcp import Context, FastMCP
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult

mcp = FastMCP("asking")


@mcp.tool
async def shout(text: str, ctx: Context) -> str | InputRequiredResult:
    """Request a name."""
    answer = (ctx.input_responses or {}).get("name")
    if isinstance(answer, ElicitResult):
        return f"{text} named {(answer.content or {})['value']} by {ctx.request_state}"
    schema = {"type": "object", "properties": {"value": {"type": "string"}}, "required": ["value"]}
    form = ElicitRequestFormParams(message="Name?", requested_schema=schema)
    return InputRequiredResult(input_requests={"name": ElicitRequest(params=form)}, request_state="step 1")
