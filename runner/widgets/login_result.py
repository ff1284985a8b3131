"""Result of a tool that needs a login, on which a client logs its user in.

Source: document 003, "Error handling expectations"; requirement S3-143.
"""

from collections.abc import Sequence

from fastmcp.tools import ToolResult

from runner.contract.login_challenge import CHALLENGE_META, challenge

__all__ = ["auth_required"]


def auth_required(
    description: str, *, scopes: Sequence[str] = (), resource_metadata: str | None = None
) -> ToolResult:
    """Return the result of a tool that cannot continue before its user has logged in.

    Args:
        description: The missing permission, for people.
        scopes: The scopes that a token needs.
        resource_metadata: URL of the protected resource's metadata.
    """
    header = challenge(description, scopes=scopes, resource_metadata=resource_metadata)
    return ToolResult(content=description, meta={CHALLENGE_META: [header]}, is_error=True)
