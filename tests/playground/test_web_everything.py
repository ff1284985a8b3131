"""All of MCP in the page, tried with the official everything-server, in both eras of the protocol.

Source: `docs/widgets.md`.
"""

from collections.abc import Callable, Iterator

import pytest
from playground_support import Shown
from playwright.sync_api import Locator
from web_everything import everything
from web_support import Seen, expect, faults

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]

SESSIONS = "2025-11-25"


@pytest.fixture(scope="module")
def page(start: Callable[..., Shown], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """One page of a proxy in front of the everything-server, which has asked for roots."""
    with everything(start, tmp_path_factory.mktemp("proxied")) as opened:
        seen = opened()
        give_roots(seen)
        yield seen


@pytest.fixture
def modern(page: Seen) -> Seen:
    return speaking(page, "2026-07-28")


@pytest.fixture
def handshake(page: Seen) -> Seen:
    return speaking(page, SESSIONS)


def give_roots(seen: Seen, roots: str = "") -> None:
    question = seen.page.get_by_role("form", name="Roots")
    question.get_by_role("textbox").fill(roots)
    question.get_by_role("button", name="Answer").click()
    expect(question).to_have_count(0)


def speaking(seen: Seen, era: str, roots: str = "") -> Seen:
    """Select an era in the page, wait until the server has answered in it, and set roots on request."""
    seen.go("session")
    chosen = seen.page.get_by_label("Protocol version")
    if chosen.input_value() != era:
        chosen.select_option(era)
        if era == SESSIONS:
            # It asks each client with a session as soon as it meets it.
            give_roots(seen, roots)
    server = seen.page.get_by_role("region", name="Server", exact=True)
    expect(server.get_by_text("up", exact=True)).to_be_visible()
    expect(server).to_contain_text("mcp-servers/everything")
    return seen


def call(seen: Seen, tool: str, arguments: str = "{}") -> None:
    seen.tool(tool)
    seen.write(arguments)
    seen.page.get_by_role("button", name="Run").first.click()


def question_form(seen: Seen) -> Locator:
    """Return the question of the server, wherever the era has it."""
    return seen.page.locator(".question").last


@pytest.fixture(params=["2026-07-28", SESSIONS])
def either(request: pytest.FixtureRequest, page: Seen) -> Seen:
    return speaking(page, request.param)


def test_session_view_shows_capabilities_of_both_sides(either: Seen) -> None:
    server = either.page.get_by_role("region", name="Server", exact=True)

    expect(server).to_contain_text('"completions"')
    server.get_by_text("What this page can do").click()
    for word in ("elicitation", "sampling", "roots"):
        expect(server.locator("details").last).to_contain_text(word)
    assert faults(either) == []


def test_prompt_is_completed_with_server_proposals(either: Seen) -> None:
    either.go("prompts", "completable-prompt")
    form = either.page.get_by_role("form", name="Arguments of completable-prompt")

    # What was filled in before, in another era, is kept.
    form.get_by_label("Name").fill("")
    form.get_by_label("Department").fill("Eng")
    form.get_by_role("button", name="Engineering").click()
    form.get_by_label("Name").focus()
    form.get_by_role("button", name="Alice").click()
    form.get_by_role("button", name="Get the prompt").click()

    messages = either.page.get_by_role("status", name="Messages")
    expect(messages).to_contain_text("Alice")
    expect(messages).to_contain_text("Engineering")
    assert faults(either) == []


def test_a_resource_in_a_prompt_has_the_viewer_of_its_kind(modern: Seen) -> None:
    modern.go("prompts", "resource-prompt")
    form = modern.page.get_by_role("form", name="Arguments of resource-prompt")
    form.get_by_label("resourceType").fill("Text")
    form.get_by_label("resourceId").fill("3")
    form.get_by_role("button", name="Get the prompt").click()

    expect(modern.page.get_by_role("status", name="Messages").locator(".viewer, .code").last).to_contain_text(
        "Resource 3"
    )


def test_a_template_is_completed_and_its_resource_read(either: Seen) -> None:
    either.go("resources")
    form = either.page.get_by_role("form", name="demo://resource/dynamic/text/{resourceId}")
    form.get_by_label("resourceId").fill("7")
    form.get_by_role("button", name="Read", exact=True).click()

    expect(either.page.get_by_label("Content")).to_contain_text("Resource 7")


def test_a_markdown_resource_is_shown_as_markdown(modern: Seen) -> None:
    modern.go("resources", "demo://resource/static/document/features.md")

    content = modern.page.get_by_label("Content")
    expect(content.get_by_role("heading", name="Everything Server - Features")).to_be_visible()


def test_followed_resource_is_reread_after_change_notification(handshake: Seen) -> None:
    handshake.go("resources", "demo://resource/dynamic/text/1")
    content = handshake.page.get_by_label("Content")
    content.get_by_role("button", name="Subscribe").click()
    expect(content.get_by_role("button", name="Subscribed")).to_be_visible()

    call(handshake, "toggle-subscriber-updates")
    handshake.ended()
    handshake.go("resources", "demo://resource/dynamic/text/1")

    expect(content.get_by_text("updated", exact=True)).to_be_visible()
    call(handshake, "toggle-subscriber-updates")
    handshake.ended()


def test_sampling_is_answered_by_hand(either: Seen) -> None:
    call(either, "trigger-sampling-request", '{"prompt": "What is the sea?", "maxTokens": 20}')

    question = question_form(either)
    expect(question).to_contain_text("What is the sea?")
    assert faults(either) == []
    question.get_by_label("What the model says").fill("Salty and wide.")
    question.get_by_role("button", name="Answer").click()

    expect(either.ended()).to_contain_text("Salty and wide.")


def test_draft_answer_survives_and_is_sent_by_run_keys(either: Seen) -> None:
    before = made(either)
    call(either, "trigger-sampling-request", '{"prompt": "What is the moon?", "maxTokens": 20}')
    field = question_form(either).get_by_label("What the model says")

    field.fill("Round")
    field.press("Escape")
    expect(field).to_have_value("Round")
    either.go("prompts")
    expect(either.page.locator("h1")).to_have_text("Prompts")
    either.tool("trigger-sampling-request")
    expect(field).to_have_value("Round")
    field.press_sequentially(" and far.")
    field.press("Control+Enter")

    expect(either.ended()).to_contain_text("Round and far.")
    assert made(either) == before + 1


def made(seen: Seen) -> int:
    """Return how many calls of the tool that asks for sampling the history has."""
    seen.go("history")
    expect(seen.page.locator("h1")).to_have_text("History")
    return seen.page.get_by_role("main").get_by_role("link", name="trigger-sampling-request").count()


def test_asking_call_is_marked_and_not_started_twice(modern: Seen) -> None:
    before = made(modern)
    call(modern, "trigger-sampling-request", '{"prompt": "Who goes there?", "maxTokens": 20}')

    expect(modern.call.get_by_role("status").last).to_have_text("Waiting for your answer")
    expect(modern.call.locator(".badge").first).to_have_text("Waiting for your answer")
    modern.page.get_by_role("button", name="Run").first.click()
    field = question_form(modern).get_by_label("What the model says")
    expect(field).to_be_focused()
    field.fill("A friend.")
    question_form(modern).get_by_role("button", name="Answer").click()

    # What had the focus is gone: it stays with the call.
    expect(modern.call).to_be_focused()
    expect(modern.ended()).to_contain_text("A friend.")
    assert made(modern) == before + 1


def test_choices_have_question_titles_and_formats_are_checked(modern: Seen) -> None:
    call(modern, "trigger-elicitation-request")
    question = question_form(modern)
    question.get_by_label("name", exact=True).first.fill("Ada")

    titled = question.get_by_role("combobox", name="untitledSingleSelectEnum", exact=True)
    expect(titled).to_have_count(1)
    hero = question.get_by_role("combobox", name="titledSingleSelectEnum", exact=True)
    expect(hero).to_have_count(1)
    hero.select_option(label="Superman")
    pet = question.get_by_role("combobox", name="legacyTitledEnum", exact=True)
    pet.select_option(label="Dogs")
    question.get_by_label("email", exact=True).fill("no-address")
    question.get_by_role("button", name="Answer").click()
    expect(question.get_by_role("alert").first).to_have_text("email: not an e-mail address")
    expect(question.get_by_label("email", exact=True)).to_be_focused()
    question.get_by_label("email", exact=True).fill("ada@example.com")
    question.get_by_role("button", name="Answer").click()

    answered = modern.ended()
    expect(answered).to_contain_text("hero-1")
    expect(answered).to_contain_text("pet-2")


def test_roots_are_those_of_the_answer(modern: Seen) -> None:
    handshake = speaking(modern, SESSIONS, "file:///srv/sea Sea")

    call(handshake, "get-roots-list")

    expect(handshake.ended()).to_contain_text("file:///srv/sea")


def test_server_error_shows_what_happened_and_what_to_try(modern: Seen) -> None:
    call(modern, "get-sum", '{"a": "x", "b": 2}')

    alert = modern.ended("failed").get_by_role("tabpanel").get_by_role("alert")
    expect(alert.get_by_role("heading")).to_have_text(["What happened", "What to try"])
    expect(alert).to_contain_text("expected number, received string")
    assert faults(modern) == []


def test_input_is_asked_for_in_a_form(either: Seen) -> None:
    call(either, "trigger-elicitation-request")

    question = question_form(either)
    # What it must be given stops the answer, as it stops Run.
    question.get_by_role("button", name="Answer").click()
    expect(question.get_by_label("name", exact=True).first).to_be_focused()
    expect(question.get_by_role("alert").first).to_have_text("name: required")
    question.get_by_label("name", exact=True).first.fill("Ada")
    assert faults(either) == []
    question.get_by_role("button", name="Answer").click()

    expect(either.ended()).to_contain_text("Ada")


def test_an_address_to_open_is_shown_with_its_host(either: Seen) -> None:
    call(either, "trigger-url-elicitation", '{"url": "https://host.example/login", "message": "Log in"}')

    question = question_form(either)
    link = question.get_by_role("link", name="Open host.example")
    expect(link).to_have_attribute("rel", "noopener noreferrer")
    question.get_by_role("button", name="I have done that").click()

    expect(either.ended()).to_contain_text("accept")


def test_a_chosen_log_level_brings_log_notifications(handshake: Seen) -> None:
    handshake.page.get_by_label("Log messages from").select_option("debug")
    call(handshake, "toggle-simulated-logging")
    handshake.ended()
    handshake.go("messages")

    handshake.page.get_by_label("Kind").select_option("notification")

    listed = handshake.page.get_by_role("region", name="Messages").get_by_role("listitem")
    expect(listed.filter(has_text="notifications/message").first).to_be_visible()
    call(handshake, "toggle-simulated-logging")
    handshake.ended()


def test_tool_view_shows_everything_the_server_declares(modern: Seen) -> None:
    modern.tool("get-structured-content")
    modern.page.get_by_text("Definition").click()

    about = modern.page.locator("details", has_text="Definition")
    expect(about).to_contain_text("Output schema")
    expect(about).to_contain_text("temperature")


def test_images_of_a_server_have_the_viewers_of_files(modern: Seen) -> None:
    modern.tool("get-tiny-image")
    result = modern.run()

    result.get_by_role("button", name="Show").first.click()

    expect(result.locator("img.picture")).to_be_visible()
