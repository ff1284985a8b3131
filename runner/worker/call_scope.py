"""The state of each call in a worker: its line to the host, and what is noted of it beside its answer.

Calls that run at once are told apart by a context variable, which tasks and the threads of sync tools
inherit. A plain thread has no context, and a task may outlive its call: both get the call that began last.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from runner.worker.host_channel import HostLine
from sandbox.inside.program import Channel

__all__ = ["ServedCall", "current", "entered"]


@dataclass(slots=True, kw_only=True, eq=False)
class ServedCall:
    """One call.

    Attributes:
        channel: Where its denials are explained.
        line: Its line to the host.
        most_bytes: Longest answer.
        known: Values of session state that came with it, by `full_key`.
        raised: The exception of its tool, in JSON; with `told`, where a client gets that and no more.
    """

    channel: Channel
    line: HostLine
    most_bytes: int
    known: dict[str, dict[str, Any]] = field(default_factory=dict)
    raised: dict[str, object] | None = None


_current: ContextVar[ServedCall | None] = ContextVar("call_scope", default=None)
# The calls under way, the latest last; the last one of all stays.
_calls: list[ServedCall] = []


def current() -> ServedCall | None:
    """Return the call that runs here; the latest one in a thread or task of none that runs."""
    mine = _current.get()
    if mine is not None and not mine.channel.is_over:
        return mine
    return _calls[-1] if _calls else mine


@contextlib.contextmanager
def entered(scope: ServedCall) -> Iterator[None]:
    """Run a call in this context."""
    _current.set(scope)
    _calls[:] = [one for one in _calls if not one.channel.is_over]
    _calls.append(scope)
    try:
        yield
    finally:
        if len(_calls) > 1:
            _calls.remove(scope)
