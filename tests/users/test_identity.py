import asyncio
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from fastmcp.server.auth.providers.jwt import JWTVerifier, RSAKeyPair
from joserfc import jwt
from joserfc.jwk import RSAKey
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, authorization_context

from runner.errors import UsageError
from runner.settings.auth import Auth
from runner.settings.settings import Settings
from runner.users.bearer_tokens import fault_in_times
from runner.users.identity import IdentityError, User, auth_provider, check_startable, is_loopback, resolve

TOKENS = Auth(kind="static", tokens_file=Path("/nowhere/tokens.json"))


def http(settings: Settings, claims: dict[str, Any] | None, host: str = "127.0.0.1") -> User:
    return resolve(settings, transport="http", claims=claims, host=host, process_user="root")


def test_bound_server_accepts_token_of_its_user() -> None:
    settings = Settings(user="alice", auth=TOKENS)

    assert http(settings, {"sub": "alice"}) == User("alice")


def test_bound_server_refuses_token_of_another_user() -> None:
    settings = Settings(user="alice", auth=TOKENS)

    with pytest.raises(IdentityError, match="belongs to the user 'alice', and the token names 'bob'"):
        http(settings, {"sub": "bob"})


def test_bound_server_without_tokens_serves_its_user_anywhere() -> None:
    assert http(Settings(user="alice"), None, host="0.0.0.0") == User("alice")


def test_bound_server_with_tokens_refuses_tokenless_request() -> None:
    for user in ("alice", None):
        with pytest.raises(IdentityError, match="carries no token"):
            http(Settings(user=user, auth=TOKENS), None)


def test_email_names_user_before_subject() -> None:
    settings = Settings(auth=TOKENS)

    assert http(settings, {"sub": "17", "email": "alice@example.com"}) == User("alice@example.com")
    assert http(settings, {"sub": "17"}) == User("17")


def test_identity_claim_sets_claims_and_their_order() -> None:
    settings = Settings(auth=TOKENS, identity_claim=("sub",))

    assert http(settings, {"sub": "17", "email": "alice@example.com"}) == User("17")


@pytest.mark.parametrize("claims", [{}, {"client_id": "app"}, {"sub": ""}, {"sub": 17}, {"email": ["a"]}])
def test_token_naming_no_user_refused(claims: dict[str, Any]) -> None:
    with pytest.raises(IdentityError, match="names no user"):
        http(Settings(auth=TOKENS), claims)


@pytest.mark.parametrize("verified", [False, "false", None, "no"])
def test_unverified_email_refused(verified: object) -> None:
    claims = {"email": "alice@example.com", "sub": "17"}

    assert http(Settings(auth=TOKENS), {**claims, "email_verified": True}).name == "alice@example.com"
    with pytest.raises(IdentityError, match="not verified"):
        http(Settings(auth=TOKENS), {**claims, "email_verified": verified})


def test_os_user_accepted_on_stdio_and_loopback_only() -> None:
    settings = Settings()

    assert http(settings, None, host="localhost") == User("root")
    assert resolve(settings, transport="stdio", claims=None, host="0.0.0.0", process_user="eve") == User(
        "eve"
    )
    with pytest.raises(IdentityError, match="nothing says who"):
        http(settings, None, host="0.0.0.0")


@pytest.mark.parametrize("name", ["", "\0", "\udcff"])
def test_name_unfit_for_home_is_not_a_user(name: str) -> None:
    with pytest.raises(IdentityError, match="cannot be used"):
        User(name)


def test_user_has_home_segment_of_its_name() -> None:
    assert User("alice@example.com").segment == "alice@example.com"
    assert "/" not in User("a/../b").segment


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("10.0.0.1", False),
        ("localhost.example.com", False),
    ],
)
def test_loopback_recognised_by_address_and_localhost(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_server_open_to_strangers_does_not_start() -> None:
    with pytest.raises(UsageError, match=r"--host 0\.0\.0\.0 is reachable from other machines"):
        check_startable(Settings(host="0.0.0.0"), "http")

    check_startable(Settings(host="0.0.0.0"), "stdio")
    check_startable(Settings(host="0.0.0.0", user="alice"), "http")
    check_startable(Settings(host="0.0.0.0", auth=TOKENS), "http")
    check_startable(Settings(), "http")


def test_no_auth_has_no_provider() -> None:
    assert auth_provider(Settings()) is None


def tokens_file(folder: Path, content: object, mode: int = 0o600) -> Settings:
    path = folder / "tokens.json"
    path.write_text(json.dumps(content))
    path.chmod(mode)
    return Settings(auth=Auth(kind="static", tokens_file=path))


def test_token_of_file_names_its_user(tmp_path: Path) -> None:
    settings = tokens_file(tmp_path, {"0123456789abcdef": "alice"})
    provider = auth_provider(settings)
    assert provider is not None

    known = asyncio.run(provider.verify_token("0123456789abcdef"))
    unknown = asyncio.run(provider.verify_token("0123456789abcdeX"))

    assert known is not None
    assert http(settings, known.claims) == User("alice")
    assert unknown is None


@pytest.mark.parametrize(
    ("content", "mode", "sentence"),
    [
        ({"0123456789abcdef": "alice"}, 0o644, "open to other users; chmod 600"),
        ({"short": "alice"}, 0o600, "the token of alice has fewer than 16 characters"),
        (["0123456789abcdef"], 0o600, "must be a JSON object"),
        ({"0123456789abcdef": 7}, 0o600, "must be a JSON object"),
    ],
)
def test_open_or_malformed_tokens_file_refused(
    tmp_path: Path, content: object, mode: int, sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        auth_provider(tokens_file(tmp_path, content, mode))


def test_missing_tokens_file_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"/nowhere/tokens\.json does not exist; write it there"):
        auth_provider(Settings(auth=TOKENS))


def key_file(folder: Path, key: str) -> Path:
    path = folder / "issuer.pem"
    path.touch(mode=0o600)
    path.write_text(key)
    return path


def jwt_settings(folder: Path, key: str) -> Settings:
    keys = key_file(folder, key)
    return Settings(auth=Auth(kind="jwt", keys=keys, issuer="https://issuer", audience="toolcell"))


def test_jwt_needs_right_key_issuer_and_audience(tmp_path: Path) -> None:
    keys, others = RSAKeyPair.generate(), RSAKeyPair.generate()
    settings = jwt_settings(tmp_path, keys.public_key)
    provider = auth_provider(settings)
    assert isinstance(provider, JWTVerifier)

    async def user(pair: RSAKeyPair, issuer: str, audience: str) -> User | None:
        token = await provider.verify_token(
            pair.create_token(subject="alice", issuer=issuer, audience=audience)
        )
        return None if token is None else http(settings, token.claims)

    assert asyncio.run(user(keys, "https://issuer", "toolcell")) == User("alice")
    assert asyncio.run(user(others, "https://issuer", "toolcell")) is None
    assert asyncio.run(user(keys, "https://other", "toolcell")) is None
    assert asyncio.run(user(keys, "https://issuer", "elsewhere")) is None


@pytest.mark.parametrize("claims", [{}, {"sub": "one-for-all"}], ids=["no sub", "another claim first"])
def test_users_by_another_claim_own_separate_sessions(claims: dict[str, str], tmp_path: Path) -> None:
    keys = RSAKeyPair.generate()
    settings = jwt_settings(tmp_path, keys.public_key).model_copy(update={"identity_claim": ("email", "sub")})
    provider = auth_provider(settings)
    assert provider is not None

    def owner(email: str) -> object:
        payload = {
            **claims,
            "email": email,
            "iss": "https://issuer",
            "aud": "toolcell",
            "exp": time.time() + 60,
        }
        key = RSAKey.import_key(keys.private_key.get_secret_value())
        token = asyncio.run(provider.verify_token(jwt.encode({"alg": "RS256"}, payload, key)))
        assert token is not None
        assert http(settings, token.claims) == User(email)
        return authorization_context(AuthenticatedUser(token))

    assert owner("ann@example.com") == owner("ann@example.com") != owner("bob@example.com")


@pytest.mark.parametrize(
    ("times", "counts"),
    [
        ({"exp": 600}, True),
        ({"exp": 600, "nbf": -5}, True),
        ({"exp": 600, "nbf": 30}, True),
        ({"exp": 600, "nbf": 300}, False),
        ({"exp": 600, "nbf": None}, True),
        ({"exp": -1}, False),
        ({"exp": None}, False),
        ({}, False),
    ],
)
def test_jwt_needs_current_time_and_expiry(
    times: dict[str, int | None], counts: bool, tmp_path: Path
) -> None:
    keys = RSAKeyPair.generate()
    provider = auth_provider(jwt_settings(tmp_path, keys.public_key))
    assert isinstance(provider, JWTVerifier)
    now = int(time.time())
    times_sent = {name: None if after is None else now + after for name, after in times.items()}
    claims = {"sub": "alice", "iss": "https://issuer", "aud": "toolcell", **times_sent}
    token = jwt.encode({"alg": "RS256"}, claims, RSAKey.import_key(keys.private_key.get_secret_value()))

    assert (asyncio.run(provider.verify_token(token)) is not None) == counts


@pytest.mark.parametrize("value", ["1e9", True, math.nan, math.inf, [1], {}])
def test_non_numeric_time_is_a_fault(value: object) -> None:
    assert fault_in_times({"exp": 10**12}, now=0) is None
    assert fault_in_times({"exp": value}, now=0) is not None
    assert fault_in_times({"exp": 10**12, "nbf": value}, now=0) is not None


def test_unknown_algorithm_refused_at_start(tmp_path: Path) -> None:
    keys = key_file(tmp_path, "secret")
    settings = Settings(auth=Auth(kind="jwt", keys=keys, algorithm="none", issuer="i", audience="a"))

    with pytest.raises(UsageError, match="under auth cannot be used"):
        auth_provider(settings)
