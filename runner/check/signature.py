"""Rules on what a model reads of a tool: its description and the types of its arguments."""

import ast
from collections.abc import Iterator

from runner.check.offers import Offer
from runner.check.rules import Finding

__all__ = ["signatures"]

_NO_TEXT = frozenset({"int", "float", "bool", "bytes", "list", "dict", "set", "frozenset", "tuple"})


def signatures(offers: list[Offer]) -> Iterator[Finding]:
    """Yield tools without a description, and arguments without a type."""
    for offer in offers:
        if offer.kind != "tool":
            continue
        if not offer.described and not ast.get_docstring(offer.function):
            message = f"the tool {offer.name!r} has no docstring, so a model does not know what it is for"
            yield Finding.at(offer.function, "missing-docstring", message, "say in one line what it does")
        for parameter in offer.parameters:
            if (
                parameter.arg == offer.identity
                and parameter.annotation is not None
                and not _takes_text(parameter.annotation)
            ):
                who = f"`{offer.identity}` of the tool {offer.name!r}"
                message = f"{who} takes no text, so every call would be refused"
                yield Finding.at(parameter, "username-type", message, f"write `{offer.identity}: str`")
            if parameter.annotation is None:
                yield _unannotated(offer, parameter)


def _takes_text(annotation: ast.expr) -> bool:
    """Say whether a type may let a text in; of what has a name of its own nobody knows here."""
    match annotation:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _takes_text(left) or _takes_text(right)
        case ast.Subscript(
            value=ast.Name(id="Optional" | "Union" | "Annotated"), slice=ast.Tuple(elts=parts)
        ):
            return any(map(_takes_text, parts))
        case ast.Subscript(value=ast.Name(id="Optional"), slice=part):
            return _takes_text(part)
        case ast.Subscript(value=value):
            return _takes_text(value)
        case ast.Name(id=name):
            return name not in _NO_TEXT
        case ast.Constant(value=value):
            return value is not None
        case _:
            return True


def _unannotated(offer: Offer, parameter: ast.arg) -> Finding:
    if parameter.arg in ("ctx", "context"):
        message = (
            f"`{parameter.arg}` of the tool {offer.name!r} has no type, so callers are asked to fill it in"
        )
        return Finding.at(parameter, "unannotated-parameter", message, f"write `{parameter.arg}: Context`")
    message = f"`{parameter.arg}` of the tool {offer.name!r} has no type, so any value of any type is let in"
    return Finding.at(
        parameter, "unannotated-parameter", message, f"write `{parameter.arg}: str`, or what it is"
    )
