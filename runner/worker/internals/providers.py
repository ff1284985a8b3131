"""How FastMCP asks the providers of a server, which it does not document."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastmcp.server.providers import aggregate
from fastmcp.server.providers.fastmcp_provider import FastMCPProvider
from fastmcp.utilities.async_utils import gather

__all__ = ["FastMCPProvider", "ask_providers_with", "gather"]


def ask_providers_with(ask: Callable[..., Awaitable[list[Any]]]) -> None:
    """Let servers ask their providers with `ask`, which takes what `gather` takes."""
    vars(aggregate)["gather"] = ask
