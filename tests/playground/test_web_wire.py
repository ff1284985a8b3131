"""Messages on the wire: the log, found, paired, saved, changed and sent again.

Source: `docs/widgets.md`.
"""

import re
from collections.abc import Callable, Iterator

import pytest
from playground_support import Shown
from playwright.sync_api import Locator
from web_support import Seen, browsing, expect, faults

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]


@pytest.fixture(scope="module")
def opened(start: Callable[..., Shown]) -> Iterator[Callable[..., Seen]]:
    with browsing(start()) as opening:
        yield opening


@pytest.fixture
def seen(opened: Callable[..., Seen]) -> Iterator[Seen]:
    seen = opened()
    seen.tool("double")
    seen.write('{"number": 21}')
    seen.run()
    seen.go("messages")
    yield seen
    seen.page.context.close()


def rows(seen: Seen) -> Locator:
    return seen.page.get_by_role("region", name="Messages").get_by_role("listitem")


def test_messages_stand_in_order_with_direction_and_time(seen: Seen) -> None:
    expect(rows(seen).last).to_contain_text("tools/call")
    texts = rows(seen).all_inner_texts()

    sent, received = (at for at, text in enumerate(texts) if "tools/call" in text)
    assert sent < received
    assert "→" in texts[sent]
    assert "←" in texts[received]
    assert re.search(r"\d m?s", texts[received])
    assert any("initialize" in text for text in texts[:sent])
    assert faults(seen) == []


def test_the_answer_of_a_request_is_shown_whatever_is_looked_for(seen: Seen) -> None:
    seen.page.get_by_label("Kind").select_option("request")
    request = rows(seen).filter(has_text="tools/call")
    expect(request).to_contain_text("double")
    request.get_by_role("button").first.click()

    request.get_by_role("button", name="Its answer").click()

    answer = rows(seen).filter(has=seen.page.locator("[aria-expanded=true]"))
    expect(answer).to_contain_text('"structuredContent"')
    expect(answer.get_by_role("button").first).to_be_focused()
    expect(seen.page.get_by_label("Kind")).to_have_value("")


def test_the_newest_message_is_one_press_away(seen: Seen) -> None:
    seen.page.get_by_role("button", name="To the newest").click()

    expect(rows(seen).last.get_by_role("button").first).to_be_focused()
    expect(rows(seen).last).to_be_in_viewport()


def test_messages_are_found_by_words_server_direction_and_kind(seen: Seen) -> None:
    expect(rows(seen).last).to_contain_text("tools/call")
    everything = rows(seen).count()

    seen.page.get_by_label("Search in messages").fill("tools/call")
    expect(rows(seen)).to_have_count(2)
    seen.page.get_by_label("Direction").select_option("sent")
    expect(rows(seen)).to_have_count(1)

    seen.page.get_by_label("Search in messages").fill("")
    seen.page.get_by_label("Kind").select_option("result")
    seen.page.get_by_label("Direction").select_option("")
    expect(rows(seen).first).to_contain_text("←")
    assert 0 < rows(seen).count() < everything


def test_a_request_leads_to_its_answer_and_back(seen: Seen) -> None:
    seen.page.get_by_label("Search in messages").fill("tools/call")
    rows(seen).first.get_by_role("button").first.click()

    seen.page.get_by_role("button", name="Its answer").click()

    expect(rows(seen).last).to_contain_text('"results": 42')
    seen.page.get_by_role("button", name="Its request").click()
    expect(rows(seen).first).to_contain_text('"number": 21')
    assert faults(seen) == []


def test_a_request_is_changed_and_sent_again(seen: Seen) -> None:
    seen.page.get_by_label("Search in messages").fill("tools/call")
    rows(seen).first.get_by_role("button").first.click()
    seen.page.get_by_role("button", name="Change and send again").click()
    compose = seen.page.get_by_role("region", name="Send a message")
    text = compose.get_by_role("textbox")

    text.fill(text.input_value().replace('"number": 21', '"number": 4'))
    compose.get_by_role("button", name="Send", exact=True).click()

    expect(compose.get_by_role("status")).to_contain_text('"results": 8')
    expect(rows(seen)).to_have_count(4)
    text.fill("no json")
    expect(compose.get_by_role("alert")).to_contain_text("is not valid JSON")
    assert faults(seen) == []


def test_fault_of_a_manual_message_is_shown(seen: Seen) -> None:
    seen.page.get_by_role("button", name="Send a message").click()
    compose = seen.page.get_by_role("region", name="Send a message")

    compose.get_by_role("textbox").fill('{"jsonrpc": "2.0", "id": 1, "method": "no/such", "params": {}}')
    compose.get_by_role("button", name="Send", exact=True).click()

    expect(compose.get_by_text('"error"').or_(compose.get_by_role("alert"))).to_be_visible()


def test_the_era_is_chosen_by_hand_and_outlives_a_reload(seen: Seen) -> None:
    seen.go("session")
    seen.page.get_by_label("Protocol version").select_option("2025-06-18")
    server = seen.page.get_by_role("region", name="Server", exact=True)
    expect(server.locator("dd").last).to_have_text("2025-06-18")

    seen.tool("double")
    seen.write('{"number": 3}')
    expect(seen.run()).to_contain_text("6")
    seen.go("messages")
    seen.page.get_by_label("Search in messages").fill("initialize")
    expect(rows(seen).first).to_contain_text("initialize")
    seen.page.reload()
    seen.go("session")
    expect(seen.page.get_by_label("Protocol version")).to_have_value("2025-06-18")


def test_trace_ids_are_absent_without_tracing(seen: Seen) -> None:
    seen.tool("double")

    expect(seen.tab("Timing").get_by_text("Trace", exact=True)).to_have_count(0)
