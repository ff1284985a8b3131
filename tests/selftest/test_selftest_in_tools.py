"""The attempts of the self-test by code in code mode and by a script of a skill, against a served file."""

import asyncio
import contextlib
import json
import os
import shutil
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from fastmcp.exceptions import ToolError
from support import settings_in

from runner.selftest.program import EVERY
from runner.server.host import make_host
from runner.server.serve import with_code
from runner.settings.execution import ToolSettings
from runner.toolset.toolset import Toolset
from runner.worker.targets import check_targets
from sandbox.policy import MIB
from sandbox.selftest.attempt import SECRET_FILE, SECRET_WORD, ActEvidence, Attempt, AttemptKind, Residue
from sandbox.selftest.control import claimed, controls, looked
from sandbox.selftest.trial import Setup, Trial, TrialVerdict
from sandbox.selftest.world import LIMITS, Ground, ground, world

pytestmark = [pytest.mark.release, pytest.mark.needs_root, pytest.mark.anyio, pytest.mark.kernel]

# The program of `runner selftest` with files of the home in place of its channel.
ATTEMPT = """
import json, os, pathlib, time
from runner.selftest.program import PROGRAM
from sandbox.frames import FrameKind

order = json.loads({order})
home = pathlib.Path(order["place"]["home"])

class Files:
    def send(self, kind, value):
        if kind is FrameKind.REQUEST:
            (home / "waits").write_text(str(os.getpid()))
            (home / "waits").rename(home / "holds")
        else:
            {report}

    def receive(self):
        while not (home / "looked").exists():
            time.sleep(0.01)

answer = json.dumps(PROGRAM.serve(order, Files()))
try:
    (home / "part").write_text(answer)
    (home / "part").rename(home / "answer")
except OSError:
    pass
"""
CODE = (
    "from runner.worker.call_scope import current\n"
    + ATTEMPT.replace(
        "{report}",
        "current().channel.send(FrameKind.NOTIFY, "
        '{"method": "notifications/progress", "params": {"progress": time.time()}})',
    )
    + "return answer\n"
)
SCRIPT = (
    ATTEMPT.replace("{order}", "__import__('sys').argv[1]").replace(
        "{report}", "print('progress', flush=True)"
    )
    + "print(answer)\n"
)
SKILL = "---\nname: attempts\ndescription: Tries to get out.\n---\n"
TOOL_FILE = "from fastmcp import FastMCP\nmcp = FastMCP('plain')\n"
# `runner.selftest` gives its pools these limits; here they are settings.
LIMITED = {
    "memory_mb": LIMITS.memory_bytes // MIB,
    "call_memory_mb": LIMITS.call_memory_bytes // MIB,
    "user_memory_mb": LIMITS.total_memory_bytes // MIB,
    "cpu_s": LIMITS.cpu_s,
    "call_processes": LIMITS.call_processes,
    "open_files": LIMITS.open_files,
    "max_artifact_bytes": LIMITS.file_bytes,
    "max_home_bytes": LIMITS.home_bytes,
    "max_payload_bytes": LIMITS.frame_bytes,
    "idle_timeout_s": 20.0,
    "total_timeout_s": 30.0,
}

# RLIMIT_DATA is above the memory of the import, which a new program does not have: the call is watched.
MEMORY = {f"resources-{name}" for name in ("heap", "mmap", "mmap-zero", "brk", "mprotect", "mremap")}


@dataclass(kw_only=True)
class Carrier:
    """A served file with the attempts.

    Attributes:
        client: Its client.
        home: The home of its user.
        tool: The tool that runs an attempt.
    """

    client: Client[Any]
    home: Path
    tool: str

    async def run(self, order: str) -> str:
        """Return all that the client gets of an attempt, or of its end."""
        if self.tool == "execute":
            arguments: dict[str, Any] = {"code": CODE.replace("{order}", repr(order))}
        else:
            arguments = {"skill": "attempts", "script": "attempt.py", "args": [order]}
        try:
            result = await self.client.call_tool(self.tool, arguments)
        except ToolError as error:
            return str(error)
        return "".join(getattr(block, "text", "") for block in result.content)


@contextlib.asynccontextmanager
async def serving(tool: str, place: Ground, folder: Path) -> AsyncIterator[Carrier]:
    """Serve a file to a user whose home is among those of the attempts."""
    user = f"t-{uuid.uuid4().hex[:12]}"
    (folder / "plain.py").write_text(TOOL_FILE)
    (folder / "skills" / "attempts" / "scripts").mkdir(parents=True)
    (folder / "skills" / "attempts" / "SKILL.md").write_text(SKILL)
    (folder / "skills" / "attempts" / "scripts" / "attempt.py").write_text(SCRIPT)
    readable: dict[str, Any] = {"allow_read": (place.shared,)}
    more: dict[str, Any] = (
        {"code_mode": True, "tools": {"execute": ToolSettings(**readable)}} if tool == "execute" else readable
    )
    settings = settings_in(place.state, user=user, homes=place.homes, isolation="process", **(LIMITED | more))
    named = folder / "plain.py" if tool == "execute" else folder / "skills"
    async with (
        with_code(settings, Toolset.open(settings, check_targets([str(named)]))) as toolset,
        Client(make_host(toolset, transport="stdio", download_url=None)) as client,
    ):
        carrier = Carrier(client=client, home=place.homes / user, tool=tool)
        await carrier.run("{}")
        yield carrier


async def tried(attempt: Attempt, carrier: Carrier, at: Ground) -> tuple[bool, ActEvidence]:
    """Try an attempt in a world with the home of the served user; return whether it got out."""
    with world(at) as bare, contextlib.ExitStack() as stack:
        home = os.open(carrier.home, os.O_PATH | os.O_DIRECTORY)
        stack.callback(os.close, home)
        (carrier.home / "own.txt").write_text("own")
        made = replace(bare, place=replace(bare.place, home=str(carrier.home)), path=carrier.home, fd=home)
        stack.callback(emptied, carrier.home)
        stack.callback(made.end_survivors)
        order = json.dumps({"id": attempt.id, "place": made.place.to_json()})
        call = asyncio.create_task(carrier.run(order))
        during = None
        while not call.done():
            if during is None and (carrier.home / "holds").exists():
                pid = int((carrier.home / "holds").read_text())
                during = await asyncio.to_thread(looked, attempt, made, pid)
                (carrier.home / "looked").touch()
            await asyncio.wait({call}, timeout=0.02)
        got = call.result()
        answer = carrier.home / "answer"
        # The file is not guarded, as the result is, and what has a word could tell it by other ways.
        evidence = claimed(json.loads(answer.read_text()), None) if answer.exists() else None
        seen = replace(evidence or ActEvidence(claim=got, error=got), during=during, output_bytes=len(got))
        return await asyncio.to_thread(attempt.escaped, made, seen), seen


def emptied(home: Path) -> None:
    for path in home.iterdir() if home.is_dir() else ():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", AttemptKind)
@pytest.mark.parametrize("tool", ["execute", "run_skill_script"])
async def test_attempts_of_selftest_held_in_tool(
    tool: str, kind: AttemptKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    trials: list[Trial] = []
    with ground() as at:
        environment = {"PATH": os.environ["PATH"], SECRET_FILE: str(at.word_file), SECRET_WORD: at.word}
        # The host has what a careless framework might have.
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with controls("runner.selftest.program", at, environment) as unconfined:
            async with serving(tool, at, tmp_path) as carrier:
                for attempt in (one for one in EVERY if one.kind is kind):
                    provable, control = await asyncio.to_thread(unconfined.run, attempt)
                    escaped, seen = await tried(attempt, carrier, at)
                    trials.append(
                        Trial(
                            attempt=attempt,
                            provable=provable,
                            escaped=escaped,
                            seen=seen,
                            control=control,
                            left_open=attempt.residue in Setup().leaves_open(),
                        )
                    )

    out = {trial.attempt.id: trial.seen for trial in trials if trial.verdict is TrialVerdict.GOT_OUT}
    if tool == "run_skill_script":
        out = {name: seen for name, seen in out.items() if name not in MEMORY or not within_call(seen)}
    assert out == {}
    assert sum(trial.verdict is TrialVerdict.HELD for trial in trials) > 0.8 * len(trials) - len(Residue)


def within_call(seen: ActEvidence) -> bool:
    return isinstance(seen.during, int) and seen.during <= LIMITS.call_memory_bytes
