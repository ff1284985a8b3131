#!/usr/bin/env python3
"""Write the sample data: three years of sales of a garden shop, one row a sale.

The same rows on every machine and every Python: a fixed seed, whole numbers, and only those calls of
`random` whose sequence is promised to stay (`random()`, and `choices`, which is built on it).

    scripts/make_sales_data.py                  writes sample_tools/data/sales.csv
    scripts/make_sales_data.py other.csv        writes another file
"""

import csv
import random
import sys
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import TypeVar

__all__ = ["COLUMNS", "ROWS", "main", "rows", "write"]

COLUMNS = ("date", "region", "product", "channel", "units", "unit_price", "revenue")
ROWS = 105_000

_Choice = TypeVar("_Choice", str, int)
_SEED = 20_260_101
_FIRST_DAY = date(2023, 1, 1)
_DAYS = 3 * 365 + 1  # 2024 is a leap year

# Relative demand by month and by weekday: a garden shop sells in spring, and on Saturdays.
_MONTHS = (40, 55, 105, 150, 170, 140, 110, 95, 90, 75, 60, 85)
_WEEKDAYS = (80, 80, 85, 95, 120, 160, 60)
_GROWTH_PERCENT = {2023: 100, 2024: 108, 2025: 119}

_REGIONS = {"North": 24, "South": 31, "East": 18, "West": 27}
_CHANNELS = {"store": 52, "online": 37, "phone": 11}
# Product: list price in cents and how often it is bought.
_PRODUCTS = {
    "Seeds": (349, 30),
    "Gloves": (899, 17),
    "Soil": (1249, 22),
    "Trowel": (1575, 12),
    "Hose": (3490, 9),
    "Shears": (4280, 6),
    "Mower": (28900, 2),
    "Bench": (15900, 2),
}
_UNITS = {1: 46, 2: 26, 3: 13, 4: 7, 5: 4, 6: 2, 10: 1, 12: 1}
_DISCOUNT_PERCENT = {0: 78, 5: 9, 10: 9, 20: 4}


def rows() -> Iterator[tuple[str, str, str, str, int, str, str]]:
    """Yield the rows in order of date."""
    rng = random.Random(_SEED)
    for day in sorted(rng.choices(range(_DAYS), [_demand(day) for day in range(_DAYS)], k=ROWS)):
        product = rng.choices(list(_PRODUCTS), [weight for _, weight in _PRODUCTS.values()])[0]
        units = _pick(rng, _UNITS)
        unit_cents = _PRODUCTS[product][0] * (100 - _pick(rng, _DISCOUNT_PERCENT)) // 100
        yield (
            str(_FIRST_DAY + timedelta(days=day)),
            _pick(rng, _REGIONS),
            product,
            _pick(rng, _CHANNELS),
            units,
            _money(unit_cents),
            _money(units * unit_cents),
        )


def write(target: Path) -> None:
    """Write all rows to `target` as CSV with a heading."""
    with target.open("w", newline="", encoding="ascii") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows())


def main(arguments: list[str]) -> None:
    """Write the file named on the command line, or the one in the tree."""
    default = Path(__file__).parent.parent / "sample_tools" / "data" / "sales.csv"
    write(Path(arguments[0]) if arguments else default)


def _demand(day: int) -> int:
    when = _FIRST_DAY + timedelta(days=day)
    return _MONTHS[when.month - 1] * _WEEKDAYS[when.weekday()] * _GROWTH_PERCENT[when.year]


def _pick(rng: random.Random, weights: dict[_Choice, int]) -> _Choice:
    return rng.choices(list(weights), list(weights.values()))[0]


def _money(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02d}"


if __name__ == "__main__":
    main(sys.argv[1:])
