"""Whatever a user has of a login is of no use to anybody else, by every route on which users log in.

The routes come from the table of a running server, before a real OpenID provider; what has no row in
`login_rows.py` fails here.
"""

import base64
import hashlib
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest
from crossing import Server, server_of
from crossing_rows import MIDDLEWARE, ROUTES
from issuer import client_secret
from login_rows import LOGIN_ROUTES, MARKUP, Hers, LoginRow, Stranger
from oidc import CALLBACK, openid_provider, sent_back
from ports import free_port

pytestmark = [pytest.mark.needs_npm, pytest.mark.release, pytest.mark.kernel, pytest.mark.timeout(900)]

VERIFIER = "a-secret-of-her-client-that-nobody-else-has-0123456789"
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()
GIVEN = re.compile(
    r'"(?:access|refresh|id)_token"\s*:|toolcell_session=[^;]{20}|[?&#]code=|[?&#]access_token='
)
"""What an answer holds that lets somebody in."""


def settings_of(kind: str, provider: str, address: str, folder: Path) -> dict[str, str]:
    common = {
        "RUNNER_AUTH__KIND": kind,
        "RUNNER_AUTH__CLIENT_ID": "runner",
        "RUNNER_AUTH__CLIENT_SECRET_FILE": client_secret(folder),
        "RUNNER_AUTH__ISSUER": provider,
        **dict.fromkeys(("RUNNER_AUTH__KEYS", "RUNNER_AUTH__AUDIENCE"), ""),
        "RUNNER_PORT": address.rpartition(":")[2],
    }
    return common if kind == "oauth_proxy" else {**common, "RUNNER_IDENTITY_CLAIM": "email"}


@dataclass(frozen=True, kw_only=True)
class Place:
    """A server where users log in, and its provider.

    Attributes:
        server: The server.
        provider: The provider's address.
        browsers: Ends all that were opened.
    """

    server: Server
    provider: str
    browsers: ExitStack = field(default_factory=ExitStack)

    def browser(self, source: str, **headers: str) -> httpx2.Client:
        """Return one that nobody has used, on connections from one of the loopback addresses."""
        transport = httpx2.HTTPTransport(local_address=source)
        made = httpx2.Client(
            base_url=self.server.base, transport=transport, timeout=180, trust_env=False, headers=headers
        )
        return self.browsers.enter_context(made)

    def main(self) -> dict[str, Any]:
        """Return the table of the web server that has `/mcp`."""
        (main,) = (
            table for table in self.server.tables() if any(path == "/mcp" for path, _ in table["routes"])
        )
        return main

    def table(self) -> set[tuple[str, str]]:
        found = {(method, path) for path, methods in self.main()["routes"] for method in methods}
        return {each for each in found if each[0] not in ("HEAD", "OPTIONS")}


@pytest.fixture(scope="module", params=["oidc", "oauth_proxy"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    address = f"http://127.0.0.1:{free_port()}"
    folder: Path = tmp_path_factory.mktemp("logins")
    with (
        openid_provider(address, refreshes=True) as provider,
        server_of("serve", folder, **settings_of(request.param, provider, address, folder)) as server,
    ):
        one = Place(server=server, provider=provider)
        with one.browsers:
            yield one


def registered(browser: httpx2.Client) -> str:
    fields = {"client_name": "tests", "redirect_uris": [CALLBACK], "token_endpoint_auth_method": "none"}
    answer = browser.post("/register", json=fields)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["client_id"])


def authorization_url(client: str) -> str:
    return "/authorize?" + urlencode(
        {
            "client_id": client,
            "redirect_uri": CALLBACK,
            "response_type": "code",
            "code_challenge": CHALLENGE,
            "code_challenge_method": "S256",
            "state": "hers",
            "scope": "openid email",
        }
    )


def waiting(browser: httpx2.Client, client: str) -> tuple[str, str]:
    """Begin a login up to the page that asks for consent; return its transaction and the form's proof."""
    page = browser.get(browser.get(authorization_url(client)).headers["location"])
    assert page.status_code == 200, page.text
    fields = dict(re.findall(r'name="(txn_id|csrf_token)" value="([^"]*)"', page.text))
    return unescape(fields["txn_id"]), unescape(fields["csrf_token"])


def exchanged(browser: httpx2.Client, client: str, code: str) -> httpx2.Response:
    fields = {
        "grant_type": "authorization_code",
        "client_id": client,
        "code": code,
        "redirect_uri": CALLBACK,
        "code_verifier": VERIFIER,
    }
    return browser.post("/token", data=fields)


def refreshed(browser: httpx2.Client, client: str, token: str) -> httpx2.Response:
    fields = {"grant_type": "refresh_token", "client_id": client, "refresh_token": token}
    return browser.post("/token", data=fields)


@dataclass(frozen=True, kw_only=True)
class Ann:
    """Login objects of the user, and the browsers that hold them."""

    hers: Hers
    consenting: httpx2.Client
    returning: httpx2.Client
    page: httpx2.Client


def code_in(address: str) -> str:
    return parse_qs(urlsplit(address).query)["code"][0]


def ann_at(place: Place) -> Ann:
    base = place.server.base
    consenting, returning, page, other = (place.browser("127.0.0.1") for _ in range(4))
    client = registered(other)
    transaction, proof = waiting(consenting, client)
    callback = sent_back(returning, base + authorization_url(client), "ann", f"{base}/auth/callback")
    tokens = exchanged(
        other, client, code_in(sent_back(other, base + authorization_url(client), "ann", CALLBACK))
    )
    assert tokens.status_code == 200, tokens.text
    hers = Hers(
        client=client,
        back=CALLBACK,
        verifier=VERIFIER,
        challenge=CHALLENGE,
        transaction=transaction,
        proof=proof,
        callback=callback,
        code=code_in(sent_back(other, base + authorization_url(client), "ann", CALLBACK)),
        access=tokens.json()["access_token"],
        refresh=tokens.json()["refresh_token"],
        page_done=sent_back(page, f"{base}/play/login", "ann", f"{base}/play/login/done"),
    )
    return Ann(hers=hers, consenting=consenting, returning=returning, page=page)


def strangers_at(place: Place) -> list[Stranger]:
    """Return nobody, another user's browser in a login of its own, and another user's client."""
    base = place.server.base
    made = []
    for name, source in (
        ("nobody", "127.0.0.2"),
        ("another's browser", "127.0.0.3"),
        ("another's token", "127.0.0.4"),
    ):
        theirs = place.browser(source)
        client = registered(theirs)
        transaction, proof = waiting(theirs, client)
        back = sent_back(
            place.browser(source), base + authorization_url(client), "bob", f"{base}/auth/callback"
        )
        # Its own login under way, in this browser, as far as the provider.
        way = sent_back(theirs, base + authorization_url(client), "bob", f"{base}/auth/callback")
        state = parse_qs(urlsplit(way if name == "another's browser" else back).query)["state"][0]
        http = theirs
        if name == "nobody":
            http = place.browser(source)
        if name == "another's token":
            code = code_in(sent_back(theirs, base + authorization_url(client), "bob", CALLBACK))
            token = exchanged(theirs, client, code).json()["access_token"]
            http = place.browser(source, authorization=f"Bearer {token}")
        made.append(
            Stranger(name=name, client=client, transaction=transaction, proof=proof, state=state, http=http)
        )
    return made


def faults(place: Place, row: LoginRow, answer: httpx2.Response, hers: Hers, who: str) -> list[str]:
    """Return what an answer gives away, and where it leads that it should not."""
    head = str(sorted(answer.headers.multi_items()))
    sent_values, reply = (
        f"{head} {answer.text}",
        f"{who}: {row.name}: {answer.status_code} {head[-300:]} {answer.text[:200]}",
    )
    found = []
    if GIVEN.search(sent_values) or any(
        mark in sent_values for mark in hers.secrets() if mark not in str(answer.request.url)
    ):
        found.append(f"gives away: {reply}")
    if MARKUP in answer.text and "html" in answer.headers.get("content-type", ""):
        found.append(f"shows markup of others: {reply}")
    target = answer.headers.get("location", "")
    is_error = target.startswith(CALLBACK) and "error=" in target
    here = (f"{place.server.base}/", f"{place.provider}/")
    is_here = target.startswith(here) or (target.startswith("/") and target[1:2] != "/")
    if target and not (is_error or is_here):
        found.append(f"leads elsewhere: {reply}")
    if answer.status_code == 429:
        found.append(f"nothing was tried: {reply}")
    if not (row.may_go_on or answer.status_code >= 400 or is_error):
        found.append(f"is let go on: {reply}")
    return found


def test_routes_of_server_with_logins_have_rows(place: Place) -> None:
    table = place.table()

    assert {("POST", "/token"), ("GET", "/play/login/done")} <= table
    assert table - set(ROUTES) == set(), "a route without a row: say who may ask for what there"
    assert set(place.main()["middleware"]) - set(MIDDLEWARE) == set(), "say which paths it answers itself"
    assert set(LOGIN_ROUTES) - table <= {("GET", "/.well-known/openid-configuration")}
    assert all(LOGIN_ROUTES[each] for each in LOGIN_ROUTES)


def test_login_objects_useless_to_other_users(place: Place) -> None:
    ann, strangers = ann_at(place), strangers_at(place)
    hers, found = ann.hers, list[str]()
    for stranger in strangers:
        for (method, path), rows in LOGIN_ROUTES.items():
            if (method, path) not in place.table():
                continue
            for row in rows:
                for verb in (method, "HEAD") if method == "GET" else (method,):
                    answer = row.ask(hers, stranger, method=verb)
                    found += faults(place, row, answer, hers, stranger.name)

    assert not found, "\n".join(found)
    # The control: all of it is of use to her, in the browser and the client that it was made for.
    mine: dict[str, Any] = {
        "consent": ann.consenting.post(
            f"/consent?txn_id={hers.transaction}",
            data={"action": "approve", "txn_id": hers.transaction, "csrf_token": hers.proof},
        ).headers.get("location", "")[: len(place.provider)],
        "way back": ann.returning.get(hers.callback).headers.get("location", "")[: len(CALLBACK)],
        "page": (ann.page.get(hers.page_done).status_code, ann.page.get("/play/info").status_code),
        "code": exchanged(ann.page, hers.client, hers.code).status_code,
        "refresh": refreshed(ann.page, hers.client, hers.refresh).status_code,
    }
    assert mine == {
        "consent": place.provider,
        "way back": CALLBACK,
        "page": (303, 200),
        "code": 200,
        "refresh": 200,
    }
    # Each of them once.
    again = {
        "way back": ann.returning.get(hers.callback).status_code,
        "page": ann.page.get(hers.page_done).status_code,
        "code": exchanged(ann.page, hers.client, hers.code).status_code,
        "refresh": refreshed(ann.page, hers.client, hers.refresh).status_code,
    }
    assert {name: status for name, status in again.items() if status < 400} == {}
