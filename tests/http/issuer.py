"""An issuer of tokens over loopback, with keys that come and go, and a server that believes it."""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
from joserfc import jwt
from joserfc.jwk import RSAKey

AUDIENCE = "https://tools.example.com/mcp"


def client_secret(folder: Path) -> str:
    """Write the secret of the server's client at its login provider; return the path of the file."""
    file = folder / "client.secret"
    file.write_text("a-secret-of-the-runner\n")
    file.chmod(0o600)
    return str(file)


FILE = """
from fastmcp import FastMCP

mcp = FastMCP("identities")


@mcp.tool
def whose(username: str) -> str:
    "Say whose call this is."
    return username


@mcp.tool
def change(username: str) -> str:
    "Change something."
    return "changed"
"""


@dataclass
class Issuer:
    """Publishes keys and signs tokens with them.

    Attributes:
        address: Where it is.
        published: The keys that are published, by id.
        fetches: How often they were fetched.
        status: With what the fetches are answered.
    """

    address: str = ""
    published: dict[str, RSAKey] = field(default_factory=dict)
    fetches: int = 0
    status: int = 200

    def add(self, kid: str) -> None:
        self.published[kid] = made(kid)

    @property
    def keys(self) -> bytes:
        return json.dumps({"keys": [key.as_dict(private=False) for key in self.published.values()]}).encode()

    def token(
        self, user: str = "ann", *, key: RSAKey | None = None, kid: str | None = None, **more: Any
    ) -> str:
        key = key or next(iter(self.published.values()))
        header = {"alg": "RS256", "kid": kid or key.kid}
        claims = {
            "sub": user,
            "iss": self.address,
            "aud": AUDIENCE,
            "exp": int(time.time()) + 600,
            "client_id": "tests",
            **more,
        }
        claims = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(header, claims, key)

    def settings(self, **more: str) -> dict[str, str]:
        return {
            "RUNNER_USER": "",
            "RUNNER_AUTH__KIND": "jwt",
            "RUNNER_AUTH__KEYS": f"{self.address}/jwks",
            "RUNNER_AUTH__ISSUER": self.address,
            "RUNNER_AUTH__AUDIENCE": AUDIENCE,
            **more,
        }


def made(kid: str) -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": kid, "use": "sig", "alg": "RS256"})


@contextmanager
def issuing() -> Iterator[Issuer]:
    """Run an issuer with one key."""
    issuer = Issuer()
    issuer.add("first")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.fetches += 1
            self.send_response(issuer.status)
            self.end_headers()
            self.wfile.write(issuer.keys)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        issuer.address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield issuer
        server.shutdown()


def initialize(
    url: str, token: str | None = None, *, headers: Mapping[str, str] | None = None
) -> httpx2.Response:
    """Begin an MCP session at `url`; return the answer."""
    parameters = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    sent = {"accept": "application/json, text/event-stream", **(headers or {})}
    if token is not None:
        sent["authorization"] = f"Bearer {token}"
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": parameters}
    return httpx2.post(url, json=request, headers=sent, timeout=120, trust_env=False)
