"""Smaller versions of pictures that do not fit into a message, made in confined processes.

A tool's picture can take over the process that decodes it. So no picture is decoded in the host: a process
with the user's id and the limits of the tool, without a home and a network, reads it from its standard input.

Source: decision 36.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
import sys
import tempfile
import weakref
from pathlib import Path

import anyio

from runner.formats.images import image_size
from runner.formats.magic import identify
from runner.settings.execution import ExecutionSettings
from runner.settings.isolation import in_force, uids_of
from runner.system.worker_environment import framework_environment, planned_environment
from runner.toolset.grants import readable
from runner.toolset.policies import GUARD_ONLY
from runner.users.identity import User
from sandbox.policy import Policy
from sandbox.probe.machine import Tier

__all__ = ["HAS_PILLOW", "smaller_picture"]

_PROGRAM = Path(__file__).parents[1].resolve() / "worker" / "small_picture.py"
_MIMES = frozenset({"image/jpeg", "image/png", "image/webp"})
# A small file can contain billions. Decoded and rotated, each takes up to a dozen bytes.
_MOST_PIXELS = 25_000_000
_MOST_BYTES = 64 * 1024 * 1024
# For one picture, with the wait for earlier ones. Pictures take no place among the calls, so they are
# processed one at a time.
_DEADLINE_S = 10.0
_END_S = 5.0
_one_at_a_time: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]" = (
    weakref.WeakKeyDictionary()
)


HAS_PILLOW = importlib.util.find_spec("PIL") is not None
"""Whether pictures can be made smaller; they are decoded in a separate process, never here."""


async def smaller_picture(
    picture: bytes, most_bytes: int, *, tool: str, user: User, settings: ExecutionSettings
) -> bytes | None:
    """Return a picture in its own format with at most `most_bytes`; None if that fails.

    Args:
        picture: Bytes that should be a picture.
        most_bytes: Most bytes of the result.
        tool: The tool that returned it, whose limits apply to the process.
        user: The user who called it.
        settings: The effective settings.
    """
    kind = identify(picture)
    size = image_size(lambda count, at: picture[at : at + count])
    if kind is None or kind.mime not in _MIMES or size is None or len(picture) > _MOST_BYTES:
        return None
    if size[0] * size[1] > _MOST_PIXELS:
        return None
    made = b""
    with contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(min(_DEADLINE_S, settings.deadlines(tool).total_s)):
            async with _one_at_a_time.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
                policy = await asyncio.to_thread(_policy, tool, user, settings)
                made = await _made(picture, most_bytes, policy)
    # The process may have been compromised: its output is used only if it is a picture as requested.
    again = identify(made) if len(made) <= most_bytes else None
    return made if again is not None and again.mime == kind.mime else None


def _policy(tool: str, user: User, settings: ExecutionSettings) -> Policy:
    tier = in_force(settings, (_PROGRAM,))
    found = readable(settings, beside=(), files=(_PROGRAM,))
    limits, uids = settings.limits(tool), uids_of(settings, tier)
    environment = framework_environment(os.environ, ())
    return Policy(
        read=found.read,
        list_only=found.list_only,
        names=found.names,
        homes=(settings.homes,),
        environment={**planned_environment(limits), **environment},
        limits=limits,
        uid=None if uids is None else uids.of(user.segment),
        namespaces=tier is Tier.NAMESPACE,
        hidden=settings.private_paths,
        guard=False,
        without=GUARD_ONLY if tier is Tier.GUARD else (),
    )


async def _made(picture: bytes, most_bytes: int, policy: Policy) -> bytes:
    descriptor, name = tempfile.mkstemp(prefix="toolcell-policy-")
    process: asyncio.subprocess.Process | None = None
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(policy.to_json(), file)
        launcher = ("-P", "-m", "sandbox.inside.exec_main", name, str(os.getpid()))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *launcher,
            *(sys.executable, "-I", str(_PROGRAM), str(most_bytes), str(_MOST_PIXELS)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=framework_environment(os.environ, ()),
            start_new_session=True,
        )
        _, made = await asyncio.gather(_written(process, picture), _read(process, most_bytes))
        return made
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        if process is not None:
            # The rest of the output is discarded: `wait` also waits for the end of the pipes.
            assert process.stdout is not None  # noqa: S101 - a pipe was asked for
            with anyio.CancelScope(shield=True):
                for end in (process.terminate, process.kill):
                    with contextlib.suppress(ProcessLookupError):
                        end()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_END_S):
                            while await process.stdout.read(1 << 16):
                                pass
                            await process.wait()
                            break


async def _written(process: asyncio.subprocess.Process, picture: bytes) -> None:
    assert process.stdin is not None  # noqa: S101 - a pipe was asked for
    with contextlib.suppress(ConnectionError):
        process.stdin.write(picture)
        await process.stdin.drain()
    process.stdin.close()


async def _read(process: asyncio.subprocess.Process, most_bytes: int) -> bytes:
    """Return a process's output; one byte above the bound shows that it is too long."""
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    made = b""
    while len(made) <= most_bytes and (piece := await process.stdout.read(most_bytes + 1 - len(made))):
        made += piece
    return made
