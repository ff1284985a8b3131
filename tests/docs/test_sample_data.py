import csv
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "make_sales_data.py"
DATA = ROOT / "sample_tools" / "data" / "sales.csv"


def test_script_makes_exactly_the_committed_data(tmp_path: Path) -> None:
    made = tmp_path / "sales.csv"

    subprocess.run([sys.executable, SCRIPT, made], check=True)

    assert made.read_bytes() == DATA.read_bytes()


def test_sample_data_large_enough_and_small_enough_to_clone() -> None:
    with DATA.open(newline="") as file:
        rows = list(csv.DictReader(file))

    assert len(rows) >= 100_000
    assert DATA.stat().st_size < 6 * 1024 * 1024


def test_rows_all_add_up() -> None:
    with DATA.open(newline="") as file:
        rows = list(csv.DictReader(file))

    cents = [[round(float(row[name]) * 100) for name in ("unit_price", "revenue")] for row in rows]

    assert all(int(row["units"]) * unit == revenue for row, (unit, revenue) in zip(rows, cents, strict=True))


def test_sales_have_a_season() -> None:
    with DATA.open(newline="") as file:
        months = [row["date"][5:7] for row in csv.DictReader(file)]

    assert months.count("05") > 3 * months.count("01")
