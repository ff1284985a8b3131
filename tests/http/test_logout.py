"""Logging out ends the session on the server: a copy of its cookie, and what is open in it, end with it."""

import asyncio
import errno
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from asgi_support import asking
from site_support import NOW, TOKENS, Served

from runner.http.browser_session import SESSION_S
from runner.http.identify import COOKIE
from runner.http.logins import LOGINS_PER_USER, Login, Logins
from runner.users.identity import User


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served.at(tmp_path)


def logged_in(served: Served, user: str = "ann") -> str:
    with served.visitor(user) as visitor:
        return str(visitor.post("/api/session").cookies[COOKIE])


def status(served: Served, cookie: str, method: str = "GET", path: str = "/api/files") -> int:
    with served.visitor(cookie=f"{COOKIE}={cookie}") as browser:
        return int(browser.request(method, path).status_code)


ROUTES = [
    ("GET", "/api/files"),
    ("POST", "/api/files?filename=a"),
    ("GET", "/api/files/art_000000000000"),
    ("GET", "/artifacts/art_000000000000"),
    ("GET", "/events"),
    ("POST", "/api/session"),
    ("DELETE", "/api/session"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_copied_cookie_opens_no_route_after_logout(served: Served, method: str, path: str) -> None:
    cookie, other = logged_in(served), logged_in(served)
    before = status(served, cookie)

    ended = status(served, cookie, "DELETE", "/api/session")

    assert (before, ended) == (200, 204)
    assert status(served, cookie, method, path) == 401
    assert status(served, other) == 200


def test_ended_session_stays_ended_after_restart(served: Served, tmp_path: Path) -> None:
    cookie, other = logged_in(served), logged_in(served)
    beside = Served.at(tmp_path)
    before = status(beside, cookie)

    status(served, cookie, "DELETE", "/api/session")

    assert (before, status(beside, cookie)) == (200, 401)
    assert [status(Served.at(tmp_path), each) for each in (cookie, other)] == [401, 200]


def test_missing_or_damaged_session_notes_reject_everyone(served: Served, tmp_path: Path) -> None:
    cookies = [logged_in(served) for _ in range(3)]
    notes = tmp_path / "state" / "browser-sessions"
    assert [status(served, each) for each in cookies] == [200] * 3

    for note in notes.glob("*/*"):
        note.unlink()
        note.symlink_to("damaged")
    damaged = [status(served, each) for each in cookies]
    shutil.rmtree(notes)

    assert damaged == [401] * 3
    assert [status(served, each) for each in cookies] == [401] * 3
    assert status(served, logged_in(served)) == 200


def test_session_not_recordable_none_begins_and_503_says_why(served: Served, tmp_path: Path) -> None:
    (tmp_path / "state" / "browser-sessions").symlink_to("a disk that is not there")
    with served.visitor("ann") as ann:
        refused = ann.post("/api/session")

    assert (refused.status_code, "state_dir" in refused.json()["error"]) == (503, True)
    assert "set-cookie" not in refused.headers


def test_obstacle_at_session_notes_is_set_apart(served: Served, tmp_path: Path) -> None:
    (tmp_path / "state" / "browser-sessions").write_text("in the way")

    assert status(served, logged_in(served)) == 200

    (apart,) = (tmp_path / "state").glob("browser-sessions.damaged-*")
    assert apart.read_text() == "in the way"


def test_unrecordable_logout_not_reported_as_done(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    cookie = logged_in(served)

    def read_only(_: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", read_only)
        refused = status(served, cookie, "DELETE", "/api/session")

    assert (refused, status(served, cookie)) == (503, 200)
    assert status(served, cookie, "DELETE", "/api/session") == 204


def test_session_notes_per_user_bounded_and_expired_removed(tmp_path: Path) -> None:
    logins, now = Logins(tmp_path), 1000.0
    for number in range(LOGINS_PER_USER + 5):
        logins.note(User("ann", str(number)), Login(end=2000 + number), now=now)
    logins.note(User("bob", "0"), Login(end=2000), now=now)
    held = [logins.of(User("ann", str(number))) is not None for number in range(LOGINS_PER_USER + 5)]
    logins.note(User("ann", "last"), Login(end=9000), now=5000)

    assert held == [False] * 5 + [True] * LOGINS_PER_USER
    assert logins.of(User("bob", "0")) is not None
    assert sum(len(list(folder.iterdir())) for folder in (tmp_path / "browser-sessions").iterdir()) == 2


def test_sessions_started_at_once_are_all_recorded(tmp_path: Path) -> None:
    logins, now = Logins(tmp_path), 1000.0
    users = [User("ann", f"session {n}") for n in range(160)]

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda user: logins.note(user, Login(end=2000), now=now), users))

    assert [user for user in users if logins.of(user) is None] == []
    assert logins.count("ann", now=now) == len(users)


def test_unfinished_session_note_removed_when_it_expires(tmp_path: Path) -> None:
    logins = Logins(tmp_path)
    logins.note(User("ann", "first"), Login(end=2000), now=1000)
    unfinished = next(tmp_path.glob("browser-sessions/*")) / ".unfinished"
    unfinished.symlink_to("1500.0.")

    there = []
    for now in (1400, 1600):
        logins.note(User("ann", "second"), Login(end=2000), now=now)
        there.append(unfinished.is_symlink())

    assert there == [True, False]


def test_token_removed_from_file_ends_its_sessions(served: Served, tmp_path: Path) -> None:
    anns, bobs = logged_in(served, "ann"), logged_in(served, "bob")
    with_both = Served.at(tmp_path)
    assert [status(with_both, each) for each in (anns, bobs)] == [200, 200]

    without_ann = Served.at(tmp_path, tokens=True)
    (tmp_path / "users.json").write_text(
        json.dumps({TOKENS["bob"]: "bob", "a-new-token-of-ann-a-new": "ann"})
    )
    object.__setattr__(without_ann.site, "known_tokens", None)
    without_the_guard = status(without_ann, anns)
    without_ann.site.__post_init__()

    assert without_the_guard == 200
    assert [status(without_ann, each) for each in (anns, bobs)] == [401, 200]


def test_cookie_prolonged_session_ends_with_its_token(served: Served) -> None:
    cookie = logged_in(served)
    session = cookie.partition(".")[0]
    note = served.site.logins.of(User("ann", session))
    assert note is not None
    served.site.logins.note(
        User("ann", session), Login(end=note.end, token_end=int(NOW) + 60, token=note.token), now=NOW
    )
    with served.visitor(cookie=f"{COOKIE}={cookie}") as browser:
        prolonged = browser.post("/api/session").cookies[COOKIE]
    served.now[0] = NOW + 59
    early = status(served, prolonged)
    served.now[0] = NOW + 60

    assert (early, status(served, prolonged)) == (200, 401)


def test_logout_clears_browser_data_of_page(served: Served) -> None:
    with served.visitor(cookie=f"{COOKIE}={logged_in(served)}") as browser:
        ended = browser.delete("/api/session")

    # Not "cookies": those of neighbouring hosts and ports would go, too.
    assert ended.headers["clear-site-data"] == '"storage"'


@pytest.mark.parametrize("how", ["logged out", "over"])
def test_event_stream_ends_with_its_session_only(served: Served, how: str) -> None:
    async def stream_ends() -> tuple[bool, bool]:
        mine, others = logged_in(served), logged_in(served)
        served.now[0] = NOW + (SESSION_S - 1 if how == "over" else 0)
        if how == "over":
            others = logged_in(served)
        async with (
            asking(served.web, "GET", "/events", headers={"cookie": f"{COOKIE}={mine}"}) as stream,
            asking(served.web, "GET", "/events", headers={"cookie": f"{COOKIE}={others}"}) as other,
        ):
            await stream.until(b"listening\n\n")
            await other.until(b"listening\n\n")
            if how == "logged out":
                await asyncio.to_thread(status, served, others, "GET")
                async with asking(
                    served.web, "DELETE", "/api/session", headers={"cookie": f"{COOKIE}={mine}"}
                ) as ended:
                    assert ended.status == 204
            while await stream.pieces.get():
                pass
            return True, other.pieces.empty()

    assert asyncio.run(stream_ends()) == (True, True)
