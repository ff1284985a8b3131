"""The calls of a soak: which there are, how often each comes, and what its answer must be."""

import hashlib
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["HONEST", "HOSTILE", "Call", "Kind", "calls", "honest", "settings_text"]

Answer = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of call.

    Attributes:
        tool: The tool.
        weight: How often it comes, against the others.
        arguments: Makes its arguments.
        fault: Says what is wrong with an answer, or None; given the arguments.
        gone_after_s: When the client leaves without waiting for the answer, if it does.
    """

    tool: str
    weight: int
    arguments: Callable[[random.Random], dict[str, Any]]
    fault: Callable[[Mapping[str, Any], Answer], str | None]
    gone_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a soak."""

    kind: Kind
    arguments: Mapping[str, Any]
    hostile: bool


def _code(answer: Answer) -> str | None:
    meta = answer.get("meta_data")
    return meta.get("error_code") if isinstance(meta, Mapping) else None


def _is(expected: Callable[[Mapping[str, Any]], Any]) -> Callable[[Mapping[str, Any], Answer], str | None]:
    """Return a check that `results` are just what the arguments make them."""

    def fault(arguments: Mapping[str, Any], answer: Answer) -> str | None:
        wanted = expected(arguments)
        return None if answer.get("results") == wanted else f"wanted {wanted!r}, got {str(answer)[:400]}"

    return fault


def _ends(*codes: str | None) -> Callable[[Mapping[str, Any], Answer], str | None]:
    """Return a check that a call ends with one of these codes; None stands for an answer."""

    def fault(_arguments: Mapping[str, Any], answer: Answer) -> str | None:
        return None if _code(answer) in codes else f"wanted one of {codes}, got {str(answer)[:400]}"

    return fault


def _report_fault(arguments: Mapping[str, Any], answer: Answer) -> str | None:
    files = answer.get("artifacts") or []
    names = [file.get("name") for file in files]
    right = answer.get("results") == {"number": arguments["number"]}
    return None if right and names == [f"report-{arguments['number']}.txt"] else f"got {str(answer)[:400]}"


def _nothing(_random: random.Random) -> dict[str, Any]:
    return {}


HONEST = (
    Kind(
        tool="square",
        weight=50,
        arguments=lambda r: {"number": r.randrange(10**6)},
        fault=_is(lambda a: {"square": a["number"] ** 2, "calls": 1, "found": []}),
    ),
    Kind(
        tool="keep",
        weight=25,
        arguments=lambda r: {"text": r.randbytes(200).hex()},
        fault=_is(lambda a: {"digest": hashlib.sha256(a["text"].encode()).hexdigest()}),
    ),
    Kind(tool="report", weight=5, arguments=lambda r: {"number": r.randrange(10**9)}, fault=_report_fault),
    Kind(
        tool="asks_a_program",
        weight=10,
        arguments=lambda r: {"text": r.randbytes(20).hex()},
        fault=_is(lambda a: {"text": a["text"]}),
    ),
    Kind(
        tool="works_in_threads",
        weight=10,
        arguments=lambda r: {"count": r.randrange(1, 6)},
        fault=_is(lambda a: {"sum": sum(sum(range(n)) for n in range(a["count"]))}),
    ),
)

HOSTILE = (
    Kind(
        tool="fork_bomb",
        weight=3,
        arguments=_nothing,
        fault=_ends("E_RESOURCE_LIMIT", "E_TIMEOUT"),
    ),
    Kind(
        tool="double_forks",
        weight=10,
        arguments=lambda r: {"depth": r.randrange(1, 5)},
        fault=_ends(None),
    ),
    Kind(tool="stops", weight=4, arguments=_nothing, fault=_ends("E_TIMEOUT")),
    Kind(tool="eats", weight=6, arguments=lambda r: {"mib": 400}, fault=_ends("E_MEMORY")),
    Kind(tool="hides", weight=5, arguments=lambda r: {"mib": 8}, fault=_ends("E_QUOTA")),
    Kind(tool="litters", weight=5, arguments=lambda r: {"count": r.randrange(20)}, fault=_ends(None)),
    Kind(tool="sleeps", weight=6, arguments=_nothing, fault=_ends("E_TIMEOUT")),
    Kind(tool="sleeps", weight=6, arguments=_nothing, fault=_ends(), gone_after_s=0.1),
    Kind(tool="chatters", weight=4, arguments=_nothing, fault=_ends("E_TIMEOUT")),
    Kind(
        tool="crashes",
        weight=8,
        arguments=lambda r: {"number": int(r.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT]))},
        fault=_ends("E_CRASHED"),
    ),
    Kind(tool="exits", weight=5, arguments=lambda r: {"status": r.randrange(256)}, fault=_ends("E_CRASHED")),
    Kind(tool="floods", weight=5, arguments=lambda r: {"mib": 4}, fault=_ends(None)),
    Kind(tool="mumbles", weight=5, arguments=_nothing, fault=_ends("E_INVALID_RESULT", "E_TIMEOUT")),
    Kind(
        tool="answers_at_length",
        weight=4,
        arguments=lambda r: {"size": 2_000_000},
        fault=_ends("E_INVALID_RESULT"),
    ),
    Kind(tool="opens_sockets", weight=6, arguments=_nothing, fault=_is(lambda a: "")),
    Kind(tool="makes_sysv", weight=6, arguments=_nothing, fault=_is(lambda a: "")),
    # Where it could is seen from outside: a tier may give a call a folder of its own by a common name.
    Kind(tool="plants", weight=5, arguments=_nothing, fault=_ends(None, "E_INVALID_PATH")),
    Kind(tool="poisons", weight=8, arguments=_nothing, fault=_ends(None)),
    Kind(tool="opens_files", weight=3, arguments=_nothing, fault=_ends(None, "E_RESOURCE_LIMIT")),
    Kind(tool="sends_descriptors", weight=3, arguments=_nothing, fault=_ends(None)),
)


def calls(seed: int, *, hostile_share: float, token: str, key: int) -> Iterator[Call]:
    """Yield calls without end, the same for the same seed.

    Args:
        seed: Of the choice.
        hostile_share: Which part of them is hostile.
        token: Name of what hostile calls plant, by which it would be found.
        key: Of the System V objects that they try to make.
    """
    known: dict[str, dict[str, Any]] = {"plants": {"token": token}, "makes_sysv": {"key": key}}
    chosen = random.Random(seed)  # noqa: S311 - nobody has to be unable to guess
    while True:
        hostile = chosen.random() < hostile_share
        kinds = HOSTILE if hostile else HONEST
        kind = chosen.choices(kinds, [kind.weight for kind in kinds])[0]
        arguments = known.get(kind.tool) or kind.arguments(chosen)
        yield Call(kind=kind, arguments=arguments, hostile=hostile)


def honest() -> list[Call]:
    """Return a call of each honest kind, after which a user has all the processes that calls need."""
    chosen = random.Random(0)  # noqa: S311 - nobody has to be unable to guess
    return [Call(kind=kind, arguments=kind.arguments(chosen), hostile=False) for kind in HONEST]


def settings_text() -> str:
    """Return the limits under which the hostile calls end soon, as `runner.toml`."""
    own: dict[str, dict[str, float]] = {
        "fork_bomb": {"call_processes": 40},
        "stops": {"idle_timeout_s": 0.3},
        "eats": {"memory_mb": 128},
        "hides": {"max_home_bytes": 4 << 20},
        "sleeps": {"idle_timeout_s": 0.5},
        "chatters": {"total_timeout_s": 0.5},
        "mumbles": {"idle_timeout_s": 0.5},
        "answers_at_length": {"max_answer_bytes": 1 << 20},
        "opens_files": {"open_files": 128},
    }
    tables = [
        f"[tools.{tool}]\n" + "".join(f"{name} = {value}\n" for name, value in values.items())
        for tool, values in own.items()
    ]
    return "\n".join(tables)
