"""One escape attempt: an act inside, and the oracle by which the host detects an escape.

An act runs in a worker and receives only its `Surroundings`. An oracle runs in the host after the call.
It inspects the world and does not trust the worker, with one exception: an answer that contains a word
planted where the worker may not read is proof by itself.
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
"""Variable that names a file which the parent of all workers leaves open."""
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
    """Headings of SECURITY.md for gaps of a tier that an attempt can show."""

    HOMES = "Metadata of homes"
    ELSEWHERE = "Metadata elsewhere"
    LOCKS = "Locks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Paths, numbers and addresses given to an act; not the words that it is to find."""

    home: str  # The folder it may write.
    other: str  # The home of another user.
    homes: str  # The folder of all homes.
    state: str  # The folder of the runner's keys.
    readable: str  # A file outside the home that may be read but not changed.
    victim: int  # Process id of a stranger of the same operating-system user.
    address: int  # Start of the planted word in the stranger's memory.
    descriptor: int  # Number of a descriptor of the stranger, of an unlinked file.
    port: int  # TCP port that listens on loopback.
    datagram_port: int  # UDP port on loopback.
    free_port: int  # TCP port without a listener.
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
    fresh: int  # An unused name and number.
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
        """Create surroundings from the result of `to_json`."""
        return cls(**data, report=report)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Blind:
    """Reason why the host could not inspect a process."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActEvidence:
    """Evidence that the host has of one act after its end."""

    claim: object = None  # Returned by the act.
    error: str | None = None  # An error number's name, a signal, an ending.
    guarded: bool = False  # Whether the guard denied it before the kernel.
    during: object = None  # Found by the host while the act waited.
    output_bytes: int = 0  # Output that the host kept.
    naive: bool = False  # Whether the host acts like one without a sandbox.

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
    """Return whether the answer contains the planted word."""
    return world.canary in seen.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One technique, with the act that tries it and the oracle that detects its success."""

    id: str  # Its name on the command line.
    kind: AttemptKind  # Its aim.
    technique: str  # The system call or mechanism, unique among attempts.
    act: Act  # Runs in the worker.
    escaped: Oracle  # Runs in the host after the call; returns whether the act got out.
    # The host's inspection of the process after the act has returned, while its result is kept alive. If the
    # result is a function, it is called afterwards and returns the answer.
    during: Look | None = None
    # Heading of SECURITY.md for this gap, in the tiers that have it.
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
    """Return an attempt for each row `"name: technique": act`, or `(judge, act)` for its own judge.

    A name without a technique is that of its system call.
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
