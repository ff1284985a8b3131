"""Resources of a file that have the runner's own scheme."""

import pytest
from fastmcp import FastMCP
from mcp.server.mcpserver import MCPServer

from runner.worker.served import addresses_of_the_runner, served_by

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("make", [FastMCP, MCPServer])
@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("artifact://{id}", ["artifact://{id}"]),
        ("artifact://one", ["artifact://one"]),
        ("note://{id}", []),
        ("note://one", []),
    ],
)
async def test_resource_with_runner_scheme_is_found(
    make: "type[FastMCP] | type[MCPServer]", address: str, found: list[str]
) -> None:
    server = make("own")

    if "{" in address:

        @server.resource(address)
        def template(id: str) -> str:  # noqa: A002 - the name in the address
            return id

    else:

        @server.resource(address)
        def resource() -> str:
            return "one"

    assert await addresses_of_the_runner(served_by(server)) == found
