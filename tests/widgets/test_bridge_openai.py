"""The bridge beside `window.openai`, and by itself."""

from collections.abc import Iterator

import pytest
from pages_support import BRIDGED, METHODS, WIDGETS, Showing, Shown, launched, showing

pytestmark = [pytest.mark.needs_browser, pytest.mark.needs_npm]

VALUES = {
    "toolInput": {"q": 1},
    "toolOutput": {"n": 1},
    "toolResponseMetadata": {"m": 1},
    "widgetState": {"s": 1},
    "theme": "dark",
    "locale": "fr-CA",
    "displayMode": "pip",
    "maxHeight": 300,
    "userAgent": {"device": {"type": "tablet"}, "capabilities": {"hover": False, "touch": True}},
    "safeArea": {"insets": {"top": 5, "right": 0, "bottom": 0, "left": 0}},
    "view": {"mode": "modal", "params": {"a": 1}},
}
CALLS: dict[str, tuple[str, list[object]]] = {
    "callTool": ("'t', {a: 1}", ["t", {"a": 1}]),
    "sendFollowUpMessage": ("{prompt: 'x'}", [{"prompt": "x"}]),
    "getFileDownloadUrl": ("{fileId: 'f'}", [{"fileId": "f"}]),
    "requestDisplayMode": ("{mode: 'fullscreen'}", [{"mode": "fullscreen"}]),
    "requestModal": ("{title: 't'}", [{"title": "t"}]),
    "notifyIntrinsicHeight": ("41.5", [{"height": 42}]),
    "openExternal": ("{href: 'https://example.com/'}", [{"href": "https://example.com/"}]),
    "requestClose": ("", []),
    "setWidgetState": ("{modelContent: 1, privateContent: 2}", [{"modelContent": 1, "privateContent": 2}]),
}


@pytest.fixture(scope="module")
def show() -> Iterator[Showing]:
    with launched() as browser, showing(browser) as ways:
        yield ways


def bridge(shown: Shown) -> Shown:
    shown.page.evaluate((WIDGETS / "bridge.js").read_text())
    return shown


def outcome(shown: Shown, call: str) -> str:
    return str(
        shown.page.evaluate(
            f"widgetRuntime.{call}.then(value => 'resolved ' + JSON.stringify(value), error => error.message)"
        )
    )


def test_hooks_read_host_values_and_leave_its_object_alone(show: Showing) -> None:
    shown = show.openai("pizzaz-table", VALUES, before="window.theirs = window.openai;")

    read = {name: shown.page.evaluate(f"widgetRuntime.use{name[0].upper()}{name[1:]}()") for name in VALUES}

    assert read == VALUES
    assert shown.page.evaluate("window.openai === window.theirs")
    assert shown.page.evaluate("widgetRuntime.kind") == "openai"
    shown.page.close()


def test_hooks_follow_set_globals(show: Showing) -> None:
    shown = show.openai("pizzaz-table", VALUES)
    shown.page.evaluate("window.heard = []; widgetRuntime.useTheme.subscribe(theme => heard.push(theme)); 0")

    shown.page.evaluate("setGlobals({theme: 'light', toolOutput: {n: 2}})")

    assert shown.page.evaluate("[window.heard, widgetRuntime.useToolOutput()]") == [["light"], {"n": 2}]
    shown.page.close()


def test_each_method_reaches_the_host_with_its_arguments(show: Showing) -> None:
    """Source: S3-127 to S3-136."""
    shown = show.openai("kitchen-sink-lite", {"toolOutput": {"demo": True}})

    for name, (arguments, _) in CALLS.items():
        shown.page.evaluate(f"window.calls.length = 0; widgetRuntime.{name}({arguments})")
        assert [call for call in shown.calls if call[0] == name] == [[name, *CALLS[name][1]]]
    shown.page.close()


def test_file_reaches_the_host_unchanged(show: Showing) -> None:
    shown = show.openai("kitchen-sink-lite", {"toolOutput": {}}, answers={"uploadFile": {"fileId": "f1"}})

    assert outcome(shown, "uploadFile(new File(['x'], 'x.txt'))") == 'resolved {"fileId":"f1"}'
    assert shown.page.evaluate("window.calls.find(call => call[0] === 'uploadFile')[1] instanceof File")
    shown.page.close()


def test_a_method_the_host_lacks_is_unavailable(show: Showing) -> None:
    shown = show.openai("kitchen-sink-lite", {"toolOutput": {}}, methods=())

    outcomes = [outcome(shown, f"{name}({CALLS.get(name, ('new File([], `x`)',))[0]})") for name in METHODS]

    assert outcomes == [f"{name} is unavailable: this host does not offer it" for name in METHODS]
    shown.page.close()


def test_an_error_of_the_host_is_passed_on(show: Showing) -> None:
    shown = show.openai(
        "kitchen-sink-lite", {"toolOutput": {}}, answers={"callTool": {"throws": "not today"}}
    )

    assert outcome(shown, "callTool('t')") == "not today"
    shown.page.close()


def test_host_returning_the_whole_result_is_supported(show: Showing) -> None:
    whole = {"content": [{"type": "text", "text": "x"}], "structuredContent": {"n": 7}, "_meta": {"m": 3}}

    output = show.openai("pizzaz-table", {"toolOutput": whole})
    metadata = show.openai("pizzaz-table", {"toolOutput": {"n": 7}, "toolResponseMetadata": whole})

    assert output.page.evaluate(
        "[widgetRuntime.useToolOutput(), widgetRuntime.useToolResponseMetadata()]"
    ) == [{"n": 7}, {"m": 3}]
    assert metadata.page.evaluate("widgetRuntime.useToolResponseMetadata()") == {"m": 3}
    output.page.close()
    metadata.page.close()


def test_metadata_requesting_close_closes_the_widget(show: Showing) -> None:
    shown = show.openai("pizzaz-table", {"toolOutput": {"columns": [], "data": []}})
    assert "requestClose" not in [call[0] for call in shown.calls]

    shown.page.evaluate("setGlobals({toolResponseMetadata: {'openai/closeWidget': true}})")

    assert shown.called("requestClose") == [[]]
    shown.page.close()


def test_late_host_is_adopted(show: Showing) -> None:
    shown = show.alone("pizzaz-table")
    shown.wait_for("No rows")

    shown.page.evaluate(
        "window.openai = {toolOutput: {columns: ['name'], data: [{name: 'Napoli'}]}, theme: 'dark'};"
        "window.dispatchEvent(new CustomEvent('openai:set_globals', {detail: {globals: {}}}))"
    )

    shown.wait_for("Napoli")
    assert shown.page.evaluate("document.documentElement.dataset.theme") == "dark"
    shown.page.close()


def test_without_a_host_every_method_is_rejected(show: Showing) -> None:
    shown = show.alone("", html=BRIDGED)

    outcomes = [outcome(shown, f"{name}({CALLS.get(name, ('null',))[0]})") for name in METHODS]

    assert outcomes == [f"{name} is unavailable: no host" for name in METHODS]
    assert shown.page.evaluate("widgetRuntime.kind") == "none"
    shown.page.close()


def test_installing_the_bridge_twice_changes_nothing(show: Showing) -> None:
    shown = bridge(show.alone("", html=BRIDGED))

    assert shown.page.evaluate("[typeof window.openai.callTool, typeof widgetRuntime.useTheme]") == [
        "function",
        "function",
    ]
    shown.page.close()
