"""Layer `landlock`: rights to read, write, list and execute files.

Two domains, each narrower than the one before: the zygote's, and one that denies a worker writes to the
scratch folder and signals to its siblings. Domains only intersect.

Not covered by Landlock, and left to seccomp: chmod, utime, extended attributes, ioctl on files,
sockets. Existence and metadata of an unreadable file stay visible to stat.

Below ABI 3 the kernel would let any file be truncated, so this layer fails instead.

Source: landlock(7), linux/landlock.h; requirements S1-46 to S1-49, S1-55 to S1-57 and S1-101.
"""

import enum
import errno
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sandbox.layers import cgroup, proc
from sandbox.layers.mounts import SHARED_MEMORY
from sandbox.policy import Policy
from sandbox.syscalls import (
    AT_FDCWD,
    Resolve,
    landlock_abi,
    landlock_add_path_rule,
    landlock_create_ruleset,
    landlock_restrict_self,
    openat2,
)

__all__ = [
    "HOME",
    "MINIMUM_ABI",
    "SIGNAL_SCOPE_ABI",
    "AccessRight",
    "LandlockRule",
    "apply",
    "handled",
    "narrowing_ruleset",
    "pin",
    "read_access",
    "zygote_rules",
    "zygote_ruleset",
]

MINIMUM_ABI = 3
SIGNAL_SCOPE_ABI = 6
_NET_ABI = 4
_IOCTL_ABI = 5
_REFER_ABI = 2

_TCP_BIND_AND_CONNECT = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


class AccessRight(enum.IntFlag):
    """Rights on files, as the kernel numbers them."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14
    IOCTL_DEV = 1 << 15


_CHANGE = (
    AccessRight.WRITE_FILE
    | AccessRight.REMOVE_DIR
    | AccessRight.REMOVE_FILE
    | AccessRight.MAKE_DIR
    | AccessRight.MAKE_REG
    | AccessRight.MAKE_SYM
    | AccessRight.REFER
    | AccessRight.TRUNCATE
)
_READ = AccessRight.READ_FILE | AccessRight.READ_DIR
_ALL = AccessRight((1 << 16) - 1)
# Rights that a rule on a non-directory may carry; the kernel returns EINVAL for others.
_ON_FILES = (
    AccessRight.EXECUTE
    | AccessRight.WRITE_FILE
    | AccessRight.READ_FILE
    | AccessRight.TRUNCATE
    | AccessRight.IOCTL_DEV
)
# Rights handled by the second domain of a worker, so denied unless granted.
_NARROWED = (
    _CHANGE | AccessRight.MAKE_CHAR | AccessRight.MAKE_SOCK | AccessRight.MAKE_FIFO | AccessRight.MAKE_BLOCK
)

# Written files cannot be executed, except packages. FIFOs, sockets and devices for others are denied.
HOME = _READ | _CHANGE
# Only names of semaphores and of shared memory.
_SHARED_MEMORY = (
    _READ | AccessRight.WRITE_FILE | AccessRight.REMOVE_FILE | AccessRight.MAKE_REG | AccessRight.TRUNCATE
)
# With sockets, which only processes of this zygote can see; see `sandbox.network.own_sockets`.
_HOME_WITH_SOCKETS = HOME | AccessRight.MAKE_SOCK

# ELOOP: a symbolic link in the path.
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG, errno.ESTALE)

_SINKS = ("/dev/null", "/dev/zero", "/dev/full")
_SOURCES = ("/dev/random", "/dev/urandom")
# The C library and allocators read processor counts and page sizes here.
_SYS_FILES = (
    "/sys/devices/system/cpu/online",
    "/sys/devices/system/cpu/possible",
    "/sys/kernel/mm/transparent_hugepage/enabled",
)


@dataclass(frozen=True, slots=True)
class LandlockRule:
    """Rights on one file, or on one folder and everything beneath it; no path component is a link."""

    path: Path
    access: AccessRight


def zygote_rules(policy: Policy) -> list[LandlockRule]:
    """Return the path rules of a zygote with this policy; home and scratch are granted by descriptor."""
    read = read_access(policy)
    rules = [LandlockRule(path, read) for path in policy.read]
    if policy.programs:
        rules += [LandlockRule(path, AccessRight.EXECUTE) for path in policy.run]
    rules += [LandlockRule(path, AccessRight.READ_DIR) for path in policy.list_only]
    rules += [LandlockRule(path, read) for path in policy.lent_read]
    rules += _lent(policy)
    rules += [
        LandlockRule(Path(name), AccessRight.READ_FILE)
        for name in (*proc.MACHINE_FILES, *_SYS_FILES, *_SOURCES)
    ]
    rules += _devices(may_write=policy.home is not None)
    if policy.namespaces and "namespaces" not in policy.without:
        rules.append(LandlockRule(Path("/proc"), _READ))
    return rules + _shared_memory(policy)


def read_access(policy: Policy) -> AccessRight:
    """Return the access rights of readable paths."""
    return _READ | AccessRight.EXECUTE if policy.programs and not policy.run else _READ


def handled(abi: int) -> AccessRight:
    """Return the rights that a kernel of this ABI supports."""
    known = _ALL
    if abi < _IOCTL_ABI:
        known &= ~AccessRight.IOCTL_DEV
    if abi < MINIMUM_ABI:
        known &= ~AccessRight.TRUNCATE
    if abi < _REFER_ABI:
        known &= ~AccessRight.REFER
    return known


def zygote_ruleset(policy: Policy, *, home: int | None, own: bool = False) -> int:
    """Build the domain of a zygote and return its descriptor.

    Args:
        policy: What may be touched.
        home: Descriptor of the home folder. A path could be exchanged between check and use.
        own: Whether this process may read its own folder in a shared /proc. The descriptor that keeps
            that rule valid stays open until exec.

    Raises:
        OSError: The kernel lacks Landlock, or its ABI is too old for sockets, or a path does not exist.
    """
    abi = _usable_abi()
    ruleset = landlock_create_ruleset(
        filesystem=handled(abi),
        network=_TCP_BIND_AND_CONNECT if abi >= _NET_ABI else 0,
        scoped=_scoped(abi),
        abi=abi,
    )
    _grant(ruleset, zygote_rules(policy), handled(abi))
    _grant(
        ruleset, [LandlockRule(file, AccessRight.READ_FILE) for file in cgroup.limit_files()], handled(abi)
    )
    if own:
        folder = os.open(proc.own_folder(), os.O_PATH | os.O_CLOEXEC)
        landlock_add_path_rule(ruleset, parent=folder, access=_READ & handled(abi))
    if policy.sockets and abi < _NET_ABI:
        # Older ABIs cannot deny bind on a disconnected socket of the host, which seccomp then lets pass.
        raise OSError(errno.ENOSYS, f"sockets need Landlock ABI {_NET_ABI}, this kernel has {abi}")
    if home is not None:
        landlock_add_path_rule(ruleset, parent=home, access=_home(policy) & handled(abi))
    if policy.scratch is not None:
        # Not through a link: a process that can create one there would choose the writable folder.
        scratch = os.open(policy.scratch, os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
        landlock_add_path_rule(ruleset, parent=scratch, access=HOME & handled(abi))
        os.close(scratch)
    return ruleset


def narrowing_ruleset(policy: Policy, *, home: int | None) -> int:
    """Build the domain a worker adds: only the home and folders lent to it are writable.

    Its scopes prevent signals to the zygote and to workers of other calls, which share all previous
    domains.
    """
    abi = _usable_abi()
    known = _NARROWED & handled(abi)
    ruleset = landlock_create_ruleset(filesystem=known, network=0, scoped=_scoped(abi), abi=abi)
    rules = [*_devices(may_write=home is not None), *_shared_memory(policy), *_lent(policy)]
    _grant(ruleset, rules, known)
    if home is not None:
        landlock_add_path_rule(ruleset, parent=home, access=_home(policy) & known)
    return ruleset


def apply(ruleset: int) -> None:
    """Apply the ruleset to this process irrevocably, and close its descriptor."""
    landlock_restrict_self(ruleset)
    os.close(ruleset)


def pin() -> tuple[int, ...]:
    """Hold the granted files of /proc open with O_PATH for as long as the zygote lives.

    The kernel makes a new inode for such a file once it has evicted the old one, to which a rule
    refers. An open file keeps its inode.
    """
    opened = (_open(Path(name)) for name in proc.MACHINE_FILES)
    return tuple(descriptor for descriptor in opened if descriptor is not None)


def _home(policy: Policy) -> AccessRight:
    return _HOME_WITH_SOCKETS if policy.sockets else HOME


def _devices(*, may_write: bool) -> list[LandlockRule]:
    """Return the rules of device nodes; devices that store nothing are writable even to read-only workers."""
    writable = (*_SINKS, *_SOURCES) if may_write else _SINKS
    return [LandlockRule(Path(name), AccessRight.READ_FILE | AccessRight.WRITE_FILE) for name in writable]


def _shared_memory(policy: Policy) -> list[LandlockRule]:
    """Return the rule of /dev/shm if it is the zygote's own; the machine's is never granted."""
    own = policy.shared_memory_bytes and policy.namespaces and "namespaces" not in policy.without
    return [LandlockRule(SHARED_MEMORY, _SHARED_MEMORY)] if own else []


def _lent(policy: Policy) -> list[LandlockRule]:
    """Return the rules of writable paths other than the home: lent ones, and fetched packages."""
    fetched = () if policy.packages is None else (policy.packages,)
    return [
        *(LandlockRule(path, HOME) for path in policy.lent_write),
        *(LandlockRule(path, HOME | read_access(policy)) for path in fetched),
    ]


def _usable_abi() -> int:
    abi = landlock_abi()
    if abi < MINIMUM_ABI:
        raise OSError(
            errno.ENOSYS,
            f"this kernel offers {f'Landlock ABI {abi}' if abi else 'no Landlock'}, and ABI {MINIMUM_ABI} is "
            "needed (Linux 6.2 or newer, with landlock among its security modules)",
        )
    return abi


def _scoped(abi: int) -> int:
    return _ABSTRACT_SOCKETS_AND_SIGNALS if abi >= SIGNAL_SCOPE_ABI else 0


def _grant(ruleset: int, rules: Iterable[LandlockRule], known: AccessRight) -> None:
    for rule in rules:
        descriptor = _open(rule.path)
        # A missing path cannot be granted; if it appears later, it stays denied.
        if descriptor is None:
            continue
        _grant_open(ruleset, descriptor, rule.access & known)


def _grant_open(ruleset: int, descriptor: int, access: AccessRight) -> None:
    """Grant rights on a descriptor's file, as far as its file type allows; close it."""
    try:
        granted = access & (_ALL if stat.S_ISDIR(os.fstat(descriptor).st_mode) else _ON_FILES)
        # The kernel rejects a rule without rights.
        if granted:
            landlock_add_path_rule(ruleset, parent=descriptor, access=granted)
    finally:
        os.close(descriptor)


def _open(path: Path) -> int | None:
    """Open a path to be granted with O_PATH; None if it does not exist, or a component is a link.

    Nothing is granted through a link: its owner chooses the target, and may change it after a check.
    """
    try:
        return openat2(str(path), os.O_PATH | os.O_CLOEXEC, directory=AT_FDCWD, resolve=Resolve.NO_SYMLINKS)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise
