"""Decision on a page that a result names: allowed or not, and its sandbox. Pure.

We and a browser must parse an address alike: ambiguous ones are refused.

Source: requirements S0-38, S0-44, S0-45; rule D5 of the conformance cases;
HTML Standard, sandboxing; URL Standard.
"""

from collections.abc import Collection
from urllib.parse import urlsplit

__all__ = ["check_page", "origin", "sandbox_tokens"]

_PORTS = {"http": 80, "https": 443}
_DEFAULT_TOKENS = ("allow-scripts", "allow-forms")
# Nothing here lets a page leave its frame or act on ours.
_TOKENS = (*_DEFAULT_TOKENS, "allow-same-origin", "allow-downloads", "allow-modals", "allow-popups")


def check_page(url: object, allowed_origins: Collection[str]) -> str | None:
    """Return why a page may not be opened, or None if it may."""
    if not isinstance(url, str) or not url:
        return "the canvas names no `url`, so there is no origin to judge"
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        return f"the origin of {url[:200]!r} is not clear; write the address in plain ASCII, percent-encoded"
    scheme = url.partition(":")[0].lower()
    if scheme not in _PORTS:
        return f"the scheme {scheme[:50]!r} is not allowed; a page is opened by http or https"
    found = origin(url)
    if found is None:
        return f"the origin of {url[:200]!r} is not clear; write https://host/path, without a user name"
    if "*" in allowed_origins or found in {origin(allowed) for allowed in allowed_origins}:
        return None
    return f"the origin {found} is not allowed; the operator allows it with the setting iframe_origins"


def origin(url: str) -> str | None:
    """Return the web origin of an http(s) address without its default port, or None if it has none."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not host or "@" in parts.netloc:
        return None
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + ("" if port in (None, _PORTS[parts.scheme]) else f":{port}")


def sandbox_tokens(wanted: object) -> tuple[str, ...]:
    """Return the sandbox tokens of a page: the harmless ones among those it requests.

    Scripts and the page's own origin together would let a page of our origin remove its sandbox, so the
    origin is never granted with scripts.
    """
    words = wanted.split() if isinstance(wanted, str) else wanted
    if not isinstance(words, list):
        return _DEFAULT_TOKENS
    lowered = {word.lower() for word in words if isinstance(word, str)}
    granted = [token for token in _TOKENS if token in lowered]
    if "allow-scripts" in granted and "allow-same-origin" in granted:
        granted.remove("allow-same-origin")
    return tuple(granted)
