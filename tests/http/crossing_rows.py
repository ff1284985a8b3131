"""Requests to a server, route by route and method by method, and the answers reserved for the owner.

A new route, method, tool, resource or prompt needs its row here: `test_cross_user_matrix.py`
reads the tables of a running server and fails for what has none.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from crossing import Asked, Things, Visitor, handshake, message
from login_rows import LOGIN_ROUTES

AsksFor = Callable[[Things, Visitor], Asked]
Shows = Callable[[Things], str]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One request, in all the ways in which somebody may send it.

    Attributes:
        name: What it is.
        request_of: Builds the request, for things of somebody.
        owned: The request by which their owner gets them, where that is another one.
        shows: What of the things is in the owner's answer; None where nothing is.
        by: Whether the owner proves it by a `token`, a `cookie`, or not at all (`link`).
        is_public: Whether everybody gets the same.
        phase: `first` where the client has more by it, and lists more afterwards; `streams` where it is
            seen what others do meanwhile; `late` and `last` where the client loses something by it, `last`
            the session itself.
        may_be_absent: Whether its owner may be told that there is no such method, or not for this client.
    """

    name: str
    request_of: AsksFor
    owned: AsksFor | None = None
    shows: Shows | None = None
    by: str = "token"
    is_public: bool = False
    phase: str = "main"
    may_be_absent: bool = False


def plain(path: str, method: str = "GET", **more: Any) -> AsksFor:
    """Return what asks for a path, in which `{key}` and the like stand for things."""

    def request_of(things: Things, _: Visitor) -> Asked:
        body = more.get("body")
        filled = {name: str(value).format(**vars(things)) for name, value in more.get("headers", {}).items()}
        if isinstance(body, Mapping):
            body = {name: _filled(value, things) for name, value in body.items()}
        rest = {name: value for name, value in more.items() if name not in ("headers", "body")}
        return Asked(method=method, path=path.format(**vars(things)), headers=filled, body=body, **rest)

    return request_of


def _filled(value: Any, things: Things) -> Any:
    return value.format(**vars(things)) if isinstance(value, str) else value


IN_BROWSERS = {"mcp-session-id": "{browser}"}

ROUTES: Mapping[tuple[str, str], tuple[Row, ...]] = {
    ("GET", "/healthz"): (Row(name="health", request_of=plain("/healthz"), is_public=True),),
    ("GET", "/readyz"): (Row(name="readiness", request_of=plain("/readyz"), is_public=True),),
    ("GET", "/.well-known/oauth-protected-resource/mcp"): (
        Row(
            name="how to log in",
            request_of=plain("/.well-known/oauth-protected-resource/mcp"),
            is_public=True,
        ),
    ),
    ("GET", "/.well-known/oauth-protected-resource"): (
        Row(
            name="how to log in, at the root",
            request_of=plain("/.well-known/oauth-protected-resource"),
            is_public=True,
        ),
    ),
    # Login routes, for clients without a user yet: requested by `test_login_matrix.py`.
    **dict.fromkeys(LOGIN_ROUTES, ()),
    ("GET", "/"): (
        Row(name="the page", request_of=plain("/"), is_public=True),
        Row(name="the page with a key", request_of=plain("/?key=any"), is_public=True),
    ),
    ("GET", "/play/assets/{name}"): (
        Row(
            name="a part of the page",
            request_of=plain("/play/assets/none.js"),
            is_public=True,
            owned=plain("/"),
        ),
    ),
    ("GET", "/play/info"): (
        Row(
            name="facts for the page", request_of=plain("/play/info"), by="cookie", shows=lambda t: t.browser
        ),
    ),
    ("POST", "/play/dashboards"): (
        Row(
            name="a token for a dashboard",
            request_of=plain(
                "/play/dashboards", "POST", body={"id": "board", "url": "https://pages.example/b"}
            ),
            by="cookie",
            shows=lambda _: '"token"',
        ),
    ),
    ("POST", "/play/dashboards/actions"): (
        Row(
            name="what is done in a dashboard",
            request_of=plain("/play/dashboards/actions", "POST", body={"id": "board", "action": "clicked"}),
            by="cookie",
        ),
    ),
    ("POST", "/api/dashboards/verify"): (
        Row(
            name="whose a dashboard is, by another token",
            request_of=plain("/api/dashboards/verify", "POST", body={"id": "board", "token": "{link}"}),
            owned=plain("/api/dashboards/verify", "POST", body={"id": "board", "token": "{dashboard}"}),
            by="link",
        ),
        Row(
            name="whose a dashboard is, by the token of another one",
            request_of=plain("/api/dashboards/verify", "POST", body={"id": "other", "token": "{dashboard}"}),
            owned=plain("/api/dashboards/verify", "POST", body={"id": "board", "token": "{dashboard}"}),
            by="link",
        ),
    ),
    ("GET", "/api/files"): (
        Row(name="all files", request_of=plain("/api/files"), shows=lambda t: t.name),
        Row(name="a page of files", request_of=plain("/api/files?limit=5"), shows=lambda t: t.key),
        Row(
            name="all files, in a session",
            request_of=plain("/api/files", headers={"mcp-session-id": "{session}"}),
            shows=lambda t: t.key,
        ),
    ),
    ("POST", "/api/files"): (
        Row(
            name="a file up",
            request_of=plain("/api/files?filename=same.txt", "POST", body=b"of no account"),
            phase="first",
        ),
    ),
    ("PUT", "/api/files"): (
        Row(
            name="a file up by PUT",
            request_of=plain("/api/files?filename=same2.txt", "PUT", body=b"of no account"),
            phase="first",
        ),
    ),
    ("GET", "/api/files/{key}"): (
        Row(name="a file as JSON", request_of=plain("/api/files/{key}"), shows=lambda t: t.name),
        Row(
            name="a file as JSON, by its name",
            request_of=plain("/api/files/{key}?filename={name}"),
            shows=lambda t: t.key,
        ),
    ),
    ("POST", "/api/files/{key}/link"): (
        Row(
            name="a link",
            request_of=plain("/api/files/{key}/link", "POST", body={"ttl_s": 60}),
            shows=lambda t: f"{t.key}?token=",
        ),
    ),
    ("GET", "/artifacts/{key}"): (
        Row(
            name="bytes in a browser's session",
            request_of=plain("/artifacts/{key}", headers=IN_BROWSERS),
            shows=lambda t: t.content,
        ),
        Row(
            name="a range of bytes",
            request_of=plain("/artifacts/{key}", headers={**IN_BROWSERS, "range": "bytes=0-500"}),
            shows=lambda t: t.content,
        ),
        Row(
            name="bytes by cookie",
            request_of=plain("/artifacts/{key}"),
            by="cookie",
            shows=lambda t: t.content,
        ),
    ),
    ("GET", "/api/files/download/{key}"): (
        Row(
            name="a download without its link",
            request_of=plain("/api/files/download/{key}"),
            owned=plain("/api/files/download/{key}?token={link}"),
            by="link",
            shows=lambda t: t.content,
        ),
        Row(
            name="a download with a token for something else",
            request_of=plain("/api/files/download/{key}?token={dashboard}"),
            owned=plain("/api/files/download/{key}?token={link}"),
            by="link",
            shows=lambda t: t.content,
        ),
        Row(
            name="a download with a link to another file",
            request_of=plain("/api/files/download/{spare}?token={link}"),
            owned=plain("/api/files/download/{key}?token={link}"),
            by="link",
            shows=lambda t: t.content,
        ),
        Row(
            name="a download with half a link",
            request_of=lambda t, _: Asked(path=f"/api/files/download/{t.key}?token={t.link[:-20]}"),
            owned=plain("/api/files/download/{key}?token={link}"),
            by="link",
            shows=lambda t: t.content,
        ),
    ),
    ("GET", "/events"): (
        Row(
            name="events",
            phase="streams",
            request_of=plain("/events", is_stream=True),
            shows=lambda _: "listening",
        ),
        Row(
            name="events of her session",
            phase="streams",
            request_of=plain("/events?session={browser}", is_stream=True),
            shows=lambda _: "listening",
        ),
    ),
    ("POST", "/api/session"): (
        Row(
            name="a browser's session by the id of another",
            request_of=plain("/api/session", "POST", headers=IN_BROWSERS),
            shows=lambda t: t.browser,
        ),
    ),
    ("DELETE", "/api/files/{key}"): (
        Row(
            name="the end of a file by its name",
            request_of=plain("/api/files/{spare}?filename={spare_name}", "DELETE"),
            phase="last",
        ),
        Row(name="the end of a file", request_of=plain("/api/files/{key}", "DELETE"), phase="last"),
    ),
    ("DELETE", "/api/session"): (
        Row(
            name="the end of a browser's session",
            request_of=plain("/api/session", "DELETE", headers=IN_BROWSERS),
            owned=plain("/api/session", "DELETE"),
            by="cookie",
            phase="last",
        ),
    ),
    # Its own rows are those of `messages`.
    ("POST", "/mcp"): (),
    ("GET", "/mcp"): (
        Row(
            name="what the server tells a session",
            phase="streams",
            request_of=plain(
                "/mcp", headers={"mcp-session-id": "{session}", "accept": "text/event-stream"}, is_stream=True
            ),
        ),
    ),
    ("DELETE", "/mcp"): (
        Row(
            name="the end of a session of MCP",
            request_of=plain("/mcp", "DELETE", headers={"mcp-session-id": "{session}"}),
            phase="last",
        ),
    ),
    ("*", "AuthorRoutes"): (
        Row(name="a route of the file", request_of=plain("/kept"), shows=lambda t: t.word),
    ),
}
"""By method and path, as a server's table has them."""

MIDDLEWARE: Mapping[str, tuple[Row, ...]] = {
    **dict.fromkeys(
        (
            *(
                "ResponseHeaders",
                "WrongKeys",
                "KnownOrigins",
                "EndsWithSession",
                "ProxyHeadersMiddleware",
                "Challenges",
                "RequestsPerUser",
            ),
            *(
                "EndsStreams",
                "RequestContextMiddleware",
                "AuthenticationMiddleware",
                "AuthContextMiddleware",
            ),
        ),
        (),
    ),
    "PlaygroundAuth": (
        Row(
            name="the page's own way to MCP",
            request_of=lambda t, v: _through_the_page(
                message("tools/call", {"name": "recall", "arguments": {}}), t, v
            ),
            by="cookie",
            shows=lambda t: t.word,
        ),
    ),
}
"""By name of what stands in front of the routes: what is asked of it itself, where it answers."""


def _through_the_page(request: Asked, _things: Things, _visitor: Visitor) -> Asked:
    return Asked(method="POST", path="/play/mcp", headers=request.headers, body=request.body)


Params = Callable[[Things], Mapping[str, Any]]


def tool(named: str, /, **arguments: str) -> Params:
    return lambda t: {
        "name": named,
        "arguments": {key: _filled(value, t) for key, value in arguments.items()},
    }


TOOLS: Mapping[str, tuple[Params, Shows | None]] = {
    "keep": (tool("keep", word="of-no-account"), None),
    "write": (tool("write", word="of-no-account"), None),
    "recall": (tool("recall"), lambda t: t.word),
    "read": (tool("read", username="{name}"), lambda t: t.word),
    "make": (tool("make", name="made.csv", content="a,b"), None),
    "look": (tool("look", filename="{name}"), lambda t: t.content),
    "later": (lambda _: {"name": "later", "arguments": {"word": "soon", "seconds": 0}}, None),
    "artifact_info": (tool("artifact_info", id="{key}"), lambda t: t.key),
    "artifact_read": (tool("artifact_read", id="{key}"), lambda t: t.content),
    "artifact_search": (tool("artifact_search", id="{key}", pattern="content"), lambda t: t.content),
    "kept_apart.resources_list": (tool("kept_apart.resources_list"), lambda _: "memo://kept"),
    "kept_apart.resources_templates_list": (
        tool("kept_apart.resources_templates_list"),
        lambda _: "memo://kept/{",
    ),
    "kept_apart.resources_read": (
        lambda _: {"name": "kept_apart.resources_read", "arguments": {"uri": "memo://kept"}},
        lambda t: t.word,
    ),
}
"""By name: its arguments, and what of the things its owner sees."""

CHANGING = ("keep", "make", "write")
"""Tools that change what a user has: others call them in the matrix, and the owner `recall` instead."""

RESOURCES: Mapping[str, Shows | None] = {
    "memo://kept": lambda t: t.word,
    "runner://contract/2.1": None,
    "runner://files": lambda t: t.name,
}
TEMPLATES: Mapping[str, tuple[str, Shows]] = {
    "memo://kept/{name}": ("memo://kept/any", lambda t: t.word),
    "artifact://{id}{?offset,length}": ("artifact://{key}", lambda t: t.content),
}
PROMPTS: Mapping[str, Shows] = {"ask_for_it": lambda t: t.word, "available_files": lambda t: t.name}

_COMPLETE = {"ref": {"type": "ref/prompt", "name": "ask_for_it"}, "argument": {"name": "a", "value": ""}}


def uri(template: str) -> Params:
    return lambda t: {"uri": template.replace("{key}", t.key).replace("{name}", t.name)}


def named(name: str) -> Params:
    return lambda _: {"name": name}


def nothing(_: Things) -> Mapping[str, Any]:
    return {}


METHODS: Mapping[str, tuple[tuple[str, Params, Shows | None], ...]] = {
    "initialize": (),
    "ping": (("", nothing, None),),
    "server/discover": (("", nothing, None),),
    "logging/setLevel": (("", lambda _: {"level": "error"}, None),),
    "tools/list": (("", nothing, None),),
    "tools/call": tuple((name, params, shows) for name, (params, shows) in TOOLS.items()),
    "resources/list": (("", nothing, None),),
    "resources/templates/list": (("", nothing, None),),
    "resources/read": (
        *((each, uri(each), shows) for each, shows in RESOURCES.items()),
        *((each, uri(template), shows) for each, (template, shows) in TEMPLATES.items()),
    ),
    "resources/subscribe": (("a file", uri("artifact://{key}"), None), ("a memo", uri("memo://kept"), None)),
    "resources/unsubscribe": (("a file", uri("artifact://{key}"), None),),
    "prompts/list": (("", nothing, None),),
    "prompts/get": tuple((name, named(name), shows) for name, shows in PROMPTS.items()),
    "completion/complete": (("", lambda _: _COMPLETE, None),),
    "subscriptions/listen": (
        (
            "her file",
            lambda t: {"notifications": {"resourceSubscriptions": [f"artifact://{t.key}", "runner://files"]}},
            None,
        ),
    ),
    "tasks/get": (("", lambda t: {"taskId": t.task}, lambda t: t.word),),
    "tasks/result": (("", lambda t: {"taskId": t.task}, None),),
    "tasks/list": (("", nothing, None),),
    "tasks/update": (("", lambda t: {"taskId": t.task, "inputResponses": {}}, None),),
    "tasks/cancel": (("", lambda t: {"taskId": t.task}, None),),
}
"""By name: what is asked with it, and what of the things the owner's answer shows."""

SESSIONS_ONLY = frozenset(
    {"initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"}
)
SOMETIMES = frozenset({"completion/complete", "tasks/list", "tasks/result"})
"""Methods of servers that offer such things, and of an earlier version of tasks."""

NEWEST_ONLY = frozenset({"server/discover", "subscriptions/listen"})


def messages() -> list[Row]:
    """Return the rows of MCP: each method in each era, and in the owner's session."""
    rows = []
    for method, variants in METHODS.items():
        for label, params, shows in variants:
            changes = method == "tools/call" and label in CHANGING
            rows += _in_eras(method, label, params, shows, changes=changes)
    return rows


def _harmless(_things: Things, _visitor: Visitor) -> Asked:
    return message("tools/call", {"name": "recall", "arguments": {}})


def _in_eras(method: str, label: str, params: Params, shows: Shows | None, *, changes: bool) -> list[Row]:
    streams = method == "subscriptions/listen"
    owned = _harmless if changes else None
    phase = "first" if changes else "streams" if streams else "main"
    name = f"{method} {label}".strip()
    newest = Row(
        name=f"{name}, newest era",
        request_of=lambda t, _: message(method, params(t), is_stream=streams),
        shows=shows,
        owned=owned,
        phase=phase,
        may_be_absent=method in SOMETIMES,
    )
    # What speaks in a session of its own, and what would speak in another's.
    own = Row(
        name=f"{name}, in a session",
        request_of=lambda t, v: handshake(method, params(t), session=v.session or t.session),
        shows=None if method.startswith("tasks/") else shows,
        owned=owned,
        phase=phase,
        may_be_absent=method in SOMETIMES or method.startswith("tasks/"),
    )
    hers = Row(
        name=f"{name}, in her session",
        request_of=lambda t, _: handshake(method, params(t), session=t.session),
        shows=None if method.startswith("tasks/") else shows,
        owned=owned,
        phase=phase,
        may_be_absent=method in SOMETIMES or method.startswith("tasks/"),
    )
    eras = {name: [newest] for name in NEWEST_ONLY} | {name: [own, hers] for name in SESSIONS_ONLY}
    return eras.get(method, [newest, own, hers])
