"""JSON web tokens of a real issuer, at a real server: whose count, and when the keys of the issuer change."""

import base64
import json
import time
from collections.abc import Callable

import pytest
from issuer import AUDIENCE, Issuer, initialize, made

pytestmark = [pytest.mark.kernel, pytest.mark.release]

Serve = Callable[..., str]


def test_token_valid_for_this_server_until_expiry(issuer: Issuer, serve_to: Serve) -> None:
    url = serve_to(**issuer.settings())
    wrong = {
        "another audience": issuer.token(aud="https://elsewhere.example.com/mcp"),
        "the audience without its path": issuer.token(aud="https://tools.example.com"),
        "no audience": issuer.token(aud=None),
        "another issuer": issuer.token(iss="https://elsewhere.example.com"),
        "no end": issuer.token(exp=None),
        "its end is over": issuer.token(exp=int(time.time()) - 1),
        "signed by somebody else under a known name": issuer.token(key=made("first")),
        "not signed": unsigned(issuer.token()),
    }

    assert initialize(url, issuer.token()).status_code == 200
    assert initialize(url, issuer.token(aud=["https://other.example.com", AUDIENCE])).status_code == 200
    for what, token in wrong.items():
        assert initialize(url, token).status_code == 401, what
    assert initialize(url).status_code == 401


def unsigned(token: str) -> str:
    header = base64.urlsafe_b64encode(json.dumps({"alg": "none", "kid": "first"}).encode()).rstrip(b"=")
    return f"{header.decode()}.{token.split('.')[1]}."


def test_unknown_key_ids_do_not_trigger_endless_fetches(issuer: Issuer, serve_to: Serve) -> None:
    url = serve_to(**issuer.settings())
    assert initialize(url, issuer.token()).status_code == 200
    before = issuer.fetches

    statuses = {initialize(url, issuer.token(kid=f"unknown-{n}")).status_code for n in range(6)}

    assert statuses == {401}
    assert issuer.fetches == before == 1
    assert initialize(url, issuer.token()).status_code == 200
