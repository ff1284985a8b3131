"""Response headers that limit what a frame of the second origin may load and connect to.

For hosts other than the Playground, `runner/widgets/web/hosting/document.ts` puts this policy into the
document; change both together.

Source: the design's notes on the security of shown content (measured); MCP Apps, "Sandbox proxy"; WICG
"Connection Allowlists".
"""

import re
from collections.abc import Iterable, Mapping
from urllib.parse import SplitResult, urlsplit

from runner.users.identity import is_loopback

__all__ = ["connections_of", "policy_of", "without_own"]

_ORIGIN = re.compile(r"(https?|wss?)://(\*\.)?[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*(:[0-9]{1,5})?")
_LISTS = ("connectDomains", "resourceDomains", "frameDomains")
_MAX_ORIGINS = 32


def without_own(csp: Mapping[str, object], own: Iterable[str]) -> dict[str, object]:
    """Return the lists requested by a resource, without origins of the Playground's own server.

    A widget would reach it as the person who views it. Matching patterns and WebSocket origins go, too.

    Args:
        csp: Lists of origins, as for `policy_of`.
        own: Origins of the Playground.
    """
    ours = [urlsplit(origin) for origin in own]

    def is_allowed(source: object) -> bool:
        named = urlsplit(source) if isinstance(source, str) and _ORIGIN.fullmatch(source) else None
        return named is None or not any(_covers(named, each) for each in ours)

    lists = ((key, csp.get(key)) for key in _LISTS)
    return {
        key: [each for each in named if is_allowed(each)] for key, named in lists if isinstance(named, list)
    }


def _covers(named: SplitResult, own: SplitResult) -> bool:
    host, ours = (named.hostname or "").lower(), (own.hostname or "").lower()
    if _port(named) != _port(own):
        return False
    if host.startswith("*."):
        return ours.endswith(host[1:]) or (host.endswith(".localhost") and _is_here(ours))
    return host == ours or (_is_here(host) and _is_here(ours))


def _is_here(host: str) -> bool:
    """Return whether a name resolves to this machine. The wildcard address does too."""
    return is_loopback(host) or host.endswith(".localhost") or host == "0.0.0.0"  # noqa: S104 - compared only


def _port(address: SplitResult) -> int:
    try:
        port = address.port
    except ValueError:
        return -1
    return port or (443 if address.scheme in ("https", "wss") else 80)


def policy_of(csp: Mapping[str, object], ancestors: str) -> str:
    """Return the content security policy for the origins that a resource requests.

    Args:
        csp: Lists of origins by the names of MCP Apps: `connectDomains`, `resourceDomains`, `frameDomains`.
        ancestors: Origins that may show the page, divided by spaces.
    """
    connect = _origins(csp.get("connectDomains"))
    load = _origins(csp.get("resourceDomains"))
    frame = _origins(csp.get("frameDomains"))
    return "; ".join(
        [
            "default-src 'none'",
            # The document is a single text with inline scripts and styles.
            " ".join(["script-src", "'unsafe-inline'", *load]),
            " ".join(["style-src", "'unsafe-inline'", *load]),
            " ".join(["img-src", "data:", "blob:", *load]),
            " ".join(["font-src", "data:", *load]),
            " ".join(["media-src", "data:", "blob:", *load]),
            " ".join(["connect-src", *(connect or ["'none'"])]),
            # The document must not navigate elsewhere by itself, which is checked against this.
            " ".join(["frame-src", *(frame or ["'none'"])]),
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
            "worker-src 'none'",
            f"frame-ancestors {ancestors}",
        ]
    )


def connections_of(csp: Mapping[str, object]) -> str:
    """Return the allowlist of connections for the page and all documents in it.

    The policy stops a document that navigates itself, but only after the browser has connected to the new
    host, and does not cover resource hints and WebRTC. This list is checked before.

    Args:
        csp: As for `policy_of`.
    """
    named = [origin for key in _LISTS for origin in _origins(csp.get(key))]
    # A pattern with `ws:` matches nothing: WebSockets are compared by their http address.
    patterns = dict.fromkeys(f'"{re.sub("^ws", "http", origin)}"' for origin in named)
    # Redirects are left to the policy, which restricts loading.
    return f"({' '.join(patterns)});redirects=allow"


def _origins(value: object) -> list[str]:
    """Return only the web origins in a list, so that no other text gets into the policy."""
    if not isinstance(value, list):
        return []
    named = [each for each in value if isinstance(each, str) and _ORIGIN.fullmatch(each)]
    return [each for each in named[:_MAX_ORIGINS] if urlsplit(each).hostname]
