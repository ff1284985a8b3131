"""Prefixed names and URIs of several remote servers, in the form of FastMCP's mount. Pure.

A tool or prompt `search` of the server `docs` is `docs_search`; its resource `file://a` is `file://docs/a`.
With only one server, nothing is renamed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from runner.contract.widget_dialects import with_pages

__all__ = ["Names", "logged_by", "question_of", "questions_by", "refusal_by"]

_LISTED = {
    "tools": "name",
    "prompts": "name",
    "resources": "uri",
    "resourceTemplates": "uriTemplate",
}
_URIS = ("uri", "uriTemplate")


@dataclass(frozen=True, slots=True)
class Names:
    """The names of the servers, used as prefixes if there are several."""

    servers: tuple[str, ...]

    @property
    def prefixed(self) -> bool:
        """True if anything is renamed."""
        return len(self.servers) > 1

    def outside(self, server: str, name: str) -> str:
        """Return the clients' name of a server's tool or prompt."""
        return f"{server}_{name}" if self.prefixed else name

    def inside(self, name: str) -> tuple[str, str] | None:
        """Return the server for a client's `name`, and the name used there; None if no server matches."""
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
        """Return the server of a resource, and its URI there; None if no server matches.

        A URI without a server's name belongs to no server: any server could answer for another.
        """
        if not self.prefixed:
            return self.servers[0], uri
        scheme, slashes, rest = uri.partition("://")
        named, end = (rest, "/") if slashes else (uri, "+")
        server = self._longest(server for server in self.servers if named.startswith(f"{server}{end}"))
        if server is None:
            return None
        inner = named[len(server) + 1 :]
        return server, f"{scheme}://{inner}" if slashes else inner

    def route(self, method: str, params: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the target server of a request about a prompt or resource, and the params for it.

        Raises:
            MCPError: No server matches.
        """
        if not self.prefixed:
            return self.servers[0], dict(params)
        of_completion = method == "completion/complete"
        about = params.get("ref") if of_completion else params
        inner = dict(about) if isinstance(about, Mapping) else {}
        key = "uri" if "uri" in inner else "name"
        found = (self.uri_inside if key == "uri" else self.inside)(str(inner.get(key)))
        if found is None:
            example = (
                f"{self.outside(self.servers[0], '…')} or {self.uri_outside(self.servers[0], 'file://…')}"
            )
            message = (
                f"no server has {inner.get(key)!r}: of several servers each names its own, as {example} does"
            )
            raise MCPError(code=INVALID_PARAMS, message=message)
        server, inner[key] = found
        return server, {**params, "ref": inner} if of_completion else inner

    @staticmethod
    def _longest(fitting: Iterable[str]) -> str | None:
        return max(fitting, key=len, default=None)

    def block_outside(self, server: str, part: Any) -> Any:
        """Return a resource's content with its URI in the clients' form."""
        if not self.prefixed or not isinstance(part, Mapping) or not isinstance(part.get("uri"), str):
            return part
        return {**part, "uri": self.uri_outside(server, part["uri"])}

    def meta_outside(self, server: str, meta: Any) -> Any:
        """Return the `_meta` of a tool or result with its page URIs in the clients' form."""
        if not self.prefixed or not isinstance(meta, Mapping):
            return meta
        return with_pages(meta, partial(self.uri_outside, server))

    def listed(self, server: str, key: str, items: Sequence[Any]) -> list[dict[str, Any]]:
        """Return a server's list in the clients' form, without duplicates and ambiguous names.

        With the servers `a` and `a_b`, the tool `b_c` of `a` would be routed to `a_b`.
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
        # Our own tools for each server's resources are named `SERVER.resources_list` and so on.
        ours = tuple(f"{server}." for server in self.servers)
        found = [item for item in found if not item[named].startswith(ours)]
        return [
            {**item, "_meta": self.meta_outside(server, item["_meta"])} if "_meta" in item else item
            for item in found
        ]


def question_of(server: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params of a question in the form for a client of several servers.

    The client knows only the proxy, so the message gets the server's name. So does the question's id, since
    several servers may use equal ids. Progress token and task are removed, since their ids would be
    ambiguous.
    """
    made = {key: value for key, value in params.items() if key != "task"}
    if isinstance(made.get("message"), str):
        made["message"] = f"{server} asks: {made['message']}"
    if isinstance(made.get("elicitationId"), str):
        made["elicitationId"] = f"{server}:{made['elicitationId']}"
    if isinstance(made.get("_meta"), Mapping):
        made["_meta"] = {key: value for key, value in made["_meta"].items() if key != "progressToken"}
    return made


def questions_by(server: str, result: dict[str, Any]) -> dict[str, Any]:
    """Return a result with the server's name in each of its questions, as later eras have them."""
    questions = result.get("inputRequests")
    if not isinstance(questions, Mapping):
        return result
    named = {
        key: {**each, "params": question_of(server, each["params"])}
        if isinstance(each, Mapping) and isinstance(each.get("params"), Mapping)
        else each
        for key, each in questions.items()
    }
    return {**result, "inputRequests": named}


def refusal_by(server: str, error: MCPError) -> MCPError:
    """Return an error with the server's name in the elicitations that it requires first."""
    data = error.error.data
    questions = data.get("elicitations") if isinstance(data, Mapping) else None
    if not isinstance(questions, list):
        return error
    named = [question_of(server, each) if isinstance(each, Mapping) else each for each in questions]
    return MCPError(error.error.code, error.error.message, {**data, "elicitations": named})


def logged_by(server: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params of a log message with the name of the server that sent it."""
    logger = params.get("logger")
    return {**params, "logger": f"{server}.{logger}" if isinstance(logger, str) else server}
