"""Auth that a tool file sets: said where it is not used, and checked by the host where one says so."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fastmcp import Client
from fastmcp.client.auth import BearerAuth
from fastmcp.server.auth.providers.jwt import RSAKeyPair
from httpx2 import HTTPStatusError
from mcp.shared.exceptions import MCPError
from support import stop

from runner.errors import UsageError
from runner.settings.auth import Auth
from runner.settings.settings import Settings
from runner.users.identity import auth_provider, unused_auth

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

FILE = """
from fastmcp import FastMCP
from fastmcp.server.auth.providers.jwt import JWTVerifier

KEY = {key!r}
mcp = FastMCP(
    "guarded",
    auth=JWTVerifier(public_key=KEY, issuer="https://issuer", audience="guarded", required_scopes=["call"]),
)


@mcp.tool
def whose(username: str) -> str:
    "Say whose call this is."
    return username
"""


@pytest.fixture(scope="module")
def keys() -> RSAKeyPair:
    return RSAKeyPair.generate()


def token(keys: RSAKeyPair, *, audience: str = "guarded", scopes: tuple[str, ...] = ("call",)) -> str:
    return keys.create_token(
        subject="t-guarded", issuer="https://issuer", audience=audience, scopes=list(scopes)
    )


async def test_author_auth_checks_tokens_when_operator_enables_it(
    keys: RSAKeyPair, folder: Path, serve_http: Callable[..., str]
) -> None:
    file = folder / "guarded.py"
    file.write_text(FILE.format(key=keys.public_key))

    url = serve_http(file, RUNNER_AUTH__KIND="file", RUNNER_USER="", RUNNER_IDENTITY_CLAIM="sub")
    async with Client(url, auth=BearerAuth(token(keys))) as client:
        reply = (await client.call_tool("whose", {"username": "another"})).data
    refused = 0
    other = RSAKeyPair.generate()
    for wrong in (token(other), token(keys, audience="elsewhere"), token(keys, scopes=()), None):
        with pytest.raises((HTTPStatusError, MCPError, RuntimeError)):
            async with Client(url, auth=BearerAuth(wrong) if wrong else None):
                pass
        refused += 1

    assert reply == "t-guarded"
    assert refused == 4


@pytest.mark.release
def test_unused_auth_of_file_is_reported(keys: RSAKeyPair, folder: Path, environment: dict[str, str]) -> None:
    file = folder / "guarded.py"
    file.write_text(FILE.format(key=keys.public_key))
    command = [
        sys.executable,
        "-m",
        "runner.cli.app",
        "serve",
        str(file),
        "--transport",
        "http",
        "--port",
        "0",
    ]

    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            for line in process.stderr:
                log.write(line)
                if "/mcp" in line:
                    break
        finally:
            stop(process)

    assert "RUNNER_AUTH__KIND=file" in (folder / "log").read_text()


WHOLE = {"public_key": "k", "algorithm": "RS256", "issuer": "i", "audience": "a"}


@pytest.mark.parametrize(
    "jwt",
    [
        None,
        {**WHOLE, "audience": None},
        {**WHOLE, "issuer": ["i", "j"]},
        {**WHOLE, "public_key": None, "jwks_uri": "http://example.com/keys"},
        {**WHOLE, "algorithm": "HS256"},
    ],
    ids=["login", "no-audience", "two-issuers", "keys-from-anywhere", "shared-secret"],
)
def test_foreign_auth_provider_refused_with_reason(jwt: dict[str, object] | None) -> None:
    of_file = {"kind": "SomeProvider", "jwt": jwt}

    with pytest.raises(UsageError, match=r"auth\.kind"):
        auth_provider(Settings(auth=Auth(kind="file")), of_file)
    reason = unused_auth(Settings(), of_file)

    assert reason is not None
    assert 'auth.kind = "jwt"' in reason
    assert unused_auth(Settings(), None) is None
