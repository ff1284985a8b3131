"""Recognises in what a program says that it wanted a network, for whoever reads of `--allow-net` then."""

import re

__all__ = ["missed_network"]

# What programs say when a name cannot be looked up, or a socket cannot be had or connected.
_SAYINGS = re.compile(
    # As words of their own: "ModuleNotFoundError" has one of them in it.
    r"\b(?:EAI_AGAIN|ENOTFOUND|ENETUNREACH)\b|getaddrinfo|name resolution|Name or service not known|dns error"
    r"|Network is unreachable|Could not resolve|fetch failed|ConnectError|NewConnectionError"
    r"|error sending request|(?:connect|socket).{0,600}(?:EACCES|EPERM|Permission denied|not permitted)",
    re.IGNORECASE,
)


def missed_network(said: str) -> bool:
    """Say whether a text is that of a program that could not reach what it wanted to."""
    return _SAYINGS.search(said) is not None
