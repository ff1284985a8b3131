"""Requests of strangers to the login routes, with parts of another user's login.

A new route of this kind needs its row here: `test_login_matrix.py` reads the table of a running server.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

import httpx2

EVIL = "https://evil.example.com/callback"
MARKUP = "<script>alert(1)</script>"


@dataclass(frozen=True, kw_only=True)
class Hers:
    """Login objects of a user, useless to any other user.

    Attributes:
        client: The id of her registered client.
        back: Its registered redirect address.
        verifier: The secret behind the codes that it asks for (PKCE).
        challenge: What is said of the secret.
        transaction: A login that waits for her consent.
        proof: What the form of the consent page has against other sites (CSRF).
        callback: The address by which the provider sends her browser here.
        code: A code that her client has not exchanged yet.
        access: Her access token.
        refresh: Her refresh token.
        page_done: The address by which her browser comes back to the page.
    """

    client: str
    back: str
    verifier: str
    challenge: str
    transaction: str
    proof: str
    callback: str
    code: str
    access: str
    refresh: str
    page_done: str

    def secrets(self) -> tuple[str, ...]:
        """Return what no answer may hold."""
        return (self.verifier, self.code, self.access, self.refresh, "ann@example.com")


@dataclass(frozen=True, kw_only=True)
class Stranger:
    """Client of a request.

    Attributes:
        name: How.
        client: The id of a client of theirs.
        transaction: A login of theirs that waits for consent.
        proof: Of the form of that consent page.
        state: The provider's word for a login of theirs that is under way.
        http: Their connections, with their cookies and tokens.
    """

    name: str
    client: str
    transaction: str
    proof: str
    state: str
    http: httpx2.Client


@dataclass(frozen=True, kw_only=True)
class LoginRow:
    """One request with things of somebody else.

    Attributes:
        name: What is tried.
        method: Of HTTP.
        path: With its query.
        form: What is sent as a form.
        body: What is sent as JSON.
        may_go_on: Whether it may lead to the provider or a page of this server, or be answered.
    """

    name: str
    method: str = "GET"
    path: Callable[[Hers, Stranger], str]
    form: Callable[[Hers, Stranger], Mapping[str, str]] | None = None
    body: Callable[[Hers, Stranger], Mapping[str, object]] | None = None
    may_go_on: bool = False

    def ask(self, hers: Hers, stranger: Stranger, *, method: str | None = None) -> httpx2.Response:
        """Send it."""
        more: dict[str, object] = {}
        if self.form is not None:
            more["data"] = dict(self.form(hers, stranger))
        if self.body is not None:
            more["json"] = dict(self.body(hers, stranger))
        return stranger.http.request(method or self.method, self.path(hers, stranger), **more)  # type: ignore[arg-type]


def _at(path: str) -> Callable[[Hers, Stranger], str]:
    return lambda _hers, _stranger: path


def _authorize(**changed: str | None) -> Callable[[Hers, Stranger], dict[str, str]]:
    """Return what asks for a code of her client, with something changed or left out."""

    def form_fields(hers: Hers, _stranger: Stranger) -> dict[str, str]:
        usual: dict[str, str | None] = {
            "client_id": hers.client,
            "redirect_uri": hers.back,
            "response_type": "code",
            "code_challenge": hers.challenge,
            "code_challenge_method": "S256",
            "state": "any",
            "scope": "openid email",
            **changed,
        }
        return {name: value for name, value in usual.items() if value is not None}

    return form_fields


def _query(
    path: str, fields: Callable[[Hers, Stranger], Mapping[str, str]]
) -> Callable[[Hers, Stranger], str]:
    def made(hers: Hers, stranger: Stranger) -> str:
        pairs = fields(hers, stranger).items()
        return f"{path}?" + "&".join(f"{name}={quote(value, safe='')}" for name, value in pairs)

    return made


_BAD_AUTHORIZATIONS: Mapping[str, dict[str, str | None]] = {
    "to an address elsewhere": {"redirect_uri": EVIL},
    "to an address that begins like hers": {
        "redirect_uri": "http://localhost:3999@evil.example.com/callback"
    },
    "to a host that begins like hers": {"redirect_uri": "http://localhost.evil.example.com/callback"},
    "to a script": {"redirect_uri": "javascript:alert(1)"},
    "without PKCE": {"code_challenge": None, "code_challenge_method": None},
    "with PKCE in plain words": {"code_challenge_method": "plain"},
    "for a token at once": {"response_type": "token"},
    "for a client of nobody": {"client_id": "nobody"},
    "for another resource": {"resource": "https://other.example.com/mcp"},
}


def _authorizations(method: str) -> tuple[LoginRow, ...]:
    def row(name: str, changed: dict[str, str | None], *, may_go_on: bool = False) -> LoginRow:
        fields = _authorize(**changed)
        if method == "GET":
            return LoginRow(
                name=f"her client, {name}", path=_query("/authorize", fields), may_go_on=may_go_on
            )
        return LoginRow(
            name=f"her client, {name}",
            method="POST",
            path=_at("/authorize"),
            form=fields,
            may_go_on=may_go_on,
        )

    return (
        *(row(name, changed) for name, changed in _BAD_AUTHORIZATIONS.items()),
        row("and then to somewhere else", {"next": EVIL, "return_to": EVIL}, may_go_on=True),
    )


def _token(**changed: str | None) -> Callable[[Hers, Stranger], dict[str, str]]:
    """Return what exchanges her code, with something changed or left out; `{client}` is the stranger's."""

    def form_fields(hers: Hers, stranger: Stranger) -> dict[str, str]:
        usual: dict[str, str | None] = {
            "grant_type": "authorization_code",
            "client_id": hers.client,
            "code": hers.code,
            "redirect_uri": hers.back,
            "code_verifier": hers.verifier,
            **changed,
        }
        rest = {name: value for name, value in usual.items() if value is not None}
        return {name: stranger.client if value == "{client}" else value for name, value in rest.items()}

    return form_fields


def _exchange(name: str, fields: Callable[[Hers, Stranger], Mapping[str, str]]) -> LoginRow:
    return LoginRow(name=name, method="POST", path=_at("/token"), form=fields)


def _refreshed(hers: Hers, stranger: Stranger) -> dict[str, str]:
    return {"grant_type": "refresh_token", "client_id": stranger.client, "refresh_token": hers.refresh}


def _registered(**fields: object) -> Callable[[Hers, Stranger], Mapping[str, object]]:
    return lambda hers, _stranger: {
        "client_name": MARKUP,
        "token_endpoint_auth_method": "none",
        "redirect_uris": [hers.back],
        **fields,
    }


def _registration(name: str, *, may_go_on: bool = False, **fields: object) -> LoginRow:
    return LoginRow(
        name=name, method="POST", path=_at("/register"), body=_registered(**fields), may_go_on=may_go_on
    )


LOGIN_ROUTES: Mapping[tuple[str, str], tuple[LoginRow, ...]] = {
    ("POST", "/register"): (
        _registration("a client elsewhere", redirect_uris=[EVIL]),
        _registration("a client that runs a script", redirect_uris=["javascript:alert(1)"]),
        _registration("a client here and elsewhere", redirect_uris=["http://localhost:5/", EVIL]),
        _registration(
            "a client at a host that begins like ours", redirect_uris=["http://localhost.evil.com/"]
        ),
        LoginRow(
            name="a client under her client's id",
            method="POST",
            path=_at("/register"),
            body=lambda hers, _: {
                "client_id": hers.client,
                "redirect_uris": ["http://localhost:5/"],
                "token_endpoint_auth_method": "none",
            },
            may_go_on=True,
        ),
    ),
    ("GET", "/authorize"): _authorizations("GET"),
    ("POST", "/authorize"): _authorizations("POST"),
    ("GET", "/consent"): (
        # The page names the requesting client and no user: any holder of the address may read it.
        LoginRow(
            name="the page for her consent",
            path=lambda hers, _: f"/consent?txn_id={hers.transaction}",
            may_go_on=True,
        ),
        LoginRow(name="the page for a consent of nobody", path=_at("/consent?txn_id=nobody")),
        LoginRow(name="the page for no consent", path=_at("/consent")),
    ),
    ("POST", "/consent"): (
        LoginRow(
            name="her consent, with what her page had",
            method="POST",
            path=lambda hers, _: f"/consent?txn_id={hers.transaction}",
            form=lambda hers, _: {
                "action": "approve",
                "txn_id": hers.transaction,
                "csrf_token": hers.proof,
            },
        ),
        LoginRow(
            name="her consent, with what another's page had",
            method="POST",
            path=lambda hers, _: f"/consent?txn_id={hers.transaction}",
            form=lambda hers, stranger: {
                "action": "approve",
                "txn_id": hers.transaction,
                "csrf_token": stranger.proof,
            },
        ),
        LoginRow(
            name="her consent, refused by somebody else",
            method="POST",
            path=_at("/consent"),
            form=lambda hers, _: {"action": "deny", "txn_id": hers.transaction, "csrf_token": ""},
        ),
    ),
    ("GET", "/auth/callback"): (
        LoginRow(name="her way back from the provider", path=lambda hers, _: hers.callback),
        LoginRow(
            name="her provider's code, in another's login",
            path=lambda hers, stranger: f"/auth/callback?{_code_of(hers.callback)}&state={stranger.state}",
        ),
        LoginRow(name="a way back of nobody", path=_at("/auth/callback?code=x&state=nobody")),
        LoginRow(
            name="an error of nobody, with markup",
            path=_at(f"/auth/callback?error=access_denied&error_description={quote(MARKUP)}&state=nobody"),
        ),
    ),
    ("POST", "/token"): (
        _exchange("her code, as another client", _token(client_id="{client}")),
        _exchange("her code, with another secret", _token(code_verifier="0" * 43)),
        _exchange("her code, without the secret", _token(code_verifier=None)),
        _exchange(
            "her code, with what is said of the secret",
            lambda h, s: {**_token()(h, s), "code_verifier": h.challenge},
        ),
        _exchange("her code, for another address", _token(redirect_uri="http://localhost:3999/other")),
        _exchange("her code, for an address elsewhere", _token(redirect_uri=EVIL)),
        _exchange("a code of nobody", _token(code="0" * 43)),
        _exchange("her login under way, as a code", lambda h, s: {**_token()(h, s), "code": h.transaction}),
        _exchange("her refresh token, as another client", _refreshed),
        _exchange(
            "her access token, as a refresh token",
            lambda h, _: {"grant_type": "refresh_token", "client_id": h.client, "refresh_token": h.access},
        ),
        _exchange(
            "her refresh token, cut short",
            lambda h, _: {
                "grant_type": "refresh_token",
                "client_id": h.client,
                "refresh_token": h.refresh[:-4],
            },
        ),
        _exchange("a token for a client alone", _token(grant_type="client_credentials")),
        _exchange(
            "a token for an assertion",
            lambda h, _: {
                "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
                "client_id": h.client,
                "assertion": h.access,
            },
        ),
    ),
    ("GET", "/.well-known/oauth-authorization-server"): (
        LoginRow(
            name="how to log in here", path=_at("/.well-known/oauth-authorization-server"), may_go_on=True
        ),
    ),
    ("GET", "/.well-known/openid-configuration"): (
        LoginRow(
            name="the same by its other name", path=_at("/.well-known/openid-configuration"), may_go_on=True
        ),
    ),
    ("GET", "/play/login"): (
        LoginRow(
            name="a login of the page that leads elsewhere",
            path=_at(f"/play/login?next={quote(EVIL)}&redirect_uri={quote(EVIL)}"),
            may_go_on=True,
        ),
    ),
    ("GET", "/play/login/done"): (
        LoginRow(name="her way back to the page", path=lambda hers, _: hers.page_done),
        LoginRow(
            name="her client's code, at the page",
            path=lambda hers, _: f"/play/login/done?code={hers.code}&state=any",
        ),
        LoginRow(name="nothing, at the page", path=_at("/play/login/done")),
        LoginRow(name="an error, with markup", path=_at(f"/play/login/done?error={quote(MARKUP)}&state=any")),
    ),
}
"""By method and path, as a server's table has them where users log in at a provider."""


def _code_of(address: str) -> str:
    return next(part for part in address.partition("?")[2].split("&") if part.startswith("code="))
