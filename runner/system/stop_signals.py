"""Stop signals, Ctrl-C, SIGTERM and a hangup, for commands that run until stopped.

Source: signal(7); `docs/cli.md`, exit codes.
"""

import asyncio
import signal
from dataclasses import dataclass, field

__all__ = ["StopSignals"]


@dataclass(slots=True, eq=False)
class StopSignals:
    """Stop signals received so far.

    Attributes:
        stopped: Set by the first signal: shut down gracefully.
        again: Set by the second signal: exit at once.
    """

    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    again: asyncio.Event = field(default_factory=asyncio.Event)
    _interrupted: bool = False

    @classmethod
    def install(cls) -> "StopSignals":
        """Install handlers of the stop signals in the running event loop; return their state."""
        signals, loop = cls(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # `nohup` ignores hangups.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, signals.receive, number)
        return signals

    def receive(self, number: int) -> None:
        """Record a signal."""
        self._interrupted |= number == signal.SIGINT
        (self.again if self.stopped.is_set() else self.stopped).set()

    @property
    def exit_status(self) -> int:
        """Return the exit status of the command: 130 after Ctrl-C, else 0."""
        return 128 + signal.SIGINT if self._interrupted else 0
