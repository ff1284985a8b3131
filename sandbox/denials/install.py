"""Installation of the guard in the calling process, where it stays until the process ends."""

from collections.abc import Callable

from sandbox.denials import audit, handled, patches
from sandbox.denials.judge import Judge
from sandbox.denials.paths import PathRules
from sandbox.denials.record import Recorder
from sandbox.outcome import Denial

__all__ = ["install_guard"]


def install_guard(rules: PathRules, forward: Callable[[Denial], None] | None = None) -> Recorder:
    """Install the patches, the audit hook behind them, and the inspection of handled errors.

    Args:
        rules: Path rules that explain denials. Their links are resolved once, now.
        forward: Called with each new denial, for example to report it to the host.

    Returns:
        The record of all denials from now on.
    """
    recorder = Recorder(forward)
    resolved = rules.resolved()
    judge = Judge(resolved, recorder.report, opened_to_read=recorder.opened_to_read)
    patches.install(judge)
    audit.install(judge)
    handled.install(judge, resolved, recorder)
    return recorder
