"""Spans in workers: made where an OpenTelemetry SDK records them."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fastmcp
import pytest
from opentelemetry import trace
from somebody import somebody
from support import call, open_toolset

from runner.worker.internals.patches import make_spans_if_recorded

pytestmark = pytest.mark.anyio


@pytest.fixture
def mode() -> Iterator[None]:
    before = fastmcp.settings.telemetry_mode
    yield
    fastmcp.settings.telemetry_mode = before


def mode_now() -> str:
    return fastmcp.settings.telemetry_mode


def test_no_sdk_makes_no_spans(mode: None) -> None:
    fastmcp.settings.telemetry_mode = "native"
    make_spans_if_recorded()

    assert mode_now() == "propagation_only"


def test_chosen_mode_stays(mode: None) -> None:
    fastmcp.settings.telemetry_mode = "off"
    make_spans_if_recorded()

    assert fastmcp.settings.telemetry_mode == "off"


SETS_UP = """
from opentelemetry import trace

class Provider(trace.TracerProvider):
    def get_tracer(self, *args, **kwargs):
        return trace.NoOpTracer()
"""


@pytest.mark.release
def test_sdk_set_up_later_gets_its_spans(mode: None) -> None:
    program = f"""
import fastmcp
from runner.worker.internals.patches import make_spans_if_recorded
{SETS_UP}
modes = []
make_spans_if_recorded()
modes.append(fastmcp.settings.telemetry_mode)
trace.set_tracer_provider(Provider())
make_spans_if_recorded()
modes.append(fastmcp.settings.telemetry_mode)
print(*modes)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ran.stdout.split() == ["propagation_only", "native"]
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


TRACED = (
    SETS_UP
    + """
import contextlib
import fastmcp
from fastmcp import FastMCP

names = []

class Tracer(trace.NoOpTracer):
    @contextlib.contextmanager
    def start_as_current_span(self, name, *args, **kwargs):
        names.append(name)
        yield trace.INVALID_SPAN

class Recording(trace.TracerProvider):
    def get_tracer(self, *args, **kwargs):
        return Tracer()

def set_up():
    trace.set_tracer_provider(Recording())

@contextlib.asynccontextmanager
async def lifespan(server):
    LATE
    yield

EARLY
mcp = FastMCP("traced", lifespan=lifespan)

@mcp.tool
async def spans() -> list[str]:
    return names
"""
)


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("early", "late", "recorded"),
    [("set_up()", "pass", True), ("pass", "set_up()", True), ("pass", "pass", False)],
    ids=["at import", "in the lifespan", "never"],
)
async def test_tool_file_with_sdk_is_traced(tmp_path: Path, early: str, late: str, recorded: bool) -> None:
    file = tmp_path / "traced.py"
    file.write_text(TRACED.replace("EARLY", early).replace("LATE", late))

    with somebody() as user:
        async with open_toolset(file, tmp_path) as toolset:
            names = (await call(toolset, user, "spans")).processed.value["results"]

    assert ("tools/call" in names) is recorded
