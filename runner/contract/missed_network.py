"""Recognition of network failures in a program's output, so that its error can name `--allow-net`."""

import re

__all__ = ["missed_network"]

# The expression takes 600 steps for each "connect" of a text.
_MOST_CHARS = 4000
# Messages of programs when name resolution fails, or a socket cannot be created or connected.
_FAILURES = re.compile(
    # Whole words only: "ModuleNotFoundError" contains one of them.
    r"\b(?:EAI_AGAIN|ENOTFOUND|ENETUNREACH)\b|getaddrinfo|name resolution|Name or service not known|dns error"
    r"|Network is unreachable|Could not resolve|fetch failed|ConnectError|NewConnectionError"
    r"|error sending request|(?:connect|socket).{0,600}(?:EACCES|EPERM|Permission denied|not permitted)",
    re.IGNORECASE,
)


def missed_network(output: str) -> bool:
    """Return whether a program's output reports a failed connection or name lookup."""
    return _FAILURES.search(output[-_MOST_CHARS:]) is not None
