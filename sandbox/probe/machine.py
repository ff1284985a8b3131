"""Mechanisms that this machine can enforce: kernel features, and a real trial of every layer.

`probe` and `missing` only read. `layers` confines a forked child for each layer, which then tries
what the layer must deny, so that a container profile or a patched kernel cannot fool it.

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
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandbox.denials.install import install_guard
from sandbox.denials.judge import GuardDenied
from sandbox.denials.paths import PathRules
from sandbox.errors import in_words
from sandbox.inside.confine import LAYERS, confine_zygote
from sandbox.layers import identity, namespaces
from sandbox.layers.landlock import MINIMUM_ABI, SIGNAL_SCOPE_ABI
from sandbox.layers.privileges import adopt_orphans
from sandbox.layers.syscall_table import present_architecture
from sandbox.policy import MIB, Limits, Policy
from sandbox.syscalls import Resolve, close_range, landlock_abi, openat2, prctl

__all__ = ["TRIAL_UID", "LayerReport", "Probe", "Tier", "layers", "missing", "probe", "unreadable"]

TRIAL_UID = 1_900_000_000
"""Default user id of a trial."""

_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_PR_GET_NO_NEW_PRIVS = 39
_BOUND_S = 10
_MOST_BYTES = 4096
_MEMORY_BYTES = 64 * MIB
_UNTRIED = "it was not tried"
_ROOT_NEEDS = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_FOWNER": 3,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
}


class Tier(enum.Enum):
    """Complete sets of layers, and the one that enforces nothing."""

    PROCESS = "process"
    USER = "user"
    NAMESPACE = "namespace"
    GUARD = "guard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Features of the running kernel that this process can use.

    Attributes:
        kernel: Its release, as `uname -r` prints it.
        architecture: As `uname -m` prints it.
        architecture_known: Whether the system call filter has numbers for it.
        landlock_abi: Version of Landlock; 0 for none.
        seccomp: Whether filters can be loaded.
        pidfd: Whether pidfds are supported.
        openat2: Whether paths can be opened without following links.
        close_range: Whether descriptors can be closed by range.
        uid: Effective user id.
        capabilities: Effective capabilities, as a bit mask.
        other_user: Why a process of another user id could not work here, as one sentence; "" if it can.
        namespaces: Why a process in namespaces of its own could not work here; "" if it can.
    """

    kernel: str
    architecture: str
    architecture_known: bool
    landlock_abi: int
    seccomp: bool
    pidfd: bool
    openat2: bool
    close_range: bool
    uid: int
    capabilities: int
    other_user: str
    namespaces: str

    def missing(self, tier: Tier) -> tuple[str, ...]:
        """Return a sentence, with a remedy, for each feature that `tier` needs and this machine lacks."""
        if tier is Tier.GUARD:
            return ()
        more = {Tier.USER: self.other_user, Tier.NAMESPACE: self.namespaces}.get(tier)
        return (*self._missing_for_process(), *([more] if more else []))

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
    """Result of trying one layer.

    Attributes:
        name: Its name.
        enforced: Whether what it denies was denied.
        detail: What was tried, or what went wrong.
    """

    name: str
    enforced: bool
    detail: str


def probe(*, uid: int = TRIAL_UID, tried: Collection[Tier] = (Tier.USER, Tier.NAMESPACE)) -> Probe:
    """Read the features of the kernel. Changes nothing.

    Args:
        uid: A user id that could be a user's own.
        tried: Tiers to try; the others are reported as not tried.
    """
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
        uid=os.geteuid(),
        capabilities=_capabilities(),
        other_user=_why_no_other_user(uid) if Tier.USER in tried else _UNTRIED,
        namespaces=_why_no_namespaces(uid) if Tier.NAMESPACE in tried else _UNTRIED,
    )


def missing(tier: Tier, *, uid: int = TRIAL_UID) -> tuple[str, ...]:
    """Return a sentence, with a remedy, for each feature that `tier` needs and this machine lacks.

    Args:
        tier: The tier.
        uid: A user id that could be a user's own.
    """
    return probe(uid=uid, tried=(tier,)).missing(tier)


def layers() -> tuple[LayerReport, ...]:
    """Try every layer of tier `process`, each alone in a child of its own, and return the results."""
    with tempfile.TemporaryDirectory(prefix="probe-") as folder:
        top = Path(folder)
        (top / "home").mkdir()
        return tuple(_reported(name, trial, top) for name, trial in _TRIALS.items())


def unreadable(paths: Sequence[Path], *, uid: int) -> str | None:
    """Return a sentence if a process of another user id, in no group, could not read one of the paths."""
    real = [Path(os.path.realpath(path)) for path in paths]
    report = _say_in_child(lambda _answer: _read_as(real, uid))
    return None if report.startswith("+") else report[1:]


def _read_as(paths: Sequence[Path], uid: int) -> str:
    identity.apply(uid)
    for path in paths:
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        except PermissionError:
            closed = next((top for top in reversed(path.parents) if not os.access(top, os.X_OK)), path)
            rights = "rx" if closed == path and closed.is_dir() else "r" if closed == path else "x"
            raise _Closed(
                f"{closed} is closed to other users, and processes of other user ids have to read {path}; "
                f"chmod o+{rights} {closed}, or install it elsewhere"
            ) from None
    return "read"


def _why_no_other_user(uid: int) -> str:
    if os.geteuid() != 0:
        return "the tier user gives each user a user id, which only root can; run it as root, or do without"
    lacking = [name for name, bit in _ROOT_NEEDS.items() if not _capabilities() >> bit & 1]
    if lacking:
        return f"the tier user needs the capabilities {', '.join(lacking)}; add them to the container"
    return unreadable(_own_files(), uid=uid) or ""


def _own_files() -> list[Path]:
    packages = [name for name in sys.path if Path(name).name in ("site-packages", "dist-packages")]
    return [Path(name) for name in (sys.executable, os.__file__, __file__, *packages) if Path(name).exists()]


def _why_no_namespaces(uid: int) -> str:
    with tempfile.TemporaryDirectory(prefix="probe-") as folder:
        top = Path(folder).resolve()
        for name in ("home", "other", "state"):
            (top / name).mkdir(mode=0o700)
        own = uid if os.geteuid() == 0 else None
        if own is not None:
            try:
                os.chown(top / "home", own, own)
            except OSError as error:
                return (
                    f"a folder cannot be given to the user id {own}: {error.strerror}; choose other user ids"
                )
        report = _say_in_child(lambda answer: _try_namespaces(top, own, answer))
    return "" if report.startswith("+") else f"{report[1:]}; docs/isolation.md says what allows namespaces"


def _try_namespaces(top: Path, uid: int | None, answer: int) -> str:
    """Fork the init process of new namespaces, which reports the result; this process only makes them."""
    adopt_orphans()
    home = os.open(top / "home", os.O_PATH | os.O_DIRECTORY)
    pid = namespaces.fork_first_process(own_users=namespaces.needs_user_namespace())
    if pid:
        signal.alarm(_BOUND_S)
        status = os.waitpid(pid, 0)[1]
        # The init process has reported itself; later output is not read.
        return f"ended with {status}"
    try:
        report = "+" + _look_around(top, uid, home, answer)
    except BaseException as error:  # noqa: BLE001 - whatever it was, it is the answer
        report = f"-{in_words(error)}"
    os.write(answer, report.encode()[:_MOST_BYTES])
    os._exit(0)


def _look_around(top: Path, uid: int | None, home: int, answer: int) -> str:
    policy = Policy(
        home=top / "home",
        # Only the files used below: finding all that tools read takes longer than the trial.
        read=tuple(path.resolve() for path in _own_files()),
        names=tuple(_own_files()),
        homes=(top,),
        hidden=(top / "state",),
        uid=uid,
        namespaces=True,
    )
    wanted = {"namespaces", "privileges", "identity"}
    confine_zygote(policy, home_fd=home, keep={0, 1, 2, answer}, parent=0, without=frozenset(LAYERS) - wanted)
    (top / "home" / "inside").touch()
    present = [name for name in ("other", "state") if (top / name).exists()]
    if present or os.getpid() != 1:
        raise _NotEnforced(f"still there in namespaces of its own: {', '.join(present) or 'other processes'}")
    for path in _own_files():
        os.close(os.open(path, os.O_RDONLY))
    return "nothing of others was there"


class _NotEnforced(Exception):
    """Error of a layer that did not deny its test operation."""


class _Closed(Exception):
    """Error of a required folder that is not accessible."""


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
        # A time limit for both, in case the kernel does not kill the child.
        signal.alarm(_BOUND_S)
        if is_child:
            _confine("death with the parent", top, answer)
            os.write(write, b"ready")
        signal.pause()
    os.close(write)
    ready = os.read(read, 5) == b"ready"
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    # End of file: no process has the other end open any more.
    if not ready or not select.select([read], [], [], _BOUND_S / 2)[0]:
        raise _NotEnforced("a child outlived its parent")
    return "a child ended with its parent"


def _try_guard(top: Path, _answer: int) -> str:
    outside = top / "outside"
    install_guard(PathRules(home=top / "home", homes=()))
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
    """Put one layer in place, with the code that applies all of them."""
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
    raise _NotEnforced(f"what has to be refused ({os.strerror(number)}) succeeded")


def _reported(name: str, trial: Callable[[Path, int], str], top: Path) -> LayerReport:
    report = _say_in_child(lambda answer: trial(top, answer))
    return LayerReport(name=name, enforced=report.startswith("+"), detail=report[1:])


def _say_in_child(act: Callable[[int], str]) -> str:
    """Run `act` in a child; return `+` and its result, or `-` and the reason of its failure."""
    read, write = os.pipe()
    pid = _fork()
    if pid == 0:
        try:
            report = "+" + act(write)
        except BaseException as error:  # noqa: BLE001 - whatever it was, it is the answer
            report = f"-{in_words(error)}"
        with contextlib.suppress(OSError):
            os.write(write, report.encode()[:_MOST_BYTES])
        os._exit(0)
    os.close(write)
    try:
        ready = select.select([read], [], [], _BOUND_S)[0]
        report = os.read(read, _MOST_BYTES).decode(errors="replace") if ready else ""
    finally:
        os.close(read)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return report or "-the child that tried it ended without an answer"


def _fork() -> int:
    with warnings.catch_warnings():
        # Python warns about threads in the caller; the child does not use anything they may have locked.
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
        # EFAULT: the kernel supports filters and tried to read the one that was not given.
        return error.errno == errno.EFAULT
    return False


def _capabilities() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1], 16) for line in file if line.startswith("CapEff:"))
