"""The world of one attempt: an attacker's home, and objects around it that it must not reach.

Source: user_namespaces(7) and flock(2) for the host's inspection; sandbox notes on others' files.
"""

import contextlib
import fcntl
import glob
import os
import random
import secrets
import shutil
import signal
import stat
import string
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, cycle
from pathlib import Path

from sandbox.policy import MIB, Limits
from sandbox.selftest import kernel_objects, planted
from sandbox.selftest.attempt import WORD_DIGITS, Surroundings
from sandbox.selftest.calls import call

__all__ = ["LIMITS", "Ground", "World", "ground", "world"]

LIMITS = Limits(
    memory_bytes=32 * MIB,
    cpu_s=1,
    file_bytes=1 * MIB,
    open_files=64,
    frame_bytes=4 * MIB,
    output_bytes=MIB // 4,
    processes=40,
    total_memory_bytes=128 * MIB,
    call_memory_bytes=128 * MIB,
    call_processes=40,
    home_bytes=8 * MIB,
)
"""Low, so that exceeding them costs this machine little."""

_MNT_DETACH = 2
_END_S = 5.0

Facts = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """The folders of all worlds of one run."""

    homes: Path  # The folder of all homes; no worker may read it.
    state: Path  # Folder of a runner's keys; no worker may read it.
    shared: Path  # Folder that every worker may read.
    word: str  # The word planted in the ancestor of all workers.
    word_file: Path  # A file that contains this word, opened by that process.
    ids: Iterator[int] | None = None  # User ids to assign, one after the other; None if all users have ours.

    def give(self, *folders: Path) -> int | None:
        """Change the owner of folders and their content to the next user id, if there are any; return it."""
        if self.ids is None:
            return None
        uid = next(self.ids)
        for each in chain.from_iterable((top, *top.rglob("*")) for top in folders):
            os.chown(each, uid, uid, follow_symlinks=False)
        return uid


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The surroundings of one attempt, inspected by the host afterwards."""

    place: Surroundings  # The paths and numbers given to the act.
    canary: str  # The planted word.
    ground: Ground  # The folders of all worlds.
    path: Path  # The home, which the act may write.
    fd: int  # Descriptor of it, taken before the act.
    other: Path  # The home of another user.
    before: dict[str, Facts]  # Files outside the home before the act.
    stranger: planted.Victim  # A process of a stranger.
    listening: list[int]  # Descriptors that become readable once a socket is reached.
    terminal: int  # Descriptor of the far end of a terminal.
    uid: int  # User id that may write the home.
    zygote: int = 0  # Process with the namespaces of the act, if they are not the host's; else 0.

    def leftovers(self) -> frozenset[kernel_objects.KernelObject]:
        """Return the kernel objects under the number `fresh`, as seen from the process of the act."""
        if not self.zygote and self.uid == os.geteuid():
            return kernel_objects.left_here(self.place.fresh)
        return kernel_objects.left_at(self.zygote, self.uid, self.place.fresh)

    def changed(self) -> bool:
        """Return whether anything outside the home has changed."""
        return _outside(self.other, Path(self.place.state), Path(self.place.readable)) != self.before

    def outlived(self) -> bool:
        """Return whether a process that took the lock of the home is alive."""
        try:
            descriptor = os.open("pulse", os.O_RDWR, dir_fd=self.fd)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def end_survivors(self) -> None:
        """Kill the processes left behind by the act."""
        deadline = time.monotonic() + _END_S
        while self.outlived() and time.monotonic() < deadline:
            for link in glob.iglob("/proc/[0-9]*/fd/*"):
                with contextlib.suppress(OSError):
                    facts = Path(link.replace("/fd/", "/fdinfo/"))
                    # Only lock holders: a child of ours may have the file open too, before its exec.
                    if os.readlink(link) == str(self.path / "pulse") and "lock:" in facts.read_text():
                        os.kill(int(link.split("/")[2]), signal.SIGKILL)


@contextmanager
def ground(ids: range | None = None) -> Iterator[Ground]:
    """Make a scratch folder for the worlds of one run, and remove it; without ids all users have ours."""
    with tempfile.TemporaryDirectory(prefix="toolcell-selftest-", ignore_cleanup_errors=True) as name:
        top = Path(name).resolve()
        made = {part: top / part for part in ("homes", "state", "shared")}
        for folder in made.values():
            folder.mkdir(mode=0o700)
        word, file = _word(), made["state"] / "word"
        file.write_text(word)
        if ids is not None:
            for folder in (top, made["homes"], made["shared"]):
                folder.chmod(0o755)
        yield Ground(**made, word=word, word_file=file, ids=cycle(reversed(ids)) if ids else None)


@contextmanager
def world(ground: Ground) -> Iterator[World]:
    """Make the world of one attempt, and remove it on exit."""
    canary, number = _word(), secrets.token_hex(6)
    home, other = ground.homes / f"mine-{number}", ground.homes / f"other-{number}"
    state, shared = ground.state / number, ground.shared / number
    hidden = ground.homes / f"hidden-{canary}"
    with contextlib.ExitStack() as stack:
        for folder in (home, other, state, shared, hidden):
            folder.mkdir(mode=0o700)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stack.callback(_unmount, folder)
        fd = os.open(home, os.O_PATH | os.O_DIRECTORY)
        stack.callback(os.close, fd)
        (home / "own.txt").write_text("own")
        (shared / "readable.txt").write_text("readable")
        _label(shared / "readable.txt", "readable")
        _furnish(other, canary)
        _furnish(state, canary)
        if ground.ids is not None:
            shared.chmod(0o755)
        uid, _ = ground.give(home), ground.give(other)
        # Positive, and unlikely to be used by another program.
        fresh, planted_number = random.SystemRandom().sample(range(0x7000_0000, 0x7FFF_FFFF), 2)
        stack.callback(kernel_objects.remove, fresh, planted_number)
        stranger = stack.enter_context(planted.victim(canary, other))
        listening, addresses = stack.enter_context(planted.sockets(other, canary))
        far_end, near_end = os.openpty()
        for end in (far_end, near_end):
            stack.callback(os.close, end)
            os.set_blocking(end, False)
        place = Surroundings(
            home=str(home),
            other=str(other),
            homes=str(ground.homes),
            state=str(state),
            readable=str(shared / "readable.txt"),
            victim=stranger.pid,
            address=stranger.address,
            descriptor=stranger.descriptor,
            terminal=os.ttyname(near_end),
            fresh=fresh,
            **addresses,  # type: ignore[arg-type]
            **kernel_objects.planted(planted_number, canary),  # type: ignore[arg-type]
        )
        made = World(
            place=place,
            canary=canary,
            ground=ground,
            path=home,
            fd=fd,
            other=other,
            before=_outside(other, state, shared / "readable.txt"),
            stranger=stranger,
            listening=listening,
            terminal=far_end,
            uid=os.geteuid() if uid is None else uid,
        )
        stack.callback(made.end_survivors)
        yield made


def _furnish(folder: Path, word: str) -> None:
    """Fill a folder with one object of each kind that an attacker could target."""
    (folder / "file.txt").write_text(f"secret {word}")
    (folder / "key").write_text(word)
    program = folder / "prog"
    program.write_text(f"#!/bin/sh\necho {word}\n")
    program.chmod(0o700)
    (folder / "empty").mkdir(exist_ok=True)
    (folder / f"name-{word}").touch()
    with contextlib.suppress(FileExistsError):
        (folder / "link").symlink_to(f"/nowhere/{word}")
    _label(folder / "file.txt", word)


def _label(path: Path, word: str) -> None:
    """Set an extended attribute. If the file system has none, attempts that need it are not provable."""
    with contextlib.suppress(OSError):
        os.setxattr(path, "user.word", word.encode())


def _outside(*tops: Path) -> dict[str, Facts]:
    paths = [each for top in tops for each in (top, *sorted(top.rglob("*")))]
    return {str(path): _facts(path) for path in paths}


def _facts(path: Path) -> Facts:
    facts = path.lstat()
    content: list[object] = []
    if stat.S_ISREG(facts.st_mode):
        content = [
            path.read_bytes(),
            *((name, os.getxattr(path, name)) for name in sorted(os.listxattr(path))),
        ]
    # The change time (ctime) reveals all other changes, such as a flag.
    times = (facts.st_mtime_ns, facts.st_ctime_ns)
    identity = (facts.st_dev, facts.st_mode, facts.st_uid, facts.st_gid, facts.st_nlink)
    return *identity, *times, content


def _unmount(top: Path) -> None:
    """Unmount what an attempt has mounted below `top`."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in reversed(mounts):
        if mount.startswith(f"{top}/"):
            call("umount2", mount, _MNT_DETACH)


def _word() -> str:
    return "".join(secrets.choice(string.digits) for _ in range(WORD_DIGITS))
