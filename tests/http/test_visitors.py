import json
import re
from collections.abc import Mapping
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import pytest
from site_support import ADDRESS, NOW, TOKENS, Served
from starlette.testclient import TestClient

from runner.http.browser_session import SESSION_S
from runner.http.identify import BROWSER, COOKIE
from runner.users.identity import os_user

OWN = ADDRESS
ELSEWHERE = "https://elsewhere.example"


@pytest.fixture
def with_tokens(tmp_path: Path) -> Served:
    return Served.at(tmp_path, allowed_origins=("https://chat.example",))


@pytest.fixture
def open_to_all(tmp_path: Path) -> Served:
    """A server that needs no tokens: it serves one user."""
    return Served.at(tmp_path, tokens=False, user="ann", allowed_origins=("https://chat.example",))


def cookie_of(client: TestClient) -> str:
    answer = client.post("/api/session")
    assert answer.status_code == 201, answer.text
    return str(SimpleCookie(answer.headers["set-cookie"])[COOKIE].value)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/files"),
        ("POST", "/api/files?filename=a"),
        ("PUT", "/api/files?filename=a"),
        ("GET", "/api/files/art_000000000000"),
        ("DELETE", "/api/files/art_000000000000"),
        ("POST", "/api/files/art_000000000000/link"),
        ("GET", "/artifacts/art_000000000000"),
        ("POST", "/api/session"),
        ("DELETE", "/api/session"),
        ("GET", "/events"),
    ],
)
def test_routes_all_require_identity(with_tokens: Served, method: str, path: str) -> None:
    wrong = {"authorization": "Bearer no-such-token-anywhere"}
    with with_tokens.visitor() as nobody, with_tokens.visitor(**wrong) as liar:
        answers = [who.request(method, path) for who in (nobody, liar)]

    assert [answer.status_code for answer in answers] == [401, 401]
    anonymous, impostor = (answer.headers["www-authenticate"] for answer in answers)
    assert anonymous == "Bearer"
    assert impostor.startswith("Bearer ")
    assert 'error="invalid_token"' in impostor
    assert all(answer.headers["x-content-type-options"] == "nosniff" for answer in answers)


def test_token_selects_user_of_files(with_tokens: Served) -> None:
    for user in TOKENS:
        with with_tokens.visitor(user) as visitor:
            visitor.post(f"/api/files?filename={user}.txt&username=bob&user=bob", content=user.encode())

    assert [with_tokens.contents(user) for user in TOKENS] == [{"ann.txt": b"ann"}, {"bob.txt": b"bob"}]


def test_bound_server_refuses_token_of_another_user(tmp_path: Path) -> None:
    served = Served.at(tmp_path, user="ann")
    with served.visitor("ann") as ann, served.visitor("bob") as bob:
        statuses = [visitor.get("/api/files").status_code for visitor in (ann, bob)]

    assert statuses == [200, 403]


def test_loopback_os_user_needs_no_token(tmp_path: Path) -> None:
    served = Served.at(tmp_path, tokens=False)
    with served.visitor() as somebody:
        status = somebody.post("/api/files?filename=a", content=b"x").status_code

    assert status == 201
    assert served.contents(os_user()) == {"a": b"x"}


def test_browser_session_known_by_cookie_alone(with_tokens: Served) -> None:
    key = with_tokens.keep(b"content", "a.txt").id
    with with_tokens.visitor("ann") as ann:
        opening = ann.post("/api/session")
    with with_tokens.visitor(cookie=f"{COOKIE}={opening.cookies[COOKIE]}") as browser:
        statuses = [browser.get(path).status_code for path in ("/api/files", f"/artifacts/{key}")]

    assert opening.json()["user"] == "ann"
    assert statuses == [200, 200]


def test_cookie_hidden_from_scripts_and_other_sites(with_tokens: Served) -> None:
    with with_tokens.visitor("ann") as ann:
        header = ann.post("/api/session").headers["set-cookie"]
    (morsel,) = SimpleCookie(header).values()

    assert (morsel["httponly"], morsel["samesite"], morsel["path"]) == (True, "strict", "/")
    assert morsel["max-age"] == str(int(SESSION_S))
    assert TOKENS["ann"] not in header


@pytest.mark.parametrize("public_url", [None, "https://tools.example"])
def test_cookie_restricted_to_https_for_https_users(tmp_path: Path, public_url: str | None) -> None:
    served = Served.at(tmp_path, public_url=public_url)
    with served.visitor("ann") as ann:
        header = ann.post("/api/session").headers["set-cookie"]

    assert ("secure" in header.lower()) == (public_url is not None)


HTTPS = [
    ({"public_url": "https://tools.example"}, {}),
    # The test's client stands for a proxy on this machine: what it is told, the web server has believed.
    ({}, {"base_url": "https://127.0.0.1:8000"}),
]


@pytest.mark.parametrize(("settings", "client"), HTTPS, ids=["by public_url", "by scheme"])
def test_https_cookie_uses_host_prefix(
    tmp_path: Path, settings: dict[str, Any], client: dict[str, str]
) -> None:
    served = Served.at(tmp_path, **settings)
    with served.visitor("ann") as ann:
        ann.base_url = client.get("base_url", str(ann.base_url))
        header = ann.post("/api/session").headers["set-cookie"]
    ((name, morsel),) = SimpleCookie(header).items()
    with served.visitor() as browser:
        browser.base_url = client.get("base_url", str(browser.base_url))
        statuses = [
            browser.get("/api/files", headers={"cookie": f"{each}={morsel.value}"}).status_code
            for each in (name, COOKIE)
        ]

    assert name == f"__Host-{COOKIE}"
    assert (morsel["secure"], morsel["path"], morsel["domain"]) == (True, "/", "")
    assert statuses == [200, 401]


def test_plain_http_ignores_https_cookie_name(with_tokens: Served) -> None:
    with with_tokens.visitor("ann") as ann:
        cookie = cookie_of(ann)
    with with_tokens.visitor(cookie=f"__Host-{COOKIE}={cookie}") as browser:
        refused = browser.get("/api/files").status_code
    with with_tokens.visitor(cookie=f"{COOKIE}={cookie}") as browser:
        known = browser.get("/api/files").status_code

    assert (refused, known) == (401, 200)


def test_https_browser_leaves_its_session(tmp_path: Path) -> None:
    served = Served.at(tmp_path, public_url="https://tools.example")
    with served.visitor("ann") as ann:
        ann.post("/api/session")
        header = ann.delete("/api/session", headers={"mcp-session-id": "s"}).headers["set-cookie"]

    assert re.match(rf'__Host-{COOKIE}=""; .*Max-Age=0; Path=/; .*Secure', header)


def test_session_renewal_keeps_session_id(with_tokens: Served) -> None:
    with with_tokens.visitor("ann") as ann:
        first = ann.post("/api/session")
    with with_tokens.visitor(cookie=f"{COOKIE}={first.cookies[COOKIE]}") as browser:
        again = browser.post("/api/session")

    assert again.json()["session"] == first.json()["session"]


def test_cookie_expires(with_tokens: Served) -> None:
    with with_tokens.visitor("ann") as ann:
        cookie = cookie_of(ann)
    with with_tokens.visitor(cookie=f"{COOKIE}={cookie}") as browser:
        fresh = browser.get("/api/files").status_code
        with_tokens.now[0] = NOW + SESSION_S
        late = browser.get("/api/files").status_code

    assert (fresh, late) == (200, 401)


def test_altered_or_foreign_purpose_cookie_rejected(with_tokens: Served) -> None:
    with with_tokens.visitor("ann") as ann:
        good = cookie_of(ann)
    session, _, token = good.partition(".")
    tokens = with_tokens.site.tokens
    for_download = tokens.sign(user="ann", key=session, purpose="download", now=NOW, ttl_s=60)
    of_bob = tokens.sign(user="bob", key="another", purpose=BROWSER, now=NOW, ttl_s=60)
    cookies = [
        good,
        f"other.{token}",
        f"{session}.{token[:-8]}AAAAAAAA",
        f"{session}.{for_download}",
        f"{session}.{of_bob}",
        session,
        ".",
        "",
    ]

    statuses = []
    for cookie in cookies:
        with with_tokens.visitor(cookie=f"{COOKIE}={cookie}") as browser:
            statuses.append(browser.get("/api/files").status_code)

    assert statuses == [200] + [401] * 7


def test_cookie_of_other_server_with_same_keys_rejected(tmp_path: Path) -> None:
    anns, bobs = (Served.at(tmp_path, tokens=False, user=user) for user in ("ann", "bob"))
    anns.keep(b"secret", "ann.txt")
    with anns.visitor() as browser:
        cookie = cookie_of(browser)
    with (
        anns.visitor(cookie=f"{COOKIE}={cookie}") as known,
        bobs.visitor(cookie=f"{COOKIE}={cookie}") as other,
    ):
        here, there = (who.get("/api/files").json()["files"] for who in (known, other))

    assert [file["filename"] for file in here] == ["ann.txt"]
    assert there == []


FROM_ELSEWHERE = [
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "cross-site", "origin": "http://localhost:3000"},
    {"origin": "http://localhost:3000"},
    {"origin": "http://127.0.0.1:8001"},
    {"origin": "null", "sec-fetch-site": "cross-site"},
]
FROM_HERE: list[Mapping[str, str]] = [
    {},
    {"sec-fetch-site": "none"},
    {"sec-fetch-site": "same-origin"},
    {"origin": OWN},
    {"origin": OWN, "sec-fetch-site": "same-origin"},
    {"origin": "https://chat.example", "sec-fetch-site": "cross-site"},
]


@pytest.mark.parametrize("sent", FROM_HERE, ids=str)
def test_own_pages_and_named_origins_may_use_cookies(open_to_all: Served, sent: Mapping[str, str]) -> None:
    with open_to_all.visitor(**sent) as browser:
        assert browser.post("/api/files?filename=a", content=b"x").status_code == 201
        assert browser.post("/api/session").status_code == 201


@pytest.mark.parametrize("sent", FROM_ELSEWHERE, ids=str)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/files"),
        ("POST", "/api/files?filename=a"),
        ("GET", "/artifacts/art_000000000000"),
        ("POST", "/api/session"),
        ("GET", "/events"),
    ],
)
def test_pages_of_other_sites_rejected(
    open_to_all: Served, sent: Mapping[str, str], method: str, path: str
) -> None:
    with open_to_all.visitor(**sent) as browser:
        answer = browser.request(method, path)

    assert answer.status_code == 403
    assert open_to_all.contents() == {}


def test_bearer_token_reads_from_any_page_starts_no_session(with_tokens: Served) -> None:
    with with_tokens.visitor("ann", **{"sec-fetch-site": "cross-site"}) as page:
        read, opening = page.get("/api/files"), page.post("/api/session")

    assert read.status_code == 200
    assert opening.status_code == 403


def test_link_works_from_any_page(with_tokens: Served) -> None:
    record = with_tokens.keep(b"content", "a.txt")
    files = with_tokens.files()
    token = with_tokens.site.tokens.sign(
        user=files.holder, key=record.id, purpose="download", now=NOW, ttl_s=60
    )
    with with_tokens.visitor(**{"sec-fetch-site": "cross-site"}) as page:
        assert page.get(f"/api/files/download/{record.id}?token={token}").content == b"content"


@pytest.mark.parametrize("path", ["/api/files", "/events", "/artifacts/a", "/api/files/download/a?token=b"])
def test_rebound_name_and_foreign_origin_reach_no_route(open_to_all: Served, path: str) -> None:
    with open_to_all.visitor() as browser:
        rebound = browser.get(path, headers={"host": "rebound.example:8000"}).status_code
        foreign = browser.get(path, headers={"origin": ELSEWHERE}).status_code

    assert (rebound, foreign) == (421, 403)


@pytest.mark.parametrize("session", ["", "x" * 129, "a b", "\u00e9"])
def test_invalid_session_refused(with_tokens: Served, session: str) -> None:
    name = session.encode("latin-1")
    with with_tokens.visitor("ann") as ann:
        fine = ann.get("/api/files", headers={"mcp-session-id": "one"})
        answer = ann.get("/api/files", headers=[(b"mcp-session-id", name)])

    assert (fine.status_code, answer.status_code) == (200, 400)
    assert "Mcp-Session-Id" in answer.json()["error"]


def test_ending_session_removes_cookie(with_tokens: Served) -> None:
    with with_tokens.visitor("ann") as ann:
        cookie = cookie_of(ann)
    with with_tokens.visitor(cookie=f"{COOKIE}={cookie}") as browser:
        ended = browser.delete("/api/session")
    (morsel,) = SimpleCookie(ended.headers["set-cookie"]).values()

    assert ended.status_code == 204
    assert (morsel.value, morsel["max-age"]) == ("", "0")


def test_refusals_contain_no_secret(with_tokens: Served) -> None:
    with with_tokens.visitor(
        authorization="Bearer hunter2-hunter2-hunter2", cookie=f"{COOKIE}=x.hunter2"
    ) as liar:
        text = json.dumps(liar.get("/api/files").json())

    assert "hunter2" not in text


@pytest.mark.parametrize("name", ["access_token", "token", "key", "authorization", "bearer"])
@pytest.mark.parametrize("path", ["/api/files", "/events", "/mcp"])
def test_token_in_url_rejected_and_not_logged(
    with_tokens: Served, caplog: pytest.LogCaptureFixture, name: str, path: str
) -> None:
    token = TOKENS["ann"]
    tried = [f"{path}?{name}={token}", f"{path}?{name}=Bearer%20{token}"]

    with with_tokens.visitor() as stranger, with_tokens.visitor("ann") as ann:
        methods = [stranger.post if path == "/mcp" else stranger.get for _ in tried]
        statuses = [ask(address).status_code for ask, address in zip(methods, tried, strict=True)]
        form = stranger.post(path, data={"access_token": token}).status_code
        control = ann.get("/api/files").status_code

    assert statuses == [401, 401]
    assert form in (401, 405)
    assert control == 200
    assert token not in caplog.text
