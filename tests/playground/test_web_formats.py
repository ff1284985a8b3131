"""Workbooks, tables and sounds in a browser: honest ones are shown, hostile ones do nothing.

Source: `docs/widgets.md`.
"""

import io
import struct
import wave
import zipfile
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import openpyxl
import pytest
from playground_support import Shown
from playwright.sync_api import Locator
from web_support import WEB_TOOLS, Seen, browsing, expect, faults

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]

DOCUMENTS = Path(__file__).with_name("documents")
"""Made by XlsxWriter, which nothing else here needs."""


@pytest.fixture(scope="module")
def seen(start: Callable[..., Shown]) -> Iterator[Seen]:
    with browsing(start(tools=WEB_TOOLS)) as opening:
        yield opening()


def shown(seen: Seen, name: str, content: bytes) -> Locator:
    """Upload a file, open it, and return where it is shown."""
    seen.go("files")
    seen.page.locator("input[type=file]").set_input_files(
        {"name": name, "mimeType": "application/octet-stream", "buffer": content}
    )
    seen.page.get_by_role("link", name=name, exact=True).click()
    figure = seen.page.locator("figure").first
    expect(figure.locator("b").first).to_have_text(name)
    return figure


def packed(entries: dict[str, bytes | str]) -> bytes:
    """Return a ZIP archive."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return data.getvalue()


def workbook() -> bytes:
    """Return a workbook of two sheets, with a formula, a day and a hidden sheet."""
    book = openpyxl.Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.title = "Sales"
    sheet.append(["region", "units", "day", "formula"])
    sheet.append(
        ["north & <b>south</b>", 12, date(2026, 11, 24), '=HYPERLINK("http://elsewhere.example","x")']
    )
    for number in range(2000):
        sheet.append([f"r{number}", number])
    second = book.create_sheet("Other")
    second["C3"] = "far away"
    book.create_sheet("Secret").sheet_state = "hidden"
    data = io.BytesIO()
    book.save(data)
    return data.getvalue()


def changed(content: bytes, name: str, old: str, new: str) -> bytes:
    """Return an archive with one entry changed."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries: dict[str, bytes | str] = {each: archive.read(each) for each in archive.namelist()}
    before = entries[name]
    assert isinstance(before, bytes)
    assert old.encode() in before
    return packed({**entries, name: before.replace(old.encode(), new.encode())})


def test_workbook_shows_a_table_per_sheet_and_formulas_as_text(seen: Seen) -> None:
    figure = shown(seen, "sales.xlsx", workbook())

    expect(figure.get_by_role("status")).to_contain_text("2,001 rows, 4 columns")
    first = figure.locator("tbody tr[aria-rowindex]").first.locator("td")
    expect(first).to_have_text(
        ["north & <b>south</b>", "12", "2026-11-24", '=HYPERLINK("http://elsewhere.example","x")']
    )
    assert figure.locator("tbody a, tbody b").count() == 0
    assert figure.locator("tbody tr").count() < 100
    assert faults(seen) == []
    figure.get_by_label("Filter rows").fill("r1999")
    expect(figure.locator("tbody tr[aria-rowindex]")).to_have_count(1)
    figure.get_by_role("tab", name="Secret (hidden)").click()
    expect(figure).to_contain_text("Nothing is in this sheet")
    figure.get_by_role("tab", name="Other").click()
    expect(figure.get_by_role("columnheader").nth(2)).to_contain_text("far away")


def test_workbook_declaring_a_million_rows_opens_at_once(seen: Seen) -> None:
    content = changed(
        workbook(), "xl/worksheets/sheet2.xml", '<dimension ref="', '<dimension ref="A1:XFD1048576" was="'
    )
    content = changed(content, "xl/worksheets/sheet2.xml", "</sheetData>", "<row r='1048576'/></sheetData>")

    figure = shown(seen, "declared.xlsx", content)
    figure.get_by_role("tab", name="Other").click()

    expect(figure.get_by_role("columnheader").nth(2)).to_contain_text("far away")
    expect(figure.get_by_role("status")).to_contain_text("of the part that was loaded")


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        (
            "entities.xlsx",
            lambda: changed(
                workbook(), "xl/workbook.xml", "<workbook", '<!DOCTYPE w [<!ENTITY a "aaaa">]><workbook'
            ),
            "declares entities",
        ),
        (
            "bomb.xlsx",
            lambda: changed(
                workbook(),
                "xl/worksheets/sheet1.xml",
                "</sheetData>",
                "<row/>" * 8_000_000 + "</sheetData>",
            ),
            "too large to be shown",
        ),
        ("torn.xlsx", lambda: workbook()[:3000], "is damaged"),
        ("text.xlsx", lambda: b"region,units", "not a ZIP archive"),
        ("empty.xlsx", lambda: packed({"a.txt": "a"}), "no workbook in it"),
    ],
)
def test_file_of_misleading_type_is_reported(
    seen: Seen, name: str, content: Callable[[], bytes], sentence: str
) -> None:
    figure = shown(seen, name, content())

    expect(figure.get_by_role("alert")).to_contain_text(sentence)


def test_workbook_with_macros_notes_that_they_do_not_run(seen: Seen) -> None:
    with zipfile.ZipFile(io.BytesIO(workbook())) as archive:
        entries: dict[str, bytes | str] = {each: archive.read(each) for each in archive.namelist()}

    figure = shown(seen, "macros.xlsm", packed({**entries, "xl/vbaProject.bin": b"Sub AutoOpen()"}))

    expect(figure.locator(".notice")).to_contain_text("macros. They are not run")
    expect(figure.get_by_role("status")).to_contain_text("2,001 rows")


def test_markdown_table_is_aligned_and_task_list_has_boxes(seen: Seen) -> None:
    text = b"| a | b | c |\n|:--|:-:|--:|\n| 1 | 2 | 3 |\n\n- [x] done\n- [ ] open\n"

    figure = shown(seen, "aligned.md", text)

    expect(figure.locator("td")).to_have_count(3)
    sides = figure.locator("td").evaluate_all("cells => cells.map(each => getComputedStyle(each).textAlign)")
    assert sides == ["start", "center", "end"]
    assert figure.get_by_role("checkbox").evaluate_all("boxes => boxes.map(each => each.checked)") == [
        True,
        False,
    ]


def test_foreign_workbook_shows_shared_texts_and_dates(seen: Seen) -> None:
    figure = shown(seen, "strings.xlsx", (DOCUMENTS / "strings.xlsx").read_bytes())

    cells = figure.locator("tbody tr[aria-rowindex]").first.locator("td")
    expect(cells).to_have_text(["half bold & <i>", "2026-11-24 06:30:00", "2.5", "2"])


def tone(seconds: int) -> bytes:
    """Return a sound that is silent in its first half and loud in its second."""
    data = io.BytesIO()
    with wave.open(data, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        half = 4000 * seconds
        sound.writeframes(b"\0\0" * half + struct.pack("<hh", 32_000, -32_000) * (half // 2))
    return data.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("wide.csv", lambda: b"a,b\n1,2\n"),
        ("wide.xlsx", workbook),
        ("wide.md", lambda: b"# Wide"),
        ("wide.wav", lambda: tone(1)),
    ],
)
def test_a_file_in_its_viewer_can_have_the_whole_screen(
    seen: Seen, name: str, content: Callable[[], bytes]
) -> None:
    figure = shown(seen, name, content())

    figure.get_by_role("button", name="Full screen").click()
    leave = figure.get_by_role("button", name="Leave full screen")
    expect(leave).to_be_visible()
    assert seen.page.evaluate("document.fullscreenElement.tagName") == "FIGURE"
    expect(figure.locator("figcaption")).to_be_in_viewport()
    if name == "wide.csv":
        seen.page.keyboard.press("Escape")
    else:
        leave.click()

    expect(figure.get_by_role("button", name="Full screen", exact=True)).to_be_visible()
    assert seen.page.evaluate("document.fullscreenElement") is None


def test_all_rows_of_a_large_table_are_there(seen: Seen) -> None:
    rows = "".join(f"{number},name {number}\n" for number in range(200_000))

    figure = shown(seen, "whole.csv", ("number,name\n" + rows).encode())

    expect(figure.get_by_role("status")).to_have_text("200,000 rows, 2 columns")
    figure.get_by_label("Filter rows").fill("name 199999")
    expect(figure.locator("tbody tr[aria-rowindex]")).to_have_count(1)


def test_partly_shown_table_is_marked(seen: Seen) -> None:
    many = shown(seen, "many.csv", b"number,name\r\n" + b'1,"a\r\nb"\r\n' * 500_100)

    expect(many.get_by_role("status")).to_contain_text("500,000 rows of the part that was loaded")


def test_table_of_100000_rows_sorts_and_scrolls_with_few_in_page(seen: Seen) -> None:
    rows = "".join(f"{number * 7919 % 90_000},name {number}\n" for number in range(90_000))

    figure = shown(seen, "large.csv", ("number,name\n" + rows).encode())

    expect(figure.get_by_role("status")).to_contain_text("90,000 rows, 2 columns")
    figure.get_by_role("button", name="number").click()
    expect(figure.locator("tbody tr[aria-rowindex]").first.locator("td").first).to_have_text("0")
    figure.get_by_role("region", name="Table").evaluate("box => { box.scrollTop = box.scrollHeight }")
    expect(figure.locator("tbody tr[aria-rowindex]").last.locator("td").first).to_have_text("89999")
    assert figure.locator("tbody tr").count() < 100
