"""A widget as an author declares it, and what both dialects are told."""

from pathlib import Path
from typing import Any, Literal

import pytest

from runner.widgets import BUILTIN, NO_AUTH, Csp, Widget, builtin, oauth2

PAGE = "<!doctype html><p>A chart</p>"


def chart(**more: Any) -> Widget:
    fields: dict[str, Any] = {"name": "chart", "html": PAGE, "description": "A chart of prices", **more}
    return Widget(**fields)


def test_one_declaration_gives_a_tool_the_keys_of_both_dialects() -> None:
    meta = chart().tool_meta(invoking="Drawing...", invoked="Chart ready")

    assert meta == {
        "securitySchemes": [{"type": "noauth"}],
        "openai/outputTemplate": "ui://widget/chart.html",
        "openai/widgetAccessible": False,
        "openai/visibility": "public",
        "openai/toolInvocation/invoking": "Drawing...",
        "openai/toolInvocation/invoked": "Chart ready",
        "openai/fileParams": [],
        "ui": {"resourceUri": "ui://widget/mcp-app/chart.html", "visibility": ["model"]},
        "ui/resourceUri": "ui://widget/mcp-app/chart.html",
    }


def test_one_declaration_gives_a_page_the_keys_of_both_dialects() -> None:
    csp = Csp(connect=("api.example.com",), resources=("https://cdn.example.com", "*.img.example.com:8443"))

    assert chart(csp=csp, prefers_border=False).resource_meta() == {
        "openai/widgetPrefersBorder": False,
        "openai/widgetDescription": "A chart of prices",
        "openai/widgetCSP": {
            "connect_domains": ["api.example.com"],
            "resource_domains": ["cdn.example.com", "*.img.example.com:8443"],
        },
        "ui": {
            "prefersBorder": False,
            "csp": {
                "connectDomains": ["https://api.example.com"],
                "resourceDomains": ["https://cdn.example.com", "https://*.img.example.com:8443"],
            },
        },
    }


def test_unset_fields_are_absent_and_set_ones_present() -> None:
    plain = chart().resource_meta()
    rich = chart(
        csp=Csp(frames=("maps.example.com",)), permissions=("camera",), domain="https://w.example.com"
    ).resource_meta()

    assert "permissions" not in plain["ui"]
    assert "domain" not in plain["ui"]
    assert "frame_domains" not in plain["openai/widgetCSP"]
    assert rich["openai/widgetCSP"]["frame_domains"] == ["maps.example.com"]
    assert rich["ui"]["csp"]["frameDomains"] == ["https://maps.example.com"]
    assert rich["ui"]["permissions"] == {"camera": {}}
    assert rich["ui"]["domain"] == rich["openai/widgetDomain"] == "https://w.example.com"


def test_given_scheme_stays_in_origins_and_is_cut_from_hosts() -> None:
    csp = Csp(connect=("wss://live.example.com", "http://localhost:3000"))

    assert csp.origins()["connectDomains"] == ["wss://live.example.com", "http://localhost:3000"]
    assert csp.hosts()["connect_domains"] == ["live.example.com", "localhost:3000"]


@pytest.mark.parametrize(
    ("accessible", "visibility", "audience"),
    [
        (False, "public", ["model"]),
        (True, "public", ["model", "app"]),
        (True, "private", ["app"]),
    ],
)
def test_tool_visibility_is_always_declared(
    accessible: bool, visibility: Literal["public", "private"], audience: list[str]
) -> None:
    declared = chart(accessible=accessible, visibility=visibility)
    metadata = chart().tool_meta(invoking="a", invoked="b", accessible=accessible, visibility=visibility)

    meta = declared.tool_meta(invoking="a", invoked="b")

    assert meta == metadata
    assert meta["ui"]["visibility"] == audience
    assert (meta["openai/widgetAccessible"], meta["openai/visibility"]) == (accessible, visibility)


def test_schemes_and_file_arguments_are_declared() -> None:
    """Source: S3-139."""
    meta = chart().tool_meta(
        invoking="a", invoked="b", security=(NO_AUTH, oauth2("files.read")), file_params=("picture",)
    )

    assert meta["securitySchemes"] == [{"type": "noauth"}, {"type": "oauth2", "scopes": ["files.read"]}]
    assert meta["openai/fileParams"] == ["picture"]
    assert oauth2() == {"type": "oauth2"}


def test_text_limit_is_64_characters() -> None:
    assert chart().tool_meta(invoking="x" * 64, invoked="y" * 64)

    with pytest.raises(ValueError, match=r"1 to 64 characters while a tool runs; 'x+' has 65"):
        chart().tool_meta(invoking="x" * 65, invoked="Done")
    with pytest.raises(ValueError, match="'' has 0"):
        chart().tool_meta(invoking="Drawing...", invoked="")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"name": "my chart"}, "made of letters, digits, .*, not 'my chart'"),
        ({"name": "../chart"}, "made of letters, digits"),
        ({"name": ""}, "made of letters, digits"),
        ({"html": "chart.html"}, "is not a page; for a file, give a Path"),
        ({"description": " "}, "has no description"),
        ({"permissions": ("usb",)}, "asks for 'usb'; known permissions are camera"),
        ({"visibility": "private"}, "nobody could call"),
    ],
)
def test_unusable_declaration_is_refused_with_the_correction(values: dict[str, object], says: str) -> None:
    assert chart().page() == PAGE

    with pytest.raises(ValueError, match=says):
        chart(**values)


@pytest.mark.parametrize(
    "domain", ["'self'", "https://cdn.example.com/lib", "a b", "", "*", "data:", "-a.com"]
)
def test_invalid_domain_is_refused(domain: str) -> None:
    domains = ("cdn.example.com", "localhost:8000", "*.example.com")
    assert Csp(resources=domains).hosts()["resource_domains"] == list(domains)

    with pytest.raises(ValueError, match="is not a domain for a widget"):
        Csp(resources=(domain,))


def test_a_page_is_a_text_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "chart.html"
    file.write_text("<p>Größe</p>", encoding="utf-8")

    assert chart(html=file).page() == "<p>Größe</p>"
    assert chart().page() == PAGE


@pytest.mark.parametrize("name", BUILTIN)
def test_each_page_of_the_runner_is_a_widget(name: str) -> None:
    widget = builtin(name)

    assert widget.uri == f"ui://widget/{name}.html"
    assert widget.page().lstrip().lower().startswith("<!doctype html>")
    assert widget.csp.hosts() == {"connect_domains": [], "resource_domains": []}


def test_unknown_runner_page_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no page 'map'; it has chat-view, dashboard-widget"):
        builtin("map")
