"""A model in the loop, in a browser: it answers, calls tools, is asked about, is refused and cancelled.

The model is a script behind a real endpoint (`model_support.py`).

Source: `docs/playground.md`; decision 47.
"""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from model_support import KEY, Endpoint, Reply, endpoint
from playground_support import Shown
from playwright.sync_api import Locator, Route
from web_support import Seen, browsing, expect, faults, undecided

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]

TOOLS = Path(__file__).with_name("chat_tools.py")


@pytest.fixture(scope="module")
def asked() -> Iterator[Endpoint]:
    with endpoint() as running:
        yield running


@pytest.fixture(scope="module")
def chatting(start: Callable[..., Shown], asked: Endpoint) -> Shown:
    # The models of all tests: the good one is the default.
    return start(tools=TOOLS, **asked.settings(models="good,500,other"))


@pytest.fixture(scope="module")
def opened(chatting: Shown) -> Iterator[Callable[..., Seen]]:
    with browsing(chatting) as opening:
        yield opening


@pytest.fixture
def seen(opened: Callable[..., Seen]) -> Iterator[Seen]:
    seen = opened()
    seen.go("chat")
    expect(seen.page.get_by_role("heading", level=1)).to_have_text("Chat")
    yield seen
    seen.page.context.close()
    assert seen.troubles == []


def say(seen: Seen, text: str) -> None:
    seen.page.get_by_label("Message").fill(text)
    seen.page.keyboard.press("Control+Enter")


def done(seen: Seen) -> None:
    expect(seen.page.get_by_role("status").filter(has_text="The model is done")).to_be_visible()


def turns(seen: Seen) -> Locator:
    return seen.page.get_by_role("article", name="Model")


def call(seen: Seen, tool: str) -> Locator:
    made = seen.page.get_by_role("list", name="Calls of tools").get_by_role("listitem")
    return made.filter(has=seen.page.get_by_text(tool, exact=True).first)


def test_a_model_calls_tools_and_each_turn_shows_what_it_read_and_saw(seen: Seen, asked: Endpoint) -> None:
    asked.script = [
        Reply("I double it, **twice**.", calls=(("double", {"number": 21}),)),
        Reply("", calls=(("double", {"number": 42}), ("chart", {}))),
        Reply("It is 84.\n\n<script>alert(1)</script>"),
    ]
    before = len(asked.came)

    say(seen, "Double 21 twice.")
    done(seen)

    expect(turns(seen)).to_have_count(3)
    first = turns(seen).nth(0)
    expect(first.locator("strong")).to_have_text("twice")
    expect(first).to_contain_text("7 written")
    expect(first).to_contain_text("1 message and 6 tools sent")
    saw = call(seen, "double").first.get_by_role("heading", name="What the model saw").locator("..")
    assert saw.locator("pre").inner_text() == "21 doubled is 42"
    # What is shown as seen is what the endpoint was given.
    given = [body["messages"][-1]["content"] for _, _, body in asked.came[before + 1 :]]
    assert given[0] == "21 doubled is 42"
    chart = call(seen, "chart")
    assert chart.locator(".text pre").last.inner_text() == given[1]
    # The link to the file is for programs and people: its token is in nothing that a model reads.
    assert "artifact://" in given[1]
    assert "token=" not in json.dumps([body for _, _, body in asked.came[before:]])
    # The text of a model is text.
    expect(turns(seen).nth(2)).to_contain_text("<script>alert(1)</script>")

    chart.get_by_role("button", name="Show: chart").click()
    run = seen.page.get_by_role("region", name="Call")
    run.get_by_role("tab", name="Files 1").click()
    expect(run).to_contain_text("Oslo")
    turns(seen).nth(2).get_by_text("messages and 6 tools sent").click()
    whole = json.loads(turns(seen).nth(2).locator("pre").inner_text())
    assert [message["role"] for message in whole["messages"]] == ["user", *("assistant", "tool") * 2]
    call(seen, "double").first.get_by_role("link", name="In History: double").click()
    expect(seen.page.get_by_role("main")).to_contain_text("21 doubled is 42")


def test_what_may_destroy_is_asked_about_and_a_no_is_told_to_the_model(seen: Seen, asked: Endpoint) -> None:
    asked.script = [
        Reply("Away with it.", calls=(("wipe", {"folder": "/srv/all"}), ("note", {"text": "one"}))),
        Reply("", calls=(("note", {"text": "two"}), ("wipe", {"folder": "/srv/rest"}))),
        Reply("As you like."),
    ]

    say(seen, "Clean up.")
    question = seen.page.get_by_role("alert").filter(has_text="The model wants to call")
    expect(question).to_contain_text("wipe")
    expect(question).to_contain_text("/srv/all")
    expect(question).to_contain_text("says that it may destroy")
    expect(question.get_by_role("checkbox")).to_have_count(0)
    assert (faults(seen), undecided(seen)) == ([], [])
    question.get_by_role("button", name="Do not call it").click()
    expect(question).to_contain_text("note")
    question.get_by_label("Always allow note in this chat").check()
    question.get_by_role("button", name="Call it", exact=True).click()
    # The second note is made without asking; what destroys is asked about again.
    expect(question).to_contain_text("/srv/rest")
    question.get_by_role("button", name="Do not call it").click()
    done(seen)

    told = [message["content"] for message in asked.came[-1][2]["messages"] if message["role"] == "tool"]
    assert told == ["The person did not allow this call.", "noted: one", "noted: two", told[0]]
    expect(call(seen, "wipe").first).to_contain_text("not allowed")
    seen.go("history")
    expect(seen.page.get_by_role("row").filter(has_text="note")).to_have_count(2)
    expect(seen.page.get_by_role("row").filter(has_text="wipe")).to_have_count(0)


def test_a_call_that_waits_for_an_answer_is_marked_in_the_menu_of_every_other_view(
    seen: Seen, asked: Endpoint
) -> None:
    asked.script = [Reply("", calls=(("wipe", {"folder": "/srv/all"}),)), Reply("As you like.")]
    marked = seen.page.get_by_role("link", name="Chat waits for your answer")

    say(seen, "Clean up.")
    expect(seen.page.get_by_role("button", name="Do not call it")).to_be_visible()
    expect(marked).to_have_count(0)
    seen.go("history")
    expect(marked).to_be_visible()
    assert (faults(seen), undecided(seen)) == ([], [])
    marked.click()

    seen.page.get_by_role("button", name="Do not call it").click()
    done(seen)
    seen.go("history")
    expect(marked).to_have_count(0)


def test_a_chat_needs_no_mouse(seen: Seen, asked: Endpoint) -> None:
    asked.script = [Reply("", calls=(("note", {"text": "one"}),)), Reply("Noted.")]
    keyboard = seen.page.keyboard
    expect(seen.page.get_by_label("Message")).to_be_focused()

    keyboard.type("Note it.")
    keyboard.press("Control+Enter")
    allow = seen.page.get_by_role("button", name="Call it", exact=True)
    # It cannot be pressed as soon as it appears, by somebody who is writing.
    expect(allow).to_be_enabled()
    # From where one writes, what is asked lies behind.
    for _ in range(10):
        if allow.evaluate("element => element === document.activeElement"):
            break
        keyboard.press("Shift+Tab")
    expect(allow).to_be_focused()
    assert allow.evaluate("element => getComputedStyle(element).outlineStyle") == "solid"
    keyboard.press("Enter")

    done(seen)
    expect(turns(seen).last).to_contain_text("Noted.")


def test_a_turn_and_a_call_are_cancelled_and_the_chat_goes_on(seen: Seen, asked: Endpoint) -> None:
    asked.script = [Reply("Let me think", waits=threading.Event())]
    left = asked.left
    cancel = seen.page.get_by_role("button", name="Cancel", exact=True)

    say(seen, "Think.")
    expect(turns(seen).first).to_contain_text("Let me think")
    # From the field, which keeps the focus.
    seen.page.get_by_label("Message", exact=True).press("Escape")
    expect(turns(seen).first).to_contain_text("You cancelled this turn")
    assert seen.shown.until(lambda: asked.left == left + 1)

    seen.page.get_by_role("button", name="Try again").wait_for()
    asked.script = [Reply("", calls=((named(asked, "wait_for_it"), {}),))]
    say(seen, "Wait.")
    expect(call(seen, "wait.for/it")).to_contain_text("running")
    cancel.click()
    expect(call(seen, "wait.for/it")).to_contain_text("The person cancelled before this call had ended.")
    done(seen)

    asked.script = [Reply("Never mind.")]
    say(seen, "Go on.")
    done(seen)
    messages = asked.came[-1][2]["messages"]
    # An answer that was cancelled is not given to the model; a call that was is, with its end.
    assert [message["role"] for message in messages] == ["user", "user", "assistant", "tool", "user"]


def test_a_model_is_asked_once_the_page_knows_the_tools(seen: Seen, asked: Endpoint) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        if '"tools/list"' in (route.request.post_data or ""):
            held.append(route)
        else:
            route.continue_()

    seen.page.route("**/*", hold)
    seen.page.reload()
    asked.script = [Reply("Here I am.")]
    before = len(asked.came)

    say(seen, "Hello.")
    settings = seen.page.get_by_role("region", name="What the model gets")
    expect(settings).to_contain_text("Loading the tools")
    expect(seen.page.get_by_role("button", name="Cancel", exact=True)).to_be_visible()
    assert (len(held), len(asked.came)) == (1, before)
    held[0].continue_()
    done(seen)
    assert len(asked.came[-1][2]["tools"]) == 6


def test_a_turn_that_waits_for_the_tools_can_be_cancelled(seen: Seen, asked: Endpoint) -> None:
    before = len(asked.came)
    seen.page.route(
        "**/*", lambda each: None if '"tools/list"' in (each.request.post_data or "") else each.continue_()
    )
    seen.page.reload()

    say(seen, "Hello.")
    seen.page.get_by_role("button", name="Cancel", exact=True).click()

    expect(turns(seen).first).to_contain_text("You cancelled this turn")
    assert len(asked.came) == before


def named(asked: Endpoint, stem: str) -> str:
    """Return the name that the endpoint was told for a tool whose own name does not fit."""
    tools = asked.came[-1][2]["tools"]
    (name,) = (tool["function"]["name"] for tool in tools if tool["function"]["name"].startswith(stem))
    return str(name)


def test_a_fault_of_the_endpoint_is_told_and_the_turn_made_again(seen: Seen, asked: Endpoint) -> None:
    which = seen.page.get_by_role("combobox", name="Model")
    which.select_option("500")
    say(seen, "Hello.")

    expect(turns(seen).first.get_by_role("alert")).to_contain_text("the endpoint failed (HTTP 500)")
    asked.script = [Reply("Hello.")]
    which.select_option("other")
    seen.page.get_by_role("button", name="Try again").click()

    expect(turns(seen).nth(1)).to_contain_text("Hello.")
    assert asked.came[-1][2]["model"] == "other"
    assert KEY not in seen.page.content()


def test_what_the_model_gets_is_chosen_and_the_chat_saved(seen: Seen, asked: Endpoint) -> None:
    page = seen.page
    asked.script = [Reply("", calls=(("note", {"text": "x"}), ("picture", {}))), Reply("So be it.")]

    page.get_by_role("button", name="Take the server's instructions").click()
    page.get_by_label("Temperature").fill("warm")
    say(seen, "Note it.")
    expect(page.get_by_role("alert")).to_contain_text("a number from 0 to 2")
    page.get_by_label("Temperature").fill("0.3")
    page.get_by_role("group", name="Tools offered").get_by_label("note").uncheck()
    say(seen, "Note it.")
    done(seen)

    body = asked.came[-1][2]
    system = body["messages"][0]
    assert (system["role"], system["content"].split("\n")[0]) == ("system", "Double numbers, never guess.")
    assert body["temperature"] == 0.3
    assert "note" not in [tool["function"]["name"] for tool in body["tools"]]
    # A tool that is not offered is none; a picture is named where none is given.
    assert [message["content"] for message in body["messages"] if message["role"] == "tool"] == [
        "There is no tool note.",
        "A dot.\n[a picture, image/png, which the person sees]",
    ]
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as JSON").click()
    kept = json.loads(Path(download.value.path()).read_text())
    assert [entry["role"] for entry in kept["chat"]] == ["user", "assistant", "assistant"]
    assert kept["chat"][1]["calls"][0]["saw"] == "There is no tool note."
    assert KEY not in json.dumps(kept)
    page.get_by_role("button", name="New chat").click()
    expect(page.get_by_role("main")).to_contain_text("Ask for something that the tools can do.")


def test_a_model_that_never_stops_is_stopped_after_twenty_turns(seen: Seen, asked: Endpoint) -> None:
    asked.script = [Reply("", calls=(("double", {"number": n}),)) for n in range(20)] + [Reply("Enough.")]

    say(seen, "Double everything.")

    expect(seen.page.get_by_role("main")).to_contain_text("The model has had 20 turns")
    assert len(asked.script) == 1
    seen.page.get_by_role("button", name="Continue").click()
    expect(turns(seen).last).to_contain_text("Enough.")


def test_the_chat_has_no_fault_of_access_and_no_way_sideways_on_a_phone(seen: Seen, asked: Endpoint) -> None:
    assert (faults(seen), undecided(seen)) == ([], [])
    asked.script = [
        Reply(
            "# So\n\n`x`",
            calls=(
                (
                    "double",
                    {"number": 4},
                ),
            ),
        ),
        Reply("Eight."),
    ]
    say(seen, "Double 4.")
    done(seen)
    call(seen, "double").get_by_role("button", name="Show: double").click()
    expect(seen.page.get_by_role("tab", name="As a model sees it")).to_be_visible()

    assert (faults(seen), undecided(seen)) == ([], [])
    seen.page.set_viewport_size({"width": 390, "height": 900})
    assert faults(seen) == []
    assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    seen.page.keyboard.press("Control+k")
    seen.page.get_by_role("combobox", name="Go to a tool").fill("chat")
    expect(seen.page.get_by_role("option").filter(has_text="Chat").first).to_be_visible()
