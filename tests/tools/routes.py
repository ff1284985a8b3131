"""A server with HTTP routes of its own beside its tools."""

from fastmcp import FastMCP
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

mcp = FastMCP("routes")
calls: list[str] = []
FORBIDDEN = {"clear-site-data": '"*"', "x-accel-redirect": "/internal", "access-control-allow-origin": "*"}


@mcp.tool
def count() -> int:
    """Return the number of requests."""
    return len(calls)


@mcp.custom_route("/health", methods=["GET"])
async def health(request: Request) -> Response:
    """Report success."""
    calls.append("health")
    return JSONResponse({"status": "ok", "query": dict(request.query_params)})


@mcp.custom_route("/items/{item:int}", methods=["GET", "POST"])
async def item(request: Request) -> Response:
    """Show what came, and try what only a page of this server may."""
    text = f"{request.path_params['item']} {(await request.body()).decode()} {request.headers.get('cookie')}"
    answer = HTMLResponse(text, status_code=201, headers={"content-language": "de", **FORBIDDEN})
    answer.set_cookie("toolcell_session", "forged")
    return answer


@mcp.custom_route("/healthz", methods=["GET"])
async def taken(request: Request) -> Response:
    """Stand where the host has a route."""
    return PlainTextResponse("mine")


@mcp.custom_route("/write", methods=["GET"])
async def write(request: Request) -> Response:
    """Write where nobody may."""
    with open("/var/tmp/routes-were-here", "w") as file:
        return PlainTextResponse(str(file.write("x")))
