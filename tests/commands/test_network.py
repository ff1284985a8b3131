"""The network of tools as users of the command meet it: flags, variables, exit statuses."""

from collections.abc import Iterator
from typing import Any

import pytest
from support import TOOLS, saying_hello

pytestmark = pytest.mark.kernel

NETWORK = TOOLS / "network.py"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with saying_hello() as number:
        yield number


def test_flag_opens_named_destination(run: Any, port: int) -> None:
    ended = run(
        "call", NETWORK, "closed_fetch", f"url=http://localhost:{port}/", f"--allow-net=localhost:{port}"
    )

    assert ended.status == 0, ended.err
    assert "hello" in ended.out


@pytest.mark.release
def test_variable_opens_destination(run: Any, port: int) -> None:
    url = f"url=http://127.0.0.1:{port}/"

    ended = run("call", NETWORK, "closed_fetch", url, RUNNER_ALLOW_NET=f"a.example,127.0.0.1:{port}")

    assert ended.status == 0, ended.err


@pytest.mark.release
def test_refusal_without_flag_names_flag(run: Any, port: int) -> None:
    ended = run("call", NETWORK, "closed_fetch", f"url=http://localhost:{port}/", "--json")

    assert ended.status == 4
    assert ended.json["meta_data"]["error_code"] == "E_NETWORK_DENIED"
    assert ended.json["meta_data"]["details"]["flag"] == f"--allow-net=localhost:{port}"


@pytest.mark.release
def test_flag_alone_opens_nothing_on_this_machine(run: Any, port: int) -> None:
    ended = run("call", NETWORK, "closed_fetch", f"url=http://127.0.0.1:{port}/", "--json", "--allow-net")

    assert ended.status == 4
    flag = f"--allow-net=127.0.0.1:{port}"
    assert ended.json["meta_data"]["details"] == {
        "host": "127.0.0.1",
        "port": port,
        "flag": flag,
        "suggestion": f"Start the runner with {flag}, or give the tool its data as a file",
    }


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--allow-net=http://a.example"], "is not a destination"),
        (["--allow-env=A=B"], "give names alone"),
        (["--allow-run=no-such-program"], "there is no program no-such-program"),
        (["--allow-run=git", "--deny-run"], "give one of them"),
    ],
)
def test_meaningless_destination_refused_at_start(run: Any, arguments: list[str], sentence: str) -> None:
    ended = run("call", NETWORK, "closed_look_up", "host=a.example", *arguments)

    assert ended.status == 2
    assert sentence in ended.err
    assert "Traceback" not in ended.err
