"""Names and URIs of several remote servers side by side, as FastMCP's mount writes them. Pure.

A tool or prompt `search` of the server `docs` is `docs_search`; its resource `file://a` is `file://docs/a`.
With one server alone nothing is renamed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mcp.shared.exceptions import MCPError

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


def question_of(server: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params of a question as a client of several servers gets them.

    A client shows people which server asks, and knows only the proxy. Ids of several servers may be equal:
    that of a question gets the server's name. A question has no progress and becomes no task, since ids of
    those could not be told apart.
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
    """Return a result with the server's name in each question with which it answers, in later eras."""
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
    """Return an error with the server's name in the questions that are to be answered first."""
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
