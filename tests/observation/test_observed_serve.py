"""Observation of a real server: its audit log, metrics and spans, and no value in any of them."""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from audit_records import lines
from fastmcp import Client
from mcp.shared.exceptions import MCPError
from otlp_collector import Collector, collecting
from prometheus_client.parser import text_string_to_metric_families
from somebody import somebody
from support import ROOT, becomes, settings_in, stop

from runner.observation.audit_log import verify

pytestmark = [pytest.mark.anyio, pytest.mark.release]

TOOLS = Path(__file__).with_name("watched_tools.py")
TASKS = Path(__file__).with_name("begins_tasks.py")
BARE = ROOT / "tests/proxy/bare.py"
SECRET = "correct-horse-battery"
MIB = 1024 * 1024
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@dataclass(frozen=True)
class Watched:
    mcp: str
    metrics: str
    audit: Path
    config: Path
    lines: list[str]
    pid: int

    def records(self) -> list[dict[str, Any]]:
        """Return the records of calls in the audit log that have ended."""
        return [line for line in lines(self.audit) if line["kind"] == "call"]

    def scraped(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        with urllib.request.urlopen(self.metrics) as answer:
            text = answer.read().decode()
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@contextmanager
def watched(
    folder: Path, user: str, *words: str, collector: Collector | None = None, more: str = ""
) -> Iterator[Watched]:
    settings = settings_in(folder)
    config = folder / "watched.toml"
    lines = {
        "user": user,
        "state_dir": str(settings.state_dir),
        "store": settings.store,
        "homes": str(settings.homes),
        "audit_dir": str(folder / "audit"),
        "metrics_address": "127.0.0.1:0",
        "playground": False,
    }
    config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in lines.items()) + more)
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url if collector else ""}
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "runner",
            *words,
            "--transport",
            "http",
            "--port",
            "0",
            "--config",
            str(config),
        ],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    messages: list[str] = []
    try:
        yield Watched(*_addresses(process, messages), folder / "audit", config, messages, process.pid)
    finally:
        stop(process)
        if process.stderr is not None:
            process.stderr.close()


def plan_of(folder: Path, server: Path, **more: str) -> Path:
    """Write a file that names a server for the proxy, as `there`."""
    entry = {"command": sys.executable, "args": [str(server)], **more}
    plan = folder / "servers.json"
    plan.write_text(json.dumps({"mcpServers": {"there": entry}}))
    return plan


def _addresses(process: "subprocess.Popen[str]", lines: list[str]) -> tuple[str, str]:
    """Wait until a server says where it is; from then on what it says goes into `said`."""
    assert process.stderr is not None
    metrics = ""
    for line in process.stderr:
        lines.append(line)
        if line.startswith("metrics at "):
            metrics = line.split()[-1]
        if "/mcp" in line and line.startswith("serving "):
            threading.Thread(target=lines.extend, args=(process.stderr,), daemon=True).start()
            return line.split()[-1], metrics
    raise AssertionError("".join(lines))


async def test_calls_are_counted_recorded_and_traced_without_values(
    tmp_path: Path, collector: Collector
) -> None:
    with somebody() as user, watched(tmp_path, user, "serve", str(TOOLS), collector=collector) as server:
        async with Client(server.mcp) as client:
            meta = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            await client.call_tool("greet", {"name": SECRET}, meta=meta)
            reply = await client.call_tool("traced", {}, meta=meta)
            await client.call_tool("fails", {}, raise_on_error=False)
            await client.call_tool("trespasses", {})
            await client.call_tool("no_such_tool_" + SECRET, {}, raise_on_error=False)
        metrics = server.scraped()
        assert await becomes(lambda: sum(span.name.startswith("tools/call") for span in collector.spans) == 5)

    # The tool's own server is told of the call's span, in the client's trace.
    _, trace, span, _ = reply.data.split("-")
    assert trace == TRACE
    assert span != PARENT
    calls = {span.name: span for span in collector.spans if span.name.startswith("tools/call")}
    assert calls["tools/call greet"].parent_span_id.hex() == PARENT
    assert calls["tools/call traced"].span_id.hex() == span
    greet = calls["tools/call greet"]
    steps = [span for span in collector.spans if span.parent_span_id == greet.span_id]
    assert {span.name for span in steps} == {"admit", "stage", "lease", "run", "collect"}
    # In whole microseconds: the times are sums of floating-point numbers.
    assert all(span.end_time_unix_nano // 1000 <= greet.end_time_unix_nano // 1000 + 1 for span in steps)

    def count(tool: str, outcome: str) -> float:
        return metrics["toolcell_calls_total", (("outcome", outcome), ("tool", tool))]

    assert count("greet", "ok") == count("trespasses", "ok") == 1
    assert count("fails", "E_TOOL") == 1
    assert count("unknown", "E_TOOL_NOT_FOUND") == 1
    assert metrics["toolcell_ready", ()] == 1
    assert metrics["toolcell_calls_running", ()] == 0
    # What the user's processes have in common with the forkserver alone is some 50 MiB for each of them.
    assert 1 * MIB < metrics["toolcell_user_memory_bytes", (("user", user),)] < 64 * MIB
    assert any(name == "toolcell_denials_total" for name, _ in metrics)

    verdict = verify(server.audit)
    assert verdict.is_whole
    assert verdict.records == 10
    assert not verdict.open_calls
    text = b"".join(path.read_bytes() for path in server.audit.glob("*.jsonl")).decode()
    records = server.records()
    assert [r["tool"] for r in records[:4]] == ["greet", "traced", "fails", "trespasses"]
    assert {r["user"] for r in records} == {user}
    assert records[3]["denials"]
    assert records[0]["policy"]["worker"] in ("fresh", "kept")
    assert f'"name": "{SECRET}"' not in text
    assert SECRET not in json.dumps([r["arguments"] for r in records])


async def test_audit_verify_command_detects_changed_log(tmp_path: Path) -> None:
    with somebody() as user, watched(tmp_path, user, "serve", str(TOOLS)) as server:
        async with Client(server.mcp) as client:
            await client.call_tool("greet", {"name": "x"})
            await client.call_tool("greet", {"name": "y"})

    def audit(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "runner", "audit", *words, "--config", str(server.config)]
        return subprocess.run(command, capture_output=True, text=True, input=text, check=False)

    whole = audit("verify", "--json")
    assert whole.returncode == 0, whole.stderr
    found = json.loads(whole.stdout)
    assert (found["records"], found["is_whole"], found["open_calls"]) == (4, True, {})
    assert audit("verify", "--expect", found["hash"]).returncode == 0
    assert audit("verify", "--expect", "0" * 63 + "1").returncode == 1
    (file,) = server.audit.glob("*.jsonl")
    assert audit("digest", text='{"name": "x"}').stdout.strip() in file.read_text()
    file.write_text(file.read_text().replace(user, "mallory"))
    changed = audit("verify")
    assert changed.returncode == 1
    assert "NOT AS IT WAS WRITTEN" in changed.stdout


async def test_a_tool_can_neither_read_nor_change_the_audit_log(tmp_path: Path) -> None:
    tool = tmp_path / "snoop.py"
    tool.write_text(
        "from pathlib import Path\n"
        "from fastmcp import FastMCP\n"
        "mcp = FastMCP('snoop')\n"
        "@mcp.tool\n"
        "def read(path: str) -> str:\n"
        "    try:\n"
        "        return Path(path).read_text()\n"
        "    except OSError as error:\n"
        "        return type(error).__name__\n"
    )
    beside = tmp_path / "beside.txt"
    beside.write_text("anybody may read this")
    with somebody() as user, watched(tmp_path, user, "serve", str(tool)) as server:
        async with Client(server.mcp) as client:
            await client.call_tool("read", {"path": str(beside)})
            assert await becomes(lambda: any(server.audit.glob("*.jsonl")))
            (file,) = server.audit.glob("*.jsonl")
            denied = await client.call_tool("read", {"path": str(file)})
            key = await client.call_tool("read", {"path": str(server.audit / "key")})
            control = await client.call_tool("read", {"path": str(tool)})

    assert denied.data in ("PermissionError", "FileNotFoundError")
    assert key.data in ("PermissionError", "FileNotFoundError")
    assert "FastMCP" in control.data


async def test_a_call_of_a_killed_host_has_begin_without_end(tmp_path: Path) -> None:
    with somebody() as user, watched(tmp_path, user, "serve", str(TOOLS)) as server:
        async with contextlib.AsyncExitStack() as stack:
            # It cannot end its session either.
            stack.enter_context(contextlib.suppress(httpx2.TransportError))
            client = await stack.enter_async_context(Client(server.mcp))
            waiting = asyncio.create_task(client.call_tool("waits", {}))
            assert await becomes(lambda: [line["tool"] for line in lines(server.audit)] == ["waits"])
            os.kill(server.pid, signal.SIGKILL)
            await asyncio.wait({waiting})
            assert waiting.exception() is not None
    command = [sys.executable, "-m", "runner", "audit", "verify", "--config", str(server.config)]
    result = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    (call,) = [line["call"] for line in lines(server.audit)]

    assert f"no end: call {call} of {user} waits, began 20" in result.stdout
    assert result.returncode == 0


async def test_metrics_are_not_for_pages_of_other_names(tmp_path: Path) -> None:
    with somebody() as user, watched(tmp_path, user, "serve", str(TOOLS)) as server:
        async with httpx2.AsyncClient(timeout=180) as page:
            assert (await page.get(server.metrics, headers={"Host": "evil.example"})).status_code == 421
        assert server.scraped()["toolcell_ready", ()] == 1


async def test_calls_behind_the_proxy_are_recorded_too(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, TOOLS)
    with somebody() as user, watched(tmp_path, user, "proxy", str(plan)) as server:
        async with Client(server.mcp) as client:
            await client.call_tool("greet", {"name": SECRET})
            await client.call_tool("copied", {"filename": "none.txt"}, raise_on_error=False)
        metrics = server.scraped()

    records = server.records()
    assert [(r["user"], r["tool"]) for r in records] == [(user, "greet"), (user, "copied")]
    assert records[0]["outcome"] == "ok"
    assert metrics["toolcell_calls_total", (("outcome", "ok"), ("tool", "greet"))] == 1
    assert verify(server.audit).is_whole


@pytest.mark.parametrize("contract", ["guard", "full"])
async def test_call_starting_task_behind_proxy_is_recorded_once(contract: str, tmp_path: Path) -> None:
    plan = plan_of(tmp_path, TASKS, contract=contract)
    with somebody() as user, watched(tmp_path, user, "proxy", str(plan)) as server:
        async with httpx2.AsyncClient(timeout=180) as client:
            headers = {"accept": "application/json, text/event-stream"}
            about = {"name": "client", "version": "1"}
            capabilities: dict[str, dict[str, object]] = {"tasks": {}}
            begins = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": about}
            first = await client.post(server.mcp, headers=headers, json=_asks(1, "initialize", begins))
            headers["mcp-session-id"] = first.headers["mcp-session-id"]
            notice = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            await client.post(server.mcp, headers=headers, json=notice)
            for number in (2, 3):
                call = {"name": "long", "arguments": {}, "task": {"ttl": 60000}}
                answer = await client.post(
                    server.mcp, headers=headers, json=_asks(number, "tools/call", call)
                )
                assert "taskId" in answer.text, answer.text
        assert await becomes(lambda: len(server.records()) == 2)

    assert [(r["tool"], r["outcome"]) for r in server.records()] == [("long", "ok")] * 2


def _asks(number: int, method: str, params: Mapping[str, object]) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


@pytest.mark.parametrize("contract", ["guard", "full"])
async def test_call_answered_with_json_rpc_error_is_recorded(contract: str, tmp_path: Path) -> None:
    plan = plan_of(tmp_path, BARE, contract=contract)
    with somebody() as user, watched(tmp_path, user, "proxy", str(plan)) as server:
        async with Client(server.mcp) as client:
            for _ in range(2):
                with pytest.raises(MCPError, match="nosuch"):
                    await client.call_tool("nosuch", {})

    records = server.records()
    assert [(r["user"], r["tool"], r["outcome"]) for r in records] == [(user, "nosuch", "error")] * 2


async def test_call_cancelled_by_client_is_recorded(tmp_path: Path) -> None:
    tool = tmp_path / "slow.py"
    tool.write_text(
        "import time\nfrom fastmcp import FastMCP\nmcp = FastMCP('slow')\n"
        "@mcp.tool\ndef sleeps() -> str:\n    time.sleep(60)\n    return 'x'\n"
    )
    with somebody() as user, watched(tmp_path, user, "serve", str(tool)) as server:
        async with Client(server.mcp) as client:
            call = asyncio.create_task(client.call_tool("sleeps", {}))
            assert await becomes(lambda: server.scraped()["toolcell_calls_running", ()] == 1)
            call.cancel()
            files = server.audit.glob
            assert await becomes(lambda: any("E_CANCELLED" in path.read_text() for path in files("*.jsonl")))


@pytest.mark.parametrize("behind", ["serve", "proxy"])
async def test_call_cancelled_by_client_is_logged(tmp_path: Path, behind: str) -> None:
    tool = tmp_path / "slow.py"
    tool.write_text(
        "import time\nfrom fastmcp import FastMCP\nmcp = FastMCP('slow')\n"
        "@mcp.tool\ndef sleeps() -> str:\n    time.sleep(60)\n    return 'x'\n"
    )
    plan = tmp_path / "servers.json"
    entry = {"command": str(Path(sys.prefix) / "bin/fastmcp"), "args": ["run", str(tool), "--no-banner"]}
    plan.write_text(json.dumps({"mcpServers": {"slow": entry}}))
    with (
        somebody() as user,
        watched(tmp_path, user, behind, str(tool if behind == "serve" else plan)) as server,
    ):
        async with Client(server.mcp) as client:
            call = asyncio.create_task(client.call_tool("sleeps", {}))
            assert await becomes(lambda: server.scraped()["toolcell_calls_running", ()] == 1)
            call.cancel()
            assert await becomes(lambda: any("outcome=E_CANCELLED" in line for line in server.lines))

    (line,) = [line for line in server.lines if "call ended" in line]
    assert "tool=sleeps" in line
    assert f"user={user}" in line


async def test_unreturned_file_is_recorded_and_counted_separately(
    tmp_path: Path,
) -> None:
    with somebody() as user, watched(tmp_path, user, "serve", str(TOOLS)) as server:
        async with Client(server.mcp) as client:
            await client.call_tool("greet", {"name": "x"})
            await client.call_tool("leaves", {})
        metrics = server.scraped()
        assert await becomes(lambda: sum("call ended" in line for line in server.lines) == 2)

    greeted, left = server.records()
    digest = hashlib.sha256(b"left").hexdigest()
    assert left["generated"] == [{"id": f"art_{digest[:12]}", "sha256": digest, "bytes": 4}]
    assert left["outputs"] == []
    assert "generated" not in greeted
    assert metrics["toolcell_files_total", (("way", "generated"),)] == 1
    assert metrics["toolcell_file_bytes_total", (("way", "generated"),)] == 4
    first, second = [line for line in server.lines if "call ended" in line]
    assert "files=0" in second
    assert "generated=1" in second
    assert "generated" not in first
    assert verify(server.audit).is_whole


async def test_refused_tokens_are_counted_and_recorded_but_not_shown(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    with somebody() as user:
        tokens.write_text(json.dumps({"token-that-is-right-and-long": user}))
        tokens.chmod(0o600)
        more = f'[auth]\nkind = "static"\ntokens_file = "{tokens}"\n'
        with watched(tmp_path, user, "serve", str(TOOLS), more=more) as server:
            async with httpx2.AsyncClient(timeout=180) as stranger:
                for number in range(3):
                    wrong = {"Authorization": f"Bearer {SECRET}-{number}"}
                    assert (await stranger.post(server.mcp, headers=wrong, json={})).status_code == 401
            async with Client(server.mcp, auth="token-that-is-right-and-long") as client:
                await client.call_tool("greet", {"name": "x"})
            counted = server.scraped()["toolcell_refused_logins_total", ()]

    text = "".join(path.read_text() for path in server.audit.glob("*.jsonl"))
    refused = [entry for entry in map(json.loads, text.splitlines()) if entry["kind"] == "refused logins"]
    assert 1 <= counted <= 3
    assert refused[0]["most_from"] == "127.0.0.1"
    assert SECRET not in text
    assert [record["kind"] for record in map(json.loads, text.splitlines())].count("call") == 1
    assert verify(server.audit).is_whole
