"""Calls in a browser: the list, the form, raw JSON, a call while it runs, what it gives.

Source: `docs/widgets.md`.
"""

import json
from collections.abc import Callable, Iterator

import pytest
from playground_support import Shown
from web_support import WEB_TOOLS, Seen, browsing, expect

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm]


@pytest.fixture(scope="module")
def opened(start: Callable[..., Shown]) -> Iterator[Callable[..., Seen]]:
    with browsing(start(tools=WEB_TOOLS)) as opening:
        yield opening


@pytest.fixture
def seen(opened: Callable[..., Seen]) -> Iterator[Seen]:
    seen = opened()
    yield seen
    seen.page.context.close()
    assert seen.troubles == []


def arguments_of(seen: Seen) -> object:
    """Return the arguments as the page would send them."""
    seen.page.get_by_role("tab", name="JSON", exact=True).click()
    value = json.loads(seen.page.get_by_label("Arguments as JSON").input_value())
    seen.page.get_by_role("tab", name="Form", exact=True).click()
    return value


def test_form_shows_values_of_other_types_and_names_the_error(seen: Seen) -> None:
    seen.tool("order")
    seen.write('{"customer": 5, "tags": "x", "address": {"street": "Rue 1", "number": 1}, "colour": "blue"}')
    seen.page.get_by_role("tab", name="Form", exact=True).click()
    form = seen.page.get_by_role("tabpanel").first

    for name, shown, fault in (
        ("customer", "5", "not a text"),
        ("tags", '"x"', "not a list"),
        ("colour", '"blue"', "none of the choices"),
    ):
        field = form.get_by_label(f"{name}, as JSON")
        expect(field).to_have_value(shown)
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(form.get_by_text(f"{name}: {fault}")).to_be_visible()
    seen.page.get_by_role("button", name="Run").first.click()
    expect(form.get_by_label("customer, as JSON")).to_be_focused()
    expect(seen.call).to_have_count(0)

    form.get_by_label("customer, as JSON").fill('"Ada"')
    form.get_by_label("tags, as JSON").fill('["x"]')
    expect(form.get_by_label("customer", exact=True)).to_have_value("Ada")
    expect(form.get_by_label("tags[0]", exact=True)).to_have_value("x")


def test_result_beside_changed_arguments_is_marked(seen: Seen) -> None:
    seen.tool("publish")
    seen.write('{"text": "one"}')
    seen.run()
    expect(seen.call).not_to_contain_text("with other arguments")

    seen.write('{"text": "two"}')

    expect(seen.call).to_contain_text("with other arguments")
    seen.run()
    expect(seen.call).not_to_contain_text("with other arguments")


def test_incomplete_list_item_stops_a_call(seen: Seen) -> None:
    seen.tool("order")
    seen.write(
        '{"customer": "Ada", "tags": [], "address": {"street": "Rue 1", "number": 1}, "colour": "red",'
        ' "shape": {"kind": "square", "side": 1}, "others": [{"number": 2}]}'
    )
    seen.page.get_by_role("tab", name="Form", exact=True).click()

    seen.page.get_by_role("button", name="Run").first.click()

    expect(seen.page.get_by_label("street").last).to_be_focused()
    expect(seen.call).to_have_count(0)
    seen.page.get_by_label("street").last.fill("Rue 2")
    seen.run()


def results(seen: Seen) -> object:
    """Return the result that is shown."""
    return json.loads(seen.tab("Result").locator("pre").first.inner_text())


def test_the_list_has_every_tool_with_its_badges_and_a_search(seen: Seen) -> None:
    tools = seen.page.get_by_role("complementary", name="Tools")
    expect(tools.get_by_role("listitem").filter(has_text="publish")).to_contain_text("destructive")
    expect(tools.get_by_role("listitem").filter(has_text="publish")).to_contain_text("network")
    expect(tools.get_by_role("listitem").filter(has_text="Take an order")).to_contain_text("read-only")
    expect(tools.get_by_role("listitem").filter(has_text="Count the lines")).to_contain_text("files")

    seen.page.keyboard.press("/")
    seen.page.keyboard.type("pretend WORLD")

    expect(tools.get_by_role("link")).to_have_count(1)
    expect(tools.get_by_role("link")).to_contain_text("publish")


def test_form_builds_the_arguments_of_the_schema(seen: Seen) -> None:
    seen.tool("order")
    page = seen.page

    page.get_by_label("customer").fill("Ada")
    page.get_by_label("street").first.fill("Rue 1")
    page.get_by_label("number").first.fill("7")
    page.get_by_role("combobox", name="country").first.select_option("FR")
    page.get_by_label("colour", exact=True).select_option("green")
    page.get_by_label("Form of shape").select_option("square")
    page.get_by_label("side").fill("2.5")
    page.get_by_role("button", name="Add to tags").click()
    page.get_by_label("tags[0]", exact=True).fill("new")
    page.get_by_label("due").fill("2026-02-03")
    page.get_by_role("switch", name="gift").check()

    assert arguments_of(seen) == {
        "customer": "Ada",
        "address": {"street": "Rue 1", "number": 7, "country": "FR"},
        "colour": "green",
        "shape": {"kind": "square", "side": 2.5},
        "tags": ["new"],
        "due": "2026-02-03",
        "others": None,
        "prices": None,
        "gift": True,
        "number": 1,
    }
    seen.run()
    assert isinstance(shown := results(seen), dict)
    assert shown["shape"] == {"kind": "square", "side": 2.5}


def test_a_map_and_a_nullable_list_of_objects_are_filled_in(seen: Seen) -> None:
    seen.tool("order")
    page = seen.page
    page.get_by_label("Form of prices").or_(page.get_by_label("New key of prices")).first.wait_for()

    page.get_by_label("New key of prices").fill("tea")
    page.get_by_label("New key of prices").locator("..").get_by_role("button", name="Add").click()
    page.get_by_label("tea", exact=True).fill("1.5")
    page.get_by_role("button", name="Add to others").click()
    page.get_by_role("group", name="others[0]").get_by_label("street").fill("Second")

    arguments = arguments_of(seen)
    assert isinstance(arguments, dict)
    assert arguments["prices"] == {"tea": 1.5}
    assert arguments["others"][0]["street"] == "Second"


def test_missing_or_invalid_value_is_reported_at_its_field(seen: Seen) -> None:
    seen.tool("order")

    seen.page.get_by_label("customer").fill("A")
    seen.page.get_by_label("number").first.fill("x")

    expect(seen.page.get_by_text("customer: at least 2 characters")).to_be_visible()
    expect(seen.page.get_by_text("number: not a number")).to_be_visible()
    # It stays where it was written, and nothing else is sent in its place.
    seen.page.get_by_label("street").first.fill("Rue 1")
    expect(seen.page.get_by_label("number").first).to_have_value("x")
    seen.page.get_by_label("number").last.fill("1x")
    seen.page.get_by_role("button", name="Run").first.click()
    expect(seen.call).to_have_count(0)
    expect(seen.page.get_by_label("number").first).to_be_focused()
    seen.page.get_by_role("button", name="Reset").click()
    expect(seen.page.get_by_label("number").first).to_have_value("")
    expect(seen.page.get_by_label("number").last).to_have_value("1")


def test_invalid_optional_number_stops_run(seen: Seen) -> None:
    seen.tool("count")
    seen.page.get_by_label("to", exact=True).fill("many")

    seen.page.get_by_role("button", name="Run").first.click()

    expect(seen.page.get_by_label("to", exact=True)).to_be_focused()
    expect(seen.page.get_by_role("alert")).to_have_text("to: not a number")
    expect(seen.call).to_have_count(0)


def test_raw_json_loses_nothing_on_its_way_and_back(seen: Seen) -> None:
    seen.tool("echo")
    long = 123456789012345678901234567890

    seen.write(f'{{"value": {{"n": {long}, "f": 0.1, "t": "ü\\u0000", "e": [], "o": {{}}}}}}')
    seen.run()

    value = {"n": long, "f": 0.1, "t": "ü\0", "e": [], "o": {}}
    assert results(seen) == {"value": value, "json": json.dumps(value)}
    assert arguments_of(seen) == {"value": value}


def test_call_shows_progress_log_lines_and_time_limit(seen: Seen) -> None:
    seen.tool("count")

    seen.page.get_by_role("button", name="Run").first.click()

    expect(seen.call.get_by_role("progressbar", name="Progress")).to_have_attribute("aria-valuenow", "75")
    expect(seen.call).to_contain_text("to go")
    expect(seen.call.get_by_label("Log", exact=True)).to_contain_text("counted 4")
    expect(seen.call).to_contain_text("of 10 min 0 s")
    seen.page.keyboard.press("Escape")
    seen.ended("cancelled")


def test_cancelled_call_ends_with_a_three_part_message(seen: Seen) -> None:
    seen.tool("silent")
    seen.page.get_by_role("button", name="Run").first.click()

    seen.call.get_by_role("button", name="Cancel").click()

    seen.ended("cancelled")
    alert = seen.tab("Result").get_by_role("alert")
    expect(alert).to_contain_text("You cancelled this call")
    expect(alert).to_contain_text("What to try")


def test_failed_call_shows_error_cause_and_remedy(seen: Seen) -> None:
    seen.tool("broken")

    seen.run("failed")

    alert = seen.tab("Result").get_by_role("alert")
    expect(alert.get_by_role("heading")).to_have_text(["What happened", "Why", "What to try"])
    expect(alert).to_contain_text("the moon is full")
    expect(alert).to_contain_text("ValueError")


def test_a_result_is_shown_from_each_side(seen: Seen) -> None:
    seen.tool("forbidden")

    seen.run()

    model = seen.tab("Model view")
    text = model.locator("pre").inner_text()
    expect(model).to_contain_text(f"{len(text)} characters, about {-(-len(text) // 4)} tokens")
    timing = seen.tab("Timing")
    for step in ("stage the inputs", "run the tool", "collect and route the files", "guard the output"):
        expect(timing).to_contain_text(step)
    sandbox = seen.tab("Sandbox")
    expect(sandbox.get_by_role("row").last).to_contain_text("/etc/toolcell-forbidden")
    messages = seen.tab("Messages")
    expect(messages.get_by_role("listitem").first).to_contain_text("tools/call")
    expect(messages.get_by_role("listitem").last).to_contain_text("result")


def test_a_question_of_a_tool_is_answered_in_the_page(seen: Seen) -> None:
    seen.tool("ask")
    seen.page.get_by_role("button", name="Run").first.click()

    question = seen.page.get_by_role("form", name="The tool asks")
    expect(question).to_contain_text("Which size shall it be?")
    question.get_by_role("combobox", name="size").select_option("large")
    question.get_by_role("button", name="Answer").click()

    seen.ended()
    assert results(seen) == {"action": "accept", "size": "large"}


def test_question_is_visible_in_every_view_until_answered(seen: Seen) -> None:
    seen.tool("ask")
    seen.page.get_by_role("button", name="Run").first.click()
    question = seen.page.get_by_role("form", name="The tool asks")
    expect(question).to_be_visible()
    seen.tool("echo")
    expect(question).to_be_visible()
    seen.go("files")
    expect(seen.page.get_by_role("heading", level=1)).to_have_text("Files")

    question.get_by_role("button", name="Decline").click()

    expect(question).to_have_count(0)
    seen.tool("ask")
    seen.ended()


def test_question_of_a_cancelled_call_is_removed(seen: Seen) -> None:
    seen.tool("ask")
    seen.page.get_by_role("button", name="Run").first.click()
    question = seen.page.get_by_role("form", name="The tool asks")
    expect(question).to_be_visible()

    seen.call.get_by_role("button", name="Cancel").click()

    seen.ended("cancelled")
    expect(question).to_have_count(0)


def test_nothing_typed_or_called_is_lost_on_reload(seen: Seen) -> None:
    seen.tool("publish")
    seen.page.get_by_label("text").fill("kept")
    seen.run()

    seen.page.reload()

    expect(seen.page.get_by_label("text")).to_have_value("kept")
    seen.ended()
    expect(seen.tab("Result").locator("pre").first).to_have_text("sent 4 characters")


def test_link_fills_form_and_later_changes_survive_reload(seen: Seen) -> None:
    seen.go("call", "publish", 'args={"text":"linked"}')
    expect(seen.page.get_by_label("text")).to_have_value("linked")
    expect(seen.call).to_have_count(0)

    seen.go("call", "publish", 'args={"text":"linked again"}')
    expect(seen.page.get_by_label("text")).to_have_value("linked again")
    seen.page.get_by_label("text").fill("mine")
    seen.page.reload()

    expect(seen.page.get_by_label("text")).to_have_value("mine")


def test_the_keyboard_reaches_tools_and_runs_them(seen: Seen) -> None:
    page = seen.page

    # A person sees the box before typing into it, and what is chosen before taking it.
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox", name="Go to a tool")).to_be_focused()
    page.keyboard.type("forbid")
    expect(page.get_by_role("listbox").get_by_role("option").first).to_contain_text("forbidden")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("forbidden")
    page.keyboard.press("Control+Enter")

    seen.ended()
    page.get_by_role("tab", name="Result").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Model view")).to_be_focused()
