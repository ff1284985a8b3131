"""Comparison of a run with the committed figures, by its ratios alone.

A ratio of two figures of one run depends little on the machine; milliseconds do. A ratio counts as worse
if it is off the committed one by more than the tolerance, to the bad side of its limit.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import TIMES, Target

__all__ = ["FIGURES", "TOLERANCE", "document", "read", "worse"]

FIGURES = Path(__file__).with_name("figures.json")
# Quiet runs of one tree on one machine differ by less; a call that starts to wait for a fork does by more.
TOLERANCE = 0.25


def worse(targets: Sequence[Target], committed: dict[str, float], *, tolerance: float) -> list[str]:
    """Return a sentence for each committed ratio that this run does not keep.

    Args:
        targets: What this run measured.
        committed: Ratios by the name of their target.
        tolerance: How much worse a ratio may be, as a part of the committed one.
    """
    return [*_worse({target.what: target for target in targets}, committed, tolerance)]


def document(targets: Sequence[Target], machine: dict[str, str]) -> str:
    """Return the ratios of a run as they are committed, with the machine that they come from."""
    ratios = {
        target.what: round(target.measured, 4)
        for target in targets
        if target.unit == TIMES and target.measured is not None
    }
    return json.dumps({"machine": machine, "ratios": ratios}, indent=1) + "\n"


def read(path: Path) -> dict[str, float]:
    """Return the ratios of a file that `document` wrote.

    Raises:
        ValueError: It is not such a file; the message says why.
    """
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as figures: {error}") from error
    ratios = document.get("ratios") if isinstance(document, dict) else None
    if not isinstance(ratios, dict) or not all(isinstance(value, int | float) for value in ratios.values()):
        raise ValueError(f"{path} holds no object `ratios` of numbers; scripts/bench --keep writes one")
    return {str(what): float(value) for what, value in ratios.items()}


def _worse(measured: dict[str, Target], committed: dict[str, float], tolerance: float) -> Iterator[str]:
    for what, before in committed.items():
        target = measured.get(what)
        if target is None or target.measured is None:
            reason = "this run has no such figure" if target is None else target.verdict
            yield f"{what}: it was {before:.4g}; {reason}"
            continue
        now = target.measured
        bound = before * (1 + tolerance) if target.bound == "most" else before / (1 + tolerance)
        if (now > bound) if target.bound == "most" else (now < bound):
            yield f"{what}: {now:.4g}, and it was {before:.4g}; at {target.bound} {bound:.4g} passes"
