"""Names and URIs of several remote servers side by side, as FastMCP's mount writes them. Pure.

A tool or prompt `search` of the server `docs` is `docs_search`; its resource `file://a` is `file://docs/a`.
With one server alone nothing is renamed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from runner.contract.widget_dialects import with_pages

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
        """True if anything is renamed."""
        return len(self.servers) > 1

    def outside(self, server: str, name: str) -> str:
        """Return the clients' name of a server's tool or prompt."""
        return f"{server}_{name}" if self.prefixed else name

    def inside(self, name: str) -> tuple[str, str] | None:
        """Return the server and its own name of what clients call `name`, or None if there is none."""
        if not self.prefixed:
            return self.servers[0], name
        server = self._longest(server for server in self.servers if name.startswith(f"{server}_"))
        return None if server is None else (server, name[len(server) + 1 :])

    def uri_outside(self, server: str, uri: str) -> str:
        """Return the clients' form of a server's URI or template."""
        if not self.prefixed:
            return uri
        scheme, slashes, rest = uri.partition("://")
        return f"{scheme}://{server}/{rest}" if slashes else f"{server}+{uri}"

    def uri_inside(self, uri: str) -> tuple[str, str] | None:
        """Return the server of a resource and the URI that it has there, or None if there is none.

        A URI without a server's name belongs to no server: any server could answer for another.
        """
        if not self.prefixed:
            return self.servers[0], uri
        scheme, slashes, rest = uri.partition("://")
        if slashes:
            server = self._longest(f"{server}/" for server in self.servers if rest.startswith(f"{server}/"))
            return None if server is None else (server[:-1], f"{scheme}://{rest[len(server) :]}")
        server = self._longest(f"{server}+" for server in self.servers if uri.startswith(f"{server}+"))
        return None if server is None else (server[:-1], uri[len(server) :])

    @staticmethod
    def _longest(fitting: Iterable[str]) -> str | None:
        return max(fitting, key=len, default=None)

    def block_outside(self, server: str, part: Any) -> Any:
        """Return a content of a resource with its URI as clients write it."""
        if not self.prefixed or not isinstance(part, Mapping) or not isinstance(part.get("uri"), str):
            return part
        return {**part, "uri": self.uri_outside(server, part["uri"])}

    def meta_outside(self, server: str, meta: Any) -> Any:
        """Return the `_meta` of a tool or result with the pages that it names as clients write them."""
        if not self.prefixed or not isinstance(meta, Mapping):
            return meta
        return with_pages(meta, partial(self.uri_outside, server))

    def listed(self, server: str, key: str, items: Sequence[Any]) -> list[dict[str, Any]]:
        """Return items of a server's list as clients get them, each once, but for those that lead to another.

        Of the servers `a` and `a_b` the tool `b_c` of the first would have a name that is the second's.
        """
        named = _LISTED[key]
        plain: dict[str, Mapping[str, Any]] = {}
        for item in items:
            if isinstance(item, Mapping) and isinstance(item.get(named), str):
                plain.setdefault(item[named], item)
        if not self.prefixed:
            return [dict(item) for item in plain.values()]
        outside, inside = (
            (self.uri_outside, self.uri_inside) if named in _URIS else (self.outside, self.inside)
        )
        found = [
            {**item, named: outside(server, name)}
            for name, item in plain.items()
            if inside(outside(server, name)) == (server, name)
        ]
        if key != "tools":
            return found
        # Ours, over each server's resources, are called `SERVER.resources_list` and so on.
        ours = tuple(f"{server}." for server in self.servers)
        found = [item for item in found if not item[named].startswith(ours)]
        return [
            {**item, "_meta": self.meta_outside(server, item["_meta"])} if "_meta" in item else item
            for item in found
        ]
