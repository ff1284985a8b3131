"""Files of the user for tools of other servers behind `runner proxy`, and files that these name."""

import json
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from contracting import (
    MARKS,
    UPSTREAM,
    VERSIONS,
    Front,
    client_of,
    command,
    front_of,
    value_of,
)
from eras import NEWEST
from proxying import proxied
from support import settings_in

from runner.files.my_files import open_library
from runner.proxy.targets import Target
from runner.store.protocol import Origin

pytestmark = [*MARKS, pytest.mark.release]


@pytest.fixture(scope="module")
def remote(address: str) -> Iterator[Front]:
    """A server over HTTP, whose tools' arguments decide."""
    with front_of(address) as front:
        yield front


@pytest.fixture(scope="module")
def guarded(address: str) -> Iterator[Front]:
    with front_of("--contract", "guard", address) as front:
        yield front


@pytest.fixture(scope="module")
def local() -> Iterator[Front]:
    """A server that is a confined command, in the strongest tier that can run it."""
    with front_of(*command()) as front:
        yield front


@VERSIONS
async def test_remote_server_gets_links_for_user_files(remote: Front, guarded: Front, version: str) -> None:
    for front in (remote, guarded):
        await front.put("rows.csv", b"a,b")
        await front.put("more.csv", b"c,d")
    async with client_of(guarded, version) as client:
        control = await value_of(client, "take", filename="rows.csv")
    async with client_of(remote, version) as client:
        one = await value_of(client, "take", filename="rows.csv")
        many = await value_of(client, "take_many", filenames=["rows.csv", "more.csv"])
        links = await value_of(client, "take_links", file_names=["more.csv", "no such file.csv"])

    assert control["results"] == {"given": "rows.csv", "content": None}
    assert one["results"]["content"] == "a,b"
    assert one["results"]["given"].startswith("http://127.0.0.1:")
    # The link is a permission, which the server had and no model reads.
    assert "token" not in json.dumps([one, many, links])
    assert many["results"]["contents"] == ["a,b", "c,d"]
    assert links["results"]["contents"] == ["c,d", None]
    assert links["results"]["given"][1] == "no such file.csv"


@VERSIONS
async def test_command_gets_staged_copies_in_home_of_its_user(local: Front, version: str) -> None:
    await local.put("rows.csv", b"a,b")
    async with client_of(local, version) as client:
        one = await value_of(client, "take", filename="rows.csv")
        many = await value_of(client, "take_many", filenames=["rows.csv"])

    assert one["results"] == {"given": f"/tmp/{local.user}/input_files/rows.csv", "content": "a,b"}
    assert many["results"]["contents"] == ["a,b"]


@VERSIONS
async def test_command_that_takes_links_can_fetch_them(local: Front, version: str) -> None:
    await local.put("rows.csv", b"a,b")
    async with client_of(local, version) as client:
        value = await value_of(client, "take_links", file_names=["rows.csv"])

    assert value["results"]["contents"] == ["a,b"]


@VERSIONS
async def test_file_named_by_command_path_comes_to_my_files(local: Front, version: str) -> None:
    name = f"made-{version}.txt"
    async with client_of(local, version) as client:
        value = await value_of(client, "make", text="some text", name=name)
        fetched = await client.read_resource(value["artifacts"][0]["uri"])

    assert value["artifacts"][0]["name"] == name
    assert "path" not in value["artifacts"][0]
    assert fetched[0].text == "some text"
    assert name in await local.files()


@pytest.mark.parametrize("tier", ["process", "user", "namespace"])
async def test_command_works_in_home_of_its_user_in_every_tier(tier: str, folder: Path, user: str) -> None:
    interpreter = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
    assert interpreter, "the tier user needs an interpreter of the system; install python3"
    files = open_library(settings_in(folder)).of(user)
    await files.put(b"a,b", name="rows.csv", origin=Origin.UPLOADED)
    with tempfile.TemporaryDirectory(prefix="toolcell-homed-", dir="/var/tmp") as made:
        place = Path(made)
        place.chmod(0o755)
        server = place / "homed.py"
        server.write_bytes((UPSTREAM.parent / "homed.py").read_bytes())
        server.chmod(0o644)
        target = Target(name="homed", command=(interpreter, server.name), folder=place)
        async with proxied(folder, user, target, isolation=tier) as client:
            value = await value_of(client, "copy", filename="rows.csv", username="mallory")
            fetched = await client.read_resource(value["artifacts"][0]["uri"])
            home = Path("/tmp", user)
            assert home.is_dir()

    assert value["results"] == {"username": user, "home": f"/tmp/{user}", "temporary": True}
    assert fetched[0].text == "a,b"
    assert not home.exists()


async def test_path_outside_home_refused_under_any_name(local: Front) -> None:
    secret = local.folder / "secret.txt"
    secret.write_text("secret")
    link = f"/tmp/{local.user}/way-out"
    async with client_of(local, NEWEST) as client:
        inside = await value_of(client, "make", text="mine", name="mine.txt")
        control = await value_of(client, "name_path", path=f"/tmp/{local.user}/mine.txt")
        refused = [
            await value_of(client, "name_path", path=str(secret)),
            await value_of(client, "name_path", path=f"/tmp/{local.user}/../{secret}"),
            await value_of(client, "name_path", path=str(secret), link=link),
        ]

    assert inside["artifacts"]
    assert control["artifacts"][0]["name"] == "x.txt"
    for value in refused:
        assert "artifacts" not in value
        assert value["meta_data"]["artifact_errors"][0]["reason"] == "invalid_path"
    assert b"secret" not in b"".join(path.read_bytes() for path in _files(local.folder / "store"))


async def test_path_named_by_remote_server_never_read_here(remote: Front) -> None:
    readable = remote.folder / "readable.txt"
    readable.write_text("readable")
    assert readable.read_text() == "readable"

    async with client_of(remote, NEWEST) as client:
        value = await value_of(client, "name_path", path=str(readable))

    assert "artifacts" not in value
    assert value["meta_data"]["artifact_errors"][0]["reason"] == "invalid_path"


@pytest.mark.parametrize("kind", ["remote", "local"])
async def test_files_of_another_user_neither_linked_nor_staged(
    kind: str, request: pytest.FixtureRequest
) -> None:
    front: Front = request.getfixturevalue(kind)
    await front.put("own.txt", b"own")
    id_ = await front.put("theirs.txt", b"theirs", user="somebody-else")
    references = ["theirs.txt", f"artifact://{id_}", id_, "/tmp/somebody-else/input_files/theirs.txt"]
    async with client_of(front, NEWEST) as client:
        control = await value_of(client, "take_many", filenames=["own.txt"])
        value = await value_of(client, "take_many", filenames=references, username="somebody-else")
        links = await value_of(client, "take_links", file_names=references)

    assert control["results"]["contents"] == ["own"]
    for results in (value["results"], links["results"]):
        assert results["given"] == references
        assert results["contents"] == [None] * len(references)


@contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
    """Listen on the loopback address, and record the requests."""
    requests: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    requests.append(connection.recv(200).decode())
                    connection.sendall(
                        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nconnection: close\r\n\r\nabc"
                    )

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/inside", requests
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(60)


async def test_proxy_fetches_no_address_in_a_result(address: str) -> None:
    allowed = 'iframe_origins = ["*"]\n[output_guard.resources]\nauto_read_if_size_under_bytes = 1000\n'
    with listening() as (url, requests), front_of(address, settings=allowed) as front:
        async with client_of(front, NEWEST) as client:
            # Control: the address answers another client, and the server's own file is read.
            control = await value_of(client, "take_links", file_names=[url])
            requests_before = len(requests)
            read = await client.call_tool_mcp("point", {"url": "note://short"})
            value = await value_of(client, "point", url=url)

    assert control["results"]["contents"] == ["abc"]
    assert requests_before == 1
    assert "a note" in read.model_dump_json()
    assert value["results"] == {"url": url}
    # Entries without content are data of another system.
    assert value["artifacts"] == [{"name": "x.txt", "url": url, "uri": url, "mime": "text/plain"}]
    assert len(requests) == requests_before


async def test_far_server_gets_no_unfetchable_link(remote: Front, address: str) -> None:
    # A name that this machine gives to itself, and that could as well be another's.
    far = address.replace("127.0.0.1", socket.gethostname())
    if not _reaches(far):
        far = address.replace("127.0.0.1", "0.0.0.0")
    with front_of(far) as unreachable, front_of(far, settings=f'public_url = "{remote.url[:-4]}"') as open_:
        for front in (unreachable, open_):
            await front.put("rows.csv", b"a,b")
        async with client_of(unreachable, NEWEST) as client:
            refused = await value_of(client, "take", filename="rows.csv")
            free = await value_of(client, "take", filename="no file")
        async with client_of(open_, NEWEST) as client:
            linked = await value_of(client, "take", filename="rows.csv")

    assert refused["meta_data"]["error_code"] == "E_NETWORK_DENIED"
    assert "public_url" in refused["results"]["error"]
    assert free["results"]["given"] == "no file"
    assert linked["results"]["given"].startswith(f"{remote.url[:-4]}/api/files/download/")


def _reaches(url: str) -> bool:
    host, _, port = url.split("/")[2].rpartition(":")
    try:
        socket.create_connection((host, int(port)), 2).close()
    except OSError:
        return False
    return True


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())
