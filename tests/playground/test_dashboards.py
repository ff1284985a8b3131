"""Dashboards: who may be shown, with which token, what is written down.

Source: requirements S0-38 to S0-41, S0-43 to S0-47 and S0-74.
"""

from collections.abc import Callable

import httpx2
import pytest
from playground_support import Shown

pytestmark = pytest.mark.kernel

PAGE = "https://boards.example.com/live?x=1"


@pytest.fixture(scope="module")
def boards(start: Callable[..., Shown]) -> Shown:
    return start(RUNNER_IFRAME_ORIGINS="https://boards.example.com")


def test_page_of_named_origin_gets_token_its_server_can_verify(boards: Shown) -> None:
    """Source: S0-39, S0-46 and S0-74."""
    with boards.entered() as browser:
        answer = browser.post("/play/dashboards", json={"id": "monitor-42", "url": PAGE})
    token = answer.json()["token"]

    with httpx2.Client(base_url=boards.base, timeout=180) as server:
        good = server.post("/api/dashboards/verify", json={"id": "monitor-42", "token": token})
        other = server.post("/api/dashboards/verify", json={"id": "monitor-43", "token": token})
        altered = {"id": "monitor-42", "token": token[:-8] + "A" * 8}
        forged = server.post("/api/dashboards/verify", json=altered)

    assert answer.status_code == 201
    assert 0 < answer.json()["ttl_s"] <= 600
    assert good.json() == {"user": boards.user, "id": "monitor-42"}
    assert (other.status_code, forged.status_code) == (403, 403)


@pytest.mark.parametrize(
    "url",
    [
        "https://boards.example.com.evil.example/",
        "http://boards.example.com/",
        "https://evil.example/?https://boards.example.com",
        "https://boards.example.com@evil.example/",
        "javascript:alert(1)",
        "data:text/html,x",
    ],
)
def test_page_of_other_origin_gets_no_token(boards: Shown, url: str) -> None:
    """Source: S0-45."""
    with boards.entered() as browser:
        refused = browser.post("/play/dashboards", json={"id": "a", "url": url})

    assert refused.status_code == 403
    assert "token" not in refused.json()


def test_the_page_may_show_frames_of_named_origins_and_no_others(boards: Shown, shown: Shown) -> None:
    """Source: S0-45."""
    with boards.entered() as browser, shown.entered() as elsewhere:
        named = browser.get("/").headers["content-security-policy"]
        unnamed = elsewhere.get("/").headers["content-security-policy"]

    assert "https://boards.example.com" in named.split("frame-src ")[1].split(";")[0]
    assert "boards.example.com" not in unnamed


def test_token_request_without_session_is_refused(boards: Shown) -> None:
    with boards.browser() as browser:
        refused = browser.post("/play/dashboards", json={"id": "a", "url": PAGE})

    assert refused.status_code == 401


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"id": 7, "url": "x"}', b'{"id": "", "url": "x"}', b"x" * 20_000]
)
def test_a_malformed_order_is_refused_with_a_sentence(boards: Shown, body: bytes) -> None:
    with boards.entered() as browser:
        refused = browser.post("/play/dashboards", content=body, headers={"content-type": "application/json"})

    assert refused.status_code == 400
    assert refused.json()["error"]


def test_an_action_is_written_down(boards: Shown) -> None:
    """Source: S0-43 and S0-74."""
    with boards.entered() as browser:
        done = browser.post("/play/dashboards/actions", json={"id": "monitor-42", "action": "restart pump"})

    assert done.status_code == 204
    assert boards.logs('dashboard action user=\\S+ dashboard=monitor-42 action="restart pump"')
