"""State that ordinary tool files keep in memory between calls, and who else can see it."""

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from somebody import somebody
from support import TOOLS, call, listed, open_toolset

from runner.call import Completed
from runner.toolset.toolset import Toolset
from runner.worker.wire import WireError

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

FILE = TOOLS / "remembers.py"


@pytest.fixture(scope="module")
async def toolset(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Toolset]:
    async with open_toolset(FILE, tmp_path_factory.mktemp("remembers"), worker_reuse="user") as it:
        yield it


async def result_of(toolset: Toolset, user: str, tool: str, **arguments: Any) -> Any:
    completed: Completed = await call(toolset, user, tool, **arguments)
    return completed.processed.value["results"]


async def test_module_variable_kept_for_next_call(toolset: Toolset) -> None:
    with somebody() as user:
        await result_of(toolset, user, "note", name="a", text="1")
        assert await result_of(toolset, user, "note", name="b", text="2") == {"a": "1", "b": "2"}


async def test_kept_state_invisible_to_other_users(toolset: Toolset) -> None:
    with somebody() as one, somebody() as other:
        await result_of(toolset, one, "note", name="secret", text="mine")

        assert await result_of(toolset, other, "note", name="x", text="y") == {"x": "y"}
        assert await result_of(toolset, one, "note", name="b", text="") == {"secret": "mine", "b": ""}


async def test_cached_value_not_computed_again(toolset: Toolset) -> None:
    with somebody() as user:
        await result_of(toolset, user, "square", number=7)
        assert await result_of(toolset, user, "square", number=7) == [1, 1]


async def test_connection_reused_in_thread_that_opened_it(toolset: Toolset) -> None:
    with somebody() as user:
        results = [await result_of(toolset, user, "database", value=value) for value in (1, 2, 3)]

    assert results == [[1], [1, 2], [1, 2, 3]]


@contextmanager
def connection_numbers() -> Iterator[int]:
    """Serve HTTP on a port, and tell each client from which port it speaks."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = str(self.client_address[1]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Discard the message."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


async def test_http_connection_reused(tmp_path: Path) -> None:
    with connection_numbers() as port:
        async with open_toolset(
            FILE, tmp_path, worker_reuse="user", allow_net=(f"127.0.0.1:{port}",)
        ) as toolset:
            with somebody() as user:
                ports = {await result_of(toolset, user, "fetch", port=port) for _ in range(3)}
                with somebody() as other:
                    elsewhere = await result_of(toolset, other, "fetch", port=port)

    assert len(ports) == 1
    assert elsewhere not in ports


async def test_library_imported_by_call_kept_for_next(toolset: Toolset) -> None:
    with somebody() as user:
        assert [await result_of(toolset, user, "lazily") for _ in range(3)] == [False, True, True]


async def test_thread_pool_continues_in_next_call(toolset: Toolset) -> None:
    with somebody() as user:
        assert len({await result_of(toolset, user, "in_a_thread") for _ in range(3)}) == 1


async def test_worker_spoiled_by_call_retired_when_list_fails(
    tmp_path: Path,
) -> None:
    async with open_toolset(FILE, tmp_path, worker_reuse="user") as toolset:
        with somebody() as user, somebody() as other:
            await result_of(toolset, other, "note", name="mine", text="")
            assert await result_of(toolset, user, "spoil") == "spoiled"
            with pytest.raises(WireError):
                await listed(toolset, user)

            assert "note" in await listed(toolset, user)
            assert await result_of(toolset, user, "square", number=7) == [0, 1]
            assert await result_of(toolset, other, "note", name="b", text="") == {"mine": "", "b": ""}
            assert (await toolset.gauges()).retired.get("broken") == 1


async def test_context_variable_belongs_to_one_call(toolset: Toolset) -> None:
    with somebody() as user:
        assert [await result_of(toolset, user, "mark", value=value) for value in "ab"] == ["unset", "unset"]


async def test_task_of_one_call_awaited_in_next(toolset: Toolset) -> None:
    with somebody() as user:
        assert await result_of(toolset, user, "begin", name="it") == "begun"
        assert await result_of(toolset, user, "finish", name="it") == "it is done"


async def test_lifespan_entered_once_per_process(toolset: Toolset) -> None:
    with somebody() as user:
        assert [await result_of(toolset, user, "life") for _ in range(3)] == [[1, 1]] * 3


async def test_failed_tool_keeps_its_process(toolset: Toolset) -> None:
    with somebody() as user:
        before = await result_of(toolset, user, "process")
        failed = await call(toolset, user, "fails")

        assert failed.processed.failure is not None
        assert await result_of(toolset, user, "process") == before


async def test_fresh_worker_tool_gets_new_worker_each_call(toolset: Toolset) -> None:
    with somebody() as user:
        await result_of(toolset, user, "note", name="a", text="1")

        assert [await result_of(toolset, user, "alone") for _ in range(3)] == [1, 1, 1]
        assert await result_of(toolset, user, "note", name="b", text="2") == {"a": "1", "b": "2"}


async def test_concurrent_calls_use_two_processes(toolset: Toolset) -> None:
    with somebody() as user:
        names = [f"n{number}" for number in range(3)]
        await asyncio.gather(*(result_of(toolset, user, "note", name=name, text="") for name in names))
        await result_of(toolset, user, "begin", name="it")

        assert await result_of(toolset, user, "finish", name="it") == "it is done"


async def test_process_per_call_set_for_all_tools(tmp_path: Path) -> None:
    async with open_toolset(FILE, tmp_path, worker_reuse="call") as toolset:
        with somebody() as user:
            noted = [await result_of(toolset, user, "note", name=name, text="") for name in "ab"]

    assert noted == [{"a": ""}, {"b": ""}]


async def test_process_per_call_set_for_one_tool(tmp_path: Path) -> None:
    async with open_toolset(
        FILE, tmp_path, worker_reuse="user", tools={"note": {"worker_reuse": "call"}}
    ) as toolset:
        with somebody() as user:
            noted = [await result_of(toolset, user, "note", name=name, text="") for name in "ab"]
            squared = [await result_of(toolset, user, "square", number=7) for _ in range(2)]

    assert noted == [{"a": ""}, {"b": ""}]
    assert squared == [[0, 1], [1, 1]]


async def test_file_collected_while_no_process_writes_to_it(toolset: Toolset) -> None:
    with somebody() as user:
        for _ in range(5):
            (file,) = (await call(toolset, user, "planted")).processed.files
            # The process that wrote to it without end was frozen before it was collected.
            written = (toolset.homes.root / user / "report.txt").read_bytes()

            assert hashlib.sha256(written).hexdigest() == file.sha256
