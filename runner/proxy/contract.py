"""Choice of the contract for a tool of another server: `full`, or `guard`. Pure.

Under `full` its arguments are rewritten and its results become contract values. Under `guard` the server gets
what its client sent, and what a model reads of the answer passes the output guard.

Source: requirements S0-56, S0-70, S0-73, S1-31 and S1-104; `docs/proxy.md`, "Two contracts".
"""

from collections.abc import Mapping
from typing import Literal

from runner.toolset.catalog import ToolSpec

__all__ = ["Contract", "Wish", "contract_of", "has_our_words"]

Contract = Literal["full", "guard"]
"""What holds for one tool."""

Wish = Literal["auto", "full", "guard"]
"""What an operator says of a server; `auto` decides by the tool."""


def contract_of(wish: Wish, spec: ToolSpec | None, arguments: object, *, identity: str) -> Contract:
    """Return what holds for one call.

    Args:
        wish: What the operator says of the server.
        spec: The tool, if the server lists it.
        arguments: What the client sent. An identity among them is never passed on, also to a tool that is
            not listed, or not as it is by now.
        identity: Name of the parameter that says who calls, where the tool is not listed.
    """
    if wish != "auto":
        return wish
    name = identity if spec is None else spec.identity
    forged = isinstance(arguments, str) or (isinstance(arguments, Mapping) and name in arguments)
    return "full" if forged or (spec is not None and has_our_words(spec)) else "guard"


def has_our_words(spec: ToolSpec) -> bool:
    """Return whether a tool has an argument that the contract gives a meaning: who calls, or files."""
    return spec.takes_username or spec.takes_files or spec.takes_links
