"""Rules on results: keys that are almost those of the contract, in dicts that a tool returns as written.

Source: document 002, "Common mistakes"; requirement S2-31.
"""

import ast
from collections.abc import Iterator

from runner.check.bindings import Bindings
from runner.check.offers import Offer
from runner.check.rules import Finding
from runner.check.source import Function, SourceFile, own_nodes

__all__ = ["ContractRules"]

_FILES = (
    "artifacts",
    "deferred_artifacts",
    "returned_file_names",
    "returned_file_contents",
)
_OTHERS = ("meta_data", "display", *_FILES)
_LEGACY = "meta-data"
_LONG = 9


class ContractRules:
    """Finds misspelled keys in the results of tools."""

    def __init__(self, source: SourceFile, bindings: Bindings) -> None:
        self._source = source
        self._bindings = bindings

    def keys(self, offers: list[Offer]) -> Iterator[Finding]:
        """Yield keys of results that the contract spells otherwise."""
        for offer in offers:
            if offer.kind == "tool":
                for found in self._returned(offer.function, set()):
                    yield from _misspelled(self._keys_of(found))

    def _returned(self, function: Function, seen: set[ast.AST]) -> Iterator[ast.expr]:
        """Yield the dicts that a function returns, also by way of a name or of another function."""
        if function in seen:
            return
        seen.add(function)
        for node in own_nodes(function):
            if isinstance(node, ast.Return) and node.value is not None:
                yield from self._dicts(node.value, seen)

    def _dicts(self, value: ast.expr, seen: set[ast.AST]) -> Iterator[ast.expr]:
        if value not in seen:
            seen.add(value)
            yield from self._dicts_in(value, seen)

    def _dicts_in(self, value: ast.expr, seen: set[ast.AST]) -> Iterator[ast.expr]:
        match value:
            case ast.Dict():
                yield value
            case ast.Await(value=inner):
                yield from self._dicts(inner, seen)
            case ast.IfExp(body=one, orelse=other):
                yield from self._dicts(one, seen)
                yield from self._dicts(other, seen)
            case ast.Name():
                for bound in self._bindings.of(value):
                    if not isinstance(bound, ast.Name):
                        yield from self._dicts(bound, seen)
            case ast.Call():
                yield from self._dicts_of_call(value, seen)

    def _dicts_of_call(self, call: ast.Call, seen: set[ast.AST]) -> Iterator[ast.expr]:
        dotted = self._source.dotted(call.func) or ""
        if dotted == "dict" and not call.args:
            yield call
        elif dotted == "json.dumps" and call.args:
            yield from self._dicts(call.args[0], seen)
        elif dotted.endswith("ToolResult"):
            for word in call.keywords:
                if word.arg == "structured_content":
                    yield from self._dicts(word.value, seen)
        elif isinstance(call.func, ast.Name):
            for function in self._source.functions.get(call.func.id, []):
                yield from self._returned(function, seen)

    def _keys_of(self, found: ast.expr) -> dict[str, ast.AST] | None:
        """Return the keys of a dict and where they stand; None if some of them are not written there."""
        if isinstance(found, ast.Call):
            keys: dict[str, ast.AST] = {
                word.arg: word.value for word in found.keywords if word.arg is not None
            }
            return keys if len(keys) == len(found.keywords) else None
        assert isinstance(found, ast.Dict)  # noqa: S101 - nothing else is found
        written: dict[str, ast.AST] = {
            key.value: key
            for key in found.keys
            if isinstance(key, ast.Constant) and isinstance(key.value, str)
        }
        return written | self._added(found) if None not in found.keys else None

    def _added(self, found: ast.Dict) -> dict[str, ast.AST]:
        """Return the keys that are set later: `result["results"] = …`."""
        parent = self._source.parents.get(found)
        targets = parent.targets if isinstance(parent, ast.Assign) else [getattr(parent, "target", None)]
        names = {target.id for target in targets if isinstance(target, ast.Name)}
        around = self._source.function_around(found)
        return {
            node.slice.value: node
            for node in (own_nodes(around) if around is not None else ())
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
            if isinstance(node.value, ast.Name) and node.value.id in names
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
        }


def _misspelled(keys: dict[str, ast.AST] | None) -> Iterator[Finding]:
    if keys is None:
        return
    if "results" not in keys:
        yield from _without_results(keys)
        return
    for key, node in keys.items():
        wanted = next((name for name in _OTHERS if name not in keys and _is_like(key, name)), None)
        if wanted is not None and key not in ("results", _LEGACY, *_OTHERS):
            message = f"the contract knows no key {key!r}, so it is lost to whoever looks for `{wanted}`"
            yield Finding.at(node, "misspelled-key", message, f"write `{wanted}`")


def _without_results(keys: dict[str, ast.AST]) -> Iterator[Finding]:
    envelope = any(key in keys for key in (*_OTHERS, _LEGACY))
    for key, node in keys.items():
        if _is_like(key, "results") and (envelope or key.lower() != "result"):
            message = f"the key {key!r} is taken for data of yours: a result is read from `results`"
            yield Finding.at(node, "misspelled-results", message, "write `results`")
            return
    if set(keys) == {"result"}:
        message = "`result` alone is taken for `results`, but clients of plain FastMCP see one level more"
        yield Finding.at(
            keys["result"], "result-for-results", message, "write `results`, or return the bare value"
        )


def _is_like(key: str, wanted: str) -> bool:
    """Say whether a key is `wanted` with a slip of the keyboard, another case or other hyphens."""
    given, meant = _plain(key), _plain(wanted)
    if given == meant or sorted(given) == sorted(meant):
        return True
    return _distance(given, meant) <= (2 if len(meant) >= _LONG else 1)


def _plain(key: str) -> str:
    return "".join(letter for letter in key.lower() if letter.isalnum())


def _distance(one: str, other: str) -> int:
    """Return how many letters were left out, added, changed or swapped with their neighbour."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, start=1):
        before, last, row = row, before, [i]
        for j, wanted in enumerate(other, start=1):
            step = min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and (letter, one[i - 2]) == (other[j - 2], wanted):
                step = min(step, last[j - 2] + 1)
            row.append(step)
    return row[-1]
