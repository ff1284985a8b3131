"""Human-readable sizes and counts: `850KB`, `2.1GB`, `1.2M`."""

__all__ = ["human_count", "human_size"]

_UNITS = ("B", "KB", "MB", "GB")
_SCALES = ("", "K", "M", "B")


def human_size(size: int) -> str:
    """Return a number of bytes as text: units of 1024, one decimal unless it is zero."""
    return _scaled(size, 1024, _UNITS)


def human_count(number: int) -> str:
    """Return a count as text: units of 1000, one decimal unless it is zero."""
    return _scaled(number, 1000, _SCALES)


def _scaled(number: int, step: int, units: tuple[str, ...]) -> str:
    """Write a number in the largest unit in which it is at least 1 when rounded."""
    for power, unit in enumerate(units):
        rounded = round(number / step**power, 1)
        if rounded < step or unit == units[-1]:
            break
    return f"{rounded:.1f}".removesuffix(".0") + unit
