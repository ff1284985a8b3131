"""Real servers, with a client and a probe of each; and a table of the longest stalls.

usage: python tests/stalls/stall_servers.py [FILE]      write the table into FILE, which has its marks

It exits with 1 if an input of at most 1 MiB holds a loop for longer than `BOUND_S`.
"""

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from ports import free_port  # noqa: E402
from somebody import somebody  # noqa: E402
from stall_probe import StallProbe  # noqa: E402
from stall_rows import HTTP_ROWS, HTTP_UPSTREAM_ROWS, PROXY_ROWS, STDIO_ROWS, HttpClient, Row, StdioClient  # noqa: E402
from stall_values import size_of  # noqa: E402
from support import environment_in, server_url  # noqa: E402

__all__ = [
    "BOUND_S",
    "MOST_BYTES",
    "SERVERS",
    "Measured",
    "measured",
    "over_http",
    "over_stdio",
    "proxied",
    "proxied_over_http",
]

HERE = Path(__file__).parent
_BEATS = "beats"
_BEGIN, _END = "<!-- stalls: begin -->\n", "<!-- stalls: end -->\n"

BOUND_S = 0.1
# The document lists longer stalls only.
_SHOWN_S = 0.03
MOST_BYTES = 1 << 20


class Measured(NamedTuple):
    """One row.

    Attributes:
        row: The row.
        stall: The longest stall in seconds.
        answer: The beginning of the answer.
        size: Bytes of the input: what the client sent, or the tool, whichever is more.
    """

    row: Row
    stall: float
    answer: str
    size: int


def _environment(folder: Path, user: str) -> dict[str, str]:
    return {**environment_in(folder, RUNNER_USER=user), "PYTHONUNBUFFERED": "1"}


def _command(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, str(HERE / "watched_host.py"), str(folder / _BEATS), *arguments]


@contextlib.contextmanager
def over_http(folder: Path, user: str) -> Iterator[tuple[HttpClient, StallProbe]]:
    """Run `runner serve` over HTTP."""
    command = _command(folder, "serve", str(HERE / "hostile_tool.py"), "--transport", "http", "--port", "0")
    config = folder / "stall.toml"
    config.touch()
    command += ["--config", str(config)]
    process = subprocess.Popen(
        command, env=_environment(folder, user), cwd=folder, stderr=subprocess.PIPE, text=True
    )
    try:
        client = HttpClient(urlsplit(server_url(process)).port or 0, process.pid, config)
        # What it logs is read, or it would wait for that.
        assert process.stderr is not None
        reader = threading.Thread(target=client.lines.extend, args=(process.stderr,), daemon=True)
        reader.start()
        client.begin()
        yield client, StallProbe(folder / _BEATS)
    finally:
        process.terminate()
        process.wait(60)
    reader.join(60)
    process.stderr.close()


@contextlib.contextmanager
def over_stdio(folder: Path, user: str) -> Iterator[tuple[StdioClient, StallProbe]]:
    """Run `runner serve` on standard input and output."""
    with _on_stdio(folder, user, "serve", str(HERE / "hostile_tool.py")) as started:
        yield started


@contextlib.contextmanager
def proxied(folder: Path, user: str) -> Iterator[tuple[StdioClient, StallProbe]]:
    """Run `runner proxy` in front of a hostile server."""
    upstream = [sys.executable, str(HERE / "hostile_upstream.py")]
    allowed = f"--allow-read={HERE}"
    with _on_stdio(folder, user, "proxy", allowed, "--", *upstream) as started:
        yield started


@contextlib.contextmanager
def proxied_over_http(folder: Path, user: str) -> Iterator[tuple[StdioClient, StallProbe]]:
    """Run `runner proxy` in front of a hostile server over HTTP."""
    port = free_port()
    upstream = subprocess.Popen([sys.executable, str(HERE / "hostile_upstream.py"), str(port)])
    try:
        listens(port)
        with _on_stdio(folder, user, "proxy", f"http://127.0.0.1:{port}/mcp") as started:
            yield started
    finally:
        upstream.kill()
        upstream.wait()


def listens(port: int) -> None:
    """Return once somebody listens on a port."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.01)
    raise TimeoutError(port)


@contextlib.contextmanager
def _on_stdio(folder: Path, user: str, *arguments: str) -> Iterator[tuple[StdioClient, StallProbe]]:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            _command(folder, *arguments),
            env=_environment(folder, user),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        client = StdioClient(process)
        client.begin()
        yield client, StallProbe(folder / _BEATS)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


SERVERS = {
    "serve, HTTP": (over_http, HTTP_ROWS),
    "serve, stdio": (over_stdio, STDIO_ROWS),
    "proxy, stdio": (proxied, PROXY_ROWS),
    "proxy, HTTP": (proxied_over_http, HTTP_UPSTREAM_ROWS),
}


def measured(client: Any, probe: StallProbe, rows: Sequence[Row]) -> Iterator[Measured]:
    """Send each input; yield what was measured."""
    for row in rows:
        if os.environ.get("STALL_ROW", "") not in f"{row.entry}: {row.input}":
            continue
        sent = client.sent
        with probe.watching() as longest:
            answer = row.act(client)
        yield Measured(row, longest(), answer, max(client.sent - sent, size_of(row.input)))


def main(arguments: Sequence[str]) -> int:
    """Print all rows; write the longest into a document where one is named; return the exit status."""
    table: list[tuple[float, str]] = []
    late: list[str] = []
    only = os.environ.get("STALL_SERVER", "")
    for server, (start, rows) in SERVERS.items():
        if only not in server:
            continue
        with (
            tempfile.TemporaryDirectory() as place,
            somebody() as user,
            start(Path(place), user) as (client, probe),
        ):
            found: dict[str, list[tuple[float, str, int]]] = {}
            for row, stall, answer, size in measured(client, probe, rows):
                line = f"{stall * 1000:8.1f} ms  {size:9,} bytes  {server}: {row.entry}: {row.input}"
                print(f"{line}  {answer[:80]!r}", flush=True)
                if stall > BOUND_S and size <= MOST_BYTES:
                    late.append(line)
                found.setdefault(row.entry, []).append((stall, row.input, size))
        for entry, stalls in found.items():
            longest, name, size = max(stalls)
            shown = f"{longest * 1000:.0f} ms | `{name}` | {size:,}"
            table.append((longest, f"| {server} | {entry} | {len(stalls)} | {shown} |"))
    if arguments:
        document = Path(arguments[0])
        before, _, rest = document.read_text().partition(_BEGIN)
        today = datetime.now(UTC).date().isoformat()
        model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        machine = f"{model[1] if model else os.uname().machine}, {os.cpu_count()} processors"
        about = f"On {today}, {machine}, kernel {os.uname().release}, Python {sys.version.split()[0]}:"
        head = ["| server | entry point | inputs | longest stall | with | bytes |", "|" + " --- |" * 6]
        listed = [row for longest, row in sorted(table, reverse=True) if longest >= _SHOWN_S]
        others = [longest for longest, _ in table if longest < _SHOWN_S]
        rest_of = f"The other {len(others)} entry points: at most {max(others, default=0) * 1000:.0f} ms."
        text = "\n".join([about, "", *head, *listed, "", rest_of, ""])
        document.write_text(before + _BEGIN + text + _END + rest.partition(_END)[2])
    if late:
        print(f"longer than {BOUND_S * 1000:.0f} ms with at most {MOST_BYTES:,} bytes:", *late, sep="\n")
    return bool(late)


if __name__ == "__main__":
    began = time.monotonic()
    status = main(sys.argv[1:])
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(status)
