"""Changes to FastMCP in a worker: contexts have `artifacts`, and spans that nothing records are not made.

A tool's context has `artifacts`, as the contract promises; plain FastMCP has none.
"""

import fastmcp
from fastmcp import Context
from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider

from runner.author import artifacts

__all__ = ["give_contexts_artifacts", "make_spans_if_recorded"]


class _Spans:
    """True if it was we who changed the setting that an author or an operator may have made."""

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
