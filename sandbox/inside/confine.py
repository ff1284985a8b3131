"""Confine the calling process. The only file that knows the order of the layers.

A zygote, before it loads the author's file:

1. Descriptors first: accidentally inherited ones must not be available to any later step.
2. The environment: it has no prerequisites, and later layers do not read it.
3. The cgroup, while its folder is visible and writable. The OOM score, so that this process is killed
   before the host, while /proc is writable.
4. Namespaces before any file is opened for later use: a descriptor opened outside leads outside.
5. A session of its own, before seccomp turns setsid into a no-op: from here on every descendant
   carries this session id, so the host can find each of them.
6. Limits need /proc, which Landlock hides; files of it that a worker needs later are opened here too.
7. Privileges after limits, whose hard values root could still have raised. The user id after the
   bounding set, which needs a capability, and before the capabilities are dropped, one of which it
   needs. Then death with the parent, which a change of credentials would reset. Then no_new_privs,
   without which the kernel refuses Landlock and seccomp.
8. Landlock before seccomp, so that the filter decides on every later call. The worker's second domain
   is built here, before author code could influence it.
9. seccomp last: it denies calls that the layers before it needed.

Steps 3, 4 and the user id are for tiers that have them; in the others the policy names none.

A freshly forked worker adds what differs for each worker:

1. A process group of its own, before the filter freezes groups.
2. Death with its parent, before the filter freezes that.
3. Limits, read from the zygote's status file, which was opened before Landlock.
4. The second domain: the scratch folder is read-only, and signals stay within the call.
5. The second filter, then the home as working folder.
6. Once the host has it: the descriptor limit, which had to be larger to hand it over. With its first
   call: the limits of that call, if they are narrower.

The tool file is loaded between the two halves, so it can weaken the second half for its own workers.
The separation of users depends on the first half alone.

Source: sandbox notes; credentials(7), setsid(2), setpgid(2).
"""

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sandbox.errors import ConfinementError, in_words
from sandbox.inside.huge_pages import collapse, open_maps
from sandbox.layers import (
    cgroup,
    descriptors,
    environment,
    identity,
    landlock,
    mounts,
    namespaces,
    oom,
    privileges,
    rlimits,
    seccomp,
)
from sandbox.policy import Limits, Policy
from sandbox.syscalls import landlock_abi

__all__ = ["LAYERS", "WorkerLayers", "confine_zygote"]

LAYERS = (
    "descriptors",
    "environment",
    "cgroup",
    "namespaces",
    "session",
    "rlimits",
    "privileges",
    "identity",
    "death with the parent",
    "landlock",
    "seccomp",
)
_ALL = frozenset(LAYERS)
_TASKS = "/proc/self/task"

T = TypeVar("T")


# Each fork copies a table entry for each small page. Below this size, saving that is not worth the memory for
# a copy of the pages that the zygote shares with the forkserver.
_LARGE_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLayers:
    """Layers that a worker adds to the inherited ones, prepared before any author code was loaded.

    A descriptor or filter is None where its layer was left out.

    Attributes:
        limits: Resource limits of the worker.
        status: Descriptor of the zygote's status file.
        tasks: Descriptor of the folder of the zygote's threads.
        maps: Descriptor of the zygote's memory map, until `ease_forks`.
        pins: Descriptors that keep rules on files of /proc valid.
        narrowing: Descriptor of the second Landlock domain.
        filter: The second seccomp filter.
        home: Descriptor of the home, if there is one.
        folder: Working folder of a worker without a home.
        wanted: Names of the layers to put in place.
        renewable: Whether hard limits are left unset, for a host that could not raise them again.
    """

    limits: Limits
    status: int | None
    tasks: int | None
    maps: int | None
    pins: tuple[int, ...]
    narrowing: int | None
    filter: seccomp.Filter | None
    home: int | None
    folder: Path
    wanted: frozenset[str]
    renewable: bool

    def threads(self) -> int:
        """Count the threads of the zygote, in the zygote."""
        return len(os.listdir(_TASKS if self.tasks is None else self.tasks))

    def ease_forks(self) -> None:
        """Put the memory of a large zygote on huge pages, in the zygote, before it forks.

        Raises:
            OSError: It has been done before.
        """
        if self.status is None or self.maps is None:
            return
        if rlimits.resident_bytes(self.status) > _LARGE_BYTES:
            collapse(self.maps)
        else:
            os.close(self.maps)

    def apply(self, *, parent: int) -> None:
        """Put the worker's own layers in place.

        Call it in a process that `parent`, a zygote, has just forked; or in a zygote that becomes
        its only worker itself, with the zygote's own parent.

        Raises:
            ConfinementError: A layer could not be put in place; the process must end.
        """
        _take("session", self.wanted, _lead_group)
        _take("death with the parent", self.wanted, lambda: privileges.die_with_parent(parent))
        _take("rlimits", self.wanted, self._limit)
        _take("landlock", self.wanted, self._narrow)
        _take("seccomp", self.wanted, self._filter)
        _take("descriptors", _ALL, self._enter)

    def take_limits(self, limits: Limits) -> None:
        """Narrow this worker to the limits of one call, or to those of the pool after its handover.

        Raises:
            ConfinementError: A limit could not be set; the process must end.
        """
        renewable = self.renewable
        _take(
            "rlimits",
            self.wanted,
            lambda: rlimits.apply(rlimits.call_limits(limits, granted=self.limits, renewable=renewable)),
        )

    def renew_limits(self, limits: Limits, *, cpu_s: float, data_bytes: float) -> None:
        """Restart the counts of CPU time and memory for one more call.

        Args:
            limits: The limits of the call.
            cpu_s: Processor seconds that this process has used.
            data_bytes: Its private writable memory.

        Raises:
            ConfinementError: A limit could not be set; the process must end.
        """
        _take(
            "rlimits",
            self.wanted,
            lambda: rlimits.renew(0, limits, cpu_s=cpu_s, data_bytes=int(data_bytes)),
        )

    def _limit(self) -> None:
        if self.status is not None:
            used = rlimits.data_bytes(self.status)
            rlimits.apply(rlimits.worker_limits(self.limits, data=used, renewable=self.renewable))

    def _narrow(self) -> None:
        if self.narrowing is not None:
            landlock.apply(self.narrowing)

    def _filter(self) -> None:
        if self.filter is not None:
            self.filter.load()

    def _enter(self) -> None:
        if self.home is None:
            os.chdir(self.folder)
        else:
            os.fchdir(self.home)
        for descriptor in (self.home, self.status, self.tasks, *self.pins):
            if descriptor is not None:
                os.close(descriptor)


def confine_zygote(
    policy: Policy,
    *,
    home_fd: int | None,
    keep: Collection[int],
    parent: int,
    without: frozenset[str] = frozenset(),
    cgroups: Sequence[Path] = (),
    own_users: bool = False,
    forks: bool = True,
    hand_over: Callable[[int], None] = os.close,
) -> WorkerLayers:
    """Put every layer of a zygote in place; if one fails, the process must end.

    Args:
        policy: What the zygote and its workers may touch.
        home_fd: Descriptor of the policy's home folder, if and only if it names one.
        keep: Descriptors to leave open, beside `home_fd`.
        parent: Process id of the parent, with which this process is to die; see `die_with_parent`.
        without: Names from `LAYERS` to leave out: for tests and `selftest --without` only.
        cgroups: Folders of the control groups made for it.
        own_users: Whether this process is in a user namespace of its own, where its processes are counted.
        forks: Whether workers are to be forked from it; if not, it may read its own files in /proc.
        hand_over: Gives away the descriptor of the gate, if the policy names anything to reach.
            Afterwards this process must have no copy: its holder can open the gate.

    Raises:
        ConfinementError: A layer could not be put in place.
        ValueError: `without` names no layer, or `home_fd` does not go with the policy.
    """
    _check(policy, home_fd, without)
    wanted = _ALL - without
    excepted = {*keep} if home_fd is None else {*keep, home_fd}
    _take("descriptors", wanted, lambda: descriptors.apply(excepted))
    _take("environment", wanted, lambda: environment.apply(policy.environment))
    _take("cgroup", wanted, lambda: cgroup.apply(cgroups))
    _take("rlimits", _ALL, lambda: oom.offer(oom.CONFINED))
    if policy.namespaces and "namespaces" in wanted:
        home_fd = _take("namespaces", wanted, lambda: _leave(policy, home_fd))
    _take("session", wanted, os.setsid)
    layers = _worker_layers(policy, home_fd, wanted)
    _take("rlimits", wanted, lambda: _limit_zygote(policy, layers.status, own_users=own_users))
    _take("privileges", wanted, privileges.close_bounds)
    if policy.uid is not None:
        uid = policy.uid
        _take("identity", wanted, lambda: identity.apply(uid, policy.gid))
    _take("privileges", wanted, privileges.drop_capabilities)
    _take("privileges", wanted, privileges.adopt_orphans)
    _take("death with the parent", wanted, lambda: privileges.die_with_parent(parent))
    _take("privileges", _ALL, privileges.refuse_new_privileges)
    os.umask(policy.umask)
    _take("session", _ALL, lambda: os.chdir(layers.folder))
    own = not (forks or policy.namespaces)
    _take("landlock", wanted, lambda: landlock.apply(landlock.zygote_ruleset(policy, home=home_fd, own=own)))
    _take("seccomp", wanted, lambda: _filter_zygote(policy, wanted, hand_over))
    return layers


def _check(policy: Policy, home_fd: int | None, without: frozenset[str]) -> None:
    unknown = without - _ALL
    if unknown:
        raise ValueError(f"no layer is called {', '.join(sorted(unknown))}; there are {', '.join(LAYERS)}")
    if (policy.home is None) != (home_fd is None):
        raise ValueError(f"the policy's home is {policy.home}, but its descriptor is {home_fd}")


def _worker_layers(policy: Policy, home_fd: int | None, wanted: frozenset[str]) -> WorkerLayers:
    return WorkerLayers(
        limits=policy.limits,
        status=_take("rlimits", wanted, rlimits.open_status),
        maps=_take("rlimits", wanted, open_maps),
        tasks=_take("landlock", wanted, lambda: os.open(_TASKS, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)),
        pins=_take("landlock", wanted, landlock.pin) or (),
        narrowing=_take("landlock", wanted, lambda: landlock.narrowing_ruleset(policy, home=home_fd)),
        filter=_take("seccomp", wanted, lambda: seccomp.worker_filter(seccomp.supported_architecture())),
        home=home_fd,
        folder=policy.scratch or Path("/"),
        wanted=wanted,
        renewable=policy.renewable,
    )


def _leave(policy: Policy, home_fd: int | None) -> int | None:
    namespaces.apply()
    return mounts.apply(policy, home=home_fd)


def _limit_zygote(policy: Policy, status: int | None, *, own_users: bool) -> None:
    if status is not None:
        data, counted = rlimits.data_bytes(status), own_users or policy.has_own_id
        rlimits.apply(rlimits.zygote_limits(policy.limits, data=data, counts_processes=counted))


def _filter_zygote(policy: Policy, wanted: frozenset[str], hand_over: Callable[[int], None]) -> None:
    scoped = "landlock" in wanted and landlock_abi() >= landlock.SIGNAL_SCOPE_ABI
    architecture = seccomp.supported_architecture()
    is_viewed = policy.namespaces and "namespaces" in wanted
    program = seccomp.main_filter(
        architecture,
        signals_are_scoped=scoped,
        gated=policy.has_network,
        sockets=policy.sockets,
        times=is_viewed or (policy.has_own_id and "identity" in wanted),
        modes=is_viewed and policy.packages is not None,
    )
    if policy.is_gated:
        hand_over(_load_asking(program))
    else:
        program.load()


def _load_asking(program: seccomp.Filter) -> int:
    try:
        return program.load_asking()
    except OSError as error:
        why = f"`runner doctor` says why: {error.strerror}"
        message = f"tools cannot be given links, a network or sockets here, {why}"
        raise OSError(error.errno, message) from error


def _lead_group() -> None:
    # A zygote that is its only worker already leads its session, and so its group.
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)


def _take(layer: str, wanted: frozenset[str], act: Callable[[], T]) -> T | None:
    if layer not in wanted:
        return None
    try:
        return act()
    except OSError as error:
        raise ConfinementError(layer, in_words(error)) from error
