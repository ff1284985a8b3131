"""HTML of a tool as it is displayed by default: no scripts, no handlers, and nothing loaded from elsewhere.

A page that loads an image of another server could carry the user's data there in its address, past a
sandbox without network. So pictures are kept only where their bytes are in the page itself.

Source: requirements S0-48, S0-62, S0-76; nh3 (ammonia, an HTML5 parser) decides what is markup.
"""

import re

import nh3

__all__ = ["sanitize_html"]

_LINKED = frozenset({"http", "https", "mailto"})
_INLINE_IMAGE = re.compile(
    r"data:image/(?:png|jpeg|gif|webp|bmp|avif);base64,[A-Za-z0-9+/=\s]*", re.IGNORECASE
)
# The URL standard ignores these in an address: "java\nscript:" is a scheme to a browser.
_IGNORED = re.compile(r"[\x00-\x20]+")
_LOADING = frozenset({"src", "srcset", "background", "poster"})


def sanitize_html(html: str) -> str:
    """Return `html` with harmless markup only."""
    return nh3.clean(
        html,
        url_schemes={*_LINKED, "data"},
        clean_content_tags={"script", "style", "title"},
        attribute_filter=_attribute,
    )


def _attribute(tag: str, name: str, value: str) -> str | None:
    """Return the value that an attribute may have, or None to drop it."""
    if tag == "img" and name == "src":
        return value if _INLINE_IMAGE.fullmatch(value) else None
    if name in _LOADING:
        return None
    if name == "href" and _IGNORED.sub("", value).lower().startswith("data:"):
        return None
    return value
