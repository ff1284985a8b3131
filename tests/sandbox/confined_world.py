"""A worker of a confined zygote that runs a function, and the folders that lie around it."""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forked import READ, Function, Report, answer, fork, received

from sandbox.inside.confine import confine_zygote
from sandbox.policy import Limits, Policy
from sandbox.syscalls import PR_SET_DUMPABLE, prctl

__all__ = ["Confined", "World", "make_world"]


class Confined:
    """Run a function in a worker of a confined zygote."""

    def __call__(
        self,
        policy: Policy,
        function: Function,
        *,
        without: frozenset[str] = frozenset(),
        uid: int | None = None,
        as_zygote: bool = False,
    ) -> Report:
        parent = os.getpid()
        read, write = os.pipe()
        pid = fork()
        if pid == 0:
            os.close(read)
            answer(write, lambda: self._work(policy, function, write, parent, without, uid, as_zygote), noop)
        os.close(write)
        try:
            return received(read, pid)
        finally:
            os.close(read)

    def _work(
        self,
        policy: Policy,
        function: Function,
        write: int,
        parent: int,
        without: frozenset[str],
        uid: int | None,
        as_zygote: bool,
    ) -> Any:
        home = os.open(policy.home, os.O_PATH | os.O_DIRECTORY) if policy.home else None
        if uid is not None and os.getuid() == 0:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            # As after an exec: until then /proc belongs to who this process was.
            prctl(PR_SET_DUMPABLE, 1)
        open_fds = {0, 1, 2, write}
        layers = confine_zygote(policy, home_fd=home, keep=open_fds, parent=parent, without=without)
        if as_zygote:
            return function()
        zygote = os.getpid()
        worker = os.fork()
        if worker == 0:
            answer(write, function, lambda: layers.apply(parent=zygote))
        status = os.waitpid(worker, 0)[1]
        if os.WIFSIGNALED(status):
            # The same signal tells the test; a core dump is switched off.
            os.write(write, json.dumps({"signal": os.WTERMSIG(status)}).encode() + b"\n")
        os._exit(0)


def noop() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class World:
    """Two homes, a scratch folder, and a folder that belongs to no user."""

    home: Path
    other: Path
    scratch: Path
    outside: Path
    policy: Policy

    def narrowed(self, **changes: Any) -> Policy:
        """Return the policy with some values exchanged."""
        return replace(self.policy, **changes)


def make_world(top: Path) -> World:
    """Make the folders of a world, with a file in each."""
    folders = [top / name for name in ("home", "other", "scratch", "outside")]
    for folder in folders:
        folder.mkdir(mode=0o700)
        (folder / "file.txt").write_text(folder.name)
    home, other, scratch, outside = folders
    policy = Policy(
        home=home,
        scratch=scratch,
        read=READ,
        environment={"PATH": "/usr/bin:/bin", "HOME": str(home), "TMPDIR": str(home), "LANG": "C.UTF-8"},
        limits=Limits(open_files=256),
    )
    return World(home, other, scratch, outside, policy)
