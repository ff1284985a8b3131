"""Rules on what a model reads of a tool: its description and the types of its arguments."""

import ast
from collections.abc import Iterator

from runner.check.finding import Finding
from runner.check.offers import Offer

__all__ = ["signatures"]


def signatures(offers: list[Offer]) -> Iterator[Finding]:
    """Yield tools without a description, and arguments without a type."""
    for offer in offers:
        if offer.kind != "tool":
            continue
        if not offer.described and not ast.get_docstring(offer.function):
            message = f"the tool {offer.name!r} has no docstring, so a model does not know what it is for"
            yield Finding.at(offer.function, "missing-docstring", message, "say in one line what it does")
        for parameter in offer.parameters:
            if parameter.annotation is None:
                yield _unannotated(offer, parameter)


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
