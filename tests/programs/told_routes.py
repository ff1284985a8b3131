"""The runner's command, which notes the route tables of all web servers that it starts.

`ROUTES_NOTED` names the file. With `GUARDS_OFF`, a user's name, any requester counts as that user: what looks
at tokens, cookies and links lets everything through, so that a test can show that it sees what gets out.
"""

import importlib
import json
import os
import runpy
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.auth.middleware import bearer_auth
from mcp.server.auth.provider import AccessToken
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials

NOTED = Path(os.environ["ROUTES_NOTED"])
OFF = os.environ.get("GUARDS_OFF")


class NotingConfig(uvicorn.Config):
    """uvicorn's, which notes what it is asked to serve."""

    def __init__(self, app: Any, **more: Any) -> None:
        note(app)
        super().__init__(app, **more)


def note(app: Any) -> None:
    while not isinstance(app, Starlette):
        app = getattr(app, "app", None) or app._app
    routes = [
        [getattr(route, "path", type(route).__name__), sorted(getattr(route, "methods", None) or ["*"])]
        for route in app.router.routes
    ]
    middleware = [getattr(each.cls, "__name__", str(each.cls)) for each in app.user_middleware]
    with NOTED.open("a") as file:
        file.write(json.dumps({"routes": routes, "middleware": middleware}) + "\n")


def let_everybody_in(name: str) -> None:
    """Treat any requester as one user, with or without proof."""
    from runner.http import identify
    from runner.users.capability_tokens import Tokens
    from runner.users.identity import User

    async def anybody(self: Any, conn: Any) -> Any:
        token = AccessToken(token="any", client_id="tests", scopes=[], claims={"sub": name}, subject=name)
        return AuthCredentials([]), bearer_auth.AuthenticatedUser(token)

    async def browser(site: Any, request: Any, **_: Any) -> User:
        return User(name, request.headers.get("mcp-session-id", "a-session-of-nobody"))

    def unverified(self: Any, token: str, **_: Any) -> str:
        return name

    bearer_auth.BearerAuthBackend.authenticate = anybody  # type: ignore[method-assign]
    Tokens.verify = unverified  # type: ignore[method-assign]
    vars(identify).update(of_page=browser, identify=browser)
    for module in (
        "runner.playground.routes",
        "runner.playground.session_auth",
        "runner.playground.dashboards",
    ):
        vars(importlib.import_module(module))["of_page"] = browser


def wait_for_less() -> None:
    """Answer wrong tokens soon, and logins without a pause: all together would else take many minutes."""
    from runner.http import wrong_keys

    vars(wrong_keys).update(_LONGEST_S=0.1, _MOST_WAITING=1000)


if __name__ == "__main__":
    wait_for_less()
    vars(uvicorn).update(Config=NotingConfig)
    if OFF:
        let_everybody_in(OFF)
    runpy.run_module("runner", run_name="__main__", alter_sys=False)
