"""The built-in pages, for any tool whose output has the form of a page.

Source: document 003, "Component resources"; requirements S3-88 to S3-96; `docs/widgets.md` has the forms.
"""

from collections.abc import Mapping
from pathlib import Path

from runner.widgets.widget import Csp, Widget

__all__ = ["BUILTIN", "builtin"]

_PAGES = Path(__file__).parent / "pages"

BUILTIN: Mapping[str, str] = {
    "chat-view": "A conversation: messages in turn, and what to say next.",
    "dashboard-widget": "An overview: key figures with their change, and recent chats.",
    "search-results": "Search results or recommendations with descriptions, links and tags.",
    "pizzaz-table": "A table of rows and columns, to sort and to filter.",
    "kitchen-sink-lite": "Everything a widget can do in its host, to try out.",
    "pizzaz-carousel": "A few cards side by side, to compare and to choose from.",
    "pizzaz-gallery": "Pictures in a grid, each with its caption.",
    "pizzaz-markdown": "A formatted text with headings, lists and links.",
    "solar-system": "The planets on their ways around the sun.",
}
"""The names of the pages, each with a description."""


def builtin(name: str, *, csp: Csp | None = None, accessible: bool = False) -> Widget:
    """Return the widget of one of the runner's own pages.

    Args:
        name: One of `BUILTIN`.
        csp: Domains that the page may load from; it needs none.
        accessible: Whether it may call the tools that show it.

    Raises:
        ValueError: There is no page of that name.
    """
    if name not in BUILTIN:
        raise ValueError(f"the runner has no page {name!r}; it has {', '.join(BUILTIN)}")
    return Widget(
        name=name,
        html=_PAGES / f"{name}.html",
        description=BUILTIN[name],
        csp=csp or Csp(),
        accessible=accessible,
    )
