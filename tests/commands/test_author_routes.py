"""HTTP routes that a tool file adds: answered in a worker of the calling user, and harmless in a browser."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from fastmcp import Client
from somebody import somebody
from support import TOOLS, environment_in, plain_server, serving_over_http

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

FILE = TOOLS / "routes.py"
ASKED = [
    ("GET", "/health?a=1"),
    ("GET", "/items/4"),
    ("POST", "/items/5"),
    ("GET", "/items/none"),
    ("PUT", "/items/5"),
    ("GET", "/nowhere"),
]


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    """The file as FastMCP serves it."""
    with plain_server(FILE) as url:
        yield url


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The file as the runner serves it."""
    folder = tmp_path_factory.mktemp("routes")
    with (
        somebody() as user,
        serving_over_http(FILE, environment_in(folder, RUNNER_USER=user), cwd=folder) as url,
    ):
        yield url


def answers(base: str) -> list[tuple[object, ...]]:
    names = ("content-type", "content-language")
    root = base.removesuffix("/mcp")
    # Each by itself: a client of several would send back the cookie that one of them sets.
    found = [
        httpx2.request(method, root + path, content=b"sent" if method == "POST" else None, timeout=180)
        for method, path in ASKED
    ]
    return [(one.status_code, one.text, *(one.headers.get(name) for name in names)) for one in found]


def test_routes_answer_as_with_fastmcp_run(plain: str, ours: str) -> None:
    assert answers(ours) == answers(plain)


def test_route_answers_powerless_on_this_origin(plain: str, ours: str) -> None:
    control, got = (
        httpx2.get(f"{url.removesuffix('/mcp')}/items/1", headers={"cookie": "key=secret"}, timeout=180)
        for url in (plain, ours)
    )

    assert "secret" in control.text
    forbidden = {"set-cookie", "clear-site-data", "x-accel-redirect", "access-control-allow-origin"}
    assert forbidden <= set(control.headers)
    assert "secret" not in got.text
    assert not forbidden & set(got.headers)
    assert got.headers["content-security-policy"].startswith("sandbox ")
    assert "allow-same-origin" not in got.headers["content-security-policy"]


def test_route_confined_and_its_faults_hidden(plain: str, ours: str) -> None:
    mark = Path("/var/tmp/routes-were-here")
    control = httpx2.get(f"{plain.removesuffix('/mcp')}/write", timeout=180)
    assert (control.status_code, mark.exists()) == (200, True)
    mark.unlink()

    got = httpx2.get(f"{ours.removesuffix('/mcp')}/write", timeout=180)

    assert (got.status_code, got.text) == (500, "Internal Server Error")
    assert not mark.exists()


async def test_routes_and_tools_of_user_share_file_state(ours: str) -> None:
    base = ours.removesuffix("/mcp")

    async with httpx2.AsyncClient(base_url=base, timeout=180) as web, Client(ours) as client:
        before = await client.call_tool("count")
        found = [(await web.get("/health")).status_code for _ in range(2)]
        counted = await client.call_tool("count")
        of_server = await web.get("/healthz")

    assert (found, counted.data - before.data) == ([200, 200], 2)
    assert "tier" in of_server.json()


@pytest.mark.release
def test_routes_need_token_where_calls_do(serve_http: Callable[..., str], folder: Path) -> None:
    tokens = folder / "tokens"
    tokens.write_text('{"a-token-of-sixteen-chars": "t-of-routes"}')
    tokens.chmod(0o600)
    more = {"RUNNER_AUTH__KIND": "static", "RUNNER_AUTH__TOKENS_FILE": str(tokens), "RUNNER_USER": ""}
    base = serve_http(FILE, **more).removesuffix("/mcp")

    without = httpx2.get(f"{base}/health", timeout=180)
    authorized = httpx2.get(
        f"{base}/health", headers={"authorization": "Bearer a-token-of-sixteen-chars"}, timeout=180
    )

    assert (without.status_code, authorized.status_code) == (401, 200)
