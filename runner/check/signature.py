"""Rules on what a model reads of a tool: its description and the types of its arguments."""

import ast
from collections.abc import Iterator

from runner.check.offers import Offer
from runner.check.rules import Finding
from runner.check.source import SourceFile

__all__ = ["signatures"]

# What a user's name is not: of some of them a few texts are taken, which are no names.
_NO_TEXT = frozenset(
    {
        *("int", "float", "complex", "bool", "list", "dict", "set", "frozenset", "tuple", "Literal"),
        *("UUID", "date", "datetime", "time", "timedelta", "Decimal", "Enum", "BaseModel"),
    }
)


def signatures(source: SourceFile, offers: list[Offer]) -> Iterator[Finding]:
    """Yield tools without a description, and arguments without a type, or of one that no name fits."""
    classes = [each for each in source.tree.body if isinstance(each, ast.ClassDef)]
    no_text = _NO_TEXT | {each.name for each in classes if not _is_plain_text(each)}
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
                and not _takes_text(parameter.annotation, no_text)
            ):
                who = f"`{offer.identity}` of the tool {offer.name!r}"
                message = f"{who} takes no text, so every call would be refused"
                yield Finding.at(parameter, "username-type", message, f"write `{offer.identity}: str`")
            if parameter.annotation is None:
                yield _unannotated(offer, parameter)


def _is_plain_text(made: ast.ClassDef) -> bool:
    """Say whether a class of the file is a `str` and nothing else, so that it is made of any text."""
    return [base.id for base in made.bases if isinstance(base, ast.Name)] == ["str"]


def _takes_text(annotation: ast.expr, no_text: frozenset[str]) -> bool:
    """Say whether a type may let any text in; of what is imported under another name nobody knows here."""
    match annotation:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _takes_text(left, no_text) or _takes_text(right, no_text)
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[part, *_])):
            return _takes_text(part, no_text)
        case ast.Subscript(value=ast.Name(id="Optional" | "Union"), slice=ast.Tuple(elts=parts)):
            return any(_takes_text(part, no_text) for part in parts)
        case ast.Subscript(value=ast.Name(id="Optional"), slice=part):
            return _takes_text(part, no_text)
        case ast.Subscript(value=value):
            return _takes_text(value, no_text)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name not in no_text
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
