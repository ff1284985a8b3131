"""Rights and user name of a token, and requests that end with it, at a real server."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from fastmcp import Client
from fastmcp.client.auth import BearerAuth
from fastmcp.exceptions import ToolError
from issuer import Issuer, initialize
from support import environment_in, server_url, stop, until

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

Serve = Callable[..., str]

LAX = """
from fastmcp import FastMCP
from fastmcp.server.middleware import Middleware

class AnyCase(Middleware):
    async def on_call_tool(self, context, call_next):
        message = context.message.model_copy(update={"name": context.message.name.lower()})
        return await call_next(context.copy(message=message))

mcp = FastMCP("lax", middleware=[AnyCase()])

@mcp.tool
def change() -> str:
    return "changed"

@mcp.tool
def look() -> str:
    return "looked"

mcp.run(show_banner=False)
"""


def files(url: str, token: str, **more: str) -> httpx2.Response:
    headers = {"authorization": f"Bearer {token}", **more}
    return httpx2.get(url.replace("/mcp", "/api/files"), headers=headers, timeout=180, trust_env=False)


async def test_scopes_decide_tools_listed_and_called(issuer: Issuer, serve_to: Serve, tmp_path: Path) -> None:
    (tmp_path / "runner.toml").write_text('[tools.change]\nscopes = ["change"]\n')
    url = serve_to(**issuer.settings(RUNNER_AUTH__REQUIRED_SCOPES="call"))
    some, all_of_them = issuer.token(scope="call"), issuer.token(scope="call change")

    none = initialize(url, issuer.token()), files(url, issuer.token())
    async with Client(url, auth=BearerAuth(some)) as client:
        listed = {tool.name for tool in await client.list_tools()}
        reply = (await client.call_tool("whose", {})).data
        with pytest.raises(ToolError, match="needs a user who has logged in with the scopes change"):
            await client.call_tool("change", {})
    async with Client(url, auth=BearerAuth(all_of_them)) as client:
        also = {tool.name for tool in await client.list_tools()}
        changed = (await client.call_tool("change", {})).data

    assert [answer.status_code for answer in none] == [403, 403]
    for answer in none:
        asks = answer.headers["www-authenticate"]
        assert 'error="insufficient_scope"' in asks
        assert 'scope="call"' in asks
    assert files(url, some).status_code == 200
    assert ("change" in listed, "change" in also) == (False, True)
    assert (reply, changed) == ("ann", "changed")


async def test_unlisted_spelling_of_tool_needs_all_scopes(issuer: Issuer, tmp_path: Path) -> None:
    """A server behind the proxy may take several names for one tool."""
    tmp_path.chmod(0o700)
    (tmp_path / "runner.toml").write_text('[tools.change]\nscopes = ["change"]\n')
    command = [sys.executable, "-m", "runner.cli.app", "proxy", "--transport", "http", "--port", "0"]
    (tmp_path / "lax.py").write_text(LAX)
    texts: dict[tuple[str, str], str] = {}
    process = subprocess.Popen(
        [*command, "--", sys.executable, "lax.py"],
        env={**environment_in(tmp_path), **issuer.settings()},
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        url = server_url(process)
        for scope in ("", "change"):
            async with Client(url, auth=BearerAuth(issuer.token(scope=scope))) as client:
                for name in ("look", "change", "CHANGE"):
                    result = await client.call_tool(name, {}, raise_on_error=False)
                    texts[scope, name] = result.content[0].text
    finally:
        stop(process)

    assert texts["", "look"] == "looked"
    assert texts["change", "CHANGE"] == texts["change", "change"] == "changed"
    for name in ("change", "CHANGE"):
        assert "logged in with the scopes change" in texts["", name]


async def test_open_stream_ends_at_token_expiry(issuer: Issuer, serve_to: Serve, tmp_path: Path) -> None:
    url = serve_to(**issuer.settings())
    initialize(url, issuer.token())  # has the server fetch keys
    end = int(time.time()) + 6
    short, long = issuer.token(exp=end), issuer.token()
    headers = {"accept": "text/event-stream"}
    session = initialize(url, short).headers["mcp-session-id"]
    opened = {}
    with httpx2.Client(timeout=180, trust_env=False) as http:
        for path in ("/events", "/mcp"):
            own = {**headers, "authorization": f"Bearer {short}", "mcp-session-id": session}
            with http.stream("GET", url.replace("/mcp", path), headers=own) as stream:
                opened[path] = stream.status_code
                for _ in stream.iter_bytes():
                    pass
                ended = time.time()
            assert ended >= end - 1, "a stream ended before its token"
        assert ended < end + 30, "a stream went on without its token"
        with http.stream(
            "GET", url.replace("/mcp", "/events"), headers={**headers, "authorization": f"Bearer {long}"}
        ) as stream:
            assert stream.status_code == 200

    assert opened == {"/events": 200, "/mcp": 401} or opened == {"/events": 200, "/mcp": 200}
    assert initialize(url, short).status_code == 401
    assert initialize(url, long).status_code == 200


async def test_wrong_mcp_tokens_counted_slowed_and_reported(
    issuer: Issuer, serve_to: Serve, tmp_path: Path
) -> None:
    url = serve_to(**issuer.settings())
    wrong, right = issuer.token("ann", aud="https://elsewhere.example.com"), issuer.token("ann")
    assert initialize(url, right).status_code == 200

    for _ in range(9):
        assert initialize(url, wrong).status_code == 401
    start = time.monotonic()
    initialize(url, wrong)
    slow_s = time.monotonic() - start
    start = time.monotonic()
    assert initialize(url, right).status_code == 200
    right_s = time.monotonic() - start

    assert slow_s > 1.5
    assert right_s < slow_s
    assert until(lambda: "most_for=ann" in (tmp_path / "log").read_text())


async def test_two_identities_never_become_one_user(issuer: Issuer, serve_to: Serve) -> None:
    url = serve_to(
        **issuer.settings(
            RUNNER_IDENTITY_CLAIM="sub",
            RUNNER_IDENTITY_SUFFIX="@example.com",
            RUNNER_IDENTITY_PATTERN="[^@\\p{Lu}]+@example\\.com",
        )
    )
    refused = {
        "another case": "Ann@example.com",
        "another domain": "ann@example.org",
        "nothing before the ending": "@example.com",
        "an ending in front": "ann@evil.org@example.com",
        "a Cyrillic letter": "\N{CYRILLIC SMALL LETTER A}nn@example.com",
        "wide letters": "\N{FULLWIDTH LATIN SMALL LETTER A}nn@example.com",
        "an accent apart": "anne\N{COMBINING ACUTE ACCENT}@example.com",
        "a character nobody sees": "ann\N{ZERO WIDTH SPACE}@example.com",
        "a space in front": " ann@example.com",
    }

    async with Client(url, auth=BearerAuth(issuer.token("ann@example.com"))) as client:
        reply = (await client.call_tool("whose", {})).data

    assert reply == "ann"
    for what, name in refused.items():
        answer = files(url, issuer.token(name))
        assert answer.status_code == 403, what
        assert "is not taken here" in answer.json()["error"]
    assert files(url, issuer.token("bob@example.com")).status_code == 200
