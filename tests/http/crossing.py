"""Two users of one server, what one of them has there, and all ways in which somebody else may ask for it."""

import asyncio
import base64
import contextlib
import itertools
import json
import re
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Any

import httpx2
from issuer import Issuer, issuing, made
from support import ROOT, TOOLS, environment_in, stop, until

FILE = TOOLS / "kept_apart.py"
PROGRAM = ROOT / "tests/programs/told_routes.py"
PREFIX = "io.modelcontextprotocol/"
HANDSHAKE, NEWEST = "2025-11-25", "2026-07-28"
COOKIE = "toolcell_session"
AT_ONCE = 40
NUMBERS = itertools.count(1000)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request, as far as it does not say who sends it.

    Attributes:
        method: Of HTTP.
        path: With its query.
        headers: Beside those that say who asks.
        body: JSON, or bytes.
        is_stream: Whether the answer does not end, and only its beginning is waited for.
    """

    method: str = "GET"
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    is_stream: bool = False

    def text(self) -> str:
        """Return all that it says."""
        return f"{self.path} {dict(self.headers)} {self.body!r}"


@dataclass(frozen=True)
class Answer:
    """Answer to a request."""

    status: int
    headers: Mapping[str, str]
    text: str

    def shown(self) -> str:
        headers = {
            name: value for name, value in self.headers.items() if name not in ("date", "content-length")
        }
        return f"{self.status} {sorted(headers.items())} {self.text}"

    @property
    def is_good(self) -> bool:
        """True if what was asked for was done."""
        return self.status < 400 and '"error":' not in self.text and '"isError":true' not in self.text


@dataclass(frozen=True, kw_only=True)
class Things:
    """Possessions of a user by their request names; or similar names that belong to no user.

    Attributes:
        key: Of a file.
        name: Of the file.
        spare: The key of another file.
        spare_name: Its name.
        session: Of MCP.
        browser: Of a browser: its id.
        task: Of MCP.
        link: The token of a link to the file.
        dashboard: The token of a dashboard.
        word: What tools, resources and prompts say.
        content: What the file says.
    """

    key: str
    name: str
    spare: str
    spare_name: str
    session: str
    browser: str
    task: str
    link: str
    dashboard: str
    word: str
    content: str

    @property
    def encoded(self) -> str:
        """Content of the file, encoded as bytes are in JSON."""
        return base64.b64encode(self.content.encode()).decode()

    def marks(self) -> tuple[str, ...]:
        """Return what shows that an answer is about this user."""
        return (*vars(self).values(), self.encoded)

    def hidden(self, text: str) -> str:
        """Return a text without them."""
        for name, mark in sorted(vars(self).items(), key=lambda item: -len(item[1])):
            text = text.replace(mark, f"<{name}>")
        return text

    def like(self) -> "Things":
        """Return names like these that nobody has."""
        return replace(
            self,
            key=f"art_{uuid.uuid4().hex[:12]}",
            name=f"rows-{uuid.uuid4().hex}.csv",
            spare=f"art_{uuid.uuid4().hex[:12]}",
            spare_name=f"spare-{uuid.uuid4().hex}.csv",
            session=uuid.uuid4().hex,
            browser=uuid.uuid4().hex,
            task=_of_other_letters(self.task),
            link=_of_other_letters(self.link),
            dashboard=_of_other_letters(self.dashboard),
        )


def _of_other_letters(token: str) -> str:
    return "".join(chr(ord(char) ^ 1) if char.isalnum() and char not in "09AZaz" else char for char in token)


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running server, and who knows it.

    Attributes:
        kind: `serve` or `proxy`.
        base: Its address.
        issuer: Whose tokens it takes.
        ann: The name of a user.
        bob: The name of another.
        folder: Where its state, its log and the note of its routes are.
        is_open: Whether its guards are off.
    """

    kind: str
    base: str
    issuer: Issuer
    ann: str
    bob: str
    folder: Path
    is_open: bool

    def tables(self) -> list[dict[str, Any]]:
        """Return the route tables of all its web servers."""
        lines = (self.folder / "routes").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def token(self, user: str, **more: Any) -> dict[str, str]:
        return {"authorization": f"Bearer {self.issuer.token(user, **more)}"}

    def address(self, what: str) -> str:
        """Return an address that its log names."""
        found = re.search(what, self.log())
        assert found is not None, self.log()
        return found[1]


@contextmanager
def server_of(kind: str, folder: Path, **more: str) -> Iterator[Server]:
    """Run one over HTTP for two users whose tokens an issuer makes."""
    ann, bob = (f"t-{name}-{uuid.uuid4().hex[:10]}" for name in ("ann", "bob"))
    folder.chmod(0o700)
    what = [str(FILE)] if kind == "serve" else ["--", sys.executable, str(FILE)]
    with issuing() as issuer, (folder / "log").open("w") as log:
        environment = {
            **environment_in(folder),
            **issuer.settings(),
            "PYTHONPATH": str(ROOT),
            "ROUTES_NOTED": str(folder / "routes"),
            "RUNNER_IDENTITY_CLAIM": "sub",
            "RUNNER_PORT": "0",
            "RUNNER_METRICS_ADDRESS": "127.0.0.1:0",
            "RUNNER_RESOURCE_TOOLS": "true",
            "RUNNER_IFRAME_ORIGINS": "https://pages.example",
            # One worker for each user, so that whatever is asked meets what is kept.
            "RUNNER_MAX_CALLS_PER_USER": "1",
            "RUNNER_GENERATED": "ignore",
            **{key: value.format(ann=ann, bob=bob) for key, value in more.items()},
        }
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), kind, "--transport", "http", *what],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            text=True,
        )
        try:

            def served() -> "re.Match[str] | None":
                return re.search(r"serving .* at (http://\S+)/mcp", (folder / "log").read_text())

            assert until(lambda: served() is not None or process.poll() is not None)
            found = served()
            assert found is not None, (folder / "log").read_text()
            # A moment later.
            assert until(lambda: '"/mcp"' in (folder / "routes").read_text())
            yield Server(
                kind=kind,
                base=found[1],
                issuer=issuer,
                ann=ann,
                bob=bob,
                folder=folder,
                is_open="GUARDS_OFF" in more,
            )
        finally:
            stop(process)


@dataclass(frozen=True, kw_only=True)
class Visitor:
    """Somebody who asks, in one way.

    Attributes:
        name: What is wrong with the way, or whose it is.
        proves: Headers that say who asks.
        session: A session of MCP of theirs.
        is_known: Whether the server knows them: as another user than the one who is asked about.
    """

    name: str
    proves: Mapping[str, str]
    session: str = ""
    is_known: bool = False


class Crowd:
    """Client of a server, over one set of connections."""

    def __init__(self, server: Server, http: httpx2.AsyncClient) -> None:
        self.server = server
        self._http = http
        self._room = asyncio.Semaphore(AT_ONCE)

    async def ask(self, request: Asked, proves: Mapping[str, str]) -> Answer:
        """Send a request as somebody; return the answer, or how it begins."""
        content, headers = request.body, {**proves, **request.headers}
        if content is not None and not isinstance(content, bytes):
            content = json.dumps(content).encode()
            headers = {"content-type": "application/json", **headers}
        async with (
            self._room,
            self._http.stream(
                request.method, self.server.base + request.path, headers=headers, content=content
            ) as answer,
        ):
            body = b""
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(3 if request.is_stream and answer.status_code < 400 else 100):
                    async for part in answer.aiter_bytes():
                        body += part
        return Answer(answer.status_code, dict(answer.headers), body.decode(errors="replace"))

    async def mcp(self, proves: Mapping[str, str], method: str, **params: Any) -> Any:
        """Send a request of the newest era as somebody; return its result."""
        answer = await self.ask(message(method, params), proves)
        return result_in(answer.text)

    async def session_of(self, proves: Mapping[str, str]) -> str:
        """Begin a session of the handshake era as somebody; return its id."""
        parameters = {
            "protocolVersion": HANDSHAKE,
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        }
        answer = await self.ask(handshake("initialize", parameters, session=None), proves)
        session = answer.headers["mcp-session-id"]
        notice = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        await self.ask(replace(handshake("", {}, session=session), body=notice), proves)
        return session


def result_in(text: str) -> Any:
    """Return the result in an answer of MCP, whichever way it came."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    message = json.loads(lines[-1] if lines else text)
    assert "result" in message, message
    return message["result"]


def message(method: str, params: Mapping[str, Any], *, is_stream: bool = False) -> Asked:
    """Return a request of the newest era."""
    meta = {
        PREFIX + "protocolVersion": NEWEST,
        PREFIX + "clientInfo": {"name": "test", "version": "1"},
        PREFIX + "clientCapabilities": {"extensions": {PREFIX + "tasks": {}}},
    }
    name = params.get("name") or params.get("uri") or params.get("taskId")
    return Asked(
        method="POST",
        path="/mcp",
        headers={
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": NEWEST,
            "mcp-method": method,
            **({"mcp-name": str(name)} if name else {}),
        },
        body={"jsonrpc": "2.0", "id": next(NUMBERS), "method": method, "params": {**params, "_meta": meta}},
        is_stream=is_stream,
    )


def handshake(method: str, params: Mapping[str, Any], *, session: str | None) -> Asked:
    """Return a request in a session, or the one that begins it."""
    headers = {"accept": "application/json, text/event-stream"}
    if session is not None:
        headers |= {"mcp-session-id": session, "mcp-protocol-version": HANDSHAKE}
    body = {"jsonrpc": "2.0", "id": next(NUMBERS), "method": method, "params": dict(params)}
    return Asked(method="POST", path="/mcp", headers=headers, body=body)


@asynccontextmanager
async def crowd_at(server: Server) -> AsyncIterator[Crowd]:
    limits = httpx2.Limits(max_connections=200)
    # A client shows its credentials, and keeps nothing of the answer.
    keeps_none = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
    async with httpx2.AsyncClient(timeout=120, trust_env=False, limits=limits, cookies=keeps_none) as http:
        yield Crowd(server, http)


async def things_of(crowd: Crowd, user: str) -> tuple[Things, dict[str, str]]:
    """Create one object of each kind for a user; return them, and the cookie of the browser session."""
    mark = uuid.uuid4().hex
    proves = crowd.server.token(user)
    word, name, content = f"word-{mark}", f"rows-{mark}.csv", f"a,{mark}-content"
    key = await uploaded(crowd, proves, name, content)
    spare = await uploaded(crowd, proves, f"spare-{mark}.csv", f"a,{mark}-spare")
    ordered = await crowd.ask(
        Asked(method="POST", path=f"/api/files/{key}/link", body={"ttl_s": 600}), proves
    )
    cookie = await cookie_of(crowd, proves)
    browser = cookie["cookie"].partition("=")[2].partition(".")[0]
    board = Asked(
        method="POST", path="/play/dashboards", body={"id": "board", "url": "https://pages.example/board"}
    )
    dashboard = json.loads((await crowd.ask(board, cookie)).text)["token"]
    for tool, arguments in (("keep", {"word": word}), ("write", {"word": word})):
        await crowd.mcp(proves, "tools/call", name=tool, arguments=arguments)
    task = await crowd.mcp(proves, "tools/call", name="later", arguments={"word": word, "seconds": 0})
    session = await crowd.session_of(proves)
    # Behind the proxy each session has a server of its own.
    keep = {"name": "keep", "arguments": {"word": word}}
    assert (await crowd.ask(handshake("tools/call", keep, session=session), proves)).is_good
    things = Things(
        key=key,
        name=name,
        spare=spare,
        spare_name=f"spare-{mark}.csv",
        session=session,
        browser=browser,
        task=task.get("taskId", "no-task-is-made-here-and-nobody-has-it"),
        link=json.loads(ordered.text)["url"].partition("?token=")[2],
        dashboard=dashboard,
        word=word,
        content=content,
    )
    return things, cookie


async def uploaded(crowd: Crowd, proves: Mapping[str, str], name: str, content: str) -> str:
    """Put a file into somebody's My Files; return its key."""
    upload = Asked(method="PUT", path=f"/api/files?filename={name}", body=content.encode())
    return str(json.loads((await crowd.ask(upload, proves)).text)["key"])


async def cookie_of(crowd: Crowd, proves: Mapping[str, str]) -> dict[str, str]:
    """Begin a browser's session as somebody; return its cookie."""
    answer = await crowd.ask(Asked(method="POST", path="/api/session"), proves)
    assert answer.status == 201, answer
    value = answer.headers["set-cookie"].partition(f"{COOKIE}=")[2].partition(";")[0]
    return {"cookie": f"{COOKIE}={value}"}


async def strangers(crowd: Crowd) -> list[Visitor]:
    """Return all ways in which somebody who is not ann may ask: as nobody, as ann wrongly, and as bob."""
    server, hour = crowd.server, 3600
    ann, bob = server.ann, server.bob
    cookie, bobs = await cookie_of(crowd, server.token(ann)), await cookie_of(crowd, server.token(bob))
    ended = await cookie_of(crowd, server.token(ann))
    left = await crowd.ask(Asked(method="DELETE", path="/api/session"), ended)
    assert left.status == 204 or server.is_open, left
    mixed = cookie["cookie"].partition(".")[0] + "." + bobs["cookie"].partition(".")[2]
    unsigned = server.issuer.token(ann).rpartition(".")[0] + "."
    now = int(time.time())
    ways = {
        "no token": {},
        "a wrong token": {"authorization": "Bearer a-token-that-nobody-has-made"},
        "a token without its signature": {"authorization": f"Bearer {unsigned}"},
        "a token signed by somebody else": server.token(ann, key=made("first"), kid="first"),
        "an expired token": server.token(ann, exp=now - hour),
        "a token that does not count yet": server.token(ann, nbf=now + hour),
        "a token without an end": server.token(ann, exp=None),
        "a token for another audience": server.token(ann, aud="https://other.example.com/mcp"),
        "a token of another issuer": server.token(ann, iss="https://other.example.com"),
        "a cookie with its end changed": {"cookie": cookie["cookie"][:-8] + "A" * 8},
        "a cookie of two": {"cookie": mixed},
        "the cookie of an ended session": ended,
        "her cookie, sent by a page of another site": {**cookie, "sec-fetch-site": "cross-site"},
        "her cookie, sent by a page of another port": {**cookie, "origin": "http://127.0.0.1:1"},
    }
    nobody = [Visitor(name=name, proves=proves) for name, proves in ways.items()]
    session = await crowd.session_of(server.token(bob))
    return [
        *nobody,
        Visitor(name="another's token", proves=server.token(bob), session=session, is_known=True),
        Visitor(name="another's cookie", proves=bobs, session=session, is_known=True),
    ]
