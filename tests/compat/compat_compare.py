"""Answers of two servers, compared: what is replaced on both sides first, and what is said of what is left.

Nothing here runs anything, and nothing here knows an entry by its name.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compat_entries import Rule

__all__ = ["ADDED", "Answer", "Difference", "compared", "failed", "normalised"]

Answer = dict[str, Any]

# What the runner adds to every answer, as docs/contract.md and docs/proxy.md say: left out on both sides.
ADDED: Mapping[str, str] = {
    "_meta.toolcell/*": "what the runner says of a result",
    "_meta.io.modelcontextprotocol/serverInfo": "a server's name, said with each answer of the modern era",
    "resultType, ttlMs, cacheScope": "fields of the modern era, where a server knows sessions only",
    "resources runner://*, prompt available_files, tools artifact_*": "the runner's own, behind the server's",
    "the envelope of an error": "a second text with code and advice, behind what plain FastMCP says",
}
_ERA_FIELDS = ("resultType", "ttlMs", "cacheScope")
_OWN = ("available_files", "artifact_info", "artifact_read", "artifact_search")
_EXCERPT = 160


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two answers differ.

    Attributes:
        where: The call, and the path in its answer.
        plain: What the plain server says there.
        ours: What the runner says there.
    """

    where: str
    plain: str
    ours: str

    def __str__(self) -> str:
        """Return it as a sentence."""
        return f"{self.where}: plain {self.plain}, runner {self.ours}"


def normalised(answer: Answer, rules: Sequence[Rule], places: Mapping[str, str]) -> Answer:
    """Return an answer without what is expected to differ.

    Args:
        answer: `result` or `error` of a JSON-RPC response.
        rules: What the entry expects to differ.
        places: What `{work}` and its kind stand for in this run, longest value first where one holds another.
    """
    bare = _without_added(answer)
    for place, value in sorted(places.items(), key=lambda item: -len(item[1])):
        bare = _replaced(bare, re.escape(value), "{" + place + "}")
    for rule in rules:
        bare = _replaced(bare, rule.pattern, rule.becomes)
    return bare


def compared(plain: Mapping[str, Answer], ours: Mapping[str, Answer]) -> Difference | None:
    """Return the first difference between normalised answers, None where they are equal."""
    for label, answer in plain.items():
        if label not in ours:
            return Difference(label, "an answer", "none")
        for where, left, right in _differing(answer, ours[label], ""):
            return Difference(f"{label}{where}", _excerpt(left), _excerpt(right))
    return None


def failed(answer: Answer) -> str:
    """Return what an answer says went wrong, or an empty text."""
    if "error" in answer:
        return str(answer["error"].get("message", answer["error"]))
    result = answer.get("result", {})
    if not result.get("isError"):
        return ""
    return " ".join(block.get("text", "") for block in result.get("content", [])) or "an error without a text"


def _without_added(answer: Answer) -> Answer:
    bare: Answer = json.loads(json.dumps(answer))
    result = bare.get("result")
    if not isinstance(result, dict):
        return bare
    for name in _ERA_FIELDS:
        result.pop(name, None)
    _keep_foreign_meta(result)
    for kind, own in (("resources", "uri"), ("prompts", "name"), ("tools", "name")):
        if isinstance(result.get(kind), list):
            result[kind] = [item for item in result[kind] if not _is_own(item.get(own, ""))]
    if result.get("isError") and len(result.get("content", [])) > 1 and _is_envelope(result["content"][-1]):
        result["content"].pop()
    # None of these three differs from its default where it is left out.
    return {"result": {key: value for key, value in result.items() if (key, value) not in _DEFAULTS}}


_DEFAULTS = (("isError", False), ("structuredContent", None), ("nextCursor", None))


def _keep_foreign_meta(result: dict[str, Any]) -> None:
    meta = result.pop("_meta", None) or {}
    metadata = {
        key: value
        for key, value in meta.items()
        if not key.startswith("toolcell/") and key != "io.modelcontextprotocol/serverInfo"
    }
    if metadata:
        result["_meta"] = metadata


def _is_own(name: object) -> bool:
    return str(name).startswith("runner://") or name in _OWN


def _is_envelope(block: Mapping[str, Any]) -> bool:
    try:
        document = json.loads(block.get("text", ""))
    except ValueError:
        return False
    return isinstance(document, dict) and "error_code" in (document.get("meta_data") or {})


def _replaced(value: Any, pattern: str, becomes: str) -> Any:
    if isinstance(value, str):
        return re.sub(pattern, becomes, value)
    if isinstance(value, list):
        return [_replaced(item, pattern, becomes) for item in value]
    if isinstance(value, dict):
        return {
            _replaced(key, pattern, becomes): _replaced(item, pattern, becomes) for key, item in value.items()
        }
    if isinstance(value, int | float) and not isinstance(value, bool) and re.fullmatch(pattern, str(value)):
        return becomes
    return value


def _differing(left: Any, right: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(left, dict) and isinstance(right, dict):
        for key in [*left, *(key for key in right if key not in left)]:
            yield from _differing(left.get(key), right.get(key), f"{where}.{key}")
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for number, (one, other) in enumerate(zip(left, right, strict=True)):
            yield from _differing(one, other, f"{where}[{number}]")
    elif left != right or type(left) is not type(right):
        yield where, left, right


def _excerpt(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    if len(text) <= _EXCERPT:
        return f'"{text}"'
    # Between words: half a word would be one that is spelled wrongly.
    return f'"{text[:_EXCERPT].rpartition(" ")[0]} …"'
