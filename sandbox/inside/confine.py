"""Confine the calling process. The only file that knows the order of the layers.

A zygote, before it loads the author's file:

1. Descriptors first: what was inherited by accident must not be there for anything that follows.
2. The environment: it needs nothing, and later layers read none of it.
3. A session of its own, before seccomp makes setsid a word without effect: from here on every
   descendant carries this session id, so the host can find each of them.
4. Limits need /proc, which Landlock hides; so does what a worker will need of it later.
5. Privileges after limits, whose hard values root could still have raised; then death with the
   parent, which a change of credentials would reset; then no_new_privs, without which the
   kernel refuses Landlock and seccomp.
6. Landlock before seccomp, so that the filter has the last word on every call. The worker's
   second domain is built here, before the author's code could have a say in it.
7. seccomp last: it denies what the layers before it needed.

A worker, just forked, adds what can be set once for each call only:

1. A process group of its own, before the filter freezes groups.
2. Death with its parent, before the filter freezes that.
3. Limits, read from the zygote's status file, which was opened before Landlock.
4. The second domain: the scratch folder is read-only, and signals stay within the call.
5. The second filter, then the home as working folder.

The author's file is loaded between the two, so it can spoil the second half for its own workers.
Nothing that keeps users apart depends on the second half: that is all in the first.

Source: sandbox notes; credentials(7), setsid(2), setpgid(2).
"""

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sandbox.errors import ConfinementError
from sandbox.layers import descriptors, environment, landlock, privileges, rlimits, seccomp
from sandbox.policy import Limits, Policy
from sandbox.syscalls import landlock_abi

__all__ = ["LAYERS", "WorkerLayers", "confine_zygote"]

LAYERS = (
    "descriptors",
    "environment",
    "session",
    "rlimits",
    "privileges",
    "death with the parent",
    "landlock",
    "seccomp",
)
_ALL = frozenset(LAYERS)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLayers:
    """What a worker adds to what it inherits, prepared before any code of the author was loaded.

    A descriptor or filter is None where its layer was left out.

    Attributes:
        limits: Resource limits of the worker.
        status: Descriptor of the zygote's status file.
        pins: Descriptors that keep granted files of /proc granted.
        narrowing: Descriptor of the second Landlock domain.
        filter: The second seccomp filter.
        home: Descriptor of the home, if there is one.
        folder: Working folder of a worker without a home.
        wanted: Names of the layers to put in place.
    """

    limits: Limits
    status: int | None
    pins: tuple[int, ...]
    narrowing: int | None
    filter: seccomp.Filter | None
    home: int | None
    folder: Path
    wanted: frozenset[str]

    def apply(self, *, parent: int) -> None:
        """Put the worker's own layers in place.

        Call it in a process that `parent`, a zygote, has just forked; or in a zygote that is to be
        the one worker itself, with the zygote's own parent.

        Raises:
            ConfinementError: A layer could not be put in place; the process must end.
        """
        _take("session", self.wanted, _lead_group)
        _take("death with the parent", self.wanted, lambda: privileges.die_with_parent(parent))
        _take("rlimits", self.wanted, self._limit)
        _take("landlock", self.wanted, self._narrow)
        _take("seccomp", self.wanted, self._filter)
        _take("descriptors", _ALL, self._enter)

    def _limit(self) -> None:
        if self.status is not None:
            used = rlimits.data_bytes(self.status)
            rlimits.apply(rlimits.worker_limits(self.limits, data=used))

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
        for descriptor in (self.home, self.status, *self.pins):
            if descriptor is not None:
                os.close(descriptor)


def confine_zygote(
    policy: Policy,
    *,
    home_fd: int | None,
    keep: Collection[int],
    parent: int,
    without: frozenset[str] = frozenset(),
) -> WorkerLayers:
    """Put every layer of a zygote in place; all of them, or the process must end.

    Args:
        policy: What the zygote and its workers may touch.
        home_fd: Descriptor of the policy's home folder, exactly when it names one.
        keep: Descriptors to leave open, beside `home_fd`.
        parent: Process id of the parent, with which this process shall die.
        without: Names from `LAYERS` to leave out: for tests and `selftest --without` only.

    Raises:
        ConfinementError: A layer could not be put in place.
        ValueError: `without` names no layer, or `home_fd` does not go with the policy.
    """
    _check(policy, home_fd, without)
    wanted = _ALL - without
    kept = {*keep} if home_fd is None else {*keep, home_fd}
    _take("descriptors", wanted, lambda: descriptors.apply(kept))
    _take("environment", wanted, lambda: environment.apply(policy.environment))
    _take("session", wanted, os.setsid)
    layers = _worker_layers(policy, home_fd, wanted)
    _take("rlimits", wanted, lambda: _limit_zygote(policy.limits, layers.status))
    _take("privileges", wanted, privileges.drop_capabilities)
    _take("privileges", wanted, privileges.adopt_orphans)
    _take("death with the parent", wanted, lambda: privileges.die_with_parent(parent))
    _take("privileges", _ALL, privileges.refuse_new_privileges)
    os.umask(0o077)
    _take("session", _ALL, lambda: os.chdir(layers.folder))
    _take("landlock", wanted, lambda: landlock.apply(landlock.zygote_ruleset(policy, home=home_fd)))
    _take("seccomp", wanted, lambda: _main_filter(wanted).load())
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
        pins=_take("landlock", wanted, landlock.pin) or (),
        narrowing=_take("landlock", wanted, lambda: landlock.narrowing_ruleset(home=home_fd)),
        filter=_take("seccomp", wanted, lambda: seccomp.worker_filter(seccomp.supported_architecture())),
        home=home_fd,
        folder=policy.scratch or Path("/"),
        wanted=wanted,
    )


def _limit_zygote(limits: Limits, status: int | None) -> None:
    if status is not None:
        rlimits.apply(rlimits.zygote_limits(limits, data=rlimits.data_bytes(status)))


def _main_filter(wanted: frozenset[str]) -> seccomp.Filter:
    scoped = "landlock" in wanted and landlock_abi() >= landlock.SIGNAL_SCOPE_ABI
    return seccomp.main_filter(seccomp.supported_architecture(), signals_are_scoped=scoped)


def _lead_group() -> None:
    # A zygote that is the one worker itself leads its session, and so its group, already.
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)


def _take(layer: str, wanted: frozenset[str], act: Callable[[], T]) -> T | None:
    if layer not in wanted:
        return None
    try:
        return act()
    except OSError as error:
        raise ConfinementError(layer, str(error)) from error
