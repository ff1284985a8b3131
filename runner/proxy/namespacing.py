"""Names and URIs of several remote servers side by side, as FastMCP's mount writes them. Pure.

A tool or prompt `search` of the server `docs` is `docs_search`; its resource `file://a` is `file://docs/a`.
With one server alone nothing is renamed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Names"]

_LISTED = {
    "tools": "name",
    "prompts": "name",
    "resources": "uri",
    "resourceTemplates": "uriTemplate",
}
_URIS = ("uri", "uriTemplate")


@dataclass(frozen=True, slots=True)
class Names:
    """The names of the servers, which prefix what they offer if there are several."""

    servers: tuple[str, ...]

    @property
    def prefixed(self) -> bool:
        """Whether anything is renamed."""
        return len(self.servers) > 1

    def outside(self, server: str, name: str) -> str:
        """Return how clients call a tool or prompt of a server."""
        return f"{server}_{name}" if self.prefixed else name

    def inside(self, name: str) -> tuple[str, str] | None:
        """Return the server and its own name of what clients call `name`, or None if it is nobody's."""
        if not self.prefixed:
            return self.servers[0], name
        fitting = [server for server in self.servers if name.startswith(f"{server}_")]
        server = max(fitting, key=len, default=None)
        return None if server is None else (server, name[len(server) + 1 :])

    def uri_outside(self, server: str, uri: str) -> str:
        """Return how clients write a URI, or a template, of a server."""
        if not self.prefixed:
            return uri
        scheme, slashes, rest = uri.partition("://")
        return f"{scheme}://{server}/{rest}" if slashes else f"{server}+{uri}"

    def uri_inside(self, uri: str) -> Iterator[tuple[str, str]]:
        """Yield each server that may have a resource, with the URI that it has there; the likeliest first."""
        if not self.prefixed:
            yield self.servers[0], uri
            return
        scheme, slashes, rest = uri.partition("://")
        for server in self.servers:
            if slashes and rest.startswith(f"{server}/"):
                yield server, f"{scheme}://{rest[len(server) + 1 :]}"
            if not slashes and uri.startswith(f"{server}+"):
                yield server, uri[len(server) + 1 :]
        # As a server wrote it in a text or in the `_meta` of a tool.
        yield from ((server, uri) for server in self.servers)

    def listed(self, server: str, key: str, items: Sequence[Any]) -> list[dict[str, Any]]:
        """Return items of a server's list as clients get them."""
        named = _LISTED[key]
        plain = [item for item in items if isinstance(item, Mapping) and isinstance(item.get(named), str)]
        if not self.prefixed:
            return [dict(item) for item in plain]
        rename = self.uri_outside if named in _URIS else self.outside
        return [{**item, named: rename(server, item[named])} for item in plain]
