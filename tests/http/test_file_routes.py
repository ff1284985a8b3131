"""Routes of a tool file beside the host's own: found fast, named by nobody, and not taken for our lock."""

import base64
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from site_support import TOKENS, Served
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Match, NoMatchFound, Route

from runner.http.author_routes import AuthorRoutes, Known
from runner.users.identity import User

TRIES = 12
"""Wrong tokens enough that the last of them wait."""


async def refuse(_user: User, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer as a file does that wants a password of its own."""
    return {"status": 401, "headers": [], "body": base64.b64encode(b"the file's own password").decode()}


def routes_of(served: Served, known: list[Known]) -> AuthorRoutes:
    return AuthorRoutes(served.site, lambda: known[0], refuse)


def scope_of(path: str, method: str = "GET") -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}


def test_routes_are_matched_by_text_before_parameters(tmp_path: Path) -> None:
    known: list[Known] = [(("/items/{item:int}", ("GET",)), ("no path", ("GET",)))]
    routes = routes_of(Served.at(tmp_path), known)

    found = [routes.matches(scope_of(path))[0] for path in ("/items/1", "/items/x", "/other")]
    known[0] = (("/other", ("POST",)),)
    after = [routes.matches(scope_of(path))[0] for path in ("/items/1", "/other", "/other/1")]

    assert found == [Match.FULL, Match.FULL, Match.NONE]
    assert after == [Match.NONE, Match.FULL, Match.NONE]


def test_hostile_route_pattern_takes_no_time_in_the_host(tmp_path: Path) -> None:
    pattern = "/" + "x".join(f"{{{name}:path}}" for name in "abcdefgh") + "y"
    routes = routes_of(Served.at(tmp_path), [((pattern, ("GET",)),)])
    began = time.process_time()

    # The pattern as a regular expression would take days.
    assert routes.matches(scope_of("/" + "x" * 5000))[0] is Match.FULL
    assert time.process_time() - began < 1


def test_url_path_for_named_route_skips_file_routes(tmp_path: Path) -> None:
    async def answer(_request: Request) -> Response:
        return PlainTextResponse("")

    routes = routes_of(Served.at(tmp_path), [(("/health", ("GET",)),)])
    both: list[BaseRoute] = [routes, Route("/behind", answer, name="behind")]

    assert Starlette(routes=both).url_path_for("behind") == "/behind"
    with pytest.raises(NoMatchFound, match="nowhere"):
        Starlette(routes=both).url_path_for("nowhere")


def test_refusal_by_file_is_not_counted_as_wrong_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served.at(tmp_path)
    served.web.router.routes.append(routes_of(served, [(("/locked", ("GET",)),)]))

    def count_refusals() -> int:
        return len([record for record in caplog.records if record.name == "runner.http.wrong_keys"])

    with caplog.at_level(logging.WARNING), served.visitor("ann") as client:
        refused = [client.get("/locked") for _ in range(TRIES)]
        of_the_file = count_refusals()
        wrong = client.get("/locked", headers={"authorization": f"Bearer {TOKENS['ann']}x"})

    assert {(answer.status_code, answer.text) for answer in refused} == {(401, "the file's own password")}
    assert of_the_file == 0
    # The control: where the token is wrong, it counts, at the same address.
    assert wrong.status_code == 401
    assert count_refusals() == 1
