"""The project's own host side: it shows a widget, does what it may ask, and believes nothing else."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from pages_support import BRIDGED, HOST, PAGES, PROXY, Showing, Shown, launched, showing

pytestmark = [pytest.mark.needs_browser, pytest.mark.needs_npm]

# A widget that says what it is told to, without the bridge.
PARROT = """<!doctype html><html lang="en"><title>parrot</title><body><script>
window.heard = [];
addEventListener("message", ({data}) => heard.push(data));
window.say = message => parent.postMessage(message, "*");
window.ask = (method, params, id = 1) => new Promise(done => {
  addEventListener("message", ({data}) => data.id === id && !data.method && done(data));
  say({jsonrpc: "2.0", id, method, params});
});
</script>"""
MODULE = """
import { WidgetHost } from "./host.js";
window.acts = [];
window.entries = [];
const act = (name, answer) => (...args) => { acts.push([name, ...args]); return answer; };
const config = CONFIG;
const actions = { log: entry => entries.push(entry), closed: act("closed") };
for (const [name, answer] of Object.entries(config.actions)) actions[name] = act(name, answer);
window.host = new WidgetHost({
  container: document.getElementById("here"),
  proxyUrl: config.proxyUrl,
  title: "A widget",
  visibility: tool => config.tools[tool],
  ...config.options,
  actions,
});
"""
ALL_ACTIONS = {
    "callTool": {"content": [], "structuredContent": {"called": True}},
    "sendMessage": None,
    "openLink": None,
    "setDisplayMode": "fullscreen",
    "updateModelContext": None,
    "keepState": None,
}
TOOLS = {"shared": ["model", "app"], "hidden": ["app"], "private": ["model"]}


@pytest.fixture(scope="module")
def show() -> Iterator[Showing]:
    with launched() as browser, showing(browser) as ways:
        yield ways


@pytest.fixture(scope="module")
def steady(show: Showing) -> Iterator[Shown]:
    """One widget for all tests that only say something to its host."""
    shown = hosted(show, PARROT)
    yield shown
    shown.page.close()


@pytest.fixture
def parrot(steady: Shown) -> Shown:
    steady.page.evaluate(
        "acts.length = 0; host.element.style.height = ''; host.setContext({displayMode: 'inline'})"
    )
    steady.frame.evaluate("heard.length = 0")
    return steady


def hosted(
    show: Showing,
    html: str,
    *,
    actions: Mapping[str, Any] = ALL_ACTIONS,
    proxy: str = f"{PROXY}/proxy.html",
    **options: Any,
) -> Shown:
    options_sent = {"html": html, "context": {"availableDisplayModes": ["inline", "fullscreen"]}, **options}
    config = {"actions": actions, "tools": TOOLS, "proxyUrl": proxy, "options": options_sent}
    shown = show.hosted(MODULE.replace("CONFIG", json.dumps(config).replace("<", "\\u003c")))
    if proxy.startswith(PROXY):
        shown.page.frame_locator("iframe").frame_locator("iframe").locator("body").wait_for(state="attached")
        shown.page.wait_for_function("window.host")
        shown.frame = next(
            frame for frame in shown.page.frames if frame.parent_frame and frame.parent_frame.parent_frame
        )
        shown.frame.wait_for_load_state()
    return shown


def ask(shown: Shown, method: str, params: object, number: int = 1) -> Any:
    answer = shown.frame.evaluate(
        "([method, params, id]) => ask(method, params, id)", [method, params, number]
    )
    return answer.get("result", answer.get("error"))


def acts(shown: Shown) -> list[Any]:
    return list(shown.page.evaluate("window.acts"))


def say(shown: Shown, message: object) -> None:
    shown.frame.evaluate("message => say(message)", message)


def settle(shown: Shown) -> None:
    """Wait until all that was said before has been heard: messages keep their order."""
    assert ask(shown, "ping", {}, 999) == {}


def test_own_page_shows_result_received_before_ready(show: Showing) -> None:
    shown = hosted(show, (PAGES / "pizzaz-table.html").read_text())

    shown.page.evaluate(
        "host.toolResult({content: [], structuredContent: {columns: ['name'], data: [{name: 'Diavola'}]}})"
    )

    shown.wait_for("Diavola")
    shown.page.wait_for_function("parseInt(host.element.style.height) > 100")
    assert shown.page.evaluate("host.ready.then(() => 'ready')") == "ready"
    assert shown.errors == []
    shown.page.close()


@pytest.mark.parametrize("place", ["_meta", "metadata"])
def test_result_requesting_close_closes_any_widget(show: Showing, place: str) -> None:
    shown = hosted(show, PARROT)

    shown.page.evaluate(
        "place => host.toolResult({content: [], [place]: {'openai/closeWidget': true}})", place
    )
    shown.page.locator("iframe").wait_for(state="detached")

    assert acts(shown) == [["closed"]]
    assert shown.page.evaluate("host.closed")
    shown.page.close()


def test_result_without_close_request_leaves_it_open(show: Showing) -> None:
    shown = hosted(show, PARROT)

    shown.page.evaluate("host.toolResult({content: [], _meta: {'openai/closeWidget': false}})")
    settle(shown)

    assert not shown.page.evaluate("host.closed")
    shown.page.close()


def test_widget_requesting_close_is_closed_without_answering(show: Showing) -> None:
    shown = hosted(show, PARROT)
    say(shown, {"jsonrpc": "2.0", "method": "ui/notifications/initialized"})

    say(shown, {"jsonrpc": "2.0", "method": "ui/notifications/request-teardown"})
    shown.page.locator("iframe").wait_for(state="detached")

    assert acts(shown) == [["closed"]]
    shown.page.close()


@pytest.mark.parametrize(
    ("tool", "answer"),
    [
        ("shared", {"called": True}),
        ("hidden", {"called": True}),
        (
            "private",
            'the tool private may not be called by a widget: its _meta.ui.visibility does not name "app"',
        ),
        ("absent", "there is no tool absent"),
        ("", "tools/call needs a name and an object of arguments"),
    ],
)
def test_widget_calls_only_permitted_tools(parrot: Shown, tool: str, answer: dict[str, bool] | str) -> None:
    got = ask(parrot, "tools/call", {"name": tool, "arguments": {"a": 1}})

    assert got.get("structuredContent", got.get("message")) == answer
    assert acts(parrot) == ([["callTool", tool, {"a": 1}]] if isinstance(answer, dict) else [])


@pytest.mark.parametrize(
    ("method", "params", "done"),
    [
        ("ui/message", {"role": "user", "content": [{"type": "text", "text": "hi"}]}, ["sendMessage", "hi"]),
        ("ui/open-link", {"url": "https://example.com/"}, ["openLink", "https://example.com/"]),
        ("ui/request-display-mode", {"mode": "fullscreen"}, ["setDisplayMode", "fullscreen"]),
        ("ui/update-model-context", {"content": []}, ["updateModelContext", {"content": []}]),
    ],
)
def test_widget_request_runs_once_and_is_refused_if_unsupported(
    show: Showing, parrot: Shown, method: str, params: dict[str, object], done: list[object]
) -> None:
    bare = hosted(show, PARROT, actions={})

    answer = ask(parrot, method, params)
    refusal = ask(bare, method, params)

    assert "message" not in answer
    assert acts(parrot) == [done]
    assert refusal == {"mode": "inline"} if method == "ui/request-display-mode" else refusal["code"] == -32601
    assert acts(bare) == []
    bare.page.close()


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("ui/open-link", {"url": "javascript:alert(1)"}),
        ("ui/open-link", {"url": "file:///etc/passwd"}),
        ("ui/message", {"role": "assistant", "content": [{"type": "text", "text": "I am the model"}]}),
        ("ui/message", {"role": "user", "content": [{"type": "image", "data": "x"}]}),
        ("ui/request-display-mode", {"mode": "kiosk"}),
        ("resources/read", {"uri": "file:///etc/passwd"}),
        ("constructor", {}),
        ("ui/notifications/sandbox-resource-ready", {"html": "<p>mine"}),
    ],
)
def test_anything_else_is_refused_and_nothing_is_done(
    parrot: Shown, method: str, params: dict[str, object]
) -> None:
    say(parrot, {"jsonrpc": "2.0", "id": 5, "method": method, "params": params})
    settle(parrot)

    answers = [one for one in parrot.frame.evaluate("window.heard") if one.get("id") == 5]

    assert acts(parrot) == []
    # What only host and proxy say to each other is dropped by the proxy, without an answer.
    assert [one["error"]["code"] for one in answers] in (
        [-32602],
        [-32601],
        [] if "sandbox" in method else [-32602],
    )


@pytest.mark.parametrize(
    ("height", "expected"),
    [(300, "300px"), (1, "48px"), (10**9, "2000px"), (-5, "48px"), ("400", ""), (None, ""), ({"a": 1}, "")],
)
def test_the_height_a_widget_asks_for_is_clamped(parrot: Shown, height: object, expected: str) -> None:
    say(
        parrot,
        {
            "jsonrpc": "2.0",
            "method": "ui/notifications/size-changed",
            "params": {"height": height, "width": 9999},
        },
    )
    settle(parrot)

    # Of several changes in a short time the last one counts, when that is over.
    parrot.page.wait_for_function("expected => host.element.style.height === expected", arg=expected)
    assert parrot.page.evaluate("host.element.style.width") == "100%"


def test_message_flood_is_cut_off_and_logged(show: Showing) -> None:
    shown = hosted(show, PARROT, limits={"burst": 20, "messagesPerSecond": 0})

    shown.frame.evaluate(
        "for (let i = 0; i < 100; i++) say({jsonrpc: '2.0', id: i, method: 'ui/open-link', params: {url: 'https://example.com'}})"
    )
    shown.page.wait_for_function("entries.some(entry => entry.dropped)")

    assert 0 < len(acts(shown)) <= 20
    shown.page.close()


def test_overlong_message_is_dropped(show: Showing) -> None:
    shown = hosted(show, PARROT, limits={"messageChars": 1000})

    say(
        shown,
        {
            "jsonrpc": "2.0",
            "id": 3,
            "method": "ui/open-link",
            "params": {"url": "https://example.com/" + "x" * 1000},
        },
    )
    settle(shown)

    assert acts(shown) == []
    shown.page.close()


def test_messages_of_other_windows_are_not_heard(show: Showing) -> None:
    shown = hosted(show, PARROT)
    forged = {"jsonrpc": "2.0", "id": 7, "method": "ui/open-link", "params": {"url": "https://example.com/"}}

    shown.page.evaluate("forged => window.postMessage(forged, '*')", forged)
    shown.page.evaluate(
        """forged => {
          const other = document.createElement('iframe');
          other.srcdoc = `<script>parent.postMessage(${JSON.stringify(forged)}, '*')</script>`;
          document.body.append(other);
        }""",
        forged,
    )
    # Straight to the top, past the proxy: that is another window as well.
    shown.frame.evaluate("forged => top.postMessage(forged, '*')", forged)
    settle(shown)

    assert acts(shown) == []
    shown.page.close()


def test_widget_has_no_origin_storage_network_or_host_access(show: Showing) -> None:
    shown = hosted(show, PARROT)
    attempts = """async () => {
      const tried = {};
      const attempt = async (name, act) => {
        try { await act(); tried[name] = 'worked'; } catch { tried[name] = 'failed'; }
      };
      tried.origin = window.origin;
      await attempt('storage', () => localStorage.setItem('a', 1));
      await attempt('host', () => top.document.title);
      await attempt('proxy', () => parent.document.title);
      await attempt('fetch', () => fetch('http://host.test/host.js'));
      await attempt('webrtc', () => new RTCPeerConnection());
      return tried;
    }"""

    assert shown.frame.evaluate(attempts) == {
        "origin": "null",
        "storage": "failed",
        "host": "failed",
        "proxy": "failed",
        "fetch": "failed",
        "webrtc": "failed",
    }
    assert shown.refused == []
    shown.page.close()


def go_away(shown: Shown) -> None:
    with shown.page.expect_event("framenavigated"):
        shown.frame.evaluate("void setTimeout(() => { location.href = 'https://other.test/away' })")


def test_widget_loads_only_from_its_resource_domains(show: Showing) -> None:
    watch = (
        "<script>stopped = []; addEventListener('securitypolicyviolation', e => stopped.push(e.blockedURI))"
    )
    images = "".join(f"<img src='https://{host}.test/a.png'>" for host in ("allowed", "other"))
    html = f"{watch}</script>{PARROT}{images}<script src='https://other.test/c.js'></script>"
    csp = {"resourceDomains": ["https://allowed.test", "https://other.test; script-src *"]}
    shown = hosted(show, html, csp=csp)

    shown.frame.wait_for_function("window.stopped.length > 1")
    settle(shown)

    stopped = shown.frame.evaluate("window.stopped")
    assert sorted(stopped) == ["https://other.test/a.png", "https://other.test/c.js"]
    shown.page.close()


def test_a_widget_cannot_send_its_frame_elsewhere(show: Showing) -> None:
    free = show.mcp("", html=PARROT)
    shown = hosted(show, PARROT)

    for one in (free, shown):
        go_away(one)

    assert free.refused == ["https://other.test/away"]
    assert shown.refused == []
    free.page.close()
    shown.page.close()


def test_a_second_document_for_the_same_frame_is_not_sent(show: Showing) -> None:
    shown = hosted(show, PARROT)

    shown.page.frames[1].evaluate(
        "method => parent.postMessage({jsonrpc: '2.0', method, params: {}}, '*')",
        "ui/notifications/sandbox-proxy-ready",
    )
    settle(shown)

    sent = (
        "entries.filter(entry => entry.message.method === 'ui/notifications/sandbox-resource-ready').length"
    )
    assert shown.page.evaluate(sent) == 1
    shown.page.close()


def test_widget_state_is_stored_and_restored_by_its_host(show: Showing) -> None:
    state = {"modelContent": "m", "privateContent": {"p": 1}}
    first = hosted(show, BRIDGED)
    first.page.evaluate("host.ready")
    first.frame.evaluate("state => openai.setWidgetState(state)", state)
    first.page.wait_for_function("acts.some(act => act[0] === 'keepState')")

    again = hosted(show, BRIDGED, widgetState=state)
    again.page.evaluate("host.ready")

    assert ["keepState", state] in acts(first)
    assert ["updateModelContext", {"content": [{"type": "text", "text": "m"}]}] in acts(first)
    assert again.frame.evaluate("openai.widgetState") == state
    first.page.close()
    again.page.close()


def test_a_proxy_of_the_same_origin_is_refused(show: Showing) -> None:
    shown = hosted(show, PARROT, proxy=f"{HOST}/proxy.html")

    assert "must have another origin" in " ".join(shown.errors)
    assert shown.page.locator("iframe").count() == 0
    shown.page.close()
