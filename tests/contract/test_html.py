"""HTML of a tool as it is shown: what cannot act and cannot load."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.contract.html import sanitize_html

PIXEL = "data:image/png;base64,iVBORw0KGgo="

# fmt: off
PIECES = [
    "<", ">", "/", "script", "img", "a ", "src=", "href=", "onerror=", "javascript:", "style", "svg", "x",
    '"', "'", "&#10;", "\n", "math", "mtext", "<!--", "-->", "=", " ", "iframe", "\x00",
]
# fmt: on


@pytest.mark.parametrize(
    ("html", "shown"),
    [
        ("<b onclick=x()>A</b>", "<b>A</b>"),
        ("<script>alert(1)</script>A", "A"),
        ("<style>p{background:url(https://e.x)}</style><p style='x'>A</p>", "<p>A</p>"),
        ("<title>T</title><p>A</p>", "<p>A</p>"),
        ('<a href="javascript:alert(1)">l</a>', '<a rel="noopener noreferrer">l</a>'),
        ('<a href="java&#10;script:alert(1)">l</a>', '<a rel="noopener noreferrer">l</a>'),
        ('<a href=" data:text/html,x">l</a>', '<a rel="noopener noreferrer">l</a>'),
        ('<a href="d&#9;ata:text/html,x">l</a>', '<a rel="noopener noreferrer">l</a>'),
        ("<img src=x onerror=alert(1)>", "<img>"),
        ("<svg onload=alert(1)><script>1</script></svg>A", "A"),
        ("<iframe srcdoc='<script>1</script>'></iframe>A", "A"),
        ("<form action=https://e.x><input name=a></form>A", "A"),
        ("<meta http-equiv=refresh content='0;url=https://e.x'>A", "A"),
        ("<math><mtext><style><img src=x onerror=alert(1)></style></mtext></math>A", "A"),
    ],
)
def test_what_could_act_is_gone_and_the_rest_stays(html: str, shown: str) -> None:
    assert sanitize_html(html) == shown


@pytest.mark.parametrize(
    "html",
    [
        "<h1>Title</h1><p>a <strong>b</strong> <em>c</em></p><ul><li>d</li></ul>",
        '<table><thead><tr><th colspan="2">a</th></tr></thead><tbody><tr><td>b</td></tr></tbody></table>',
        "<details><summary>a</summary>b</details><pre><code>c &lt; d</code></pre>",
        f'<img src="{PIXEL}" alt="a chart">',
        '<a href="https://example.com/" rel="noopener noreferrer">l</a>',
    ],
)
def test_an_ordinary_report_stays_as_it_is(html: str) -> None:
    assert sanitize_html(html) == html


@pytest.mark.parametrize(
    "source",
    [
        "https://e.x/?secret",
        "//e.x/a.png",
        "/a.png",
        "data:image/svg+xml;base64,aGk=",
        "data:text/html,x",
        "data:image/png,x",
    ],
)
def test_a_picture_is_shown_only_where_its_bytes_are_in_the_page(source: str) -> None:
    assert sanitize_html(f'<img src="{PIXEL}">') == f'<img src="{PIXEL}">'
    assert sanitize_html(f'<img src="{source}">') == "<img>"


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_no_markup_that_acts_survives_whatever_was_written(html: str) -> None:
    shown = sanitize_html(html)

    for tag in re.findall(r"<[^>]*>", shown):
        assert not re.search(r"<\s*(script|style|iframe|svg|math)|\son\w+\s*=", tag, re.IGNORECASE)
        assert not re.search(r"(src|href)\s*=\s*\"?\s*javascript:", tag, re.IGNORECASE)
    assert sanitize_html(shown) == shown
