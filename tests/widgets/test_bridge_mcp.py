"""The bridge in an MCP Apps host: every method of `window.openai` made of `ui/*` messages."""

from collections.abc import Iterator

import pytest
from pages_support import BRIDGED, CAPABILITIES, Showing, Shown, launched, showing

pytestmark = [pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]

RESULT = "ui/notifications/tool-result"


@pytest.fixture(scope="module")
def show() -> Iterator[Showing]:
    with launched() as browser, showing(browser) as ways:
        yield ways


@pytest.fixture
def bridged(show: Showing) -> Iterator[Shown]:
    shown = show.mcp("", html=BRIDGED)
    shown.wait_for_message("ui/notifications/initialized")
    yield shown
    shown.page.close()


@pytest.fixture(scope="module")
def steady(show: Showing) -> Iterator[Shown]:
    """One page for all tests that only ask it something."""
    shown = show.mcp("", html=BRIDGED)
    shown.wait_for_message("ui/notifications/initialized")
    yield shown
    shown.page.close()


def rejected(shown: Shown, call: str) -> str:
    return str(
        shown.frame.evaluate(
            f"{call}.then(value => 'resolved ' + JSON.stringify(value), error => error.message)"
        )
    )


def tell(shown: Shown, method: str, params: object) -> None:
    shown.page.evaluate("message => send(message)", {"method": method, "params": params})


def value(shown: Shown, name: str) -> object:
    return shown.frame.evaluate(f"window.openai.{name}")


def wait_until(shown: Shown, condition: str) -> None:
    shown.frame.wait_for_function(condition)


def test_the_first_words_are_the_handshake_with_name_and_version(bridged: Shown) -> None:
    posted = bridged.posted

    assert [one["method"] for one in posted][:2] == ["ui/initialize", "ui/notifications/initialized"]
    assert posted[0]["params"]["appInfo"] == {"name": "bridged", "version": "1.0.0"}
    assert posted[0]["params"]["protocolVersion"] == "2026-01-26"


@pytest.mark.parametrize(
    ("call", "method", "params"),
    [
        ("callTool('t', {a: 1})", "tools/call", {"name": "t", "arguments": {"a": 1}}),
        ("callTool('t')", "tools/call", {"name": "t", "arguments": {}}),
        (
            "sendFollowUpMessage({prompt: 'more'})",
            "ui/message",
            {"role": "user", "content": [{"type": "text", "text": "more"}]},
        ),
        ("openExternal({href: 'https://example.com/a'})", "ui/open-link", {"url": "https://example.com/a"}),
        ("requestDisplayMode({mode: 'fullscreen'})", "ui/request-display-mode", {"mode": "fullscreen"}),
        ("notifyIntrinsicHeight({height: 120.2})", "ui/notifications/size-changed", {"height": 121}),
        ("notifyIntrinsicHeight(77)", "ui/notifications/size-changed", {"height": 77}),
        ("requestClose()", "ui/notifications/request-teardown", {}),
        (
            "setWidgetState({sort: 'price'})",
            "ui/update-model-context",
            {"structuredContent": {"sort": "price"}},
        ),
        ("setWidgetState('two')", "ui/update-model-context", {"content": [{"type": "text", "text": "two"}]}),
        (
            "setWidgetState({modelContent: {n: 2}, privateContent: 1})",
            "ui/update-model-context",
            {"structuredContent": {"n": 2}},
        ),
        ("setWidgetState({privateContent: 1})", "ui/update-model-context", {"content": []}),
        (
            "setWidgetState({modelContent: 'm', imageIds: ['f']})",
            "ui/update-model-context",
            {"content": [{"type": "text", "text": "m"}]},
        ),
    ],
)
def test_a_method_of_the_document_becomes_its_twin(
    steady: Shown, call: str, method: str, params: dict[str, object]
) -> None:
    steady.frame.evaluate(f"window.openai.{call}")

    assert steady.wait_for_message(method)["params"] == params


@pytest.mark.parametrize(
    "call", ["uploadFile(new File([], 'x'))", "getFileDownloadUrl({fileId: 'x'})", "requestModal({})"]
)
def test_a_method_without_a_twin_is_rejected_as_unavailable(steady: Shown, call: str) -> None:
    message = rejected(steady, f"window.openai.{call}")

    assert "unavailable" in message
    assert message.startswith(call.partition("(")[0])


@pytest.mark.parametrize(
    ("call", "names"),
    [
        ("openExternal({href: 'javascript:alert(1)'})", "javascript:alert(1)"),
        ("openExternal({})", "undefined"),
        ("requestDisplayMode({mode: 'huge'})", "huge"),
        ("notifyIntrinsicHeight({height: NaN})", "null"),
        ("notifyIntrinsicHeight(-1)", "-1"),
        ("sendFollowUpMessage({prompt: '  '})", "prompt"),
        ("callTool('')", "name of a tool"),
        ("callTool('t', [1])", "[1]"),
        ("setWidgetState('x'.repeat(20000))", "20002"),
    ],
)
def test_invalid_request_is_refused_before_reaching_host(steady: Shown, call: str, names: str) -> None:
    before = len(steady.posted)

    message = rejected(steady, f"window.openai.{call}")

    assert names in message
    assert "resolved" not in message
    assert len(steady.posted) == before


def test_every_value_and_hook_follows_the_host(bridged: Shown) -> None:
    """Source: S3-124 to S3-126."""
    context = {
        "theme": "dark",
        "locale": "de-CH",
        "displayMode": "fullscreen",
        "containerDimensions": {"maxHeight": 640},
        "platform": "mobile",
        "deviceCapabilities": {"touch": True, "hover": False},
        "safeAreaInsets": {"top": 1, "right": 2, "bottom": 3, "left": 4},
    }
    bridged.frame.evaluate(
        "window.heard = []; window.widgetRuntime.useTheme.subscribe(theme => heard.push(theme)); 0"
    )

    tell(bridged, "ui/notifications/host-context-changed", context)
    tell(bridged, "ui/notifications/tool-input", {"arguments": {"city": "Bern"}})
    tell(bridged, RESULT, {"content": [], "structuredContent": {"n": 1}, "_meta": {"at": "now"}})
    wait_until(bridged, "window.openai.toolOutput")

    expected = {
        "toolInput": {"city": "Bern"},
        "toolOutput": {"n": 1},
        "toolResponseMetadata": {"at": "now"},
        "theme": "dark",
        "displayMode": "fullscreen",
        "maxHeight": 640,
        "locale": "de-CH",
        "userAgent": {"device": {"type": "mobile"}, "capabilities": {"hover": False, "touch": True}},
        "safeArea": {"insets": {"top": 1, "right": 2, "bottom": 3, "left": 4}},
        "view": {"mode": "fullscreen"},
    }
    hooks = {
        name: bridged.frame.evaluate(f"widgetRuntime.use{name[0].upper()}{name[1:]}()") for name in expected
    }
    assert {name: value(bridged, name) for name in expected} == expected
    assert hooks == expected
    assert bridged.frame.evaluate("window.heard") == ["dark"]


def test_changes_are_announced_as_set_globals(bridged: Shown) -> None:
    bridged.frame.evaluate(
        "window.told = []; addEventListener('openai:set_globals', e => told.push(e.detail.globals))"
    )

    tell(bridged, "ui/notifications/host-context-changed", {"theme": "dark", "unknown": 1})
    wait_until(bridged, "window.told.length > 0")

    assert bridged.frame.evaluate("window.told") == [{"theme": "dark"}]


def test_unsubscribed_listener_receives_nothing(bridged: Shown) -> None:
    bridged.frame.evaluate(
        "window.heard = []; window.stop = widgetRuntime.useLocale.subscribe(locale => heard.push(locale)); 0"
    )

    tell(bridged, "ui/notifications/host-context-changed", {"locale": "fr"})
    wait_until(bridged, "window.heard.length === 1")
    bridged.frame.evaluate("window.stop()")
    tell(bridged, "ui/notifications/host-context-changed", {"locale": "it"})
    wait_until(bridged, "window.openai.locale === 'it'")

    assert bridged.frame.evaluate("window.heard") == ["fr"]


@pytest.mark.parametrize(
    ("result", "output"),
    [
        ({"content": [], "structuredContent": {"a": 1}}, {"a": 1}),
        ({"content": [{"type": "text", "text": "3 rows"}, {"type": "text", "text": '{"a": 2}'}]}, {"a": 2}),
        ({"content": [{"type": "text", "text": "[1, 2]"}]}, [1, 2]),
        ({"content": [{"type": "text", "text": "just words {"}]}, {"text": "just words {"}),
        ({"content": [{"type": "image", "data": "x"}]}, None),
        ({"content": [{"type": "text", "text": "no"}], "isError": True, "structuredContent": {"a": 1}}, None),
    ],
)
def test_output_is_structured_content_or_json_text(
    bridged: Shown, result: dict[str, object], output: object
) -> None:
    tell(bridged, RESULT, result)
    wait_until(bridged, "widgetRuntime.get('call').state !== 'waiting'")

    assert value(bridged, "toolOutput") == output


@pytest.mark.parametrize("place", ["_meta", "metadata"])
def test_result_requesting_close_closes_the_widget(bridged: Shown, place: str) -> None:
    tell(bridged, RESULT, {"content": [], place: {"openai/closeWidget": True}})

    assert bridged.wait_for_message("ui/notifications/request-teardown")


def test_result_without_close_request_leaves_the_widget_open(bridged: Shown) -> None:
    tell(
        bridged,
        RESULT,
        {"content": [], "structuredContent": {"a": 1}, "_meta": {"openai/closeWidget": "yes"}},
    )
    wait_until(bridged, "window.openai.toolOutput")

    assert "ui/notifications/request-teardown" not in [one.get("method") for one in bridged.posted]


def test_the_result_of_a_called_tool_can_close_the_widget_too(show: Showing) -> None:
    replies = {"tools/call": {"result": {"content": [], "_meta": {"openai/closeWidget": True}}}}
    shown = show.mcp("", html=BRIDGED, replies=replies)

    shown.frame.evaluate("window.openai.callTool('t', {})")

    assert shown.wait_for_message("ui/notifications/request-teardown")
    shown.page.close()


def test_questions_of_the_host_are_answered(bridged: Shown) -> None:
    bridged.page.evaluate(
        "[['ping', 'a'], ['ui/resource-teardown', 'b'], ['x', 'c']].map(([method, id]) => send({id, method}))"
    )
    bridged.page.wait_for_function("window.posted.filter(one => 'abc'.includes(one.id)).length === 3")

    answers = {one["id"]: one for one in bridged.posted if one.get("id") in ("a", "b", "c")}
    assert (answers["a"]["result"], answers["b"]["result"], answers["c"]["error"]["code"]) == ({}, {}, -32601)


def test_messages_of_other_windows_or_shapes_are_ignored(bridged: Shown) -> None:
    forged = {
        "jsonrpc": "2.0",
        "method": RESULT,
        "params": {"content": [], "structuredContent": {"forged": True}},
    }

    bridged.frame.evaluate("forged => window.postMessage(forged, '*')", forged)
    messages: tuple[object, ...] = (
        None,
        7,
        "text",
        [],
        {"method": RESULT},
        {"jsonrpc": "2.0"},
        {"jsonrpc": "2.0", "id": 99, "result": 1},
    )
    for message in messages:
        bridged.page.evaluate(
            "message => document.querySelector('iframe').contentWindow.postMessage(message, '*')", message
        )
    tell(bridged, "ui/notifications/host-context-changed", {"locale": "last"})
    wait_until(bridged, "window.openai.locale === 'last'")

    assert value(bridged, "toolOutput") is None
    assert bridged.errors == []


def test_method_unknown_to_host_is_unavailable(show: Showing) -> None:
    refusal = {"error": {"code": -32601, "message": "Method not found"}}
    shown = show.mcp(
        "",
        html=BRIDGED,
        replies={"ui/message": refusal, "tools/call": {"error": {"code": -1, "message": "busy"}}},
    )

    assert rejected(shown, "openai.sendFollowUpMessage({prompt: 'x'})").startswith(
        "sendFollowUpMessage is unavailable"
    )
    assert rejected(shown, "openai.callTool('t')") == "callTool failed: busy"
    shown.page.close()


def test_host_refusal_in_result_rejects_the_promise(show: Showing) -> None:
    shown = show.mcp("", html=BRIDGED, replies={"ui/open-link": {"result": {"isError": True}}})

    assert "refused" in rejected(shown, "openai.openExternal({href: 'https://example.com'})")
    shown.page.close()


def test_a_display_mode_the_host_does_not_have_is_unavailable(show: Showing) -> None:
    shown = show.mcp("", html=BRIDGED, context={"availableDisplayModes": ["inline"]})

    assert "the host offers inline, not pip" in rejected(shown, "openai.requestDisplayMode({mode: 'pip'})")
    shown.page.close()


def test_granted_mode_applies(show: Showing) -> None:
    replies = {"ui/request-display-mode": {"result": {"mode": "inline"}}}
    shown = show.mcp("", html=BRIDGED, replies=replies)

    assert rejected(shown, "openai.requestDisplayMode({mode: 'fullscreen'})") == 'resolved {"mode":"inline"}'
    shown.page.close()


def test_unresponsive_parent_is_not_a_host_and_nothing_hangs(show: Showing) -> None:
    shown = show.mcp("", html=BRIDGED, answers=False)

    outcomes = [
        rejected(shown, f"openai.{call}")
        for call in ("callTool('t')", "requestClose()", "sendFollowUpMessage({prompt: 'x'})")
    ]

    assert [text.partition(":")[0] for text in outcomes] == [
        "callTool is unavailable",
        "requestClose is unavailable",
        "sendFollowUpMessage is unavailable",
    ]
    shown.page.close()


def test_method_without_host_promise_times_out_soon(show: Showing) -> None:
    shown = show.mcp("", html=BRIDGED, capabilities={}, replies={"tools/call": None})

    assert "unavailable: no answer to tools/call within 3 s" in rejected(shown, "openai.callTool('t')")
    shown.page.close()


def test_state_survives_remount_and_private_part_is_not_posted(show: Showing) -> None:
    """Source: S3-136 and S3-137."""
    state = {"modelContent": "2 pizzas", "privateContent": {"secret": 1}, "imageIds": ["f1"]}
    shown = show.mcp("", html=BRIDGED, opaque=False)
    shown.wait_for_message("ui/notifications/initialized")

    shown.frame.evaluate("state => openai.setWidgetState(state)", state)
    posted = shown.posted
    shown.page.reload()
    shown.frame = shown.page.frames[1]
    shown.frame.wait_for_function("window.openai && window.openai.widgetState")

    assert value(shown, "widgetState") == state
    assert "secret" not in str(posted)
    assert "2 pizzas" in str(posted)
    shown.page.close()


def test_state_belongs_to_its_own_call(show: Showing) -> None:
    results = {
        n: {"method": RESULT, "params": {"content": [], "structuredContent": {"n": n}}} for n in (1, 2)
    }
    shown = show.mcp("", html=BRIDGED, opaque=False, events=[results[1]])
    shown.frame.wait_for_function("window.openai.toolOutput")
    shown.frame.evaluate("openai.setWidgetState({of: 1})")

    other = show.mcp("", html=BRIDGED, opaque=False, events=[results[2]])
    other.frame.wait_for_function("window.openai.toolOutput")

    assert value(shown, "widgetState") == {"of": 1}
    assert value(other, "widgetState") is None
    shown.page.close()
    other.page.close()


def test_state_in_an_opaque_origin_lasts_as_long_as_the_page(bridged: Shown) -> None:
    bridged.frame.evaluate("openai.setWidgetState({kept: true})")

    assert value(bridged, "widgetState") == {"kept": True}
    assert bridged.errors == []


def test_text_only_host_gets_state_as_text(show: Showing) -> None:
    capabilities = {**CAPABILITIES, "updateModelContext": {"text": {}}}
    shown = show.mcp("", html=BRIDGED, capabilities=capabilities)

    shown.frame.evaluate("openai.setWidgetState({n: 1})")

    assert shown.wait_for_message("ui/update-model-context")["params"] == {
        "content": [{"type": "text", "text": '{"n":1}'}]
    }
    shown.page.close()


def test_only_host_colours_enter_the_style(show: Showing) -> None:
    """Source: S3-112 and S3-114."""
    variables = {
        "--color-text-primary": "rgb(1, 2, 3)",
        "--color-background-primary": "url(https://example.com/spy)",
        "--color-border-primary": "red; background: url(https://example.com)",
        "--evil": "1px",
        "color": "red",
    }
    shown = show.mcp("pizzaz-table", context={"styles": {"variables": variables}})
    shown.wait_for_message("ui/notifications/initialized")

    style = shown.frame.evaluate("document.documentElement.style.cssText")

    assert "rgb(1, 2, 3)" in style
    assert not {"example.com", "--evil"} & {word for word in ("example.com", "--evil") if word in style}
    shown.page.close()


def test_page_shows_result_then_failure_then_cancellation(show: Showing) -> None:
    result = {"content": [], "structuredContent": {"columns": ["name"], "data": [{"name": "Diavola"}]}}
    shown = show.mcp("pizzaz-table", [{"method": RESULT, "params": result}])

    shown.wait_for("Diavola")
    tell(shown, RESULT, {"content": [{"type": "text", "text": "the oven is cold"}], "isError": True})
    shown.wait_for("the oven is cold")
    tell(shown, "ui/notifications/tool-cancelled", {"reason": "you pressed stop"})
    shown.wait_for("you pressed stop")

    assert shown.errors == []
    shown.page.close()


def test_a_page_waits_for_its_result_and_tells_its_height(show: Showing) -> None:
    """Source: S3-103."""
    shown = show.mcp("search-results")
    shown.wait_for_message("ui/notifications/initialized")
    waiting = shown.frame.locator("main").get_attribute("aria-busy")
    shown.wait_for_message("ui/notifications/size-changed")
    before = shown.wait_for_message("ui/notifications/size-changed")["params"]["height"]

    results = [{"id": n, "title": f"Result {n}"} for n in range(5)]
    tell(shown, RESULT, {"content": [], "structuredContent": {"query": "x", "results": results}})
    shown.wait_for("Result 4")
    height = f"one.method === 'ui/notifications/size-changed' && one.params.height > {before}"
    shown.page.wait_for_function(f"window.posted.some(one => {height})")

    assert waiting == "true"
    shown.page.close()


def test_a_widget_in_picture_closes_when_its_session_ends(show: Showing) -> None:
    """Source: S3-111."""
    shown = show.mcp(
        "solar-system", context={"displayMode": "pip", "availableDisplayModes": ["pip", "inline"]}
    )
    shown.wait_for_message("ui/notifications/initialized")

    tell(shown, "ui/notifications/tool-cancelled", {"reason": "over"})

    assert shown.wait_for_message("ui/notifications/request-teardown")
    shown.page.close()
