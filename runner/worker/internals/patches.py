"""What a worker adds to FastMCP, and what it leaves out of its way to a tool, because nobody would notice it.

A tool's context has `artifacts`, as the contract says of it; plain FastMCP's has none.

An empty tool is reached through some seven hundred calls of Python functions, and a worker walks each of them
for the first time: on cold caches, on pages that it must copy. Two parts of the way do nothing in nearly all
servers, and are a third of it:

- spans that nobody records, where no OpenTelemetry SDK is set up;
- a task group, made to ask one provider.

The first is left out by a setting of FastMCP, the second through `runner.worker.internals.providers`.
"""

from collections.abc import Awaitable, Iterable
from itertools import chain, islice
from typing import Any

import fastmcp
from fastmcp import Context
from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider

from runner.author import artifacts
from runner.worker.internals.providers import ask_providers_with, gather

__all__ = ["ask_one_provider_directly", "give_contexts_artifacts", "make_spans_if_recorded"]


class _Spans:
    """Whether it was we who changed the setting that an author or an operator may have made."""

    left_out = False


def make_spans_if_recorded() -> None:
    """Let FastMCP make spans only if an OpenTelemetry SDK records them; trace context goes on either way.

    To be called after whatever may have set one up: the import of a tool file, a lifespan.
    """
    is_recorded = not isinstance(get_tracer_provider(), ProxyTracerProvider)
    if is_recorded and _Spans.left_out:
        fastmcp.settings.telemetry_mode = "native"
        _Spans.left_out = False
    elif not is_recorded and fastmcp.settings.telemetry_mode == "native":
        fastmcp.settings.telemetry_mode = "propagation_only"
        _Spans.left_out = True


def give_contexts_artifacts() -> None:
    """Let a tool say `ctx.artifacts.put_bytes(...)`, unless FastMCP has something of that name.

    Source: requirements S4-3, S4-63.
    """
    if not hasattr(Context, "artifacts"):
        Context.artifacts = artifacts  # type: ignore[attr-defined]


def ask_one_provider_directly() -> None:
    """Let a server ask its one provider without a task group; several are asked as before."""
    ask_providers_with(_ask)


async def _ask(awaitables: Iterable[Awaitable[Any]], *, return_exceptions: bool = False) -> list[Any]:
    asked = iter(awaitables)
    first = [*islice(asked, 2)]
    if len(first) != 1:
        return [*await gather(chain(first, asked), return_exceptions=return_exceptions)]  # type: ignore[call-overload]
    try:
        return [await first[0]]
    except Exception as error:
        if return_exceptions:
            return [error]
        raise
