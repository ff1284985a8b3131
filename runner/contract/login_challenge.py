"""Callers that a tool allows in its `_meta`, and the login challenge for a client. Pure.

Source: document 003, "Auth"; requirements S3-3, S3-140, S3-143, decision C36; RFC 6750, section 3.
"""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["CHALLENGE_META", "NO_AUTH", "SCHEMES_META", "challenge", "oauth2"]

SCHEMES_META = "securitySchemes"
CHALLENGE_META = "mcp/www_authenticate"

NO_AUTH: Mapping[str, Any] = {"type": "noauth"}
"""Scheme of a tool that anybody may call."""

_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\r": " ", "\n": " "})


def oauth2(*scopes: str) -> Mapping[str, Any]:
    """Return the scheme of a tool that needs a logged-in user whose token has all of `scopes`."""
    return {"type": "oauth2", "scopes": list(scopes)} if scopes else {"type": "oauth2"}


def challenge(
    description: str,
    *,
    error: str = "invalid_token",
    scopes: Sequence[str] = (),
    resource_metadata: str | None = None,
) -> str:
    """Return the value of a `WWW-Authenticate` header that requests a bearer token.

    Args:
        description: What is missing, for people.
        error: The code of RFC 6750: `invalid_token` or `insufficient_scope`.
        scopes: The scopes that a token needs.
        resource_metadata: Address of the protected resource metadata (RFC 9728).
    """
    facts = {
        "resource_metadata": resource_metadata,
        "error": error,
        "error_description": description,
        "scope": " ".join(scopes) or None,
    }
    parameters = [f'{name}="{text.translate(_ESCAPED)}"' for name, text in facts.items() if text is not None]
    return "Bearer " + ", ".join(parameters)
