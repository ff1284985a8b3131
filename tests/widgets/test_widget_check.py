"""What `runner check` finds of widgets, in the text and in what is put together as a file is loaded."""

from pathlib import Path

import pytest
from support import settings_in

from runner.check.source import SourceFile
from runner.check.text_rules import check_text
from runner.check.widget_facts import allowed_hosts, mime_fault, page_faults, tool_faults
from runner.check.widgets import seen_of_widgets
from runner.toolset.toolset import Toolset
from runner.toolset.user_pool import HomeAccess
from runner.users.identity import User

HEAD = (
    "from pathlib import Path\nfrom fastmcp import FastMCP\nfrom fastmcp.apps import AppConfig, ResourceCSP\n"
    "from fastmcp.resources import TextResource\nfrom runner.widgets import Csp, Widget, add_widgets\n"
    "mcp = FastMCP('t')\n"
)


def found(text: str, folder: Path = Path("/usr/share/tools")) -> list[str]:
    return [finding.rule for finding in check_text(HEAD + text, folder, identity="username").findings]


def tool(meta: str) -> str:
    return f'@mcp.tool({meta})\ndef show() -> int:\n    """Show."""\n    return 1\n'


@pytest.mark.parametrize(
    ("meta", "rules"),
    [
        ("meta={'ui': {'resourceUri': 'ui://a', 'visibility': ['model']}}", []),
        ("meta={'ui': {'resourceUri': 'ui://a'}}", ["widget-visibility"]),
        ("meta={'ui/resourceUri': 'ui://a'}", ["widget-visibility"]),
        ("meta=dict(ui=dict(resourceUri='ui://a'))", ["widget-visibility"]),
        ("meta={'a': 1} | {'ui': {'resourceUri': 'ui://a'}}", ["widget-visibility"]),
        ("meta={'ui': {'resourceUri': 'ui://a', **more()}}", []),
        ("meta={'ui': ui_of('a')}", []),
        ("meta=meta_of('a')", []),
        ("meta={'openai/outputTemplate': 'ui://a'}", []),
        ("meta={'openai/widgetCSP': {'connect_domains': []}}", ["widget-csp-on-tool"]),
        ("meta={'ui': {'permissions': {'camera': {}}}}", ["widget-csp-on-tool"]),
        ("app=AppConfig(resource_uri='ui://a', visibility=['model'])", []),
        ("app=AppConfig(resource_uri='ui://a')", ["widget-visibility"]),
        (
            "app=AppConfig(resource_uri='ui://a', visibility=['app'], csp=ResourceCSP())",
            ["widget-csp-on-tool"],
        ),
        ("meta={'openai/toolInvocation/invoked': 'x' 'y'}", []),
        ("meta={'openai/toolInvocation/invoked': ''}", ["widget-invocation-text"]),
        (f"meta={{'openai/toolInvocation/invoking': 'a' + '{'x' * 64}'}}", ["widget-invocation-text"]),
        (f"meta=w.tool_meta(invoking='{'x' * 64}', invoked='Done')", []),
        (f"meta=w.tool_meta(invoking='{'x' * 65}', invoked='Done')", ["widget-invocation-text"]),
    ],
)
def test_what_a_tool_says_of_its_page(meta: str, rules: list[str]) -> None:
    assert found(tool(meta)) == rules


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("@mcp.resource('ui://a')\ndef a() -> str:\n    return '<p>'\n", []),
        ("@mcp.resource('data://a', mime_type='text/html')\ndef a() -> str:\n    return '<p>'\n", []),
        ("@mcp.resource('ui://a', mime_type='text/html; profile=mcp-app')\ndef a():\n    return '<p>'\n",
         ["widget-mime"]),
        ("@mcp.resource('ui://a', mime_type='text/html+skybridge')\ndef a() -> str:\n    return '<p>'\n", []),
        ("@mcp.resource('ui://a', mime_type=kind())\ndef a() -> str:\n    return '<p>'\n", []),
        ("mcp.add_resource(TextResource(uri='ui://a', text='<p>'))\n", ["widget-mime"]),
        ("mcp.add_resource(TextResource(uri='ui://a', text='<p>', mime_type='text/html+skybridge'))\n", []),
        (tool("meta={'ui/resourceUri': 'ui://a', 'ui': {'visibility': ['model']}}")
         + "mcp.add_resource(TextResource(uri='ui://a', text='<p>', mime_type='text/html+skybridge'))\n",
         ["widget-mime"]),
        ("@mcp.resource('ui://a')\ndef a():\n    return '<script src=//cdn.e.org/x.js></script>'\n",
         ["widget-remote-code"]),
        ("@mcp.resource('ui://a', meta={'ui': {'csp': {'resourceDomains': ['https://cdn.e.org']}}})\n"
         "def a() -> str:\n    return '<script src=//cdn.e.org/x.js></script>'\n", []),
        ("@mcp.resource('ui://a', meta=meta_of())\n"
         "def a() -> str:\n    return '<script src=//cdn.e.org/x.js></script>'\n", []),
        ("w = Widget(name='a', description='A', csp=csp_of(), html='<script src=//e.org/x.js></script>')\n",
         []),
        ("w = Widget(name='a', description='A', html='<script src=//cdn.e.org/x.js></script>')\n",
         ["widget-remote-code"]),
    ],
)  # fmt: skip
def test_what_a_page_is_served_as_and_loads(text: str, rules: list[str]) -> None:
    assert found(text) == rules


@pytest.mark.parametrize(
    "path",
    [
        "Path(__file__).parent / 'page.html'",
        "Path(__file__).resolve().parent / 'page.html'",
        "Path('page.html')",
        "(Path(__file__).parent / 'page.html').read_text(encoding='utf-8')",
    ],
)
def test_a_page_in_a_file_beside_the_tool_file_is_looked_at(tmp_path: Path, path: str) -> None:
    text = f"PAGE = {path}\nw = Widget(name='a', description='A', html=PAGE)\n"
    (tmp_path / "page.html").write_text("<p>fine</p>")
    before = found(text, tmp_path)

    (tmp_path / "page.html").write_text("<link rel=stylesheet href='https://cdn.example.com/a.css'>")

    assert (before, found(text, tmp_path)) == ([], ["widget-remote-code"])


@pytest.mark.parametrize(
    ("html", "loads"),
    [
        ("<p>text https://e.org</p><a href='https://e.org'>link</a>", []),
        ("<script>import 'https://e.org/a.js'</script>", ["https://e.org/a.js"]),
        ('<script type=module>import {a} from "https://e.org/a.js"</script>', ["https://e.org/a.js"]),
        ("<script>import('https://e.org/a.js')</script>", ["https://e.org/a.js"]),
        ("<script>fetch('https://e.org/data')</script>", []),
        ("<script>const from = 'https://e.org'</script>", []),
        ("<SCRIPT SRC='HTTPS://E.ORG/a.js'></SCRIPT>", ["HTTPS://E.ORG/a.js"]),
        ("<script src='local.js'></script><script src='data:text/javascript,1'></script>", []),
        ("<link rel='preload stylesheet' href='//e.org/a.css'>", ["//e.org/a.css"]),
        ("<link rel=icon href='https://e.org/i.png'>", []),
        ("<style>@font-face { src: url( 'https://e.org/f.woff2' ) }</style>", ["https://e.org/f.woff2"]),
        ("<p style='background: url(https://e.org/b.png)'>x</p>", ["https://e.org/b.png"]),
        ("<style>p { color: red }</style>", []),
        ("<script>/* url(https://e.org) */</script>", []),
        ("<script src='https://e.org/a.js'", []),
    ],
)
def test_code_styles_and_fonts_from_elsewhere_are_found(html: str, loads: list[str]) -> None:
    messages = [fault.message for fault in page_faults(html, frozenset())]

    assert [message.split()[3].rstrip(",") for message in messages] == loads
    assert not list(page_faults(html, frozenset({"e.org"})))


def test_a_wildcard_covers_the_hosts_below_it_and_not_itself() -> None:
    hosts = allowed_hosts({"openai/widgetCSP": {"resource_domains": ["*.Example.com"]}})

    def loaded(host: str) -> bool:
        return not list(page_faults(f"<script src=https://{host}/a.js></script>", hosts))

    assert loaded("cdn.example.com")
    assert loaded("a.b.example.com")
    assert not loaded("example.com")
    assert not loaded("evilexample.com")


def test_values_of_no_form_at_all_break_nothing() -> None:
    metas: tuple[dict[str, object], ...] = (
        {"ui": 5},
        {"ui": None},
        {"ui": []},
        {"openai/toolInvocation/invoked": 5},
        {},
    )
    for meta in metas:
        assert list(tool_faults(meta)) == []
    assert mime_fault("text/html+skybridge", "ui://a", used_as=None) is None
    assert allowed_hosts({"ui": {"csp": {"resourceDomains": "x"}}, "openai/widgetCSP": []}) == frozenset()


PUT_TOGETHER = '''
from fastmcp import FastMCP
from runner.widgets import Widget, add_widgets

mcp = FastMCP("t")
KEYS = ["res" + "ourceUri", "ui"]


def told():
    """Return what is said."""
    return {KEYS[1]: {KEYS[0]: "ui://a", "csp": {}}, "openai/toolInvocation/" + "invoking": "x" * 80}


@mcp.tool(meta=told())
def show() -> int:
    """Show."""
    return 1


add_widgets(mcp, [Widget(name="a", description="A", html="<script src=https://e.org/%s></script>" % "a.js")])
'''


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.kernel
@pytest.mark.anyio
async def test_what_only_loading_shows_is_found_at_its_tool_once(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    file = tmp_path / "later.py"
    file.write_text(PUT_TOGETHER)
    told = check_text(PUT_TOGETHER, tmp_path, identity="username")

    async with (
        Toolset.open(settings_in(tmp_path), [str(file)], program="runner.check.program") as toolset,
        toolset.user_pool(User("nobody"), toolset.key(User("nobody"), access=HomeAccess.NONE)) as user_pool,
    ):
        hello = user_pool.pool.loaded.hello
    seen = list(
        seen_of_widgets(hello, told.offers, SourceFile(PUT_TOGETHER, identity="username"), frozenset())
    )
    rest = list(
        seen_of_widgets(
            hello,
            told.offers,
            SourceFile(PUT_TOGETHER, identity="username"),
            frozenset({"widget-visibility"}),
        )
    )

    assert told.findings == ()
    assert {(finding.rule, finding.line) for finding in seen} == {
        ("widget-csp-on-tool", 15),
        ("widget-invocation-text", 15),
        ("widget-visibility", 15),
        ("widget-remote-code", 1),
    }
    assert [finding.rule for finding in rest] == [
        finding.rule for finding in seen if finding.rule != "widget-visibility"
    ]
