"""Sanitised response of a tool file's own route, for the origin that users and the Playground share.

The worker that sends it is not trusted: the number and the length of its headers are checked against their
limits before a value is read. A header passes if its full name is in `_ALLOWED`, in the form given there. All
others are dropped: many instruct a proxy in front (`X-Accel-Redirect`, `X-Sendfile`), or the browser for the
whole origin (`Set-Cookie`, `Clear-Site-Data`, `Access-Control-*`, `Link`).

Source: RFC 9110, sections 8 to 10 and 15; RFC 9111, section 5.2.2; RFC 6266; CSP Level 3; `docs/serving.md`.
"""

import binascii
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit, urlunsplit

import pybase64
from starlette.responses import Response

from runner.http.responses import Refusal
from runner.worker.wire import ROUTE_HEADER_BYTES, ROUTE_HEADERS, ROUTE_HEADERS_BYTES

__all__ = ["route_response"]

# Only printable Latin-1 remains, so that no line break can end a header and begin another.
_UNPRINTABLE = re.compile(r"[^ -~\xa1-\xac\xae-\xff]+")
# Each part of `multipart/x-mixed-replace` has headers, and Firefox accepts cookies from them. Of two types
# with a comma between them, browsers use the last one.
_MEDIA_TYPE = re.compile(
    r"(?!.*x-mixed-replace)[\w!#$&^.+-]+/[\w!#$&^.+-]+( ?;[ -~]*)?", re.ASCII | re.IGNORECASE
)
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18}-\d{1,18}|\*)/(\d{1,18}|\*)", re.ASCII)
# A browser removes tabs and line breaks, and reads a backslash as a slash: `/\host` is another host.
_PATH = re.compile(r"/(?![/\\])[!-\[\]-~]*", re.ASCII)
_KEPT_DIRECTIVES = re.compile(
    r"(no-store|no-cache|no-transform|private|must-revalidate|immutable|max-age=\d{1,9})", re.ASCII
)
_BODILESS = frozenset({204, 205, 304})
_SAFE = (
    ("Content-Security-Policy", "sandbox allow-downloads allow-forms allow-popups allow-scripts"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
)


def route_response(answer: Mapping[str, Any], *, method: str, url: str) -> Response:
    """Return the response to send for a worker's answer.

    Args:
        answer: Status, headers and body, as the worker sent them.
        method: Method of the request.
        url: URL of the request, as its client sent it: redirects must stay on its host.

    Raises:
        Refusal: 500: it is not an HTTP response, its status is not a final one, or it exceeds a limit.
    """
    status, headers, body = answer.get("status"), answer.get("headers"), answer.get("body")
    if not isinstance(headers, list) or not isinstance(body, str):
        raise _wrong("with something that is not an HTTP response")
    if not isinstance(status, int) or isinstance(status, bool) or not 200 <= status <= 599:
        shown = status if isinstance(status, int) and abs(status) < 1000 else "of another kind"
        raise _wrong(f"with status {shown}; use one from 200 to 599")
    if len(headers) > ROUTE_HEADERS:
        raise _wrong(f"with {len(headers)} headers; at most {ROUTE_HEADERS} are sent")
    total, collected = 0, dict[str, list[str]]()
    for header in headers:
        match header:
            case [str(name), str(value)]:
                total += len(name) + len(value)
            case _:
                raise _wrong("with a header that is not a name and a value")
        if len(name) + len(value) > ROUTE_HEADER_BYTES or total > ROUTE_HEADERS_BYTES:
            raise _wrong(
                f"with headers that are too long; one may have {ROUTE_HEADER_BYTES} bytes, "
                f"and all together {ROUTE_HEADERS_BYTES}"
            )
        if name.lower() in _ALLOWED:
            in_latin_1 = value.encode("latin-1", "replace").decode("latin-1")
            collected.setdefault(name.lower(), []).append(_UNPRINTABLE.sub("", in_latin_1).strip())
    try:
        content = b"" if status in _BODILESS else pybase64.b64decode(body, validate=True)
    except (ValueError, binascii.Error):
        raise _wrong("with a body that is not base64") from None
    is_bare = method == "HEAD" and status not in _BODILESS
    length = {"content-length": str(len(content))} if is_bare else None
    response = Response(b"" if is_bare else content, status_code=status, headers=length)
    for name, values in collected.items():
        # Given a repeated header that is not a list, proxies and browsers would pick different values.
        source = ", ".join(values) if name in _LISTS else values[0]
        sent = _location(source, url) if name == "location" else _ALLOWED[name](source)
        if sent and not (status in _BODILESS and name in _OF_A_BODY):
            response.headers.append(name, sent)
    if "cache-control" not in response.headers:
        response.headers.append("cache-control", "no-store")
    for name, value in _SAFE:
        response.headers.append(name, value)
    return response


def _wrong(answer: str) -> Refusal:
    return Refusal(500, f"the route of the tool file answered {answer}")


def _location(value: str, url: str) -> str | None:
    """Return a redirect as a path on this server, or None if it leads elsewhere."""
    try:
        here, there = urlsplit(url), urlsplit(urljoin(url, value))
        stays = there.scheme in {"http", "https"} and there.netloc == here.netloc
    except ValueError:
        return None
    path = urlunsplit(("", "", there.path, there.query, there.fragment)) or "/"
    # The original value is checked too: `urlsplit` drops characters that a browser would read.
    return path if stays and "\\" not in value and _PATH.fullmatch(path) else None


def _cache_control(value: str) -> str:
    """Return cache directives that keep shared caches from storing a response."""
    directives = dict.fromkeys(
        part
        for part in (each.strip().lower() for each in value.split(","))
        if _KEPT_DIRECTIVES.fullmatch(part)
    )
    if not directives:
        return ""
    return ", ".join(directives if {"private", "no-store"} & directives.keys() else ("private", *directives))


def _policy(value: str) -> str:
    """Return a policy without its report addresses; further policies can only restrict more."""
    policies = (
        "; ".join(
            each
            for each in (directive.strip() for directive in policy.split(";"))
            if each and not each.lower().startswith("report-")
        )
        for policy in value.split(",")
    )
    return ", ".join(filter(None, policies))


def _as_it_is(value: str) -> str:
    return value


def _matching(pattern: re.Pattern[str], otherwise: str = "") -> Callable[[str], str]:
    return lambda value: value if pattern.fullmatch(value) else otherwise


_ALLOWED: Mapping[str, Callable[[str], str]] = {
    "accept-ranges": _matching(re.compile("bytes|none")),
    "allow": _as_it_is,
    "cache-control": _cache_control,
    "content-disposition": _as_it_is,
    "content-language": _as_it_is,
    "content-range": _matching(_CONTENT_RANGE),
    "content-security-policy": _policy,
    "content-type": _matching(_MEDIA_TYPE, "application/octet-stream"),
    "etag": _as_it_is,
    "last-modified": _as_it_is,
    "location": _as_it_is,
    "retry-after": _as_it_is,
    "vary": _as_it_is,
}
_LISTS = frozenset({"allow", "cache-control", "content-language", "content-security-policy", "vary"})
_OF_A_BODY = frozenset({"content-disposition", "content-language", "content-range", "content-type"})
