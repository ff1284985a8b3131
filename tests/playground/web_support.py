"""The Playground in a real browser: a page of a person who opened the printed address."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from browsers import PATIENCE_MS, SHELL, launched
from playground_support import Shown
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

__all__ = ["VIEWS", "WEB_TOOLS", "Seen", "after_turns", "browsing", "expect", "faults", "undecided"]

ROOT = Path(__file__).parents[2]
WEB_TOOLS = Path(__file__).with_name("web_tools.py")
VIEWS = (
    *("call", "prompts", "resources", "files", "saved"),
    *("history", "messages", "session"),
)
"""The views of the page, by their addresses."""
AXE = ROOT / "tests" / "npm" / "node_modules" / "axe-core" / "axe.min.js"


@dataclass
class Seen:
    """One browser with one page of the Playground.

    Attributes:
        shown: The server.
        page: The page.
        troubles: What the page's scripts threw and what its policy stopped.
    """

    shown: Shown
    page: Page
    troubles: list[str] = field(default_factory=list)

    def go(self, view: str, rest: str = "", query: str = "") -> None:
        """Open a view by its address."""
        route = f"/{view}" + (f"/{quote(rest, safe='')}" if rest else "") + (f"?{query}" if query else "")
        self.page.evaluate("route => { location.hash = route }", route)

    def log_out(self) -> None:
        """Log out by the menu, and keep what the browser has."""
        self.page.get_by_label("Menu").click()
        self.page.get_by_role("button", name="Log out").click()
        self.page.get_by_role("dialog").get_by_role("button", name="Log out").click()

    def tool(self, name: str) -> None:
        """Open a tool."""
        self.go("call", name)
        expect(self.page.locator("h1")).to_have_text(name)

    def write(self, arguments: str) -> None:
        """Put arguments in as raw JSON."""
        self.page.get_by_role("tab", name="JSON", exact=True).click()
        self.page.get_by_label("Arguments as JSON").fill(arguments)

    def run(self, end: str = "done") -> Locator:
        """Run the tool, wait until the call is at its end, and return where it is shown."""
        self.page.get_by_role("button", name="Run").first.click()
        return self.ended(end)

    def ended(self, end: str = "done") -> Locator:
        """Wait until the call is at its end, and return where it is shown."""
        expect(self.call.get_by_role("status").last).to_have_text(f"Call {end}")
        return self.call

    @property
    def call(self) -> Locator:
        return self.page.locator("section[aria-label=Call]")

    def tab(self, name: str) -> Locator:
        """Choose a tab of the result, and return the panel behind it."""
        chosen = self.call.get_by_role("tab", name=name).first
        chosen.click()
        expect(chosen).to_have_attribute("aria-selected", "true")
        return self.call.get_by_role("tabpanel").first


def after_turns(page: Page, is_so: Callable[[], bool], *, turn_ms: float = 20) -> Callable[[], bool]:
    """Return what looks whether something is so, once the page has had some time to go on."""

    def looks() -> bool:
        page.wait_for_timeout(turn_ms)
        return is_so()

    return looks


@contextmanager
def browsing(shown: Shown, program: str = SHELL) -> Iterator[Callable[..., Seen]]:
    """Give what opens pages of the Playground; the browser is there as long as the block lasts.

    A page enters with the start key; where there is none, it stands at the door. What is given to open a page
    goes to its browser.
    """
    with launched(program) as browser:
        yield lambda **more: _entered(shown, browser, more)


def _entered(shown: Shown, browser: Browser, more: dict[str, object]) -> Seen:
    context: BrowserContext = browser.new_context(**more)  # type: ignore[arg-type]
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    seen = Seen(shown=shown, page=page)
    page.on("pageerror", lambda error: seen.troubles.append(str(error)))
    page.on("console", lambda entry: seen.troubles.append(entry.text) if entry.type == "error" else None)
    if shown.first_key is None:
        page.goto(shown.base)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
    else:
        page.goto(f"{shown.base}/?key={shown.key}")
        expect(page.get_by_role("navigation", name="Views")).to_be_visible()
    return seen


def faults(seen: Seen) -> list[str]:
    """Return what axe finds, in both themes."""
    found = []
    for theme in ("light", "dark"):
        seen.page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        seen.page.evaluate("window.axe || 0") or seen.page.evaluate(AXE.read_text())
        violations = seen.page.evaluate(
            "axe.run(document, {iframes: false, resultTypes: ['violations']}).then(found => found.violations)"
        )
        found += [
            f"{theme}: {each['id']} {[node['html'][:160] for node in each['nodes'][:3]]}"
            for each in violations
        ]
    return found


# What axe leaves open, since something lies before it or it is scrolled away: by the colours themselves.
_LOW = """selectors => {
  const parts = colour => colour.match(/[0-9.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(part => part / 255)
    .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const ratio = (one, other) => {
    const [high, low] = [light(one), light(other)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05); };
  const behind = element => {
    for (let at = element; at !== null; at = at.parentElement) {
      const style = getComputedStyle(at);
      const [r, g, b, alpha = 1] = parts(style.backgroundColor);
      if (style.opacity !== '1' || style.backgroundImage !== 'none' || (alpha > 0 && alpha < 1)) return null;
      if (alpha === 1) return [r, g, b]; }
    return null; };
  return selectors.flatMap(selector => {
    const element = document.querySelector(selector);
    const ground = behind(element);
    const inks = [getComputedStyle(element).color];
    if (element.placeholder) inks.push(getComputedStyle(element, '::placeholder').color);
    return inks.map(ink => ground === null ? 0 : ratio(parts(ink), ground))
      .filter(found => found < 4.5)
      .map(found => `${element.outerHTML.slice(0, 160)} ${found}`); }); }"""


def undecided(seen: Seen) -> list[str]:
    """Return the elements whose contrast is too low or unknown, among those that axe does not decide."""
    found = []
    for theme in ("light", "dark"):
        seen.page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        seen.page.evaluate("window.axe || 0") or seen.page.evaluate(AXE.read_text())
        left = seen.page.evaluate(
            "axe.run(document, {iframes: false, runOnly: ['color-contrast'], resultTypes: ['incomplete']})"
            ".then(found => found.incomplete.flatMap(each => each.nodes.map(node => node.target[0])))"
        )
        fields = seen.page.evaluate("document.querySelectorAll('input[placeholder]').length > 0")
        left += ["input[placeholder]"] if fields else []
        found += [f"{theme}: {each}" for each in seen.page.evaluate(_LOW, left)]
    return found
