"""One escape attempt: what is done inside, and what the host looks at to see whether it got out.

An act runs in a worker and knows only its `Surroundings`. An oracle runs in the host when the call is over.
It looks at the world and believes nothing that the worker says, with one exception: an answer that holds a
word which was planted where the worker may not read is proof by itself.
"""

import enum
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandbox.selftest.world import World

__all__ = [
    "Act",
    "ActEvidence",
    "Attempt",
    "AttemptKind",
    "AttemptNeed",
    "Blind",
    "Oracle",
    "Residue",
    "Surroundings",
    "above",
    "exactly",
    "taking",
    "tampering",
    "told",
]


class AttemptKind(enum.Enum):
    """What an attempt is after."""

    WRITE = "write"
    OTHER_USER = "other user"
    SURVIVE = "survive"
    RESOURCES = "resources"
    TAMPER = "tamper"
    ARTIFACT = "artifact"


class AttemptNeed(enum.Enum):
    """What must be planted for an attempt, beside the files."""

    VICTIM = "a process of the same user"
    SOCKETS = "sockets that listen"
    IPC = "System V objects and a message queue"
    KEY = "a key in the user's keyring"
    TERMINAL = "a terminal"


class Residue(enum.Enum):
    """What one tier or another leaves open and an attempt can show, by its heading in SECURITY.md."""

    HOMES = "Metadata of homes"
    ELSEWHERE = "Metadata elsewhere"
    LOCKS = "Locks"


def _nobody_waits() -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What an act is told of its surroundings. What it shall find out is not among it.

    Attributes:
        home: The folder it may write.
        other: The home of another user.
        homes: The folder of all homes.
        state: The folder of the runner's keys.
        readable: A file outside the home that may be read and not changed.
        victim: Process id of a stranger of the same operating-system user, or 0.
        address: Where in the stranger's memory the planted word begins.
        descriptor: Number of a descriptor of the stranger, of a file without a name.
        length: Length of the planted word.
        port: TCP port that listens on loopback.
        datagram_port: UDP port on loopback.
        free_port: TCP port on which nobody listens.
        stream: Named UNIX stream socket that listens.
        datagram: Named UNIX datagram socket.
        abstract: Abstract UNIX socket that listens.
        terminal: A terminal of the host.
        segment: System V shared memory with the planted word.
        messages: System V message queue with the planted word.
        semaphores: System V semaphore.
        queue: POSIX message queue with the planted word.
        shared: POSIX shared memory with the planted word.
        key: Key of the kernel's with the planted word.
        fresh: A name and number that is free.
        memory_bytes: The limit of memory.
        file_bytes: The limit of a file's length.
        open_files: The limit of descriptors.
        frame_bytes: The limit of a frame.
        output_bytes: What of its output the host keeps.
        hold: Asks the host to look at this process, and waits until it has.
        report: Tells the host of progress.
    """

    home: str
    other: str
    homes: str
    state: str
    readable: str
    victim: int = 0
    address: int = 0
    descriptor: int = -1
    length: int = 0
    port: int = 0
    datagram_port: int = 0
    free_port: int = 0
    stream: str = ""
    datagram: str = ""
    abstract: str = ""
    terminal: str = ""
    segment: int = -1
    messages: int = -1
    semaphores: int = -1
    queue: str = ""
    shared: str = ""
    key: int = -1
    fresh: int = 0
    memory_bytes: int = 0
    file_bytes: int = 0
    open_files: int = 0
    frame_bytes: int = 0
    output_bytes: int = 0
    hold: Callable[[], None] = field(default=_nobody_waits)
    report: Callable[[], None] = field(default=_nobody_waits)

    def to_json(self) -> dict[str, object]:
        """Return all but the callables as a JSON object."""
        return {name: value for name, value in asdict(self).items() if not callable(value)}

    @classmethod
    def from_json(
        cls, data: Mapping[str, object], *, hold: Callable[[], None], report: Callable[[], None]
    ) -> "Surroundings":
        """Make a place from what `to_json` returned."""
        types = {each.name: str if each.type is str else int for each in fields(cls)}
        values = {name: types[name](str(value)) for name, value in data.items()}
        return cls(**values, hold=hold, report=report)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Blind:
    """Why the host found nothing when it looked at a process: it was not allowed to."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActEvidence:
    """What the host has of one act when it is over.

    Attributes:
        claim: What the act returned, or None.
        error: How it was denied, in a word: an error number's name, a signal, an ending.
        guarded: Whether the guard denied it, before the kernel was asked.
        during: What the host found when the act asked it to look.
        output_bytes: How much output the host was left with.
        naive: Whether the host did what a host without a sandbox does.
    """

    claim: object = None
    error: str | None = None
    guarded: bool = False
    during: object = None
    output_bytes: int = 0
    naive: bool = False

    @property
    def text(self) -> str:
        """The claim as text, to look for a planted word in."""
        return str(self.claim)

    @property
    def blind(self) -> bool:
        """Whether the host was not allowed to look, so that nothing is known."""
        return isinstance(self.during, Blind)

    @property
    def measured(self) -> float:
        """What `during` found, where it is a number; 0 where the act did not come so far."""
        return float(self.during) if isinstance(self.during, int | float) else 0.0


Act = Callable[[Surroundings], object]
Oracle = Callable[["World", ActEvidence], bool]


def told(world: "World", seen: ActEvidence) -> bool:
    """Say whether the answer holds the word that was planted."""
    return world.canary in seen.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One technique, with the act that tries it and the oracle that sees it succeed.

    Attributes:
        id: Its name on the command line.
        kind: What it is after.
        technique: The system call or mechanism, which no other attempt has.
        act: Runs in the worker.
        escaped: Says, in the host and after the call, whether it got out.
        during: What the host does and finds when the act asks it to look.
        needs: What must be planted.
        residue: Under which heading of SECURITY.md this is left open, in the tiers that leave it open.
        limit_s: Seconds that the call may take.
    """

    id: str
    kind: AttemptKind
    technique: str
    act: Act
    escaped: Oracle
    during: Callable[["World", int], object] | None = None
    needs: tuple[AttemptNeed, ...] = ()
    residue: Residue | None = None
    limit_s: float = 20.0


def above(bound: float) -> Oracle:
    """Return an oracle: what the host measured during the act is above a bound."""
    return lambda _world, seen: seen.measured > bound


def exactly(wanted: int) -> Oracle:
    """Return an oracle: the host found just this during the act."""
    return lambda _world, seen: seen.during == wanted


def taking(name: str, technique: str, act: Act, escaped: Oracle, **more: object) -> Attempt:
    """Return an attempt of kind `resources`, with `more` of what attempts have."""
    return Attempt(
        id=f"resources-{name}",
        kind=AttemptKind.RESOURCES,
        technique=technique,
        act=act,
        escaped=escaped,
        **more,  # type: ignore[arg-type]
    )


def tampering(name: str, technique: str, act: Act, escaped: Oracle, *needs: AttemptNeed) -> Attempt:
    """Return an attempt of kind `tamper`."""
    return Attempt(
        id=f"tamper-{name}",
        kind=AttemptKind.TAMPER,
        technique=technique,
        act=act,
        escaped=escaped,
        needs=needs,
    )
