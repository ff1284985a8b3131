"""`runner users`: who there is, what belongs to each, and taking it away."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import TOOLS, Ran, becomes, call, open_toolset, settings_in

from runner.cli.administration import Administration
from runner.errors import UsageError
from runner.http.logins import Login, Logins
from runner.users.identity import User
from runner.users.tokens import TokenError, Tokens
from runner.users.usernames import home_segment, user_of

pytestmark = pytest.mark.kernel

Run = Callable[..., Ran]
FILE = TOOLS / "leaves.py"


def put(run: Run, folder: Path, user: str, name: str, content: str) -> None:
    (folder / name).write_text(content)
    assert run("files", "put", folder / name, "--user", user).status == 0


def test_a_user_is_listed_shown_and_removed_and_others_stay(run: Run, folder: Path, user: str) -> None:
    other = f"{user} b"
    put(run, folder, user, "a.txt", "hello")
    put(run, folder, user, "b.txt", "hello")
    put(run, folder, other, "c.txt", "theirs")

    listed = run("users", "list", "--json").json["users"]
    # Homes of other runners on this machine are listed too.
    listed = [said for said in listed if said["user"] in (user, other)]
    shown = run("users", "show", user, "--json").json
    unsure = run("users", "delete", user)
    still = run("files", "ls", "--user", user, "--json").json["files"]
    removed = run("users", "delete", user, "--yes", "--json")
    after = run("users", "list").out

    assert [(said["user"], said["files"]) for said in listed] == [(other, 1), (user, 2)]
    assert (shown["files"], shown["bytes"], shown["calls_running"]) == (2, 5, False)
    assert unsure.status == 2
    assert "Give --yes" in unsure.err
    assert len(still) == 2
    assert (removed.json["files"], removed.json["bytes"]) == (2, 5)
    assert "user removed" in removed.err
    assert f"{other}  1 files, 6B" in after.splitlines()
    assert not any(line.startswith(f"{user}  ") for line in after.splitlines())
    assert run("files", "ls", "--user", user, "--json").json["files"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "nobody-of-that-name"), "nothing belongs to the user"),
        (("delete", "nobody-of-that-name", "--yes"), "nothing belongs to the user"),
        (("show",), "takes the name of one user"),
        (("list", "ann"), "takes no name"),
        (("sing",), "it is one of list, show, delete, revoke"),
        (("list", "--yes"), "belong to `runner users delete`"),
        (("revoke", "ann", "--token", "short"), "8 or more"),
    ],
)
def test_what_makes_no_sense_ends_with_a_sentence(run: Run, words: tuple[str, ...], said: str) -> None:
    ended = run("users", *words)

    assert ended.status == 2
    assert said in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.anyio
async def test_while_a_call_runs_a_user_is_removed_only_if_that_is_said(tmp_path: Path, user: str) -> None:
    administration = Administration(settings=settings_in(tmp_path))
    async with open_toolset(FILE, tmp_path, generated="keep") as toolset:
        await call(toolset, user, "leaves_plain", name="first.txt")
        slow = asyncio.create_task(call(toolset, user, "leaves_slowly", name="slow.txt"))
        assert await becomes(lambda: Path(f"/tmp/{user}/slow.txt").exists())

        running = (await administration.account(user)).calls_running
        with pytest.raises(UsageError, match=r"a call of .* is under way"):
            await administration.delete(user)
        kept = (await administration.account(user)).files
        removed = await administration.delete(user, now=True)
        Path(f"/tmp/{user}/.go").touch()
        await slow

        assert running
        assert kept == 1
        assert removed["files"] == 1
        assert any("the home, which a server holds" in left for left in removed["left"])
        assert not (await administration.account(user)).calls_running


def test_a_revoked_link_holds_no_longer_and_one_made_later_does(run: Run, folder: Path) -> None:
    tokens = Tokens(folder / "state" / "tokens.json")
    now = time.time()

    def signed(user: str, key: str = "art_1") -> str:
        return tokens.sign(user=user, key=key, purpose="download", now=time.time(), ttl_s=600)

    def holds(token: str, key: str = "art_1") -> bool:
        try:
            tokens.verify(token, purpose="download", key=key, now=now)
        except TokenError:
            return False
        return True

    put(run, folder, "ann", "a.txt", "hello")
    one, other, theirs = signed("ann"), signed("ann", "art_2"), signed("bob")
    before = [holds(one), holds(other, "art_2"), holds(theirs)]
    Logins(folder / "state").note(User("ann", "s"), Login(end=int(now) + 600), now=now)

    single = run("users", "revoke", "ann", "--token", one, "--json")
    after_one = [holds(one), holds(other, "art_2"), holds(theirs)]
    every = run("users", "revoke", "ann", "--json")
    after_all = [holds(one), holds(other, "art_2"), holds(theirs)]

    assert before == [True, True, True]
    assert after_one == [False, True, True]
    assert after_all == [False, False, True]
    assert single.json["browser_sessions"] == 0
    assert every.json["browser_sessions"] == 1
    assert Logins(folder / "state").of(User("ann", "s")) is None
    assert "tokens revoked" in every.err
    assert one not in single.err + single.out
    assert holds(signed("ann"))


def test_a_damaged_note_of_revocations_lets_no_link_of_that_user_in(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    token = tokens.sign(user="ann", key="k", purpose="download", now=1000, ttl_s=60)
    tokens.revoke(["ann"], prefix="somebody-elses", now=1000)
    assert tokens.verify(token, purpose="download", key="k", now=1001) == "ann"
    (note,) = (tmp_path / "revoked-tokens").iterdir()

    note.write_text(json.dumps(["no", "note"]))

    with pytest.raises(TokenError, match="cannot be checked"):
        tokens.verify(token, purpose="download", key="k", now=1001)


@pytest.mark.parametrize("name", ["ann", "bob smith", "ünï", "../up", "=q", "a=b"])
def test_a_segment_says_whose_it_is(name: str) -> None:
    assert user_of(home_segment(name)) == name
