"""Put the guard in place in the calling process. It stays until the process ends."""

from collections.abc import Callable

from sandbox.denials import audit, handled, patches
from sandbox.denials.judge import Judge
from sandbox.denials.paths import PathRules
from sandbox.denials.record import Recorder
from sandbox.outcome import Denial

__all__ = ["install_guard"]


def install_guard(rules: PathRules, forward: Callable[[Denial], None] | None = None) -> Recorder:
    """Install the patches, the audit hook behind them, and the look at errors that the program handles.

    Args:
        rules: What to explain by. Links in them are followed now, once.
        forward: Called with each denial that is new, for example to tell the host.

    Returns:
        The record of everything denied from now on.
    """
    recorder = Recorder(forward)
    resolved = rules.resolved()
    judge = Judge(resolved, recorder.report, opened_to_read=recorder.opened_to_read)
    patches.install(judge)
    audit.install(judge)
    handled.install(judge, resolved, recorder)
    return recorder
