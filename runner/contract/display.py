"""Display decision for a result: the file that opens, the order, the viewer, the page beside the chat.

All values of a tool here are hints: an unknown word falls back to the default, and nothing ever fails. The
canvas opens by the first of these that is present: `open_canvas`, `storage_action: store_and_open`, an
`auto_open` file; without `display`, if a file can be shown.

Source: documents 000 (2, 3) and 001 (8); contradictions C7 to C10; rules D1 to D5 of the conformance cases;
requirements S0-13, S0-14, S0-25 to S0-27, S0-71, S0-72, S0-79, S1-67 and S1-88 to S1-92.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from runner.contract.jsonable import list_of, mapping_of
from runner.contract.models import Mode, Persistence, StorageAction, Viewer
from runner.contract.pages import check_page, sandbox_tokens
from runner.contract.viewers import suits, viewer_of

__all__ = ["Decision", "Panel", "decide"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A page beside the chat, in an iframe.

    Attributes:
        src: Its address, of an allowed origin.
        title: Title of its tab.
        sandbox: The iframe's sandbox tokens.
        id: Id of the tab, if the tool gave one.
        persistence: How long the tab stays.
        token: Capability for the page; never for a model.
    """

    src: str
    title: str
    sandbox: tuple[str, ...]
    id: str | None
    persistence: Persistence
    token: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the panel for a user interface."""
        shown: dict[str, Any] = {"src": self.src, "title": self.title, "sandbox": list(self.sandbox)}
        named = {"id": self.id, "persistence": self.persistence, "token": self.token}
        return shown | {key: item for key, item in named.items() if item is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Display decision for the files of one result.

    Attributes:
        open: Whether the canvas opens.
        order: Names of the files that can be shown, the first one to show first.
        viewer: Viewer of the first one, or None if there is none.
        mode: Layout.
        storage_action: Whether the files are stored, stored and opened, or temporary.
        notification: Message to the user, if any.
        category: Category of files without one.
        panel: The page to open, if any.
        reason: Why a page that the tool requested is not opened.
    """

    open: bool
    order: tuple[str, ...] = ()
    viewer: Viewer | None = None
    mode: Mode = "replace"
    storage_action: StorageAction = "store"
    notification: str | None = None
    category: str | None = None
    panel: Panel | None = None
    reason: str | None = None

    @property
    def stored(self) -> bool:
        """Return whether the files stay in My Files."""
        return self.storage_action != "temporary"

    @property
    def scripts_executable(self) -> bool:
        """Return whether a viewer may run scripts of a file: never, HTML is sanitised and SVG an image."""
        return False

    def to_json(self) -> dict[str, Any]:
        """Return the decision for a user interface."""
        plan: dict[str, Any] = {
            "open": self.open,
            "order": list(self.order),
            "viewer": self.viewer,
            "mode": self.mode,
            "storage_action": self.storage_action,
            "stored": self.stored,
            "scripts_executable": self.scripts_executable,
        }
        if self.notification is not None:
            plan["notification"] = self.notification
        if self.panel is not None:
            plan["iframe"] = self.panel.to_json()
        if self.reason is not None:
            plan["reason"] = self.reason
        return plan


def decide(value: Mapping[str, Any], *, allowed_origins: Collection[str] = ()) -> Decision:
    """Return the parts of a contract value to show.

    Args:
        value: The value; only `artifacts`, `display` and `canvas` are read.
        allowed_origins: Web origins whose pages may be opened; `*` is all of them.
    """
    artifacts = [item for item in list_of(value.get("artifacts")) if isinstance(item, Mapping)]
    shown = [(item, viewer) for item in artifacts if (viewer := viewer_of(item)) is not None]
    display, page = mapping_of(value.get("display")), _page(value)
    if shown:
        shown.insert(0, shown.pop(_first(shown, display)))
    panel, reason = (None, None) if page is None else _panel(page, allowed_origins)
    return Decision(
        open=reason is None and _opens([item for item, _ in shown], display, panel),
        order=tuple(str(item.get("name")) for item, _ in shown),
        viewer=_viewer(*shown[0], display) if shown else None,
        mode=_word(display.get("mode"), Mode) or _word((page or {}).get("mode"), Mode) or "replace",
        storage_action=_word(display.get("storage_action"), StorageAction) or "store",
        notification=_text(display.get("notification")),
        category=_text(display.get("category_hint")),
        panel=panel,
        reason=reason,
    )


def _opens(
    shown: Sequence[Mapping[str, Any]],
    display: Mapping[str, Any],
    panel: Panel | None,
) -> bool:
    if not shown and panel is None:
        return False
    if isinstance(display.get("open_canvas"), bool):
        return bool(display["open_canvas"])
    if panel is not None or display.get("storage_action") == "store_and_open":
        return True
    return not display or any(item.get("auto_open") is True for item in shown)


def _first(shown: Sequence[tuple[Mapping[str, Any], Viewer]], display: Mapping[str, Any]) -> int:
    """Return the position of the file to show first."""
    primary = display.get("primary_file")
    named = (at for at, (item, _) in enumerate(shown) if primary is not None and item.get("name") == primary)
    eager = (at for at, (item, _) in enumerate(shown) if item.get("auto_open") is True)
    return next(named, next(eager, 0))


def _viewer(item: Mapping[str, Any], own: Viewer, display: Mapping[str, Any]) -> Viewer:
    """Return the viewer of the first file: its own hint, else that of the display, if that suits it."""
    wishes = (_word(item.get("viewer"), Viewer), _word(display.get("viewer_hint"), Viewer))
    return next((wish for wish in wishes if wish is not None and suits(wish, own)), own)


def _page(value: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the page that a tool requests, under either key."""
    canvas, display = value.get("canvas"), mapping_of(value.get("display"))
    if isinstance(canvas, Mapping) and canvas:
        return canvas if canvas.get("open") is not False else None
    return display if display.get("type") == "iframe" else None


def _panel(page: Mapping[str, Any], allowed_origins: Collection[str]) -> tuple[Panel | None, str | None]:
    kind = page.get("type", "iframe")
    if kind != "iframe":
        return None, f"a canvas of type {kind!r:.100} is not known; only `iframe` is"
    url = page.get("url")
    reason = check_page(url, allowed_origins)
    if reason is not None:
        return None, reason
    src = str(url)
    panel = Panel(
        src=src,
        title=_text(page.get("title")) or src.partition("//")[2].partition("/")[0],
        sandbox=sandbox_tokens(page.get("sandbox")),
        id=_text(page.get("id")),
        persistence=_word(page.get("persistence"), Persistence) or "session",
        token=_text(page.get("token")),
    )
    return panel, None


def _word(value: object, words: Any) -> Any:
    """Return a value if it is among the words of a type, else None."""
    return value if isinstance(value, str) and value in get_args(words) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
