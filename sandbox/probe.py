"""What this machine can enforce: the kernel's offer as a value, and every layer tried for real.

`probe` and `missing` only look. `layers` confines a forked child for each layer and lets it try
what the layer is there to deny, so that a container profile or a patched kernel cannot fool it.

Source: landlock(7), seccomp(2), user_namespaces(7), cgroups(7), capabilities(7).
"""

import contextlib
import enum
import errno
import os
import platform
import select
import signal
import socket
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sandbox.guard.install import install_guard
from sandbox.guard.judge import GuardDenied
from sandbox.guard.paths import Rules
from sandbox.inside.confine import LAYERS, confine_zygote
from sandbox.layers.landlock import MINIMUM_ABI, SIGNAL_SCOPE_ABI
from sandbox.layers.syscall_table import present_architecture
from sandbox.policy import MIB, Limits, Policy
from sandbox.syscalls import Resolve, close_range, landlock_abi, openat2, prctl, unshare

__all__ = ["LayerReport", "Probe", "Tier", "layers", "missing", "probe"]

_CLONE_NEWUSER = 0x1000_0000
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_PR_GET_NO_NEW_PRIVS = 39
_BOUND_S = 10
_MOST_BYTES = 4096
_MEMORY_BYTES = 64 * MIB
_CGROUPS = Path("/sys/fs/cgroup")


class Tier(enum.Enum):
    """Whole sets of layers, and the one that enforces nothing."""

    PROCESS = "process"
    USER = "user"
    NAMESPACE = "namespace"
    GUARD = "guard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What the running kernel offers this process.

    Attributes:
        kernel: Its release, as `uname -r` prints it.
        architecture: As `uname -m` prints it.
        architecture_known: Whether the system call filter has numbers for it.
        landlock_abi: Version of Landlock; 0 for none.
        seccomp: Whether filters can be loaded.
        pidfd: Whether processes can be held by descriptor.
        openat2: Whether paths can be opened without following links.
        close_range: Whether descriptors can be closed by range.
        user_namespaces: Whether this process may make one.
        cgroup_writable: Whether this process may make a cgroup (version 2).
        uid: Effective user id.
        capabilities: Effective capabilities, as a bit mask.
    """

    kernel: str
    architecture: str
    architecture_known: bool
    landlock_abi: int
    seccomp: bool
    pidfd: bool
    openat2: bool
    close_range: bool
    user_namespaces: bool
    cgroup_writable: bool
    uid: int
    capabilities: int

    def missing(self, tier: Tier) -> tuple[str, ...]:
        """Return a sentence, with its cure, for each thing that `tier` needs and this machine lacks."""
        if tier is Tier.GUARD:
            return ()
        if tier is not Tier.PROCESS:
            return (f"this version does not implement the tier {tier.value} yet; use --isolation process",)
        return tuple(self._missing_for_process())

    def _missing_for_process(self) -> Iterator[str]:
        if not self.architecture_known:
            yield (
                f"there is no table of system calls for {self.architecture}; "
                "run on x86_64 or aarch64 with a 64-bit Python"
            )
        if self.landlock_abi < MINIMUM_ABI:
            yield (
                f"Landlock ABI {MINIMUM_ABI} is needed, kernel {self.kernel} offers "
                f"{self.landlock_abi or 'none'}; use Linux 6.2 or newer with landlock in its lsm= list, "
                "and a container profile that allows the landlock system calls"
            )
        if not self.seccomp:
            yield "seccomp filters cannot be loaded; use a kernel built with CONFIG_SECCOMP_FILTER"
        for name in ("pidfd", "openat2", "close_range"):
            if not getattr(self, name):
                yield f"{name} is refused; use Linux 5.9 or newer and a container profile that allows it"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerReport:
    """How one layer did when it was tried.

    Attributes:
        name: Its name.
        enforced: Whether what it denies was denied.
        detail: What was tried, or what went wrong.
    """

    name: str
    enforced: bool
    detail: str


def probe() -> Probe:
    """Ask the kernel what it offers. Changes nothing."""
    system = platform.uname()
    return Probe(
        kernel=system.release,
        architecture=system.machine,
        architecture_known=present_architecture() is not None,
        landlock_abi=landlock_abi(),
        seccomp=_has_filters(),
        pidfd=_works(lambda: os.close(os.pidfd_open(os.getpid()))),
        openat2=_works(_open_root),
        # An empty range above every descriptor: nothing is closed.
        close_range=_works(lambda: close_range(0xFFFF_FFFE, 0xFFFF_FFFE)),
        user_namespaces=_say_in_child(_may_make_user_namespace).startswith("+"),
        cgroup_writable=_cgroup_writable(),
        uid=os.geteuid(),
        capabilities=_capabilities(),
    )


def missing(tier: Tier) -> tuple[str, ...]:
    """Return a sentence, with its cure, for each thing that `tier` needs and this machine lacks."""
    return probe().missing(tier)


def layers() -> tuple[LayerReport, ...]:
    """Try every layer, each alone in a child of its own, and return how it did."""
    with tempfile.TemporaryDirectory(prefix="probe-") as folder:
        top = Path(folder)
        (top / "home").mkdir()
        return tuple(_reported(name, trial, top) for name, trial in _TRIALS.items())


class _NotEnforced(Exception):
    """What a layer is there to deny was not denied."""


def _try_descriptors(top: Path, answer: int) -> str:
    inherited = os.open("/dev/null", os.O_RDONLY)
    _confine("descriptors", top, answer)
    _expect(lambda: os.close(inherited), errno.EBADF)
    return "an inherited descriptor was closed"


def _try_environment(top: Path, answer: int) -> str:
    os.environ["PROBE_VARIABLE"] = "1"
    _confine("environment", top, answer)
    if os.environ:
        raise _NotEnforced("variables of the host were still there")
    return "no variable of the host was left"


def _try_session(top: Path, answer: int) -> str:
    _confine("session", top, answer)
    if os.getsid(0) != os.getpid():
        raise _NotEnforced("the process stayed in the session of the host")
    return "a session of its own"


def _try_rlimits(top: Path, answer: int) -> str:
    _confine("rlimits", top, answer)
    try:
        bytearray(2 * _MEMORY_BYTES)
    except MemoryError:
        return "memory above the limit was refused"
    raise _NotEnforced("memory above the limit was granted")


def _try_privileges(top: Path, answer: int) -> str:
    _confine("privileges", top, answer)
    held = _capabilities()
    if held or not prctl(_PR_GET_NO_NEW_PRIVS):
        raise _NotEnforced(f"capabilities left: {held:#x}")
    return "no capability left, none to be gained"


def _try_landlock(top: Path, answer: int) -> str:
    outside = top / "outside"
    outside.write_text("written before")
    _confine("landlock", top, answer)
    (top / "home" / "inside").touch()
    _expect(lambda: outside.write_text("written after"), errno.EACCES)
    scope = "signals confined" if landlock_abi() >= SIGNAL_SCOPE_ABI else "signals left to seccomp"
    return f"a write outside the home was denied; ABI {landlock_abi()}, {scope}"


def _try_seccomp(top: Path, answer: int) -> str:
    socket.socket(socket.AF_UNIX).close()
    _confine("seccomp", top, answer)
    _expect(lambda: socket.socket(socket.AF_UNIX).close(), errno.EACCES)
    return "a socket was denied"


def _try_death(top: Path, answer: int) -> str:
    read, write = os.pipe()
    parent = os.fork()
    if parent == 0:
        is_child = os.fork() == 0
        # A bound for both, should the kernel not do what this is about.
        signal.alarm(_BOUND_S)
        if is_child:
            _confine("death with the parent", top, answer)
            os.write(write, b"ready")
        signal.pause()
    os.close(write)
    ready = os.read(read, 5) == b"ready"
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    # End of file: nobody holds the other end any more.
    if not ready or not select.select([read], [], [], _BOUND_S / 2)[0]:
        raise _NotEnforced("a child outlived its parent")
    return "a child ended with its parent"


def _try_guard(top: Path, _answer: int) -> str:
    outside = top / "outside"
    install_guard(Rules(home=top / "home", homes=()))
    try:
        outside.write_text("written")
    except GuardDenied:
        return "explains denials; it protects nothing"
    raise _NotEnforced("a write outside the home was not explained")


_TRIALS: Mapping[str, Callable[[Path, int], str]] = {
    "descriptors": _try_descriptors,
    "environment": _try_environment,
    "session": _try_session,
    "rlimits": _try_rlimits,
    "privileges": _try_privileges,
    "death with the parent": _try_death,
    "landlock": _try_landlock,
    "seccomp": _try_seccomp,
    "guard": _try_guard,
}


def _confine(layer: str, top: Path, answer: int) -> None:
    """Put one layer in place, by the code that puts all of them in place."""
    home = top / "home"
    confine_zygote(
        Policy(home=home, limits=Limits(memory_bytes=_MEMORY_BYTES)),
        home_fd=os.open(home, os.O_PATH | os.O_DIRECTORY),
        keep={0, 1, 2, answer},
        parent=os.getppid(),
        without=frozenset(LAYERS) - {layer},
    )


def _expect(act: Callable[[], object], number: int) -> None:
    try:
        act()
    except OSError as error:
        if error.errno == number:
            return
        raise
    raise _NotEnforced(f"{errno.errorcode[number]} was expected, and it succeeded")


def _reported(name: str, trial: Callable[[Path, int], str], top: Path) -> LayerReport:
    said = _say_in_child(lambda answer: trial(top, answer))
    return LayerReport(name=name, enforced=said.startswith("+"), detail=said[1:])


def _say_in_child(act: Callable[[int], str]) -> str:
    """Run `act` in a child; return `+` and what it said, or `-` and why it failed."""
    read, write = os.pipe()
    pid = _fork()
    if pid == 0:
        try:
            said = "+" + act(write)
        except BaseException as error:  # noqa: BLE001 - whatever it was, it is the answer
            said = f"-{error}"
        with contextlib.suppress(OSError):
            os.write(write, said.encode()[:_MOST_BYTES])
        os._exit(0)
    os.close(write)
    try:
        ready = select.select([read], [], [], _BOUND_S)[0]
        said = os.read(read, _MOST_BYTES).decode(errors="replace") if ready else ""
    finally:
        os.close(read)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return said or "-the child that tried it ended without an answer"


def _fork() -> int:
    with warnings.catch_warnings():
        # Python warns of threads in the caller; the child touches nothing that they may hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _works(act: Callable[[], object]) -> bool:
    try:
        act()
    except OSError:
        return False
    return True


def _open_root() -> None:
    os.close(openat2("/", os.O_PATH, directory=-1, resolve=Resolve.NO_SYMLINKS))


def _has_filters() -> bool:
    try:
        prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER)
    except OSError as error:
        # No filter was given: a kernel that knows filters looks for it and finds nothing.
        return error.errno == errno.EFAULT
    return False


def _may_make_user_namespace(_answer: int) -> str:
    unshare(_CLONE_NEWUSER)
    return "made"


def _cgroup_writable() -> bool:
    with open("/proc/self/cgroup") as file:
        own = next((line[3:].strip() for line in file if line.startswith("0::")), None)
    if own is None:
        return False
    folder = _CGROUPS / own.lstrip("/")
    return os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)


def _capabilities() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
