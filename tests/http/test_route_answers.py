"""The answers of a tool file's own routes: the headers that pass, in which form, and how many."""

import time
from typing import Any

import pybase64
import pytest
from starlette.responses import Response

from runner.errors import CallError, Code
from runner.http.file_response import media_type
from runner.http.responses import Refusal, of_call_error
from runner.http.route_answers import route_response
from runner.worker.wire import ROUTE_HEADER_BYTES, ROUTE_HEADERS, ROUTE_HEADERS_BYTES

URL = "http://tools.example.com/a/b?q=1"
DANGEROUS = [
    "Accept-CH", "Access-Control-Allow-Credentials", "Access-Control-Allow-Origin", "Age", "Alt-Svc",
    "Clear-Site-Data", "Connection", "Content-Encoding", "Content-Length", "Content-Location",
    "Cross-Origin-Resource-Policy", "Expires", "Keep-Alive", "Link", "NEL", "Origin-Agent-Cluster",
    "Proxy-Authenticate", "Refresh", "Report-To", "Reporting-Endpoints", "Server", "Service-Worker-Allowed",
    "Set-Cookie", "Set-Cookie2", "SourceMap", "Speculation-Rules", "Strict-Transport-Security", "Trailer",
    "Transfer-Encoding", "Upgrade", "WWW-Authenticate", "X-Accel-Buffering", "X-Accel-Expires",
    "X-Accel-Redirect", "X-Anything", "X-LIGHTTPD-send-file", "X-Reproxy-URL", "X-Sendfile",
]  # fmt: skip


def answered(
    *headers: tuple[str, str], status: Any = 200, body: bytes = b"x", method: str = "GET"
) -> Response:
    answer_fields = {
        "status": status,
        "headers": [list(each) for each in headers],
        "body": pybase64.b64encode(body).decode(),
    }
    return route_response(answer_fields, method=method, url=URL)


@pytest.mark.parametrize("name", DANGEROUS)
def test_header_outside_the_list_is_dropped(name: str) -> None:
    response = answered((name, "7331"), ("ETag", '"1"'))

    assert response.headers["etag"] == '"1"'
    assert "7331" not in response.headers.get(name, "")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Accept-Ranges", "bytes"),
        ("Allow", "GET, POST"),
        ("Content-Disposition", "attachment; filename=\"a.csv\"; filename*=UTF-8''%C3%A4.csv"),
        ("Content-Language", "de"),
        ("Content-Range", "bytes 0-4/10"),
        ("Content-Type", "text/html; charset=utf-8"),
        ("Content-Type", 'application/json; profile="https://example.com/a"'),
        ("Last-Modified", "Sun, 29 Nov 2026 00:00:00 GMT"),
        ("Retry-After", "5"),
        ("Vary", "Accept, Accept-Language"),
    ],
)
def test_header_of_the_list_passes_unchanged(name: str, value: str) -> None:
    assert answered((name.upper(), value)).headers[name] == value


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ("public, max-age=60, s-maxage=60", "private, max-age=60"),
        ("no-store", "no-store"),
        ("private, max-age=1", "private, max-age=1"),
        ("public", "no-store"),
        ("stale-while-revalidate=9, No-Cache", "private, no-cache"),
    ],
)
def test_cache_control_leaves_no_answer_in_a_shared_cache(value: str, sent: str) -> None:
    assert answered(("Cache-Control", value)).headers["cache-control"] == sent


def test_answer_without_cache_control_is_not_stored() -> None:
    assert answered().headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ("/next?a=1#b", "/next?a=1#b"),
        ("next", "/a/next"),
        ("?page=2", "/a/b?page=2"),
        ("http://tools.example.com/a/b/", "/a/b/"),
        ("https://tools.example.com/x", "/x"),
    ],
)
def test_redirect_on_this_host_is_sent_as_a_path(value: str, sent: str) -> None:
    assert answered(("Location", value), status=307).headers["location"] == sent


@pytest.mark.parametrize(
    "value",
    [
        "https://evil.example/", "//evil.example/", "/\\evil.example", "\\\\evil.example", "/\t/evil.example",
        "http://tools.example.com@evil.example/", "http://tools.example.com:81/", "javascript:alert(1)",
        "data:text/html,x", "ftp://tools.example.com/", "http://[", "/ä", "http:\\\\evil.example",
        "http://tools.example.com\\@evil.example/",
    ],
)  # fmt: skip
def test_redirect_to_elsewhere_is_dropped(value: str) -> None:
    assert "location" not in answered(("Location", value), status=302).headers


def test_policy_of_the_author_only_adds_and_sends_no_report() -> None:
    response = answered(("Content-Security-Policy", "img-src 'self'; report-uri /api, report-to x; sandbox"))

    author, ours = response.headers.getlist("content-security-policy")
    assert author == "img-src 'self', sandbox"
    assert ours.startswith("sandbox ")
    assert "allow-same-origin" not in ours


def test_values_hold_no_line_break_and_nothing_outside_latin_1() -> None:
    response = answered(("ETag", "a\r\nSet-Cookie: b=c\x00\x7f\x85"), ("Content-Disposition", "Ж\ud800é"))

    assert response.headers["etag"] == "aSet-Cookie: b=c"
    assert response.headers["content-disposition"] == "??é"


def test_header_given_twice_is_joined_or_sent_once() -> None:
    response = answered(("Vary", "A"), ("vary", "B"), ("Content-Type", "text/plain"), ("content-type", "a/b"))

    assert response.headers.getlist("vary") == ["A, B"]
    assert response.headers.getlist("content-type") == ["text/plain"]


@pytest.mark.parametrize(
    "value",
    [
        "text html",
        # Firefox takes cookies from the headers of its parts.
        "Multipart/X-Mixed-Replace; boundary=b",
        "text/plain;, multipart/x-mixed-replace; boundary=b",
    ],
)
def test_forbidden_content_type_is_replaced(value: str) -> None:
    assert answered(("Content-Type", value)).headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize("status", [204, 205, 304])
def test_status_without_content_has_no_body(status: int) -> None:
    response = answered(("Content-Type", "text/plain"), ("ETag", '"1"'), status=status)

    assert (response.status_code, response.body) == (status, b"")
    assert response.headers["etag"] == '"1"'
    assert "content-type" not in response.headers
    assert response.headers.get("content-length") == ("0" if status == 205 else None)


def test_answer_to_head_has_a_length_and_no_body() -> None:
    response = answered(body=b"12345", method="HEAD")

    assert (response.body, response.headers.getlist("content-length")) == (b"", ["5"])


@pytest.mark.parametrize("status", [None, True, "200", 200.5, 0, 100, 101, 199, 600, -1, 10**300, [200]])
def test_unusable_status_is_an_error(status: Any) -> None:
    with pytest.raises(Refusal, match="status") as refused:
        answered(status=status)
    assert refused.value.status == 500


def test_headers_up_to_the_bounds_pass() -> None:
    value = "a" * (ROUTE_HEADER_BYTES - len("etag"))

    assert answered(("etag", value)).headers["etag"] == value
    assert answered(*[("x", "")] * ROUTE_HEADERS).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        [["etag", "a" * 50_000_000]],
        [["x" * 50_000_000, ""]],
        [["x-a", "1"]] * 600_000,
        [["x", "a" * (ROUTE_HEADERS_BYTES // 4)]] * 5,
        [["x"]],
        [["x", ["a"] * 1_000_000]],
        [[1, 2]],
        {"x": "y"},
        "x" * 50_000_000,
        None,
    ],
    ids=range(10),
)
def test_headers_above_a_bound_are_an_error_at_once(headers: Any) -> None:
    began = time.process_time()

    with pytest.raises(Refusal) as refused:
        route_response({"status": 200, "headers": headers, "body": ""}, method="GET", url=URL)

    assert refused.value.status == 500
    assert len(refused.value.sentence) < 200
    assert time.process_time() - began < 0.05


@pytest.mark.parametrize("body", [None, 1, ["a"] * 1_000_000, "not base64!"])
def test_body_that_is_not_base64_is_an_error(body: Any) -> None:
    with pytest.raises(Refusal):
        route_response({"status": 200, "headers": [], "body": body}, method="GET", url=URL)


@pytest.mark.parametrize(
    ("seconds", "sent"), [(2, "2"), (0.5, "0.5"), ("1\r\nSet-Cookie: a=b", None), ([1], None)]
)
def test_retry_after_is_a_number_or_not_sent(seconds: Any, sent: str | None) -> None:
    refusal = of_call_error(CallError(Code.E_TOOL, "no", details={"retry_after_seconds": seconds}))

    assert refusal.headers.get("Retry-After") == sent


@pytest.mark.parametrize(
    ("mime", "sent"),
    [
        ("text/csv", "text/csv"),
        ("text/csv; charset=utf-8", "text/csv; charset=utf-8"),
        ("text/csv\r\nSet-Cookie: a=b", "application/octet-stream"),
        ("text/" + "a" * 300, "application/octet-stream"),
    ],
)
def test_type_of_a_stored_file_is_a_media_type(mime: str, sent: str) -> None:
    assert media_type(mime) == sent
