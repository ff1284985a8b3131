"""Rights of a widget in the page: tools, consent, addresses and time limits.

Source: MCP Apps 2026-01-26, "Tool Visibility" and "Mitigations".
"""

# ruff: noqa: E501, UP031 - scripts of pages are full of braces

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from browsers import WHOLE
from deceiving_support import DECEIVING, widget_of
from playground_support import Shown, answer, ask
from playwright.sync_api import Frame
from support import until
from web_support import Seen, after_turns, browsing, expect

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]

CALL = "([name, args]) => { window.said = null; ask('tools/call', {name, arguments: args}).then(end => { window.said = end; }); }"
OPEN = "url => { ask('ui/open-link', {url}).then(end => { (window.links ??= []).push([url, end]); }); }"
HANG = "seconds => { const end = performance.now() + 1000 * seconds; while (performance.now() < end); }"
FLOOD = """() => { const burst = () => { for (let n = 0; n < 500; n++) say({method: "flood", params: {n, text: "x".repeat(2000)}}); };
  setInterval(burst, 4); }"""


@pytest.fixture(scope="module")
def served(start: Callable[..., Shown], tmp_path_factory: pytest.TempPathFactory) -> Shown:
    file = tmp_path_factory.mktemp("deceiving") / "deceiving.py"
    file.write_text(DECEIVING.replace("CSP", "https://api.example.com"))
    return start(tools=file)


@pytest.fixture(scope="module")
def opens(served: Shown) -> Iterator[Callable[..., Seen]]:
    with browsing(served, WHOLE) as opened:
        yield opened


@pytest.fixture
def seen(opens: Callable[..., Seen]) -> Iterator[Seen]:
    looking = opens()
    yield looking
    looking.page.context.close()


def reply_of(seen: Seen, widget: Frame) -> Any:
    """Wait for what the widget was answered."""
    assert until(after_turns(seen.page, lambda: bool(widget.evaluate("said !== null"))))
    answered = widget.evaluate("said")
    return answered if isinstance(answered, str) else answered["content"][0]["text"]


def question(seen: Seen) -> Any:
    return seen.call.get_by_role("alert").filter(has_text="The widget wants to")


def test_widget_calls_only_tools_visible_to_apps(seen: Seen) -> None:
    widget = widget_of(seen)
    answers = {}

    for name in ("reads", "adds", "says_nothing", "for_models", "delete_everything"):
        widget.evaluate(CALL, [name, {}])
        answers[name] = reply_of(seen, widget)

    assert (answers.pop("reads"), answers.pop("adds")) == ("read", "added")
    assert {
        text.startswith(f"the tool {name} may not be called by a widget: its _meta.ui.visibility")
        for name, text in answers.items()
    } == {True}
    assert [row.inner_text() for row in seen.call.locator(".calls .first").all()] == ["adds", "reads"]
    expect(question(seen)).to_have_count(0)


def test_destructive_tool_runs_after_person_sees_arguments(seen: Seen) -> None:
    widget = widget_of(seen)

    widget.evaluate(CALL, ["empties", {"folder": "photos"}])
    expect(question(seen)).to_contain_text('{"folder":"photos"}')
    widget.evaluate("() => { ask('tools/call', {name: 'empties', arguments: {folder: 'other'}}); }")
    expect(question(seen)).to_contain_text("1 more call waits")
    expect(question(seen)).to_have_count(1)
    yes = question(seen).get_by_role("button", name="Call it", exact=True)
    expect(yes).to_be_enabled()
    assert widget.evaluate("said") is None
    yes.click()

    assert reply_of(seen, widget) == "emptied photos"
    # The next question is another one: what was meant for the first does not answer it.
    expect(question(seen)).to_contain_text('{"folder":"other"}')
    question(seen).get_by_role("button", name="Do not call it").click()
    expect(seen.call.get_by_text("not allowed")).to_be_visible()


def test_server_refuses_what_a_widget_may_not_request(served: Shown) -> None:
    answers = {}
    with served.entered() as browser:
        for name in ("reads", "adds", "delete_everything", "empties"):
            for mark in ({}, {"toolcell/widget": "unasked"}, {"toolcell/widget": "asked"}):
                result = answer(ask(browser, "tools/call", {"name": name, "arguments": {}, "_meta": mark}))
                how = next(iter(mark.values()), "a person's own")
                answers[name, how] = not result.get("isError", False)

    assert {key for key, made in answers.items() if made} == {
        *((name, "a person's own") for name in ("reads", "adds", "delete_everything", "empties")),
        *((name, how) for name in ("reads", "adds") for how in ("unasked", "asked")),
        ("empties", "asked"),
    }


def test_address_opens_after_consent_and_cannot_change_meanwhile(seen: Seen) -> None:
    widget = widget_of(seen)
    seen.page.context.route("https://docs.example.com/**", lambda route: route.fulfill(body="here"))

    widget.evaluate(OPEN, "https://docs.example.com/guide?x=1")
    yes = question(seen).get_by_role("button", name="Open", exact=True)
    expect(yes).to_be_disabled()
    widget.evaluate(OPEN, "https://evil.example/")
    assert until(after_turns(seen.page, lambda: len(widget.evaluate("links")) == 2))

    expect(question(seen)).to_contain_text("a page of docs.example.com")
    expect(question(seen)).to_contain_text("https://docs.example.com/guide?x=1")
    with seen.page.context.expect_page() as opened:
        yes.click()
    assert opened.value.url == "https://docs.example.com/guide?x=1"
    assert (
        dict(widget.evaluate("links"))["https://evil.example/"]
        == "a person is being asked about another address"
    )


def test_deceptive_or_own_server_addresses_prompt_nobody(seen: Seen) -> None:
    widget = widget_of(seen)
    port = seen.shown.base.rpartition(":")[2]
    named = [
        seen.shown.base,
        f"{seen.shown.base}/?key=1#/call/delete_everything",
        *(
            f"http://{host}:{port}/"
            for host in ("localhost", "127.1", "[::1]", "0.0.0.0", "x.localhost", "[::ffff:127.0.0.1]")
        ),
        "https://bank.example@evil.example/",
        "https://a:b@evil.example/",
        "javascript:alert(1)",
    ]

    for address in named:
        widget.evaluate(OPEN, address)
    assert until(after_turns(seen.page, lambda: len(widget.evaluate("links")) == len(named)))

    assert all(isinstance(end, str) for _, end in widget.evaluate("links")), widget.evaluate("links")
    expect(question(seen)).to_have_count(0)
    widget.evaluate(OPEN, "https://xn--bnk-7na.example/")
    expect(question(seen)).to_contain_text("xn--bnk-7na.example")


def test_hanging_widget_is_reported_and_can_be_stopped(seen: Seen) -> None:
    widget = widget_of(seen)
    hangs = seen.call.get_by_role("status").filter(has_text="has not answered for some seconds")
    began = time.monotonic()
    while time.monotonic() < began + 7:
        seen.page.wait_for_timeout(200)
        assert hangs.count() == 0
    widget.evaluate("setTimeout(%s, 0, 600)" % HANG)

    expect(hangs).to_be_visible()
    # The page itself works on.
    expect(seen.call.get_by_role("button", name="Stop it")).to_be_visible()
    seen.call.get_by_role("button", name="Stop it").click()

    expect(seen.call.get_by_text("You stopped the widget.")).to_be_visible()
    expect(seen.page.locator(".stage iframe")).to_have_count(0)
    seen.call.get_by_role("button", name="Start it again").click()
    inner = seen.page.frame_locator(".stage iframe").frame_locator("iframe")
    expect(inner.get_by_role("heading")).to_have_text("A parrot")


def test_widget_resuming_after_a_while_is_left_alone(seen: Seen) -> None:
    widget = widget_of(seen)
    hangs = seen.call.get_by_text("has not answered for some seconds")

    widget.evaluate("setTimeout(%s, 0, 9)" % HANG)

    expect(hangs).to_be_visible()
    expect(hangs).to_have_count(0)
    widget.evaluate(CALL, ["reads", {}])
    assert reply_of(seen, widget) == "read"


@pytest.mark.parametrize("way", ["location.href = 'https://evil.example/'", "location.reload()"])
def test_widget_leaving_its_page_is_stopped_and_reported(seen: Seen, way: str) -> None:
    widget = widget_of(seen)
    widget.evaluate("location.hash = '#further'")
    expect(seen.page.locator(".stage iframe")).to_have_count(1)

    widget.evaluate(f"setTimeout(() => {{ {way} }})")

    expect(seen.call.get_by_text("The widget sent its own frame elsewhere, and was stopped.")).to_be_visible()
    expect(seen.page.locator(".stage iframe")).to_have_count(0)


def test_a_flood_costs_the_page_little_and_ends_with_the_widget(seen: Seen) -> None:
    widget = widget_of(seen)
    session = seen.page.context.new_cdp_session(seen.page)
    session.send("Performance.enable")

    def busy_s() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in metrics if each["name"] == "ProcessTime"))

    seen.call.get_by_text("Messages and violations").click()
    before, began = busy_s(), time.monotonic()
    widget.evaluate(FLOOD)
    # Not by looking for something meanwhile: the looking is done in the page, and costs more.
    seen.page.wait_for_timeout(4_000)
    used, took = busy_s() - before, time.monotonic() - began

    flooded = seen.call.get_by_text("more messages than can be read, and was stopped")
    expect(flooded).to_be_visible()
    assert used <= 0.2 * took, f"{used:.2f} s of {took:.2f} s"
    expect(seen.page.locator(".stage iframe")).to_have_count(0)


def test_many_honest_messages_stop_nothing(seen: Seen) -> None:
    widget = widget_of(seen)

    answered = widget.evaluate(
        """async () => { const all = []; for (let n = 0; n < 200; n++) {
          all.push(await ask("ping", {})); await new Promise(end => setTimeout(end, 25)); } return all.length; }"""
    )

    assert answered == 200
    expect(seen.page.locator(".stage iframe")).to_have_count(1)


def test_large_messages_without_end_leave_the_page_its_time(seen: Seen) -> None:
    widget = widget_of(seen)
    session = seen.page.context.new_cdp_session(seen.page)
    session.send("Performance.enable")

    def busy_s() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in metrics if each["name"] == "ProcessTime"))

    widget.evaluate(
        """() => { const text = "x".repeat(900_000); setInterval(() => {
          say({method: "large", params: {text}}); say({method: "large", params: {list: Array(100_000).fill(1)}}); }, 30); }"""
    )
    seen.page.wait_for_timeout(2_000)
    before, began = busy_s(), time.monotonic()
    seen.page.wait_for_timeout(6_000)
    used, took = busy_s() - before, time.monotonic() - began

    assert used <= 0.2 * took, f"{used:.2f} s of {took:.2f} s"


def test_own_server_is_never_in_a_widget_policy(
    start: Callable[..., Shown], served: Shown, tmp_path_factory: pytest.TempPathFactory
) -> None:
    policies = {}
    with served.entered() as browser:
        frames = browser.get("/play/info").json()["frames"]
        port = served.base.rpartition(":")[2]
        for name in (
            "https://api.example.com",
            f"http://127.0.0.1:{port}",
            f"ws://localhost:{port}",
            f"http://*.localhost:{port}",
        ):
            lists = '{"connectDomains":["%s"],"resourceDomains":["%s"]}' % (name, name)
            answered = browser.get(f"{frames}/widget", params={"csp": lists}).headers
            policies[name] = (
                name in answered["content-security-policy"].partition("frame-ancestors")[0]
            ) or (name in answered["connection-allowlist"])

    assert policies.pop("https://api.example.com") is True
    assert set(policies.values()) == {False}
