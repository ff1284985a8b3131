"""Objects that an act has left in the kernel, seen from its namespaces and with its user id.

System V objects, message queues and keys are seen only from there, so a host that looked from its own place
would find nothing whatever was left.

usage: python -m sandbox.selftest.looking PROCESS USER_ID NUMBER

Source: ipc_namespaces(7), setns(2), user_namespaces(7), keyrings(7).
"""

import json
import os
import subprocess
import sys

from sandbox.errors import SandboxError
from sandbox.layers import identity
from sandbox.selftest.calls import libc, raised
from sandbox.selftest.planted import KernelObject

__all__ = ["KernelObject", "left_at", "left_here", "main"]

_NAMESPACES = ("user", "ipc", "mnt")
_LOOK_S = 20


def left_here(number: int) -> frozenset[KernelObject]:
    """Return the objects under a free number, as this process sees them."""
    return frozenset(kind for kind in KernelObject if kind.is_there(number))


def left_at(process: int, uid: int, number: int) -> frozenset[KernelObject]:
    """Return the result of `left_here` in another process, or in this one if it is 0, seen as a user.

    Raises:
        SandboxError: This process may not look there.
    """
    command = [sys.executable, "-P", "-m", __name__, str(process), str(uid), str(number)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LOOK_S, check=False)
    if done.returncode != 0:
        raise SandboxError(f"what an act has left in the kernel cannot be seen: {done.stderr.strip()}")
    return frozenset(KernelObject(kind) for kind in json.loads(done.stdout))


def main() -> None:
    """Look where and as whom the arguments say, and print what there is."""
    process, uid, number = map(int, sys.argv[1:])
    if process:
        _stand_with(process)
    if uid != os.geteuid():
        identity.apply(uid)
    print(json.dumps([kind.value for kind in left_here(number)]))  # noqa: T201 - its answer


def _stand_with(process: int) -> None:
    """Enter those namespaces of a process that are not ours already."""
    links = [os.open(f"/proc/{process}/ns/{name}", os.O_RDONLY) for name in _NAMESPACES]
    for name, link in zip(_NAMESPACES, links, strict=True):
        if not os.path.samestat(os.fstat(link), os.stat(f"/proc/self/ns/{name}")):
            raised("setns", libc.setns(link, 0))
        os.close(link)


if __name__ == "__main__":
    main()
