"""`runner users`: who there is, what belongs to each, and taking it away."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from support import TOOLS, Ran, becomes, call, open_toolset, settings_in

from runner.administration import Administration
from runner.errors import UsageError
from runner.files.my_files import open_library
from runner.http.logins import Login, Logins
from runner.users.capability_tokens import TokenError, Tokens
from runner.users.identity import User
from runner.users.usernames import home_segment, user_of

pytestmark = [pytest.mark.kernel, pytest.mark.release]

Run = Callable[..., Ran]
FILE = TOOLS / "leaves.py"


def put(run: Run, folder: Path, user: str, name: str, content: str) -> None:
    (folder / name).write_text(content)
    assert run("files", "put", folder / name, "--user", user).status == 0


def test_user_listed_shown_removed_and_others_stay(run: Run, folder: Path, user: str) -> None:
    other = f"{user} b"
    put(run, folder, user, "a.txt", "hello")
    put(run, folder, user, "b.txt", "hello")
    put(run, folder, other, "c.txt", "theirs")

    listed = run("users", "list", "--json").json["users"]
    # Homes of other runners on this machine are listed too.
    listed = [entry for entry in listed if entry["user"] in (user, other)]
    shown = run("users", "show", user, "--json").json
    unsure = run("users", "delete", user)
    still = run("files", "ls", "--user", user, "--json").json["files"]
    removed = run("users", "delete", user, "--yes", "--json")
    after = run("users", "list").out

    assert [(item["user"], item["files"]) for item in listed] == [(other, 1), (user, 2)]
    assert (shown["files"], shown["bytes"], shown["calls_running"]) == (2, 5, False)
    assert unsure.status == 2
    assert unsure.err == f"runner: this would remove all of {user!r}: 2 files, 5B; give --yes\n"
    assert len(still) == 2
    assert (removed.json["files"], removed.json["bytes"]) == (2, 5)
    assert "user removed" in removed.err
    assert f"{other}  1 files, 6B" in after.splitlines()
    assert not any(line.startswith(f"{user}  ") for line in after.splitlines())
    assert run("files", "ls", "--user", user, "--json").json["files"] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("show", "nobody-of-that-name"), "nothing belongs to the user"),
        (("delete", "nobody-of-that-name", "--yes"), "nothing belongs to the user"),
        (("show",), "takes the name of one user"),
        (("list", "ann"), "takes no name"),
        (("sing",), "'sing' is not one of 'list', 'show', 'delete', 'revoke'"),
        (("list", "--yes"), "belong to `runner users delete`"),
        (("revoke", "ann", "--token", "short"), "8 or more"),
        (("revoke", "ann", "--token", "bm8gdG9rZW4.bm8gdG9rZW4"), "stands behind `token=`; this is not one"),
    ],
)
def test_meaningless_arguments_end_with_a_sentence(run: Run, words: tuple[str, ...], message: str) -> None:
    ended = run("users", *words)

    assert ended.status == 2
    assert message in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.anyio
async def test_user_with_running_call_removed_only_when_forced(tmp_path: Path, user: str) -> None:
    administration = Administration(settings=settings_in(tmp_path))
    async with open_toolset(FILE, tmp_path, generated="keep") as toolset:
        await call(toolset, user, "leaves_plain", name="first.txt")
        slow = asyncio.create_task(call(toolset, user, "leaves_slowly", name="slow.txt"))
        assert await becomes(lambda: Path(f"/tmp/{user}/slow.txt").exists())

        running = (await administration.account(user)).calls_running
        with pytest.raises(UsageError, match=r"a call of .* is under way"):
            await administration.delete(user)
        files = (await administration.account(user)).files
        removed = await administration.delete(user, now=True)
        Path(f"/tmp/{user}/.go").touch()
        await slow

        assert running
        assert files == 1
        assert removed["files"] == 1
        assert any("the home, which a server holds" in left for left in removed["left"])
        assert not (await administration.account(user)).calls_running


def test_revoked_link_invalid_and_later_one_valid(run: Run, folder: Path) -> None:
    links = Links(Tokens(folder / "state" / "tokens.json"), now=time.time())
    put(run, folder, "ann", "a.txt", "hello")
    signed = {key: links.signed(user, key) for key, user in (("1", "ann"), ("2", "ann"), ("3", "bob"))}
    before, one = links.hold(signed), signed["1"]
    Logins(folder / "state").note(User("ann", "s"), Login(end=int(links.now) + 600), now=links.now)

    single = run("users", "revoke", "ann", "--token", one, "--json")
    after_one = links.hold(signed)
    every = run("users", "revoke", "ann", "--json")
    after_all = links.hold(signed)

    assert before == {"1": True, "2": True, "3": True}
    assert after_one == {"1": False, "2": True, "3": True}
    assert after_all == {"1": False, "2": False, "3": True}
    assert single.json["browser_sessions"] == 0
    assert every.json["browser_sessions"] == 1
    assert Logins(folder / "state").of(User("ann", "s")) is None
    assert "tokens revoked" in every.err
    assert one not in single.err + single.out
    later = Links(links.tokens, now=time.time())
    assert later.hold({"1": later.signed("ann", "1")}) == {"1": True}


@dataclass(frozen=True)
class Links:
    """Tokens that a test signs and verifies, with the keys of an installation."""

    tokens: Tokens
    now: float = 1_800_000_000.0

    def signed(self, user: str, key: str) -> str:
        return self.tokens.sign(user=user, key=key, purpose="download", now=self.now, ttl_s=600)

    def hold(self, signed: Mapping[str, str]) -> dict[str, bool]:
        return {key: self._holds(key, token) for key, token in signed.items()}

    def _holds(self, key: str, token: str) -> bool:
        try:
            self.tokens.verify(token, purpose="download", key=key, now=self.now + 1)
        except TokenError:
            return False
        return True


def test_link_prefix_revokes_one_link_and_ambiguous_refused(tmp_path: Path) -> None:
    """All of them are made in one millisecond, so that only what is signed tells them apart."""
    administration = Administration(settings=settings_in(tmp_path), clock=lambda: Links.now + 1)
    links = Links(Tokens(tmp_path / "state" / "tokens.json"))
    signed = {key: links.signed("ann", key) for key in map(str, range(20))}
    theirs = {"theirs": links.signed("bob", "theirs")}
    one = signed["7"]
    common = one[: one.index(".") + 8]
    assert all(token.startswith(one[: one.index(".") + 1]) for token in signed.values())

    for prefix in (common, one[: one.index(".") + 1], one[:8]):
        with pytest.raises(UsageError, match="8 or more characters behind it"):
            administration.revoke("ann", prefix=prefix)
    with pytest.raises(UsageError, match="made for 'bob', not for 'ann'"):
        administration.revoke("ann", prefix=theirs["theirs"])
    untouched = links.hold(signed | theirs)
    administration.revoke("ann", prefix=one[: one.index(".") + 9])

    assert set(untouched.values()) == {True}
    assert links.hold(signed | theirs) == untouched | {"7": False}


def test_session_link_token_is_revoked(tmp_path: Path) -> None:
    administration = Administration(
        settings=settings_in(tmp_path, persist_files_across_sessions=False), clock=lambda: Links.now + 1
    )
    links = Links(Tokens(tmp_path / "state" / "tokens.json"))
    files = open_library(administration.settings).of("ann", "one")
    token = links.signed(files.holder, "art_1")
    before = links.hold({"art_1": token})

    with pytest.raises(UsageError, match="made for 'ann', not for 'bob'"):
        administration.revoke("bob", prefix=token)
    administration.revoke("ann", prefix=token)

    assert before == {"art_1": True}
    assert links.hold({"art_1": token}) == {"art_1": False}


@pytest.mark.anyio
async def test_revocation_applies_at_once_on_running_server(
    run: Run, folder: Path, serve_http: Callable[..., str]
) -> None:
    bearers = {name: {"authorization": f"Bearer {name * 8}"} for name in ("anna", "bobo")}
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps({name * 8: name for name in bearers}))
    tokens.chmod(0o600)
    settings = {"RUNNER_USER": "", "RUNNER_AUTH__KIND": "static", "RUNNER_AUTH__TOKENS_FILE": str(tokens)}
    base = serve_http(TOOLS / "usual.py", **settings).removesuffix("/mcp")
    put(run, folder, "anna", "a.txt", "hello")
    put(run, folder, "anna", "b.txt", "hello again")
    put(run, folder, "bobo", "c.txt", "theirs")
    async with httpx2.AsyncClient(base_url=base, timeout=180) as http, AsyncExitStack() as open_streams:
        links, cookies, streams = [], {}, {}
        for name, bearer in bearers.items():
            for file in (await http.get("/api/files", headers=bearer)).json()["files"]:
                made = await http.post(f"/api/files/{file['key']}/link", headers=bearer, json={})
                links.append(made.json()["url"])
            opening = await http.post("/api/session", headers=bearer)
            cookies[name] = {"cookie": f"toolcell_session={opening.cookies['toolcell_session']}"}
            http.cookies.clear()
            stream = http.stream("GET", "/events", headers=cookies[name])
            streams[name] = (await open_streams.enter_async_context(stream)).aiter_lines()
            assert await anext(streams[name])

        async def holds() -> list[int]:
            files = [await http.get("/api/files", headers=headers) for headers in cookies.values()]
            return [answer.status_code for answer in (*[await http.get(link) for link in links], *files)]

        async def ends(name: str) -> bool:
            return [line async for line in streams[name] if line.startswith("data")] == []

        before = await holds()
        one = run("users", "revoke", "anna", "--token", links[0].partition("token=")[2][:-20])
        after_one = await holds()
        still = asyncio.create_task(ends("anna"))
        every = run("users", "revoke", "anna")
        after_all = await holds()
        ended = await still
        others = asyncio.create_task(ends("bobo"))
        with_bearer = (await http.get("/api/files", headers=bearers["anna"])).status_code

        assert (one.status, every.status) == (0, 0)
        assert before == [200, 200, 200, 200, 200]
        assert after_one == [403, 200, 200, 200, 200]
        assert after_all == [403, 403, 200, 401, 200]
        # A stream that was open ends, too; the controls are the other user's, and the bearer token.
        assert ended
        assert with_bearer == 200
        assert not others.done()
        others.cancel()


def test_damaged_revocation_record_rejects_all_links_of_user(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    token = tokens.sign(user="ann", key="k", purpose="download", now=1000, ttl_s=60)
    tokens.revoke(["ann"], prefix="somebody-elses", now=1000)
    assert tokens.verify(token, purpose="download", key="k", now=1001) == "ann"
    (note,) = (tmp_path / "revoked-tokens").iterdir()

    note.write_text(json.dumps(["no", "note"]))

    with pytest.raises(TokenError, match="cannot be checked"):
        tokens.verify(token, purpose="download", key="k", now=1001)


@pytest.mark.parametrize("name", ["ann", "bob smith", "ünï", "../up", "=q", "a=b"])
def test_segment_command_names_its_user(name: str) -> None:
    assert user_of(home_segment(name)) == name
