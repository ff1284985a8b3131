"""One escape attempt: an act inside, and the oracle by which the host sees whether it got out.

An act runs in a worker and knows only its `Surroundings`. An oracle runs in the host when the call is over.
It looks at the world and believes nothing that the worker says, with one exception: an answer that holds a
word which was planted where the worker may not read is proof by itself.
"""

import enum
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandbox.selftest.world import World

__all__ = [
    "SECRET_FILE",
    "SECRET_WORD",
    "WORD_DIGITS",
    "Act",
    "ActEvidence",
    "Attempt",
    "AttemptKind",
    "Blind",
    "Judge",
    "Look",
    "Oracle",
    "Residue",
    "Rows",
    "Surroundings",
    "rows",
    "shows_word",
]

SECRET_FILE = "TOOLCELL_SELFTEST_FILE"  # noqa: S105 - the name of a variable, no secret
"""Variable that names a file which the parent of all workers opens and forgets to close."""
SECRET_WORD = "TOOLCELL_SELFTEST_WORD"  # noqa: S105 - as above
"""Variable that holds the secret itself."""
WORD_DIGITS = 20
"""Length of a planted word."""


class AttemptKind(enum.Enum):
    """Aim of an attempt."""

    WRITE = "write"
    OTHER_USER = "other user"
    SURVIVE = "survive"
    RESOURCES = "resources"
    TAMPER = "tamper"
    ARTIFACT = "artifact"


class Residue(enum.Enum):
    """Headings of SECURITY.md for what a tier leaves open and an attempt can show."""

    HOMES = "Metadata of homes"
    ELSEWHERE = "Metadata elsewhere"
    LOCKS = "Locks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Paths, numbers and addresses that an act is given; not the words that it shall find out."""

    home: str  # The folder it may write.
    other: str  # The home of another user.
    homes: str  # The folder of all homes.
    state: str  # The folder of the runner's keys.
    readable: str  # A file outside the home that may be read and not changed.
    victim: int  # Process id of a stranger of the same operating-system user.
    address: int  # Start of the planted word in the stranger's memory.
    descriptor: int  # Number of a descriptor of the stranger, of a file without a name.
    port: int  # TCP port that listens on loopback.
    datagram_port: int  # UDP port on loopback.
    free_port: int  # TCP port on which nobody listens.
    stream: str  # Named UNIX stream socket that listens.
    datagram: str  # Named UNIX datagram socket.
    abstract: str  # Abstract UNIX socket that listens.
    terminal: str  # A terminal of the host.
    segment: int  # System V shared memory with the planted word.
    messages: int  # System V message queue with the planted word.
    semaphore: int  # System V semaphore.
    queue: str  # POSIX message queue with the planted word.
    shared: str  # POSIX shared memory with the planted word.
    key: int  # Key of the kernel with the planted word; -1 where an engine refuses keys.
    fresh: int  # A name and number that is free.
    report: Callable[[], None] = field(default=lambda: None)  # Sends the host a progress notification.

    @property
    def file(self) -> str:
        """Return a file of the other user that holds the planted word."""
        return f"{self.other}/file.txt"

    def to_json(self) -> dict[str, object]:
        """Return all but the callable as a JSON object."""
        return {name: value for name, value in asdict(self).items() if not callable(value)}

    @classmethod
    def from_json(cls, data: Mapping[str, object], *, report: Callable[[], None]) -> "Surroundings":
        """Make surroundings from what `to_json` returned."""
        return cls(**data, report=report)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Blind:
    """Reason for which the host was not allowed to look at a process."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActEvidence:
    """Evidence that the host has of one act when it is over."""

    claim: object = None  # Returned by the act.
    error: str | None = None  # An error number's name, a signal, an ending.
    guarded: bool = False  # Whether the guard denied it, before the kernel was asked.
    during: object = None  # Found by the host while the act held still.
    output_bytes: int = 0  # Output that the host was left with.
    naive: bool = False  # Whether the host does what a host without a sandbox does.

    @property
    def text(self) -> str:
        """Return the claim as text, to look for a planted word in."""
        return str(self.claim)


Act = Callable[[Surroundings], object]
Look = Callable[["World", int], object]
Oracle = Callable[["World", ActEvidence], bool]
Judge = Oracle | tuple[Oracle, Look]
Rows = Mapping[str, Act | tuple[Judge, Act]]


def shows_word(world: "World", seen: ActEvidence) -> bool:
    """Return whether the answer holds the word that was planted."""
    return world.canary in seen.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One technique, with the act that tries it and the oracle that sees it succeed."""

    id: str  # Its name on the command line.
    kind: AttemptKind  # Its aim.
    technique: str  # The system call or mechanism, which no other attempt has.
    act: Act  # Runs in the worker.
    escaped: Oracle  # Runs in the host after the call; returns whether the act got out.
    # The host's look at the process once the act has returned, while what it returned is kept. A function
    # that the act returned is called afterwards, and makes the answer.
    during: Look | None = None
    # Heading of SECURITY.md under which this is left open, in the tiers that leave it open.
    residue: Residue | None = None
    limit_s: float = 20.0  # Seconds that the call may take.


def rows(
    kind: AttemptKind,
    judge: Judge,
    acts: Rows,
    *,
    residue: Residue | None = None,
    limit_s: float = 20.0,
) -> tuple[Attempt, ...]:
    """Return an attempt for each row `"name: technique": act`, or `(judge, act)` where it has its own.

    A name alone is that of its system call.
    """
    made = partial(Attempt, kind=kind, residue=residue, limit_s=limit_s)
    attempts = []
    for title, row in acts.items():
        name, _, technique = title.partition(": ")
        judged, act = row if isinstance(row, tuple) else (judge, row)
        escaped, during = judged if isinstance(judged, tuple) else (judged, None)
        id_, technique = f"{kind.value.partition(' ')[0]}-{name}", technique or f"{name}(2)"
        attempts.append(made(id=id_, technique=technique, act=act, escaped=escaped, during=during))
    return tuple(attempts)
