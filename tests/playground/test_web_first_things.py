"""The first things that people do in the Playground, in a browser.

Source: `docs/widgets.md`.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playground_support import Shown
from web_support import Seen, browsing, expect

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser]

TOOLS = Path(__file__).with_name("first_tools.py")
DROP = """(element, name) => {
    const data = new DataTransfer();
    data.items.add(new File(["one\\ntwo\\n"], name, {type: "text/plain"}));
    for (const kind of ["dragover", "drop"])
        element.dispatchEvent(new DragEvent(kind, {dataTransfer: data, bubbles: true, cancelable: true}));
}"""


@pytest.fixture(scope="module")
def seen(start: Callable[..., Shown]) -> Iterator[Seen]:
    with browsing(start("dev", tools=TOOLS, config="[tools.mute]\nidle_timeout_s = 8\n")) as opened:
        seen = opened()
        yield seen
        assert seen.troubles == []


def test_text_field_retains_focus_while_it_grows(seen: Seen) -> None:
    seen.tool("say")
    field = seen.page.get_by_label("text", exact=True)
    address = f"https://host.example/{'a/' * 40}?q=1"

    field.fill("")
    field.click()
    seen.page.keyboard.type(address)
    seen.page.keyboard.press("Enter")
    seen.page.keyboard.insert_text("SELECT 1;\n\tFROM x;")

    expect(field).to_have_value(f"{address}\nSELECT 1;\n\tFROM x;")
    expect(field).to_be_focused()


def test_a_text_result_is_shown_as_text(seen: Seen) -> None:
    seen.tool("say")
    seen.page.get_by_label("text", exact=True).fill('one "two"\n# three')
    seen.page.get_by_role("switch", name="loud").check()

    seen.run()

    panel = seen.tab("Result")
    expect(panel.locator("pre").first).to_have_text('ONE "TWO"\n# THREE')
    panel.get_by_role("button", name="Rendered Markdown").click()
    expect(panel.get_by_role("heading", name="THREE")).to_be_visible()


def test_a_long_text_is_shown_whole_and_its_reference_to_models(seen: Seen) -> None:
    seen.tool("wordy")

    seen.run()

    expect(seen.tab("Result").locator(".viewer")).to_contain_text("word word word")
    expect(seen.tab("Model view")).to_contain_text("Large text stored as artifact")


def test_running_tool_elicits_and_prints(seen: Seen) -> None:
    seen.tool("greet")
    seen.page.get_by_role("button", name="Run").first.click()

    question = seen.page.get_by_role("form", name="The tool asks")
    expect(question).to_contain_text("Who are you?")
    log = seen.call.get_by_label("Log", exact=True)
    expect(log).to_contain_text("before the question")
    expect(log).to_contain_text("also before it")
    expect(seen.call).to_contain_text("Waiting for your answer")
    expect(seen.call).not_to_contain_text("ends at")
    question.get_by_label("name", exact=True).fill("Ada")
    question.get_by_role("button", name="Answer").click()

    seen.ended()
    expect(seen.tab("Result").locator("pre").first).to_have_text("Hello, **Ada**")


def test_sampling_and_roots_are_answered_by_hand(seen: Seen) -> None:
    seen.tool("consult")
    seen.page.get_by_role("button", name="Run").first.click()

    form = seen.page.get_by_role("form", name="A message of a model (sampling)")
    expect(form).to_contain_text("Name a colour.")
    form.get_by_label("What the model says").fill("Blue")
    form.get_by_role("button", name="Answer").click()
    folders = seen.page.get_by_role("form", name="Roots")
    folders.get_by_role("textbox").fill("file:///srv/work")
    folders.get_by_role("button", name="Answer").click()

    seen.ended()
    expect(seen.tab("Result").locator("pre").first).to_have_text("Blue in file:///srv/work")


def test_time_limit_is_shown_and_names_its_setting(seen: Seen) -> None:
    seen.tool("mute")
    seen.page.get_by_role("button", name="Run").first.click()

    # In one line: status, time, silence, Cancel.
    line = seen.call.locator("header")
    silence = line.get_by_text("(ends at 8.0 s)")
    expect(silence).to_have_attribute("title", re.compile("^idle_timeout_s"))
    expect(line).to_contain_text(re.compile(r"^Running\d\.\d s of 10 min 0 sNo output for \d\.\d s"))
    expect(line.get_by_role("button", name="Cancel")).to_be_visible()
    seen.ended("failed")

    expect(seen.tab("Result").get_by_role("alert")).to_contain_text("The operator raises idle_timeout_s")


def test_escape_in_a_field_does_not_cancel_a_call(seen: Seen) -> None:
    seen.tool("greet")
    seen.page.get_by_role("button", name="Run").first.click()
    field = seen.page.get_by_role("form", name="The tool asks").get_by_label("name", exact=True)
    field.fill("Ada")

    field.press("Escape")
    expect(field).not_to_be_focused()
    expect(seen.call.get_by_role("button", name="Cancel")).to_be_visible()
    seen.page.keyboard.press("Escape")

    seen.ended("cancelled")
    seen.page.get_by_role("form", name="The tool asks").get_by_role("button", name="Cancel").click()


def test_scripts_of_a_page_run_only_when_asked_for(seen: Seen) -> None:
    seen.tool("page")
    seen.run()
    files = seen.tab("Files")
    document = files.frame_locator("iframe.paper").frame_locator("iframe")
    expect(document.locator("#x")).to_have_text("still")
    expect(files).to_contain_text("Scripts are off.")

    # Delay what Preact runs after a paint, as a busy machine does.
    late = "() => { const later = setTimeout; requestAnimationFrame = setTimeout = act => later(act, 2000) }"
    seen.page.evaluate(late)
    files.get_by_role("button", name="Run scripts in a sandbox").click()

    expect(document.locator("#x")).to_have_text("moved")
    files.get_by_role("button", name="Turn scripts off").click()
    expect(document.locator("#x")).to_have_text("still")
    seen.page.reload()


def test_swallowed_denial_is_marked(seen: Seen) -> None:
    seen.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    seen.tool("sly")
    seen.run()

    seen.call.get_by_role("button", name="1 denied").click()

    row = seen.call.get_by_role("region", name="Denials").get_by_role("row").last
    expect(row).to_contain_text("--allow-write=/var/tmp/toolcell-sly")
    row.get_by_role("button", name="Copy").click()
    assert seen.page.evaluate("navigator.clipboard.readText()") == "--allow-write=/var/tmp/toolcell-sly"


def test_file_dropped_beside_its_field_is_accepted(seen: Seen) -> None:
    seen.tool("lines")

    seen.page.locator("h1").evaluate(DROP, "dropped.txt")

    expect(seen.page.get_by_label("filename", exact=True)).to_have_value("dropped.txt")
    seen.run()
    expect(seen.tab("Result").locator("pre").first).to_have_text("2")


def test_the_title_names_the_tool_and_the_server(seen: Seen) -> None:
    seen.tool("say")
    expect(seen.page).to_have_title("say · first")
    seen.go("history")
    expect(seen.page).to_have_title("History · first")


def test_the_definition_of_a_tool_has_its_input_schema(seen: Seen) -> None:
    seen.tool("say")
    seen.page.get_by_text("Definition").click()
    expect(seen.page.locator("details", has_text="Definition")).to_contain_text("Input schema")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_run_stays_in_sight_below_a_long_form(seen: Seen, theme: str, width: int) -> None:
    seen.page.set_viewport_size({"width": width, "height": 900})
    seen.page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    seen.tool("sixty")
    seen.write(json.dumps({"rows": [str(n) for n in range(60)]}))
    seen.page.get_by_role("tab", name="Form", exact=True).click()

    expect(seen.page.get_by_role("button", name="Run").first).to_be_in_viewport(ratio=1)
    assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    seen.page.set_viewport_size({"width": 1280, "height": 720})
    seen.page.emulate_media(color_scheme=None)


def test_the_divider_moves_by_key_and_by_drag(seen: Seen) -> None:
    seen.tool("say")
    divider = seen.page.get_by_role("separator", name="Resize the form")
    before = divider.bounding_box()
    assert before is not None

    divider.press("ArrowRight")
    moved = divider.bounding_box()
    assert moved is not None
    assert moved["x"] > before["x"]

    divider.hover()
    seen.page.mouse.down()
    seen.page.mouse.move(before["x"] - 60, before["y"] + 5)
    seen.page.mouse.up()
    dragged = divider.bounding_box()
    assert dragged is not None
    assert dragged["x"] < before["x"]
    divider.dblclick()


def test_messages_are_listed_below_the_page_on_arrival(seen: Seen) -> None:
    seen.tool("say")
    seen.page.get_by_label("text", exact=True).fill("x")
    seen.page.get_by_text(re.compile(r"^Messages \d")).click()

    seen.run()

    rows = seen.page.locator(".docked .wire > li")
    expect(rows.last).to_contain_text("tools/call")
    seen.page.get_by_text(re.compile(r"^Messages \d")).click()
