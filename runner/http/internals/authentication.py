"""Replacement of a server's token verifiers after its creation.

FastMCP accepts a verifier as an argument of the server, and tokens as an argument of the verifier; replacing
either is not documented.
"""

from collections.abc import Callable
from typing import Any

from fastmcp import FastMCP
from fastmcp.server.auth import AuthProvider
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier

__all__ = ["replace_auth", "replace_tokens"]


def replace_auth(app: FastMCP, change: Callable[[AuthProvider], AuthProvider]) -> None:
    """Replace the token verifier of a server, if it has one.

    Args:
        app: The server, before its application is made.
        change: Returns the replacement of the current verifier.
    """
    if app.auth is not None:
        app.auth = change(app.auth)


def replace_tokens(auth: StaticTokenVerifier, tokens: dict[str, dict[str, Any]]) -> None:
    """Replace the list of tokens from the next request on.

    Args:
        auth: The verifier.
        tokens: The claims of each token, in the form of the constructor's argument.
    """
    auth.tokens = tokens
