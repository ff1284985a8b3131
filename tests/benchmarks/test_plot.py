from pathlib import Path

from benchmarks.curves.curve import Curve, Panel
from benchmarks.curves.plot import draw


def curve(last: float = 300.0) -> Curve:
    panel = Panel(over="clients at once", shows="milliseconds")
    for size, value in ((1, 10.0), (16, 80.0), (256, last)):
        panel.add("runner, median", size, value)
    return Curve(key="clients", title="Clients", about="", headings=(), panels=(panel,))


def test_the_same_figures_give_the_same_picture_byte_for_byte(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()

    first, second = (draw(curve(), folder).read_bytes() for folder in folders)

    assert first == second
    assert b"<dc:date>" not in first
    assert draw(curve(last=301.0), tmp_path).read_bytes() != first


def test_a_picture_says_what_it_shows_over_what(tmp_path: Path) -> None:
    text = draw(curve(), tmp_path).read_text()

    assert [word in text for word in ("clients at once", "milliseconds", "runner, median", "256")] == [
        True
    ] * 4
