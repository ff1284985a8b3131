"""Requests that other pages, other names and other people make of a server with a Playground.

Source: decision 15.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from playground_support import Shown, answer, ask

pytestmark = pytest.mark.kernel

FILE = """from fastmcp import FastMCP
from pathlib import Path

mcp = FastMCP("files")


@mcp.tool
def make(username: str) -> dict:
    home = Path(f"/tmp/{username}")
    (home / "a").write_text("<script>1</script>")
    (home / "b").write_bytes(b"\\x89PNG\\r\\n")
    made = [{"name": "a.png", "path": str(home / "a"), "mime": "text/html"}]
    made += [{"name": "b.html", "path": str(home / "b"), "mime": "image/png"}]
    return {"results": 1, "artifacts": made}
"""
ROUTES = [
    ("POST", "/play/mcp"),
    ("GET", "/play/mcp"),
    ("DELETE", "/play/mcp"),
    ("GET", "/play/info"),
    ("POST", "/play/dashboards"),
    ("POST", "/play/dashboards/actions"),
    ("POST", "/api/session"),
    ("DELETE", "/api/session"),
    ("GET", "/api/files"),
    ("POST", "/api/files?filename=x"),
    ("PUT", "/api/files?filename=x"),
    ("GET", "/api/files/x"),
    ("DELETE", "/api/files/x"),
    ("POST", "/api/files/x/link"),
    ("GET", "/artifacts/x"),
    ("GET", "/events"),
]


@pytest.fixture(scope="module")
def making(start: Callable[..., Shown], tmp_path_factory: pytest.TempPathFactory) -> Shown:
    file = tmp_path_factory.mktemp("making") / "making.py"
    file.write_text(FILE)
    return start(tools=file)


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize(
    "headers",
    [{"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "http://evil.example"}],
    ids=str,
)
def test_no_route_serves_a_page_of_another_site(
    shown: Shown, method: str, path: str, headers: dict[str, str]
) -> None:
    with shown.entered() as browser:
        refused = browser.request(method, path, headers=headers)

    assert refused.status_code == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example"]
)
@pytest.mark.parametrize("path", ["/", "/play/info", "/api/files", "/play/assets/index.html"])
def test_dns_rebinding_name_is_refused(shown: Shown, path: str, host: str) -> None:
    with shown.entered() as browser:
        refused = browser.get(path, headers={"host": host})

    assert refused.status_code in (400, 403, 421)
    assert "<div" not in refused.text


@pytest.mark.parametrize(
    "path",
    [
        "/play/mcp/",
        "/play//mcp",
        "/play/mcp%2f",
        "/play/mcp;x",
        "/PLAY/MCP",
        "/play/mcp/x",
    ],
)
def test_only_one_path_leads_to_mcp(shown: Shown, path: str) -> None:
    with shown.entered() as browser:
        refused = browser.post(path, json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})

    assert refused.status_code in (401, 404, 405)


@pytest.mark.parametrize("deep", ["[" * 16_000, '{"id":' * 2_700], ids=["lists", "objects"])
def test_json_too_deep_to_be_read_is_refused_in_a_sentence(shown: Shown, deep: str) -> None:
    with shown.entered() as browser:
        refused = browser.post("/play/dashboards", content=deep, headers={"content-type": "application/json"})
        frames = browser.get("/play/info").json()["frames"]
    with httpx2.Client(base_url=frames, timeout=180) as other:
        page = other.get("/widget", params={"csp": deep[:8000]})

    assert (refused.status_code, "JSON object" in refused.text) == (400, True)
    assert (page.status_code, "connect-src 'none'" in page.headers["content-security-policy"]) == (200, True)


def test_the_start_key_stays_out_of_logs_answers_and_referrers(shown: Shown) -> None:
    with shown.browser() as browser:
        key = shown.key
        entered = browser.get(f"/?key={key}")
        browser.get(f"/?key={key}x")
        page = browser.get("/")

    assert key is not None
    assert entered.headers["referrer-policy"] == page.headers["referrer-policy"] == "no-referrer"
    assert page.headers["x-dns-prefetch-control"] == "off"
    assert key not in str(page.headers) + page.text + str(entered.headers)
    # But for the line that says which address opens next.
    assert not any(key in line for line in shown.lines if not line.startswith("Playground: "))


def test_forged_session_is_refused(shown: Shown) -> None:
    with shown.entered() as browser:
        good = browser.cookies["toolcell_session"]
    session, _, signed = good.partition(".")

    def status(cookie: str) -> int:
        with shown.browser(cookie=f"toolcell_session={cookie}") as other:
            return other.get("/play/info").status_code

    assert status(good) == 200
    assert [
        status(each)
        for each in ("x." + signed, session + "x." + signed, session, "." + signed, session + ".")
    ] == [401] * 5


def test_login_does_not_adopt_unproven_session_cookie(shown: Shown) -> None:
    with shown.browser(cookie="toolcell_session=fixed.fixed") as browser:
        entered = browser.get(f"/?key={shown.key}")

    assert "toolcell_session=fixed" not in entered.headers["set-cookie"]
    assert re.search(r"toolcell_session=[0-9a-f]{32}\.", entered.headers["set-cookie"])


def test_files_are_attachments_and_never_part_of_a_page(making: Shown) -> None:
    with making.entered() as browser:
        answer(ask(browser, "tools/call", {"name": "make", "arguments": {}}))
        files = {each["filename"]: each["key"] for each in browser.get("/api/files").json()["files"]}
        page = browser.get(f"/artifacts/{files['a.png']}", headers={"sec-fetch-dest": "document"})
        picture = browser.get(f"/artifacts/{files['b.html']}", headers={"sec-fetch-dest": "image"})
        part = [
            browser.get(f"/artifacts/{files['a.png']}", headers={"sec-fetch-dest": dest}).status_code
            for dest in ("script", "style", "iframe", "worker", "serviceworker", "object")
        ]

    for each in (page, picture):
        assert each.headers["content-disposition"].startswith("attachment")
        assert each.headers["x-content-type-options"] == "nosniff"
        assert each.headers["content-security-policy"] == "sandbox; default-src 'none'"
    assert picture.headers["content-type"] == "image/png"
    assert part == [403] * 6


@pytest.fixture(scope="module")
def with_tokens(start: Callable[..., Shown], tmp_path_factory: pytest.TempPathFactory) -> Shown:
    file: Path = tmp_path_factory.mktemp("hostile-tokens") / "tokens.json"
    file.write_text(json.dumps({"token-of-eve-token-of-eve": "eve-of-the-playground"}))
    file.chmod(0o600)
    return start(RUNNER_USER="", RUNNER_AUTH__KIND="static", RUNNER_AUTH__TOKENS_FILE=str(file))


def test_pass_seen_by_a_tool_is_invalid_afterwards(with_tokens: Shown) -> None:
    bearer = "Bearer token-of-eve-token-of-eve"
    with with_tokens.browser() as browser:
        browser.post("/api/session", headers={"authorization": bearer})
        seen = answer(
            ask(browser, "tools/call", {"name": "headers", "arguments": {}}, authorization="Bearer forged")
        )
    passes = re.findall(r"page\.[A-Za-z0-9_-]+", json.dumps(seen))

    def status(address: str) -> int:
        with with_tokens.browser(authorization=address) as other:
            return other.get("/api/files").status_code

    assert status(bearer) == 200
    assert [status(f"Bearer {each}") for each in [*passes, "page.", "page.forged"]] == [401] * (
        len(passes) + 2
    )
