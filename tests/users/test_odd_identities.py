"""Names that try to be more than a name: refused before they reach a home, a line of a log or a label."""

import logging
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from runner.http.gateway import Gateway, Peers
from runner.settings.auth import Auth
from runner.settings.settings import Settings
from runner.system.logging_setup import _TextFormatter
from runner.users.identity import IdentityError, User, resolve
from runner.users.usernames import home_segment

ODD = [
    "ann\nbob",
    "ann\r\nX-Admin: 1",
    "ann\0",
    "ann\N{RIGHT-TO-LEFT OVERRIDE}bob",
    "ann\N{ZERO WIDTH JOINER}",
    "ann\N{VARIATION SELECTOR-16}",
    "\x1b[2Jann",
    "\N{FULLWIDTH LATIN SMALL LETTER A}nn",
    "\N{CYRILLIC SMALL LETTER A}nn",
    " ann",
    "ann  smith",
    "ann\N{NO-BREAK SPACE}smith",
    '"}\n{"kind":"call","user":"root',
]
KEPT = [
    "../../etc/passwd",
    "..",
    "/",
    ".",
    "a/b",
    "CON",
    "a" * 60_000,
    "=q",
    "%2e%2e",
    "~root",
    "-rf",
    "ann",
    "Ann",
]


def claimed(name: str) -> str:
    return resolve(Settings(), transport="http", claims={"sub": name}, host="0.0.0.0").name


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_odd_name_in_token_refused_in_one_line(name: str) -> None:
    with pytest.raises(IdentityError) as refused:
        claimed(name)

    line = _TextFormatter().format(
        logging.makeLogRecord({"name": "x", "msg": "refused", "problem": str(refused.value)})
    )
    assert str(refused.value).isprintable()
    assert line.isprintable()
    assert claimed("ann") == "ann"


def test_path_like_name_accepted_with_single_folder_home() -> None:
    names = [claimed(name) for name in KEPT]
    segments = [home_segment(name) for name in names]

    assert names == KEPT
    assert len(set(segments)) == len(segments)
    assert all(0 < len(segment.encode()) <= 255 for segment in segments)
    assert [segment for segment in segments if "/" in segment or segment in (".", "..")] == []


@pytest.mark.anyio
@pytest.mark.parametrize("name", ODD, ids=ascii)
async def test_odd_name_in_gateway_header_is_no_user(name: str) -> None:
    names: list[str] = []

    def give(user: User) -> str:
        names.append(user.name)
        return "a-pass"

    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        return

    auth = Auth(kind="gateway", gateway_addresses=("127.0.0.2",))
    gateway = Peers(Gateway(app, settings=Settings(auth=auth), give=give))
    await gateway(_scope_of(auth, name.encode()), _nothing, _unheard)
    await gateway(_scope_of(auth, b"ann"), _nothing, _unheard)

    # Spaces at the ends of a name belong to the header, and are gone.
    assert set(names) == {"ann"}


def _scope_of(auth: Auth, value: bytes) -> dict[str, Any]:
    headers = [(auth.gateway_header.lower().encode(), value)]
    return {"type": "http", "client": ("127.0.0.2", 1), "headers": headers, "method": "GET", "path": "/"}


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


async def _unheard(_: Message) -> None:
    return
