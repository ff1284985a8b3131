"""Output of tools for their operators: in the log, and on the page of `runner dev`.

A tool can print without end, and each log record costs time of the shared event loop. So the log of a call is
bounded: the tail of its output, and the exceptions that it raised.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from runner.steps.listener import CallListener
from sandbox.host.lease import Lease
from sandbox.outcome import Outcome

__all__ = ["LiveOutput", "frame_lines", "report_output"]

log = logging.getLogger(__name__)

_MOST_FRAMES = 20
_MOST_LINE_CHARS = 2000
# Most lines of one call: on a server for many users, and for one user who develops a tool.
_SHARED_LINES, _OWN_LINES = 200, 5000
_LINES_A_TURN = 100
_CLIENT_CHARS = 64 * 1024
_LOOK_S = 0.2


class LiveOutput:
    """Output of a running call, sent to its client line by line."""

    def __init__(self, lease: Lease, listener: CallListener) -> None:
        self._lease = lease
        self._listener = listener
        self._sent_bytes = 0
        self._sending: asyncio.Future[None] | None = None

    async def follow(self) -> None:
        """Send each complete line soon after it was printed, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            printed, total_bytes = self._lease.printed_since(self._sent_bytes)
            lines, line_break, rest = printed.rpartition(b"\n")
            if line_break:
                self._sent_bytes = total_bytes - len(rest)
                # Shielded from cancellation: `finish` waits for a send in progress.
                self._sending = asyncio.ensure_future(self._send(lines))
                await asyncio.shield(self._sending)

    async def finish(self) -> None:
        """Send the last output."""
        if self._sending is not None:
            await self._sending
        printed, self._sent_bytes = self._lease.printed_since(self._sent_bytes)
        await self._send(printed.rstrip(b"\n"))

    async def _send(self, lines: bytes) -> None:
        await self._listener.printed("info", lines[-_CLIENT_CHARS:].decode(errors="replace"))


async def report_output(
    outcome: Outcome,
    listener: CallListener,
    *,
    tool: str | None,
    to: str,
    live: LiveOutput | None = None,
) -> None:
    """Log the output and exceptions of a call; with `client`, send them to its client too.

    Args:
        outcome: The end of the call, without values of secrets.
        listener: The call's listener.
        tool: Name of the tool, if it was one.
        to: The setting `tool_output`.
        live: Sender of the output, if it has already been sending while the call ran.
    """
    if to == "drop":
        return
    raised = (outcome.answer or {}).get("raised")
    trace = list(_trace(raised)) if isinstance(raised, Mapping) else []
    printed = outcome.output.splitlines()
    most = _OWN_LINES if to == "client" else _SHARED_LINES
    if len(printed) > most:
        log.warning("tool output shortened", extra={"tool": tool, "lines_left_out": len(printed) - most})
    for number, line in enumerate(printed[-most:]):
        log.info("tool printed", extra={"tool": tool, "line": line[:_MOST_LINE_CHARS]})
        if number % _LINES_A_TURN == _LINES_A_TURN - 1:
            await asyncio.sleep(0)
    for line in trace[:_SHARED_LINES]:
        log.warning("tool raised", extra={"tool": tool, "line": line[:_MOST_LINE_CHARS]})
    if to == "client":
        if live is None:
            await listener.printed("info", outcome.output[-_CLIENT_CHARS:])
        else:
            await live.finish()
        await listener.printed("error", "\n".join(trace)[:_CLIENT_CHARS])


def frame_lines(frames: object) -> list[str]:
    """Return the stack frames that a worker sent, a line each."""
    listed = frames[:_MOST_FRAMES] if isinstance(frames, list) else []
    return [
        f"{frame.get('file')}, line {frame.get('line')}, in {frame.get('function')}: {frame.get('text')}"
        for frame in listed
        if isinstance(frame, Mapping)
    ]


def _trace(raised: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of an exception and its causes, as a worker sent them."""
    if "type" not in raised:
        return
    chain = raised.get("chain")
    for link in (raised, *(chain if isinstance(chain, list) else ())):
        if isinstance(link, Mapping):
            relation = f"{link['relation']}: " if "relation" in link else ""
            yield from f"{relation}{link.get('type')}: {link.get('message')}".splitlines()
            yield from (f"  note: {note}" for note in str(link.get("notes") or "").splitlines())
            yield from (f"  {line}" for line in frame_lines(link.get("frames")))
