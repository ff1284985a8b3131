"""Attempts of kind `resources` on memory: have more of it than the limit says, or what cannot be paged out.

The host measures while the act holds still, by what the kernel says of the process.

Source: getrlimit(2), proc_pid_status(5), mmap(2), mremap(2), brk(2), mprotect(2), memfd_create(2), shmget(2),
mlock(2).
"""

import ctypes
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

from sandbox.selftest.attempt import Act, Attempt, Surroundings, above, exactly, taking
from sandbox.selftest.calls import call, libc, raised
from sandbox.selftest.gaining import lasting
from sandbox.selftest.world import LIMITS, World

__all__ = ["MEMORY"]

_KIB, _PAGE = 1024, 4096
_PROT_READ, _PROT_READ_WRITE = 1, 3
_MAP_SHARED_ANONYMOUS, _MAP_PRIVATE_ANONYMOUS, _MAP_GROWSDOWN, _MAP_LOCKED = 0x21, 0x22, 0x0100, 0x2000
_MREMAP_MAYMOVE = 1
_AT_RANDOM = 25
_MCL_CURRENT = 1
_MANY = 50
# Children stay until they are ended; on a machine that is busy it takes long to look at so many.
_STAY_S, _LIMIT_S = 90, 60.0
_HELD_BYTES = 3 * LIMITS.memory_bytes
# A worker uses some memory before it takes more; it stays below this.
_TOO_MUCH_BYTES = int(2.5 * LIMITS.memory_bytes)
_CHILDREN, _IN_CHILD_BYTES = 8, int(0.8 * LIMITS.memory_bytes)
_TOGETHER_BYTES = 6 * LIMITS.memory_bytes
_TOO_MUCH_TOGETHER = 1.1 * LIMITS.call_memory_bytes


def _resident(_world: World, pid: int) -> int:
    """Return the memory of a process, in bytes."""
    return _status(pid, "VmRSS")


def _shares(_world: World, pid: int) -> int:
    """Return the memory of a process and its children, in bytes; what they share is shared out."""
    return sum(_share(each) for each in _family(pid))


def _share(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except ProcessLookupError:
        # Dead, and not yet reaped: it holds nothing any more, and the others may hold too much.
        return 0
    return next((int(line.split()[1]) * _KIB for line in lines if line.startswith("Pss:")), 0)


def _locked(_world: World, pid: int) -> int:
    return _status(pid, "VmLck")


def _processes(_world: World, pid: int) -> int:
    return len(_family(pid))


def _family(pid: int) -> list[int]:
    below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in below for each in _family(int(child)))]


def _status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) * _KIB for line in lines if line.startswith(f"{name}:")), 0)


def _map(length: int, protection: int, flags: int, descriptor: int = -1) -> int:
    return call("mmap", None, length, protection, flags, descriptor, 0)


def _touch(at: int, length: int) -> None:
    ctypes.memset(at, 1, length)


def _heap(place: Surroundings) -> None:
    held = bytearray(_HELD_BYTES)
    place.hold()
    del held


def _mapped(flags: int, length: int = _HELD_BYTES, *, name: str | None = None) -> Act:
    def act(place: Surroundings) -> None:
        descriptor = -1 if name is None else os.open(name, os.O_RDWR)
        _touch(_map(length, _PROT_READ_WRITE, flags, descriptor), length)
        place.hold()

    return act


def _break(place: Surroundings) -> None:
    start = call("brk", 0)
    if call("brk", start + _HELD_BYTES) < start + _HELD_BYTES:
        raise MemoryError
    _touch(start, _HELD_BYTES)
    place.hold()


def _protected_later(place: Surroundings) -> None:
    at = _map(_HELD_BYTES, _PROT_READ, _MAP_PRIVATE_ANONYMOUS)
    raised("mprotect", libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(_HELD_BYTES), _PROT_READ_WRITE))
    _touch(at, _HELD_BYTES)
    place.hold()


def _moved(place: Surroundings) -> None:
    at = _map(_PAGE, _PROT_READ_WRITE, _MAP_PRIVATE_ANONYMOUS)
    _touch(call("mremap", at, _PAGE, _HELD_BYTES, _MREMAP_MAYMOVE, 0), _HELD_BYTES)
    place.hold()


def _stack(place: Surroundings) -> None:
    """Let the stack grow as far as a limit goes that nobody has lowered."""
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    resource.setrlimit(resource.RLIMIT_STACK, (hard, hard))
    libc.getauxval.restype = ctypes.c_ulong
    bottom = libc.getauxval(ctypes.c_ulong(_AT_RANDOM)) - _HELD_BYTES
    if hard != resource.RLIM_INFINITY and hard < _HELD_BYTES + 16 * _PAGE:
        # Beyond the limit the kernel does not say no, it kills.
        raise MemoryError
    _touch(bottom, _HELD_BYTES - 64 * _PAGE)
    place.hold()


def _in_pieces(place: Surroundings, piece: Callable[[], int]) -> None:
    """Hold memory in files, each no longer than a file may be."""
    for _ in range(_HELD_BYTES // LIMITS.file_bytes):
        descriptor = piece()
        os.ftruncate(descriptor, LIMITS.file_bytes)
        _touch(_map(LIMITS.file_bytes, _PROT_READ_WRITE, 1, descriptor), LIMITS.file_bytes)
        os.close(descriptor)
    place.hold()


def _memory_file(place: Surroundings) -> None:
    _in_pieces(place, lambda: call("memfd_create", b"held", 0))


def _secret_memory(place: Surroundings) -> None:
    descriptor = call("memfd_secret", 0)
    os.ftruncate(descriptor, _PAGE)
    _touch(_map(_PAGE, _PROT_READ_WRITE, 1, descriptor), _PAGE)
    place.hold()


def _has_secret_memory(_world: World, pid: int) -> bool:
    names = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    return any("secretmem" in name for name in names)


def _segment(place: Surroundings) -> None:
    segment = call("shmget", place.fresh, _HELD_BYTES, 0o1600)
    at = libc.shmat(segment, None, 0)
    _touch(at, _HELD_BYTES)
    place.hold()


def _shared_file(place: Surroundings) -> None:
    path = f"/dev/shm/toolcell-{place.fresh}".encode()  # noqa: S108 - what shm_open(3) does

    def piece() -> int:
        descriptor = call("openat", -100, path, os.O_CREAT | os.O_RDWR, 0o600)
        call("unlinkat", -100, path, 0)
        return descriptor

    _in_pieces(place, piece)


def _several(place: Surroundings) -> None:
    """Take in several processes what one may not have."""
    read, write = os.pipe()
    for _ in range(_CHILDREN):
        if os.fork() == 0:
            held = bytearray(_IN_CHILD_BYTES)
            os.write(write, b"+")
            os.close(write)
            time.sleep(_STAY_S)
            os._exit(len(held) and 0)
    # Nobody but the children, so that the end of one that got none is heard as well.
    os.close(write)
    while os.read(read, 1):
        pass
    place.hold()


def _many(place: Surroundings) -> None:
    for _ in range(_MANY):
        if os.fork() == 0:
            signal.alarm(_STAY_S)
            signal.pause()
    place.hold()


def _lock_page(place: Surroundings) -> None:
    length = 4 * 1024 * _KIB
    at = _map(length, _PROT_READ_WRITE, _MAP_SHARED_ANONYMOUS)
    raised("mlock", libc.mlock(ctypes.c_void_p(at), ctypes.c_size_t(length)))
    place.hold()


def _lock_all(place: Surroundings) -> None:
    raised("mlockall", libc.mlockall(_MCL_CURRENT))
    place.hold()


def _map_locked(place: Surroundings) -> None:
    _map(4 * 1024 * _KIB, _PROT_READ_WRITE, _MAP_SHARED_ANONYMOUS | _MAP_LOCKED)
    place.hold()


def _memory(name: str, technique: str, act: Act) -> Attempt:
    return taking(name, technique, act, above(_TOO_MUCH_BYTES), during=_resident)


def _together(name: str, technique: str, act: Act) -> Attempt:
    return taking(
        name,
        technique,
        act,
        above(_TOO_MUCH_TOGETHER),
        during=lasting(_shares, _TOO_MUCH_TOGETHER),
        limit_s=_LIMIT_S,
    )


MEMORY: tuple[Attempt, ...] = (
    _memory("heap", "malloc(3), as Python objects", _heap),
    _memory("mmap", "mmap(2), private and anonymous", _mapped(_MAP_PRIVATE_ANONYMOUS)),
    _memory("mmap-zero", "mmap(2), private, of /dev/zero", _mapped(2, name="/dev/zero")),
    _memory("brk", "brk(2)", _break),
    _memory("mprotect", "mprotect(2) of what was mapped to read", _protected_later),
    _memory("mremap", "mremap(2)", _moved),
    _memory("memfd", "memfd_create(2)", _memory_file),
    _memory("shmget", "shmget(2), shmat(2), written", _segment),
    _memory("shm-open", "shm_open(3), mapped", _shared_file),
    taking("memfd-secret", "memfd_secret(2)", _secret_memory, exactly(1), during=_has_secret_memory),
    _memory("stack", "the stack, after setrlimit(2) RLIMIT_STACK", _stack),
    _memory("growsdown", "mmap(2) with MAP_GROWSDOWN", _mapped(_MAP_PRIVATE_ANONYMOUS | _MAP_GROWSDOWN)),
    _together("shared", "mmap(2), shared and anonymous", _mapped(_MAP_SHARED_ANONYMOUS, _TOGETHER_BYTES)),
    _together("several", "memory of several processes together", _several),
    taking(
        "fork",
        "fork(2), fifty times",
        _many,
        above(_MANY),
        during=lasting(_processes, _MANY),
        limit_s=_LIMIT_S,
    ),
    taking("mlock", "mlock(2)", _lock_page, above(1024 * _KIB), during=_locked),
    taking("mlockall", "mlockall(2)", _lock_all, above(1024 * _KIB), during=_locked),
    taking("mmap-locked", "mmap(2) with MAP_LOCKED", _map_locked, above(1024 * _KIB), during=_locked),
)
