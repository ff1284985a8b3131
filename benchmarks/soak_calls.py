"""The calls of a soak: their kinds, their frequency, and the answer that each must get."""

import hashlib
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["HONEST", "HOSTILE", "Call", "Kind", "calls", "honest", "settings_text"]

Answer = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of call.

    Attributes:
        tool: The tool.
        weight: How often it comes, against the others.
        fault: Says what is wrong with an answer, or None; given the arguments.
        arguments: Makes its arguments.
        gone_after_s: The time after which the client disconnects without an answer, if it does.
    """

    tool: str
    weight: int
    fault: Callable[[Mapping[str, Any], Answer], str | None]
    arguments: Callable[[random.Random], dict[str, Any]] = field(default=lambda _: {})
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


_DEADLY = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)

HONEST = (
    Kind(
        "square",
        50,
        _is(lambda a: {"square": a["number"] ** 2, "calls": 1, "found": []}),
        lambda r: {"number": r.randrange(10**6)},
    ),
    Kind(
        "keep",
        25,
        _is(lambda a: {"digest": hashlib.sha256(a["text"].encode()).hexdigest()}),
        lambda r: {"text": r.randbytes(200).hex()},
    ),
    Kind("report", 5, _report_fault, lambda r: {"number": r.randrange(10**9)}),
    Kind("asks_a_program", 10, _is(lambda a: {"text": a["text"]}), lambda r: {"text": r.randbytes(20).hex()}),
    Kind(
        "works_in_threads",
        10,
        _is(lambda a: {"sum": sum(sum(range(n)) for n in range(a["count"]))}),
        lambda r: {"count": r.randrange(1, 6)},
    ),
)

HOSTILE = (
    Kind("fork_bomb", 3, _ends("E_RESOURCE_LIMIT", "E_TIMEOUT")),
    Kind("double_forks", 10, _ends(None), lambda r: {"depth": r.randrange(1, 5)}),
    Kind("stops", 4, _ends("E_TIMEOUT")),
    Kind("eats", 6, _ends("E_MEMORY"), lambda _: {"mib": 400}),
    Kind("hides", 5, _ends("E_QUOTA"), lambda _: {"mib": 8}),
    Kind("litters", 5, _ends(None), lambda r: {"count": r.randrange(20)}),
    Kind("sleeps", 6, _ends("E_TIMEOUT")),
    Kind("sleeps", 6, _ends(), gone_after_s=0.1),
    Kind("chatters", 4, _ends("E_TIMEOUT")),
    Kind("crashes", 8, _ends("E_CRASHED"), lambda r: {"number": int(r.choice(_DEADLY))}),
    Kind("exits", 5, _ends("E_CRASHED"), lambda r: {"status": r.randrange(256)}),
    Kind("floods", 5, _ends(None), lambda _: {"mib": 4}),
    Kind("mumbles", 5, _ends("E_INVALID_RESULT", "E_TIMEOUT")),
    Kind("answers_at_length", 4, _ends("E_INVALID_RESULT"), lambda _: {"size": 2_000_000}),
    Kind("opens_sockets", 6, _is(lambda _: "")),
    Kind("makes_sysv", 6, _is(lambda _: "")),
    # Files are looked for from outside: a tier may give a call a folder of its own by a common name.
    Kind("plants", 5, _ends(None, "E_INVALID_PATH")),
    Kind("poisons", 8, _ends(None)),
    Kind("opens_files", 3, _ends(None, "E_RESOURCE_LIMIT")),
    Kind("sends_descriptors", 3, _ends(None)),
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
    }
    tables = [
        f"[tools.{tool}]\n" + "".join(f"{name} = {value}\n" for name, value in values.items())
        for tool, values in own.items()
    ]
    general = "max_payload_bytes = 1048576\nopen_files = 128\n"
    return "\n".join([general, *tables])
