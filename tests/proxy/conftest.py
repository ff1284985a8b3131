import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from contracting import upstream_over_http
from proxying import REMOTE
from support import outer_environment, stop


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of somebody else over HTTP that knows the words of the contract."""
    with upstream_over_http(tmp_path_factory.mktemp("upstream")) as url:
        yield url


@pytest.fixture(scope="session")
def remote_url() -> Iterator[str]:
    """A server over HTTP that knows nothing of the proxy."""
    command = [sys.executable, str(REMOTE), "0"]
    process = subprocess.Popen(
        command, env=outer_environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        address = re.search(r"running on (http://\S+)", line)
        if address:
            break
    else:
        raise AssertionError("the remote server did not start:\n" + "".join(lines))
    yield f"{address[1]}/mcp"
    stop(process)
