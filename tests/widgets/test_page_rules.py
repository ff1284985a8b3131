"""Every widget page, whatever its tool returned: what is seen, who can use it, and what data cannot do."""

import json
from collections.abc import Iterator

import jsonschema
import pytest
from pages_support import PAGES, WIDGETS, Showing, Shown, launched, showing
from pages_support_data import BROKEN, NAMES, SAMPLES, hostile

pytestmark = [pytest.mark.needs_browser, pytest.mark.needs_npm]

MISSING = """
for (const name of ["ResizeObserver", "IntersectionObserver", "matchMedia", "structuredClone"]) {
  Object.defineProperty(window, name, {value: undefined});
}
for (const name of ["localStorage", "sessionStorage"]) {
  Object.defineProperty(window, name, {get() { throw new DOMException("denied", "SecurityError"); }});
}
"""
WITNESS = """
window.pwned = undefined;
const every = selector => [...document.querySelectorAll(selector)];
const before = Object.getOwnPropertyNames(Object.prototype).length;
window.harmed = () => [
  window.pwned !== undefined && "a script ran",
  Object.getOwnPropertyNames(Object.prototype).length !== before && "a prototype changed",
  document.querySelectorAll("script").length !== 1 && "a script was added",
  document.querySelector("iframe, object, embed, base, form[action], link, meta[http-equiv]") && "a frame",
  every("a").some(a => !/^(https?|mailto):/.test(a.href)) && "a link leads elsewhere",
  every("img").some(i => !/^(https:|data:image\\/(png|jpeg|gif|webp|avif))/.test(i.src)) && "a picture",
  every("*").some(e => [...e.attributes].some(a => /^on|srcdoc/.test(a.name))) && "an attribute",
].filter(Boolean);
"""


@pytest.fixture(scope="module")
def show() -> Iterator[Showing]:
    with launched() as browser, showing(browser) as ways:
        yield ways


def give(shown: Shown, output: object) -> None:
    # As JSON: keys such as __proto__ would not survive the way as an object.
    shown.page.evaluate("json => setGlobals({toolOutput: JSON.parse(json)})", json.dumps(output))
    shown.page.evaluate("() => new Promise(done => setTimeout(done))")


@pytest.mark.parametrize("name", NAMES)
def test_page_renders_empty_single_maximal_long_and_rtl_data(show: Showing, name: str) -> None:
    shown = show.openai(name, {"toolOutput": SAMPLES[name]["none"][0], "theme": "light"})

    for output, seen in SAMPLES[name].values():
        give(shown, output)
        shown.wait_for(seen)

    assert shown.page.evaluate("document.documentElement.dir") == "rtl"
    assert (shown.errors, shown.refused) == ([], [])
    shown.page.close()


@pytest.mark.parametrize("name", NAMES)
def test_page_fits_frame_at_320_pixels_and_double_text_size(show: Showing, name: str) -> None:
    """Source: S3-116."""
    shown = show.openai(name, {"toolOutput": None, "theme": "light"})
    shown.page.set_viewport_size({"width": 320, "height": 600})
    overflowing = []

    for kind in ("one", "long", "rtl"):
        for size in ("100%", "200%"):
            shown.page.evaluate("size => { document.documentElement.style.fontSize = size }", size)
            give(shown, SAMPLES[name][kind][0])
            if shown.page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                overflowing.append((kind, size))

    assert overflowing == []
    shown.page.close()


@pytest.mark.parametrize("name", NAMES)
def test_page_reports_broken_data_and_continues(show: Showing, name: str) -> None:
    shown = show.openai(name, {"toolOutput": None, "theme": "light"})

    for output in BROKEN:
        give(shown, output)
        assert shown.page.locator("main h1").count() == 1, output
    give(shown, SAMPLES[name]["one"][0])
    shown.wait_for(SAMPLES[name]["one"][1])

    assert shown.errors == []
    shown.page.close()


@pytest.mark.parametrize("name", NAMES)
def test_data_cannot_run_add_elements_or_reach_a_prototype(show: Showing, name: str) -> None:
    shown = show.openai(name, {"toolOutput": None}, before=WITNESS)

    for output in hostile(name):
        give(shown, output)
        assert shown.page.evaluate("harmed()") == [], output

    assert [address for address in shown.refused if not address.startswith("https://")] == []
    shown.page.close()


def test_the_witness_of_harm_notices_harm(show: Showing) -> None:
    shown = show.openai("pizzaz-table", {"toolOutput": None}, before=WITNESS)

    shown.page.evaluate("document.body.innerHTML += '<img src=x onerror=1><a href=\"javascript:1\">x</a>'")
    shown.page.evaluate("Object.prototype.pwned = 1; window.pwned = 1")

    assert {"a script ran", "a prototype changed", "a link leads elsewhere", "an attribute"} <= set(
        shown.page.evaluate("harmed()")
    )
    shown.page.close()


@pytest.mark.parametrize("name", NAMES)
def test_axe_finds_no_violation_in_either_theme(show: Showing, name: str) -> None:
    """Source: S3-112, S3-115 and S3-116."""
    shown = show.openai(name, {"toolOutput": SAMPLES[name]["one"][0], "theme": "light", "locale": "en"})
    found = shown.violations()

    shown.page.evaluate("setGlobals({theme: 'dark'})")
    give(shown, SAMPLES[name]["most" if name != "pizzaz-table" else "long"][0])
    found += shown.violations()
    shown.page.evaluate("setGlobals({displayMode: 'fullscreen', theme: 'light'})")
    give(shown, SAMPLES[name]["none"][0])
    found += shown.violations()

    assert found == []
    shown.page.close()


def test_axe_finds_planted_violations(show: Showing) -> None:
    shown = show.alone(
        "", html="<!doctype html><title>x</title><img src='data:,'><p style='color:#ccc;background:#fff'>pale"
    )

    found = " ".join(shown.violations())

    assert {"image-alt", "html-has-lang", "color-contrast"} <= {word.rstrip(":") for word in found.split()}
    shown.page.close()


@pytest.mark.parametrize("name", NAMES)
def test_page_works_without_storage_and_observers(show: Showing, name: str) -> None:
    output, seen = SAMPLES[name]["one"]
    shown = show.openai(name, {"toolOutput": output}, methods=(), before=MISSING)

    shown.wait_for(seen)

    assert shown.errors == []
    shown.page.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_page_without_any_host_shows_its_empty_state(show: Showing, name: str) -> None:
    shown = show.alone(name)

    shown.page.locator("main h1").wait_for(state="attached")

    assert shown.errors == []
    assert shown.page.locator("main").get_attribute("aria-busy") == "false"
    shown.page.close()


@pytest.mark.parametrize("name", NAMES)
def test_samples_conform_to_the_schema_of_their_page(name: str) -> None:
    schema = json.loads((WIDGETS / "schemas" / f"{name}.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)

    validator.check_schema(schema)
    wrong = {
        kind: [error.message for error in validator.iter_errors(output)]
        for kind, (output, _) in SAMPLES[name].items()
    }

    assert {kind: errors for kind, errors in wrong.items() if errors} == {}
    assert not validator.is_valid("a text")


@pytest.mark.parametrize("name", NAMES)
def test_page_is_one_small_file_without_external_loads(name: str) -> None:
    html = (PAGES / f"{name}.html").read_text()

    # The parser of Markdown has the names of all entities.
    assert len(html.encode()) < (140_000 if name == "pizzaz-markdown" else 60_000)
    assert "@import" not in html
    assert "@font-face" not in html
    assert "innerHTML" not in html
    assert "eval(" not in html
    assert html.count("<script") == 1
