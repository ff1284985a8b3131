"""Kernel objects that outlive a process, created, found and removed by a number.

System V objects, message queues and keys are visible only in the namespaces and with the user id of an act,
so a search from the host's own namespaces would never find any.

usage: python -m sandbox.selftest.kernel_objects PROCESS USER_ID NUMBER

Source: sysvipc(7), mq_overview(7), keyrings(7), ipc_namespaces(7), setns(2), user_namespaces(7).
"""

import contextlib
import ctypes
import enum
import errno
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping

from sandbox.errors import SandboxError
from sandbox.layers import identity
from sandbox.selftest.calls import attached, call, libc, opened, put, raised

__all__ = ["KernelObject", "left_at", "left_here", "main", "number_of", "planted", "remove"]

_NEW_IPC, _NEW_FILE = 0o3600, os.O_CREAT | os.O_EXCL | os.O_RDWR
_IPC_RMID, _SETVAL = 0, 16
# Two messages of 64 bytes: a user may have only a few queues of the default size.
_SMALL_QUEUE = struct.pack("@8l", 0, 2, 64, *(0,) * 5)
_USER_KEYRING, _KEY_FOR_ALL_OF_THE_USER = -4, 0x3F3F_0000
_SET_PERMISSIONS, _UNLINK, _SEARCH = 5, 9, 10
_NAMESPACES = ("user", "ipc", "mnt")
_LOOK_S = 20


class KernelObject(enum.Enum):
    """Kind of such an object."""

    SEGMENT = "segment"
    MESSAGES = "messages"
    SEMAPHORE = "semaphore"
    QUEUE = "queue"
    SHARED = "shared"
    KEY = "key"

    def make(self, number: int, word: str) -> int | str:
        """Create one that contains digits, under an unused number; return its id or name."""
        digits, name = word.encode(), f"toolcell-{number}"
        match self:
            case KernelObject.SEGMENT:
                segment = call("shmget", number, 4096, _NEW_IPC)
                at = attached(segment, 0)
                ctypes.memmove(at, digits, len(digits))
                libc.shmdt(ctypes.c_void_p(at))
                return segment
            case KernelObject.MESSAGES:
                messages = call("msgget", number, _NEW_IPC)
                call("msgsnd", messages, struct.pack("@l", 1) + digits, len(digits), 0)
                return messages
            case KernelObject.SEMAPHORE:
                semaphore = call("semget", number, 1, _NEW_IPC)
                # Its value is a separate secret: the first digits of the word.
                call("semctl", semaphore, 0, _SETVAL, number_of(word))
                return semaphore
            case KernelObject.QUEUE:
                queue = call("mq_open", name, _NEW_FILE, 0o600, _SMALL_QUEUE)
                call("mq_timedsend", queue, digits, len(digits), 0, None)
                os.close(queue)
                return name
            case KernelObject.SHARED:
                put(opened(_path(number), _NEW_FILE, 0o600), digits)
                return _path(number)
            case KernelObject.KEY:
                key = call("add_key", b"user", name, digits, len(digits), _USER_KEYRING)
                call("keyctl", _SET_PERMISSIONS, key, _KEY_FOR_ALL_OF_THE_USER)
                return key


_Act = Callable[[int], object]
# Functions to find, and to remove, the object under a number.
_BY_NUMBER: Mapping[KernelObject, tuple[_Act, _Act]] = {
    KernelObject.SEGMENT: (
        lambda number: call("shmget", number, 0, 0),
        lambda number: call("shmctl", call("shmget", number, 0, 0), _IPC_RMID, None),
    ),
    KernelObject.MESSAGES: (
        lambda number: call("msgget", number, 0),
        lambda number: call("msgctl", call("msgget", number, 0), _IPC_RMID, None),
    ),
    KernelObject.SEMAPHORE: (
        lambda number: call("semget", number, 0, 0),
        lambda number: call("semctl", call("semget", number, 0, 0), 0, _IPC_RMID),
    ),
    KernelObject.QUEUE: (
        lambda number: os.close(call("mq_open", f"toolcell-{number}", os.O_RDONLY, 0, None)),
        lambda number: call("mq_unlink", f"toolcell-{number}"),
    ),
    KernelObject.SHARED: (lambda number: os.stat(_path(number)), lambda number: os.unlink(_path(number))),
    KernelObject.KEY: (
        lambda number: _key(number),
        lambda number: call("keyctl", _UNLINK, _key(number), _USER_KEYRING),
    ),
}


def _path(number: int) -> str:
    return f"/dev/shm/toolcell-{number}"  # noqa: S108 - what shm_open(3) does


def _key(number: int) -> int:
    return call("keyctl", _SEARCH, _USER_KEYRING, b"user", f"toolcell-{number}", 0)


def number_of(word: str) -> int:
    """Return the small number that a semaphore keeps for a word."""
    return 10_000 + int(word[:4])


def planted(number: int, word: str) -> dict[str, object]:
    """Create one object of each kind that contains the word; return their ids or names, by kind.

    A container engine may deny a kind to every process: -1, and its attempts are not provable there.
    """
    places: dict[str, object] = {}
    for kind in KernelObject:
        try:
            places[kind.value] = kind.make(number, word)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOSYS):
                raise
            places[kind.value] = -1
    return places


def remove(*numbers: int) -> None:
    """Remove all objects under previously unused numbers, as far as this process may."""
    for number in numbers:
        for _, remove_one in _BY_NUMBER.values():
            with contextlib.suppress(OSError):
                remove_one(number)


def left_here(number: int) -> frozenset[KernelObject]:
    """Return the objects under a previously unused number, as this process sees them."""
    found = set()
    for kind, (find, _) in _BY_NUMBER.items():
        with contextlib.suppress(OSError):
            find(number)
            found.add(kind)
    return frozenset(found)


def left_at(process: int, uid: int, number: int) -> frozenset[KernelObject]:
    """Return the result of `left_here` in another process, or in this one if it is 0, seen as a user.

    Raises:
        SandboxError: This process may not inspect the other one.
    """
    command = [sys.executable, "-P", "-m", __name__, str(process), str(uid), str(number)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LOOK_S, check=False)
    if done.returncode != 0:
        raise SandboxError(f"what an act has left in the kernel cannot be seen: {done.stderr.strip()}")
    return frozenset(KernelObject(kind) for kind in json.loads(done.stdout))


def main() -> None:
    """Search in the process and as the user of the arguments, and print the objects found."""
    process, uid, number = map(int, sys.argv[1:])
    if process:
        # All namespaces are opened before the first is entered; those that are already ours are skipped.
        links = {name: os.open(f"/proc/{process}/ns/{name}", os.O_RDONLY) for name in _NAMESPACES}
        for name, link in links.items():
            if not os.path.samestat(os.fstat(link), os.stat(f"/proc/self/ns/{name}")):
                raised("setns", libc.setns(link, 0))
    if uid != os.geteuid():
        identity.apply(uid)
    print(json.dumps([kind.value for kind in left_here(number)]))  # noqa: T201 - its answer


if __name__ == "__main__":
    main()
