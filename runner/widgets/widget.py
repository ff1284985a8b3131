"""A widget as its author declares it, and its metadata for both dialects.

Source: document 003, "Tool `_meta`" and "Component resources"; requirements S3-12 to S3-19, S3-97 to S3-100
and S3-139; decisions C37 and C40; MCP Apps 2026-01-26.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from runner.contract.login_challenge import NO_AUTH, SCHEMES_META
from runner.contract.widget_dialects import (
    INVOCATION_KEYS,
    INVOCATION_MAX_CHARS,
    OUTPUT_TEMPLATE,
    RESOURCE_URI,
    WIDGET_CSP,
    page_uri,
    twin_uri,
)

__all__ = ["Csp", "Widget"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_DOMAIN = re.compile(
    r"(?:(https?|wss?)://)?((?:\*\.)?[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?)"
)
_PERMISSIONS = ("camera", "microphone", "geolocation", "clipboardWrite")


@dataclass(frozen=True, slots=True, kw_only=True)
class Csp:
    """Domains that a page may load from and connect to; its host blocks everything else.

    A domain is a host, optionally with a `*.` prefix, a port, and a scheme, by default https.

    Attributes:
        connect: Domains that it may send requests to.
        resources: Domains that it may load images, styles, fonts and scripts from.
        frames: Domains that it may show in frames.

    Raises:
        ValueError: A domain is malformed.
    """

    connect: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for domain in (*self.connect, *self.resources, *self.frames):
            if not _DOMAIN.fullmatch(domain):
                raise ValueError(
                    f"{domain!r} is not a domain for a widget; write a host such as 'cdn.example.com', "
                    "without path and without quotes"
                )

    def hosts(self) -> dict[str, list[str]]:
        """Return it in the form of ChatGPT's hosts: hosts without a scheme."""
        named = {"connect_domains": self.connect, "resource_domains": self.resources}
        # Absent means none; an empty list would trigger an unnecessary review.
        named |= {"frame_domains": self.frames} if self.frames else {}
        return {key: [_parts(domain)[1] for domain in domains] for key, domains in named.items()}

    def origins(self) -> dict[str, list[str]]:
        """Return it in the form of MCP Apps hosts: origins."""
        named = {"connectDomains": self.connect, "resourceDomains": self.resources}
        named |= {"frameDomains": self.frames} if self.frames else {}
        return {key: ["://".join(_parts(domain)) for domain in domains] for key, domains in named.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Widget:
    """A page that shows the results of tools.

    Attributes:
        name: Its name; its address is `ui://widget/NAME.html`.
        html: The page, as text or as a path of a file.
        description: Its description, for a model.
        csp: Domains that it may load from and connect to; none by default.
        prefers_border: Whether its host should draw a border.
        accessible: Whether it may call the tools that show it.
        visibility: `private` hides those tools from a model; only the page may call them.
        permissions: Requested browser permissions: `camera`, `microphone`, `geolocation`, `clipboardWrite`.
        domain: The origin that a host should give it; hosts refuse one that is not theirs.

    Raises:
        ValueError: An argument is invalid; the message has the correct form.
    """

    name: str
    html: str | Path
    description: str
    csp: Csp = Csp()
    prefers_border: bool = True
    accessible: bool = False
    visibility: Literal["public", "private"] = "public"
    permissions: tuple[str, ...] = ()
    domain: str | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"a widget's name is made of letters, digits, '.', '_' and '-', not {self.name!r}"
            )
        if isinstance(self.html, str) and "<" not in self.html:
            raise ValueError(f"the html of widget {self.name!r} is not a page; for a file, give a Path")
        if not self.description.strip():
            raise ValueError(
                f"widget {self.name!r} has no description; a model reads it to know what is shown"
            )
        if unknown := [name for name in self.permissions if name not in _PERMISSIONS]:
            known = ", ".join(_PERMISSIONS)
            raise ValueError(f"widget {self.name!r} asks for {unknown[0]!r}; known permissions are {known}")
        _audience(self.name, self.visibility, accessible=self.accessible)

    @property
    def uri(self) -> str:
        """Return its address in the dialect of ChatGPT."""
        return page_uri(self.name)

    @property
    def twin_uri(self) -> str:
        """Return its address in the dialect of MCP Apps."""
        return twin_uri(self.name)

    def page(self) -> str:
        """Return the page.

        Raises:
            OSError: Its file cannot be read.
        """
        return self.html.read_text(encoding="utf-8") if isinstance(self.html, Path) else self.html

    def resource_meta(self) -> dict[str, Any]:
        """Return the `_meta` of its resources, for lists and reads."""
        ui: dict[str, Any] = {"prefersBorder": self.prefers_border, "csp": self.csp.origins()}
        meta: dict[str, Any] = {
            "openai/widgetPrefersBorder": self.prefers_border,
            "openai/widgetDescription": self.description,
            WIDGET_CSP: self.csp.hosts(),
            "ui": ui,
        }
        if self.permissions:
            ui["permissions"] = {name: {} for name in self.permissions}
        if self.domain is not None:
            meta["openai/widgetDomain"] = ui["domain"] = self.domain
        return meta

    def tool_meta(
        self,
        *,
        invoking: str,
        invoked: str,
        accessible: bool | None = None,
        visibility: Literal["public", "private"] | None = None,
        security: Sequence[Mapping[str, Any]] = (NO_AUTH,),
        file_params: Iterable[str] = (),
    ) -> dict[str, Any]:
        """Return the `_meta` of a tool that this widget shows.

        Args:
            invoking: Text for users while it runs; at most 64 characters.
            invoked: Text for users afterwards; at most 64 characters.
            accessible: Whether the page may call this tool; by default that of the widget.
            visibility: Visibility of the tool; by default that of the widget.
            security: Required authentication: `NO_AUTH`, or the result of `oauth2`.
            file_params: Arguments that take files of the host.

        Raises:
            ValueError: A text is too long, or no caller could call the tool.
        """
        for text in (invoking, invoked):
            if not 0 < len(text) <= INVOCATION_MAX_CHARS:
                raise ValueError(
                    f"hosts show 1 to {INVOCATION_MAX_CHARS} characters while a tool runs; "
                    f"{text!r} has {len(text)}"
                )
        may_call = self.accessible if accessible is None else accessible
        seen = self.visibility if visibility is None else visibility
        return {
            SCHEMES_META: [dict(scheme) for scheme in security],
            OUTPUT_TEMPLATE: self.uri,
            "openai/widgetAccessible": may_call,
            "openai/visibility": seen,
            **dict(zip(INVOCATION_KEYS, (invoking, invoked), strict=True)),
            "openai/fileParams": list(file_params),
            "ui": {
                "resourceUri": self.twin_uri,
                "visibility": _audience(self.name, seen, accessible=may_call),
            },
            RESOURCE_URI: self.twin_uri,
        }


def _audience(name: str, visibility: str, *, accessible: bool) -> list[str]:
    """Return the visibility of a tool in terms of MCP Apps. Always explicit: their default is both."""
    if visibility == "private":
        if not accessible:
            raise ValueError(
                f"nobody could call a private tool of widget {name!r} that is not accessible; "
                "make it accessible=True"
            )
        return ["app"]
    return ["model", "app"] if accessible else ["model"]


def _parts(domain: str) -> tuple[str, str]:
    found = _DOMAIN.fullmatch(domain)
    assert found is not None  # noqa: S101 - `Csp` has looked
    return found[1] or "https", found[2]
