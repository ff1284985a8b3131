"""Who may have a server connect to others, from a page, and to what: over HTTP, as a page asks it.

Source: `docs/playground.md`; decision 43.
"""

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx2
import pytest
from playground_support import Shown
from web_everything import EVERYTHING, NODE

from runner.errors import UsageError
from runner.playground.config import check_connect, with_connections
from runner.playground.other_servers import may_reach
from runner.settings.settings import Settings

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]

COMMAND = {"name": "other", "command": [str(NODE), str(EVERYTHING), "stdio"]}


@pytest.fixture(scope="module")
def developed(start: Callable[..., Shown]) -> Shown:
    return start("dev")


@contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
    """Listen as some service of this machine; give its address, and the paths that were asked for."""
    came: list[str] = []

    class Service(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            came.append(self.path)
            if self.path == "/away":
                self.send_response(302)
                self.send_header("location", "/secret")
                self.end_headers()
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"secret")

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", came
    finally:
        server.shutdown()
        server.server_close()


def added(browser: httpx2.Client, wanted: object, **headers: str) -> httpx2.Response:
    return browser.post("/play/servers", json=wanted, headers=headers)


def state_of(browser: httpx2.Client, key: str) -> dict[str, str]:
    [found] = [each for each in browser.get("/play/servers").json()["servers"] if each["id"] == key]
    return dict(found)


def settled(browser: httpx2.Client, key: str) -> dict[str, str]:
    assert Shown.until(lambda: state_of(browser, key)["state"] != "connecting")
    return state_of(browser, key)


def asked(browser: httpx2.Client, key: str, **headers: str) -> httpx2.Response:
    message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        },
    }
    accept = {"accept": "application/json, text/event-stream"}
    return browser.post(f"/play/servers/{key}/mcp", json=message, headers={**accept, **headers})


def test_who_develops_on_this_machine_starts_a_command_which_is_confined(developed: Shown) -> None:
    with developed.entered() as browser:
        made = added(browser, COMMAND)

        assert made.status_code == 201
        found = settled(browser, made.json()["id"])
        assert (found["state"], found["name"]) == ("up", "other")
        assert found["tier"] in ("namespace", "user", "process")
        assert "mcp-servers/everything" in asked(browser, found["id"]).text


def test_a_server_that_others_use_connects_pages_to_nothing_by_default(shown: Shown) -> None:
    with shown.entered() as browser:
        refusal = added(browser, COMMAND)

        assert refusal.status_code == 403
        assert "playground_connect" in refusal.json()["error"]
        assert browser.get("/play/info").json()["connect"] == []


def test_without_a_session_of_a_browser_nobody_gets_there(developed: Shown) -> None:
    with developed.browser() as stranger:
        answers = [
            added(stranger, COMMAND),
            stranger.get("/play/servers"),
            asked(stranger, "any"),
        ]

    assert [answer.status_code for answer in answers] == [401] * 3


@pytest.mark.parametrize(
    "headers",
    [{"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}],
)
def test_a_page_of_another_site_starts_nothing(developed: Shown, headers: dict[str, str]) -> None:
    with developed.entered() as browser:
        assert added(browser, {"name": "mine", "url": "http://127.0.0.1:1/mcp"}).status_code == 201

        refused = added(browser, {"name": "theirs", "url": "http://127.0.0.1:1/mcp"}, **headers)

        assert refused.status_code == 403
        assert [each["name"] for each in browser.get("/play/servers").json()["servers"]] == ["mine"]


def test_a_form_cannot_start_a_command(developed: Shown) -> None:
    with developed.entered() as browser:
        sent = browser.post(
            "/play/servers", content=json.dumps(COMMAND), headers={"content-type": "text/plain"}
        )

        assert sent.status_code == 415
        assert browser.get("/play/servers").json()["servers"] == []


def test_another_browser_sees_neither_the_servers_nor_their_answers(developed: Shown) -> None:
    with developed.entered() as one, developed.entered() as other:
        key = added(one, COMMAND).json()["id"]
        assert settled(one, key)["state"] == "up"
        assert asked(one, key).status_code == 200

        assert other.get("/play/servers").json()["servers"] == []
        assert asked(other, key).status_code == 404
        assert other.delete(f"/play/servers/{key}").status_code == 404
        assert asked(one, key).status_code == 200


def test_servers_end_with_the_browser_s_session(developed: Shown) -> None:
    with developed.entered() as browser:
        key = added(browser, COMMAND).json()["id"]
        assert settled(browser, key)["state"] == "up"

        assert browser.delete("/api/session").status_code in (200, 204)

        assert asked(browser, key).status_code == 401


def test_a_command_that_cannot_be_run_is_down_and_says_why(developed: Shown) -> None:
    with developed.entered() as browser:
        key = added(browser, {"name": "none", "command": ["no-such-program-here"]}).json()["id"]

        found = settled(browser, key)

        assert found["state"] == "down"
        assert "no-such-program-here" in found["why"]
        answer = asked(browser, key)
        assert answer.status_code == 503
        assert "no-such-program-here" in answer.json()["error"]


@pytest.mark.parametrize(
    "wanted",
    [
        {"name": "x"},
        {"name": "", "url": "http://h/mcp"},
        {"name": "x", "url": "http://h/mcp", "command": ["y"]},
        {"name": "x", "command": "a b"},
        {"name": "x", "command": []},
        {"name": "x" * 100, "url": "http://h/mcp"},
        [],
    ],
)
def test_what_is_no_server_is_refused(developed: Shown, wanted: object) -> None:
    with developed.entered() as browser:
        assert added(browser, wanted).status_code == 400


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://host/x", "http://", "http://user@host/mcp", "nonsense"]
)
def test_what_is_no_web_address_is_reached_from_nowhere(developed: Shown, url: str) -> None:
    with developed.entered() as browser:
        assert added(browser, {"name": "x", "url": url}).status_code == 403


def test_pages_reach_the_origins_that_the_operator_named_and_no_others(start: Callable[..., Shown]) -> None:
    with listening() as (allowed, _came), listening() as (forbidden, kept_out):
        named = start(RUNNER_PLAYGROUND_CONNECT=allowed)
        with named.entered() as browser:
            good = added(browser, {"name": "y", "url": f"{allowed}/mcp"})
            server = added(browser, {"name": "x", "url": f"{forbidden}/mcp"})
            command = added(browser, COMMAND)

    assert good.status_code == 201
    assert (server.status_code, command.status_code) == (403, 403)
    assert kept_out == []


def test_a_named_server_cannot_lead_a_page_s_connection_elsewhere(start: Callable[..., Shown]) -> None:
    with listening() as (allowed, came):
        named = start(RUNNER_PLAYGROUND_CONNECT=allowed)
        with named.entered() as browser:
            key = added(browser, {"name": "x", "url": f"{allowed}/away"}).json()["id"]

            assert settled(browser, key)["state"] == "down"

    assert "/away" in came
    assert "/secret" not in came


def test_a_page_opens_so_many_servers_and_no_more(start: Callable[..., Shown]) -> None:
    with start("dev").entered() as browser:
        made = [
            added(browser, {"name": f"s{number}", "url": "http://127.0.0.1:1/mcp"}).status_code
            for number in range(18)
        ]

    assert made == [201] * 16 + [429] * 2


def test_origins_are_compared_as_browsers_do() -> None:
    settings = Settings(playground_connect=("https://Host.example", "http://other.example:8080"))

    assert may_reach(settings, "https://host.example/mcp")
    assert may_reach(settings, "https://host.example:443/mcp")
    assert may_reach(settings, "http://other.example:8080/")
    for url in (
        "http://host.example/mcp",
        "https://host.example:444/",
        "https://host.example.evil/",
        "https://evil/?https://host.example",
        "https://host.example@evil/",
        "http://other.example/",
        "https://[",
    ):
        assert not may_reach(settings, url), url


def test_commands_are_for_a_server_with_one_user() -> None:
    several = {
        "kind": "jwt",
        "jwks_uri": "https://i.example/jwks",
        "issuer": "https://i.example",
        "audience": "x",
    }
    check_connect(Settings(playground_connect=("command",)))
    check_connect(Settings(playground_connect=("https://host.example",), auth=several))

    with pytest.raises(UsageError, match="one user"):
        check_connect(Settings(playground_connect=("command",), auth=several))
    with pytest.raises(UsageError, match="neither"):
        check_connect(Settings(playground_connect=("host.example",)))


def test_only_who_develops_alone_on_this_machine_gets_connections_unasked() -> None:
    assert with_connections(Settings()).playground_connect == ("*", "command")
    assert with_connections(Settings(playground_connect=())).playground_connect == ()
    assert with_connections(Settings(host="0.0.0.0", user="ann")).playground_connect is None
    several = {
        "kind": "jwt",
        "jwks_uri": "https://i.example/jwks",
        "issuer": "https://i.example",
        "audience": "x",
    }
    assert with_connections(Settings(auth=several)).playground_connect is None
