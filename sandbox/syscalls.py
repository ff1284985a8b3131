"""System calls that Python does not wrap, typed, through ctypes and the C library only.

Not included: calls that Python offers itself (`os.pidfd_open`, `signal.pidfd_send_signal`, `resource`).
Every function raises OSError with the kernel's error number and the name of the call.

Source: landlock(7), landlock_create_ruleset(2), landlock_add_rule(2), landlock_restrict_self(2),
prctl(2), seccomp(2), openat2(2), rename(2), statx(2), close_range(2), capset(2), unshare(2), setns(2),
mount(2), mount_setattr(2), open_tree(2), move_mount(2), madvise(2), sigaction(2), clearenv(3).
"""

import ctypes
import enum
import errno
import os
import signal
import struct
from collections.abc import Mapping

__all__ = [
    "AT_FDCWD",
    "CLONE_NEWIPC",
    "CLONE_NEWNET",
    "CLONE_NEWNS",
    "CLONE_NEWPID",
    "CLONE_NEWUSER",
    "CLONE_NEWUTS",
    "MADV_COLLAPSE",
    "MS_BIND",
    "MS_NODEV",
    "MS_NOEXEC",
    "MS_NOSUID",
    "MS_PRIVATE",
    "MS_REC",
    "PR_CAPBSET_DROP",
    "PR_CAP_AMBIENT",
    "PR_CAP_AMBIENT_CLEAR_ALL",
    "PR_FUTEX_HASH",
    "PR_SET_CHILD_SUBREAPER",
    "PR_SET_DUMPABLE",
    "PR_SET_NO_NEW_PRIVS",
    "PR_SET_PDEATHSIG",
    "PR_SET_PTRACER",
    "PR_SET_SECUREBITS",
    "MountAttribute",
    "Resolve",
    "birth_ns",
    "clear_environment",
    "close_range",
    "drop_capability_sets",
    "ignore_stops_of_children",
    "landlock_abi",
    "landlock_add_path_rule",
    "landlock_create_ruleset",
    "landlock_restrict_self",
    "madvise",
    "mount",
    "mount_setattr",
    "move_mount",
    "open_tree",
    "openat2",
    "prctl",
    "rename_noreplace",
    "seccomp_set_filter",
    "seccomp_set_listening_filter",
    "setfsids",
    "setns",
    "unshare",
]

MADV_COLLAPSE = 25
_SA_NOCLDSTOP = 1

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x4_0000

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS = 28
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
PR_FUTEX_HASH = 78
PR_SET_PTRACER = 0x59616D61

_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_SECCOMP_SET_MODE_FILTER = 1
# A signal must not interrupt a waiting requester: it would repeat a request that was already answered.
_SECCOMP_NEW_LISTENER_WAIT_KILLABLE = 0x08 | 0x20
_CAPABILITY_VERSION_3 = 0x20080522

# Equal on every architecture: all are newer than the common numbering that began with 424.
_NR_OPEN_TREE = 428
_NR_MOVE_MOUNT = 429
_NR_CLOSE_RANGE = 436
_NR_OPENAT2 = 437
_NR_MOUNT_SETATTR = 442
_NR_LANDLOCK_CREATE_RULESET = 444
_NR_LANDLOCK_ADD_RULE = 445
_NR_LANDLOCK_RESTRICT_SELF = 446

# Older calls, with a different number on each architecture.
_NR_RENAMEAT2 = {"x86_64": 316, "aarch64": 276}
_NR_STATX = {"x86_64": 332, "aarch64": 291}

_RENAME_NOREPLACE = 1
_AT_EMPTY_PATH = 0x1000
_STATX_BTIME = 0x800
_STATX_BYTES, _BTIME_AT = 256, 80

AT_FDCWD = -100
"""For openat2(2) and similar calls: relative paths begin at the working folder."""
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH, _MOVE_MOUNT_T_EMPTY_PATH = 0x04, 0x40

_LANDLOCK_CREATE_RULESET_VERSION = 1
_LANDLOCK_RULE_PATH_BENEATH = 1

# The kernel rejects a structure larger than it knows (E2BIG), unless the surplus is zero,
# so each ABI gets its original size.
_RULESET_ATTR_BYTES_NET = 16
_RULESET_ATTR_BYTES_SCOPED = 24
_ABI_WITH_NET = 4
_ABI_WITH_SCOPED = 6

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class Resolve(enum.IntFlag):
    """Options of `openat2` for walking a path."""

    NO_XDEV = 0x01
    NO_MAGICLINKS = 0x02
    NO_SYMLINKS = 0x04
    BENEATH = 0x08
    IN_ROOT = 0x10


class MountAttribute(enum.IntFlag):
    """Attributes of a mount, as `mount_setattr` numbers them."""

    READ_ONLY = 1 << 0
    NO_SUID = 1 << 1
    NO_DEVICES = 1 << 2
    NO_EXECUTION = 1 << 3


class _SockFprog(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))


class _SigAction(ctypes.Structure):
    # The layout of the C library; the kernel's own order differs.
    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def ignore_stops_of_children() -> None:
    """Receive SIGCHLD only for children that end, not for those that are stopped or continued.

    Call it after a handler was set, which is kept.

    Raises:
        OSError: The kernel refuses.
    """
    action = _SigAction()
    _checked("sigaction", int(_libc.sigaction(signal.SIGCHLD, None, ctypes.byref(action))))
    action.flags |= _SA_NOCLDSTOP
    _checked("sigaction", int(_libc.sigaction(signal.SIGCHLD, ctypes.byref(action), None)))


def landlock_abi() -> int:
    """Return the Landlock ABI version of this kernel; 0 if it has none or it is disabled."""
    answer = _libc.syscall(
        ctypes.c_long(_NR_LANDLOCK_CREATE_RULESET),
        None,
        ctypes.c_size_t(0),
        ctypes.c_uint32(_LANDLOCK_CREATE_RULESET_VERSION),
    )
    return max(0, int(answer))


def landlock_create_ruleset(*, filesystem: int, network: int, scoped: int, abi: int) -> int:
    """Return the descriptor of a new ruleset that handles the given rights."""
    attribute = struct.pack("=QQQ", filesystem, network, scoped)
    size = 8
    if abi >= _ABI_WITH_NET:
        size = _RULESET_ATTR_BYTES_NET
    if abi >= _ABI_WITH_SCOPED:
        size = _RULESET_ATTR_BYTES_SCOPED
    return _syscall(
        "landlock_create_ruleset",
        _NR_LANDLOCK_CREATE_RULESET,
        ctypes.c_char_p(attribute),
        ctypes.c_size_t(size),
        ctypes.c_uint32(0),
    )


def landlock_add_path_rule(ruleset: int, *, parent: int, access: int) -> None:
    """Allow `access` on the file or hierarchy that the descriptor `parent` stands for."""
    _syscall(
        "landlock_add_rule",
        _NR_LANDLOCK_ADD_RULE,
        ctypes.c_int(ruleset),
        ctypes.c_int(_LANDLOCK_RULE_PATH_BENEATH),
        ctypes.c_char_p(struct.pack("=Qi", access, parent)),
        ctypes.c_uint32(0),
    )


def landlock_restrict_self(ruleset: int) -> None:
    """Apply the ruleset to the calling thread and its descendants, irrevocably."""
    _syscall(
        "landlock_restrict_self",
        _NR_LANDLOCK_RESTRICT_SELF,
        ctypes.c_int(ruleset),
        ctypes.c_uint32(0),
    )


def prctl(option: int, argument: int = 0, second: int = 0) -> int:
    """Set or read an attribute of this process; integer arguments only."""
    answer = _libc.prctl(
        ctypes.c_int(option),
        ctypes.c_ulong(argument),
        ctypes.c_ulong(second),
        ctypes.c_ulong(0),
        ctypes.c_ulong(0),
    )
    return _checked(f"prctl {option}", int(answer))


def seccomp_set_filter(program: bytes) -> None:
    """Load a BPF program, an array of 8-byte instructions, as filter of the calling thread."""
    instructions = ctypes.create_string_buffer(program, len(program))
    fprog = _SockFprog(len(program) // 8, ctypes.addressof(instructions))
    answer = _libc.prctl(
        ctypes.c_int(_PR_SET_SECCOMP),
        ctypes.c_ulong(_SECCOMP_MODE_FILTER),
        ctypes.byref(fprog),
        ctypes.c_ulong(0),
        ctypes.c_ulong(0),
    )
    _checked("prctl PR_SET_SECCOMP", int(answer))


def seccomp_set_listening_filter(number: int, program: bytes) -> int:
    """Load a filter like `seccomp_set_filter`; return its notification descriptor.

    Args:
        number: Number of the call `seccomp` on this architecture.
        program: The BPF program.
    """
    instructions = ctypes.create_string_buffer(program, len(program))
    fprog = _SockFprog(len(program) // 8, ctypes.addressof(instructions))
    return _syscall(
        "seccomp SECCOMP_FILTER_FLAG_NEW_LISTENER",
        number,
        ctypes.c_uint(_SECCOMP_SET_MODE_FILTER),
        ctypes.c_uint(_SECCOMP_NEW_LISTENER_WAIT_KILLABLE),
        ctypes.pointer(fprog),
    )


def openat2(path: str, flags: int, *, directory: int, resolve: Resolve, mode: int = 0) -> int:
    """Open `path` below the descriptor `directory`, resolved by `resolve`; return the descriptor."""
    return _syscall(
        "openat2",
        _NR_OPENAT2,
        ctypes.c_int(directory),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.c_char_p(struct.pack("=QQQ", flags, mode, resolve)),
        ctypes.c_size_t(24),
    )


def rename_noreplace(source: str, target: str, *, directory: int) -> None:
    """Rename within the folder `directory`; raise `FileExistsError` if the new name exists."""
    _syscall(
        "renameat2",
        _of_machine(_NR_RENAMEAT2),
        ctypes.c_int(directory),
        ctypes.c_char_p(os.fsencode(source)),
        ctypes.c_int(directory),
        ctypes.c_char_p(os.fsencode(target)),
        ctypes.c_uint(_RENAME_NOREPLACE),
    )


def birth_ns(fd: int) -> int | None:
    """Return the file's birth time, in nanoseconds since the epoch; None if it is not recorded.

    With the inode number it identifies a file permanently: the number alone is reused.
    """
    found = ctypes.create_string_buffer(_STATX_BYTES)
    extra = (ctypes.c_int(_AT_EMPTY_PATH), ctypes.c_uint(_STATX_BTIME))
    try:
        _syscall("statx", _of_machine(_NR_STATX), ctypes.c_int(fd), ctypes.c_char_p(b""), *extra, found)
    except OSError:
        return None
    (known,) = struct.unpack_from("=I", found)
    seconds, nanoseconds = struct.unpack_from("=qI", found, _BTIME_AT)
    return int(seconds) * 1_000_000_000 + int(nanoseconds) if known & _STATX_BTIME else None


def close_range(first: int, last: int) -> None:
    """Close every descriptor from `first` to `last`, inclusive."""
    _syscall(
        "close_range",
        _NR_CLOSE_RANGE,
        ctypes.c_uint(first),
        ctypes.c_uint(last),
        ctypes.c_uint(0),
    )


def madvise(start: int, length: int, advice: int) -> None:
    """Advise the kernel about the pages of this process from `start` on."""
    answer = _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), ctypes.c_int(advice))
    _checked("madvise", int(answer))


def drop_capability_sets() -> None:
    """Empty the effective, permitted and inheritable capabilities of the calling thread."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    empty = struct.pack("=6I", 0, 0, 0, 0, 0, 0)
    answer = _libc.capset(ctypes.c_char_p(header), ctypes.c_char_p(empty))
    _checked("capset", int(answer))


def unshare(flags: int) -> None:
    """Move to new namespaces, of the kinds in `flags`."""
    _checked("unshare", int(_libc.unshare(ctypes.c_int(flags))))


def setns(namespace: int, kind: int) -> None:
    """Enter the namespace that a descriptor stands for; a pid namespace only for later children."""
    _checked("setns", int(_libc.setns(ctypes.c_int(namespace), ctypes.c_int(kind))))


def setfsids(uid: int, gid: int) -> None:
    """Set the user and group id for file access of this thread alone. Failures are not reported."""
    # The group first: without the user id of root it could not be set.
    _libc.setfsgid(ctypes.c_uint(gid))
    _libc.setfsuid(ctypes.c_uint(uid))


def mount(source: str | None, target: str, *, kind: str | None = None, flags: int, data: str = "") -> None:
    """Mount a file system, or change a mount; its manual page lists valid combinations of flags."""
    answer = _libc.mount(
        None if source is None else ctypes.c_char_p(os.fsencode(source)),
        ctypes.c_char_p(os.fsencode(target)),
        None if kind is None else ctypes.c_char_p(kind.encode()),
        ctypes.c_ulong(flags),
        ctypes.c_char_p(data.encode()),
    )
    _checked(f"mount on {target}", int(answer))


def mount_setattr(
    at: str | int, *, add: MountAttribute, remove: MountAttribute | None = None, recursive: bool = False
) -> None:
    """Change the attributes of a mount, by path or descriptor; with `recursive` also of all below it."""
    directory, path = (at, "") if isinstance(at, int) else (AT_FDCWD, at)
    flags = (_AT_RECURSIVE if recursive else 0) | (0 if path else _AT_EMPTY_PATH)
    _syscall(
        "mount_setattr",
        _NR_MOUNT_SETATTR,
        ctypes.c_int(directory),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.c_uint(flags),
        ctypes.c_char_p(struct.pack("=QQQQ", add, remove or 0, 0, 0)),
        ctypes.c_size_t(32),
    )


def open_tree(source: int) -> int:
    """Copy the mount tree that starts at a descriptor; return its descriptor.

    The copy is detached until it is attached with `move_mount`. Source: open_tree(2).
    """
    return _syscall(
        "open_tree",
        _NR_OPEN_TREE,
        ctypes.c_int(source),
        ctypes.c_char_p(b""),
        ctypes.c_uint(_OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH | _AT_RECURSIVE),
    )


def move_mount(tree: int, target: int) -> None:
    """Attach a copied mount at the file of a descriptor, even if its name was replaced by now.

    Source: move_mount(2).
    """
    _syscall(
        "move_mount",
        _NR_MOVE_MOUNT,
        ctypes.c_int(tree),
        ctypes.c_char_p(b""),
        ctypes.c_int(target),
        ctypes.c_char_p(b""),
        ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH),
    )


def clear_environment() -> None:
    """Clear the C library's environment, including variables unknown to Python."""
    _checked("clearenv", -abs(int(_libc.clearenv())))


def _of_machine(numbers: Mapping[str, int]) -> int:
    machine = os.uname().machine
    if machine not in numbers:
        raise OSError(errno.ENOSYS, f"a system call has no known number on {machine}")
    return numbers[machine]


def _syscall(name: str, number: int, *arguments: "ctypes._CDataType") -> int:
    return _checked(name, int(_libc.syscall(ctypes.c_long(number), *arguments)))


def _checked(name: str, answer: int) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return answer
