"""The invariants of ARCHITECTURE.md, one test each, of the same name."""

import ast
import asyncio
import base64
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from attack_support import (
    ATTACK,
    Unguarded,
    act,
    attack_toolset,
    found_in_memory,
    like,
    snapshot,
)
from process_tree import children, descendants, forkservers, zygotes
from support import ROOT, alive, becomes, call, details, error_code, held
from tools.acts import observed, perform

from runner.artifacts.named_file import relative_to_home
from runner.homes.homes import HomeLease
from runner.settings.execution import ToolSettings
from runner.steps.client_message import Delivery, render
from runner.store.protocol import Origin
from runner.toolset.policies import PolicyBuilder
from runner.toolset.toolset import Toolset
from runner.toolset.user_pool import HomeAccess
from runner.users.identity import User
from runner.users.usernames import home_segment
from sandbox.policy import Policy

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

_MODE_FILTER = 2


@pytest.fixture(scope="module", params=["process", "namespace"])
def tier(request: pytest.FixtureRequest) -> str:
    """The weakest tier and the strongest."""
    return str(request.param)


@pytest.fixture(scope="module")
async def shared(tier: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Toolset]:
    """The hostile file, for tests that have a user of their own there and change nothing for others."""
    tools = {"leave_and_hang": ToolSettings(idle_timeout_s=5.0)}
    async with attack_toolset(tmp_path_factory.mktemp("shared"), isolation=tier, tools=tools) as toolset:
        yield toolset


async def test_author_code_never_runs_unconfined_even_at_import(shared: Toolset, tier: str) -> None:
    unconfined = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", "import json, tools.acts as a; print(json.dumps(a.observed()))"],
        env={"PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        check=True,
    )
    found = (await call(shared, "anybody", "at_import")).processed.value["results"]

    control = json.loads(unconfined.stdout)
    assert (control["no_new_privs"], control["tmp"]) == (observed()["no_new_privs"], {"value": None})
    assert control["parent"] == {"value": None}
    assert (found["no_new_privs"], found["seccomp"]) == (1, _MODE_FILTER)
    denied = {name: found[name].get("denied") for name in ("shadow", "tmp", "parent")}
    in_tier = {
        "process": {"shadow": "EACCES", "tmp": "EACCES", "parent": "EPERM"},
        # Nothing there may be written, and there is no parent.
        "namespace": {"shadow": "EACCES", "tmp": "EROFS", "parent": "ESRCH"},
    }
    assert denied == in_tier[tier]


def confinement(pid: int) -> dict[str, int]:
    """Return what the kernel has a process within, each as a number that only falls as it narrows."""
    status = Path(f"/proc/{pid}/status").read_text()
    facts = dict(line.split(":\t", 1) for line in status.splitlines())
    numbers = [f"capability {bit} {kind}" for kind in ("CapPrm", "CapBnd") for bit in range(64)]
    masks = [int(facts[kind], 16) >> bit & 1 for kind in ("CapPrm", "CapBnd") for bit in range(64)]
    rows = Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]
    hard = {row[:26].strip(): row[47:68].strip() for row in rows}
    return {
        "may gain privileges": 1 - int(facts["NoNewPrivs"]),
        "without a filter of system calls": -int(facts["Seccomp_filters"]),
        **dict(zip(numbers, masks, strict=True)),
        **{name: sys.maxsize if value == "unlimited" else int(value) for name, value in hard.items()},
    }


def of_whom(pid: int) -> tuple[str, ...]:
    """Return the user ids and the namespaces of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    ids = [line for line in status.splitlines() if line.startswith(("Uid:", "Gid:", "Groups:"))]
    names = sorted(Path(f"/proc/{pid}/ns").iterdir())
    return (*ids, *(os.readlink(name) for name in names if not name.name.endswith("_for_children")))


async def test_policies_only_narrow(shared: Toolset, user: str) -> None:
    async with shared.user_pool(User(user), shared.key(User(user), access=HomeAccess.WRITE)) as user_pool:
        scratch = user_pool.pool.policy.scratch
        assert scratch is not None
        note = scratch / ".tmp" / "note.txt"
        at_import = note.read_text()

        in_a_call = await act(shared, user, "write", str(note))
        zygote = (await act(shared, user, "parent"))["value"]
        of_the_zygote = await act(shared, user, "signal", zygote)
        pairs = [(parent, worker) for parent in zygotes() for worker in children(parent)]
        wider = [
            (parent, worker, name)
            for parent, worker in pairs
            for name, number in confinement(parent).items()
            if confinement(worker)[name] > number
        ]
        elsewhere = [pair for pair in pairs if of_whom(pair[0]) != of_whom(pair[1])]
        unconfined = confinement(os.getpid())

    # What the zygote might write as it loaded the file, its worker may not; nor may it touch the zygote.
    assert at_import == "written at import"
    assert in_a_call == {"denied": "EACCES"}
    assert of_the_zygote == {"denied": "EPERM"}
    assert pairs
    assert (wider, elsewhere) == ([], [])
    assert unconfined["may gain privileges"] == 1


class WithoutScratch(PolicyBuilder):
    """Policies of users with a scratch folder that cannot be confined to."""

    def policy(self, user: User | None, access: HomeAccess, home: HomeLease | None, scratch: Path) -> Policy:
        policy = super().policy(user, access, home, scratch)
        if user is None:
            return policy
        (scratch / "link").symlink_to(scratch)
        return dataclasses.replace(policy, scratch=scratch / "link")


class Missing(Toolset):
    """A toolset with such policies."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._pool_maker.policies = like(self._pool_maker.policies, WithoutScratch)


async def test_layer_that_fails_to_apply_ends_call(
    tmp_path: Path, tier: str, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with attack_toolset(tmp_path / "zygote", kind=Missing, isolation=tier) as toolset:
        homeless = await call(toolset, user, "fine")
        of_zygote = await call(toolset, user, "mine")
        async with toolset.user_pool(User(user), toolset.key(User(user))) as user_pool:
            written = list(user_pool.workers.scratch.rglob("note.txt"))
    # The note of the zygote that could be confined is the only one: the other ran no author code.
    assert homeless.processed.value == {"results": "fine"}
    assert len(written) == 1
    assert error_code(of_zygote) == "E_ISOLATION"
    assert "landlock" in str(details(of_zygote))

    monkeypatch.setenv("ATTACK", "narrow")
    with pytest.raises(Exception, match="worker not ready: ConfinementError: layer landlock"):
        async with attack_toolset(tmp_path / "worker", isolation=tier):
            pass


DENIALS: tuple[tuple[str, ...], ...] = (
    ("write", "{there}/file.txt"),
    ("create", "{there}/new.txt"),
    ("truncate", "{there}/file.txt"),
    ("unlink", "{there}/file.txt"),
    ("rename", "{there}/file.txt", "{home}/taken.txt"),
    ("link", "{there}/file.txt", "{home}/linked.txt"),
    ("mkdir", "{there}/folder"),
    ("read", "{there}/file.txt"),
    ("list", "{there}"),
    ("mkfifo", "{home}/fifo"),
    ("bind", "{home}/socket"),
)


async def test_denials_hold_with_guard_removed(tmp_path: Path, shared: Toolset, tier: str, user: str) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "file.txt").write_text("not yours")
    before = snapshot(there)
    allowed, answers, guarded = [], {}, {}
    for number, (name, *texts) in enumerate(DENIALS):
        twin = tmp_path / str(number)
        shutil.copytree(there, twin)
        allowed.append(perform(name, [text.format(there=twin, home=twin) for text in texts]))

    async with attack_toolset(tmp_path / "unguarded", kind=Unguarded, isolation=tier) as unguarded:
        # One after the other: a home is one server's.
        for kind, toolset, name in ((Toolset, shared, user), (Unguarded, unguarded, f"{user}-unguarded")):
            home, key = f"/tmp/{name}", toolset.key(User(name), access=HomeAccess.WRITE)
            async with toolset.user_pool(User(name), key) as user_pool:
                guarded[kind] = user_pool.pool.policy.guard
            answers[kind] = [
                await act(toolset, name, act_name, *(text.format(there=there, home=home) for text in texts))
                for act_name, *texts in DENIALS
            ]
    shutil.rmtree(f"/tmp/{user}-unguarded", ignore_errors=True)

    assert guarded == {Toolset: True, Unguarded: False}
    assert ["value" in answer for answer in allowed] == [True] * len(DENIALS)
    assert ["denied" in answer for answer in answers[Toolset]] == [True] * len(DENIALS)
    assert ["denied" in answer for answer in answers[Unguarded]] == [True] * len(DENIALS)
    assert snapshot(there) == before


_EVALUATES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle"}
_CALLS = {"eval", "exec", "compile", "__import__"}
# A module of the operator, from the very bytes whose trust was checked.
_OF_OPERATORS = {"operator_code.py": {"compile()", "exec()"}}
# They run in a zygote or worker, confined, and are where author code is loaded.
_CONFINED = ("runner/worker/toolfile.py", "runner/worker/program.py", "runner/worker/tools", "sandbox/inside")


async def test_host_parses_only_capped_json_from_worker(tmp_path: Path, shared: Toolset, user: str) -> None:
    pickled = "cos\nsystem\n(S'touch {}'\ntR.".format(tmp_path / "ran")

    unpickled = await call(shared, user, "forge", frames=[["A", pickled, 0]])
    too_long = await call(shared, user, "forge", frames=[["A", "[", 2**32 - 1]])
    honest = await call(shared, user, "fine")
    imported = [module for module in sys.modules if module in ("attack", "tool_file_attack")]

    sources = [path for top in ("runner", "sandbox") for path in sorted((ROOT / top).rglob("*.py"))]
    host = [path for path in sources if not str(path.relative_to(ROOT)).startswith(_CONFINED)]
    assert {path.name: found for path in host if (found := _evaluating(path))} == _OF_OPERATORS
    assert len(host) > 50
    assert [error_code(ended) for ended in (unpickled, too_long)] == ["E_INVALID_RESULT"] * 2
    assert details(too_long)["limit"] == "frame_bytes"
    assert honest.processed.value == {"results": "fine"}
    assert imported == []
    assert not (tmp_path / "ran").exists()


def _evaluating(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(f"{node.func.id}()")
    return found & (_EVALUATES | {f"{name}()" for name in _CALLS})


async def test_worker_holds_no_secret_of_host(
    tmp_path: Path, tier: str, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, handed_on = (f"{word}-{os.urandom(12).hex()}" for word in ("hidden", "handed"))
    monkeypatch.setenv("HIDDEN_SECRET", hidden)
    monkeypatch.setenv("ATTACK", handed_on)
    async with attack_toolset(tmp_path, isolation=tier) as toolset:
        await act(toolset, user, "pid")
        environment = (await act(toolset, user, "environment"))["value"]
        async with toolset.user_pool(
            User(user), toolset.key(User(user), access=HomeAccess.WRITE)
        ) as user_pool:
            # The worker that has answered is still being reaped.
            await user_pool.pool.zygote.settled()
        forkserver = forkservers()[0]
        below = [forkserver, *descendants(forkserver)]

        with_secret = [pid for pid in below if found_in_memory(pid, hidden.encode())]
        with_named = [pid for pid in below if found_in_memory(pid, handed_on.encode())]
        host_has_it = found_in_memory(os.getpid(), hidden.encode())

    assert host_has_it
    assert len(below) >= 5
    # The forkserver does not know it: each zygote is told by itself what its tools may see.
    assert with_named == below[1:]
    assert with_secret == []
    assert hidden not in environment.values()
    assert environment["ATTACK"] == handed_on


async def test_zygote_has_one_thread_when_it_forks(
    tmp_path: Path, tier: str, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with attack_toolset(tmp_path / "plain", isolation=tier) as toolset:
        await call(toolset, user, "mine")
        threads = [len(os.listdir(f"/proc/{zygote}/task")) for zygote in zygotes()]
        workers = [len(children(zygote)) for zygote in zygotes()]

    monkeypatch.setenv("ATTACK", "thread")
    async with attack_toolset(tmp_path / "threaded", isolation=tier) as toolset:
        answer = await call(toolset, user, "fine")
        forked = [children(zygote) for zygote in zygotes() if len(os.listdir(f"/proc/{zygote}/task")) > 1]

    assert threads == [1, 1]
    assert min(workers) >= 1
    assert answer.processed.value == {"results": "fine"}
    assert forked
    assert [pids for pids in forked if pids] == []


async def test_no_process_survives_its_call_or_the_host(
    shared: Toolset, tier: str, user: str, environment: dict[str, str]
) -> None:
    of_call = f"{user}-in-a-call"
    with shared.homes.lease(of_call):
        hanging = asyncio.create_task(call(shared, of_call, "leave_and_hang"))
        await becomes(Path(f"/tmp/{of_call}/all").exists)
        left = [Path(f"/tmp/{of_call}/{name}") for name in ("first", "second")]
        ran = [mark for mark in left if held(mark)]
        await hanging
        survivors_of_call = [mark for mark in left if held(mark)]
    shutil.rmtree(f"/tmp/{of_call}", ignore_errors=True)

    allowed = ["--allow-env", "ATTACK", "--isolation", tier]
    command = [sys.executable, "-m", "runner.cli.app", "call", ATTACK, "leave_and_hang", *allowed]
    host = await asyncio.create_subprocess_exec(
        *map(str, command), env={**environment, "ATTACK": "remain"}, stdin=subprocess.DEVNULL
    )
    try:
        await becomes(Path(f"/tmp/{user}/all").exists)
        below = descendants(host.pid)
        left_by_both = [pid for pid in below if os.getpgid(pid) != pid]
        host.send_signal(signal.SIGKILL)
        await host.wait()
        await becomes(lambda: not any(map(alive, below)))
    finally:
        if host.returncode is None:
            host.kill()

    assert ran == left
    assert survivors_of_call == []
    assert len(below) >= 8
    assert left_by_both
    assert [pid for pid in below if alive(pid)] == []


async def test_files_of_another_user_out_of_reach(shared: Toolset, user: str) -> None:
    other = f"{user}-other"
    with shared.homes.lease(other) as theirs, shared.homes.lease(user) as ours:
        (theirs.path / "secret-name.txt").write_text("theirs")
        (ours.path / "secret-name.txt").write_text("ours")
        shutil.chown(ours.path / "secret-name.txt", ours.path.stat().st_uid)
        before = snapshot(theirs.path)
        tries = [
            (name, [text.format(folder) for text in texts])
            for folder in (ours.path, theirs.path)
            for name, *texts in (
                ("list", "{}"),
                ("read", "{}/secret-name.txt"),
                ("write", "{}/secret-name.txt"),
                ("link", "{}/secret-name.txt", f"{ours.path}/{{0.name}}"),
                ("rename", "{}/secret-name.txt", f"{ours.path}/{{0.name}}-2"),
            )
        ]
        answers = [await act(shared, user, name, *texts) for name, texts in tries]
        listed = await act(shared, user, "list", "/tmp")
        unchanged = snapshot(theirs.path) == before
    stored = await shared.files(User(other)).put(b"theirs", name="kept.txt", origin=Origin.UPLOADED)
    files = shared.files(User(user))
    found = await files.find("kept.txt"), await files.by_id(stored.id)

    shutil.rmtree(f"/tmp/{other}", ignore_errors=True)
    assert ["value" in answer for answer in answers] == [True] * 5 + [False] * 5
    assert "denied" in listed
    assert unchanged
    assert found == (None, None)


async def test_artifact_bytes_never_in_text_of_result(tmp_path: Path, user: str) -> None:
    secret = f"artifact-byte-{user}"
    async with attack_toolset(tmp_path) as toolset:
        completed = await call(toolset, user, "secret_artifact", text=secret)
        spec = toolset.catalog.tools["secret_artifact"]
        messages = {
            delivery: render(
                completed.processed, wire=completed.wire, output_schema=spec.output_schema, delivery=delivery
            )
            for delivery in Delivery
        }

    needles = [
        secret,
        *(base64.b64encode((secret * 3)[shift:].encode()).decode()[4:24] for shift in range(3)),
    ]
    assert [file.size for file in completed.processed.files] == [len(secret) * 100, len(secret) * 200]
    for message in messages.values():
        texts = [block["text"] for block in message["content"] if block["type"] == "text"]
        assert any("a word" in text for text in texts)
        assert [needle for needle in needles for text in texts if needle in text] == []
    structured = json.dumps(messages[Delivery.REFERENCE])
    assert [needle for needle in needles if needle in structured] == []
    assert any(needle in json.dumps(messages[Delivery.INLINE]) for needle in needles)


async def test_promised_file_stored_or_its_loss_is_an_error(tmp_path: Path, user: str) -> None:
    async with attack_toolset(tmp_path) as toolset:
        first = await call(toolset, user, "secret_artifact", text="first")
        my_files = toolset.files(User(user))
        contents = []
        for file in first.processed.files:
            record = await my_files.by_id(file.id)
            assert record is not None
            async with my_files.open(record) as content:
                contents.append(b"".join([chunk async for chunk in content]))
        objects = toolset.settings.store_path / "users"
        objects.rename(objects.with_name("gone"))
        objects.write_text("no folder any more")
        lost = await call(toolset, user, "secret_artifact", text="second")

    assert contents == [b"first" * 100, b"first" * 200]
    assert "artifact_errors" not in first.processed.value.get("meta_data", {})
    assert "artifacts" not in lost.processed.value
    assert [error.error.code.name for error in lost.processed.errors] == ["E_STORE", "E_STORE"]
    assert len(lost.processed.value["meta_data"]["artifact_errors"]) == 2


HOSTILE_USERS = ("..", "../../etc", "/etc", "a/b", ".", "a\nb", "=q", "input_files/..", "x" * 300, "Ünï")


async def test_caller_names_and_paths_normalised_before_use(tmp_path: Path, user: str) -> None:
    segments = [home_segment(name) for name in HOSTILE_USERS]
    home = Path("/tmp/somebody")
    named = {
        "a.txt": "a.txt",
        "/tmp/somebody/b/../a.txt": "a.txt",
        "//tmp/somebody/a.txt": "a.txt",
        "../somebody/a.txt": "a.txt",
        "../other/a.txt": None,
        "/tmp/somebody": None,
        "/tmp/somebody2/a.txt": None,
        "a\0b": None,
        "": None,
    }
    async with attack_toolset(tmp_path) as toolset:
        caller = f"{user}/../x"
        where = (await act(toolset, caller, "environment"))["value"]["HOME"]
        stored = await toolset.files(User(user)).put(
            b"input", name="../../../etc/passwd", origin=Origin.UPLOADED
        )
        staged = await call(toolset, user, "read_input", filename="../../../etc/passwd")
        elsewhere = await call(toolset, user, "read_input", filename=f"../{user}-other/none.txt")

    shutil.rmtree(f"/tmp/{home_segment(caller)}", ignore_errors=True)
    assert len(set(segments)) == len(segments)
    assert [s for s in segments if "/" in s or s in (".", "..") or len(s.encode()) > 255] == []
    assert where == f"/tmp/{home_segment(caller)}"
    assert {path: relative_to_home(path, home) for path in named} == named
    assert stored.name == "passwd"
    assert staged.processed.value == {"results": f"input from /tmp/{user}/input_files/passwd"}
    assert error_code(elsewhere) in ("E_FILE_NOT_FOUND", "E_INVALID_PATH")
