"""Errors of calls whose sockets were denied."""

from collections.abc import Sequence

import pytest

from runner.errors import CallError
from runner.steps.listener import CallListener, Nobody
from runner.steps.verdict import judge
from runner.toolset.session_state import SessionState
from sandbox.deadlines import Deadlines
from sandbox.outcome import Denial, Ending, Outcome
from sandbox.policy import Limits

CONNECT = Denial(operation="socket.connect", path="a.example:443")
BIND = Denial(operation="socket.bind", path="127.0.0.1:0")
UDP = "AF_INET SOCK_DGRAM protocol 0"


@pytest.mark.parametrize(
    ("operation", "path", "denials", "message", "flag"),
    [
        ("socket.socket", "", [BIND, CONNECT], "reach a.example:443", "--allow-net=a.example:443"),
        ("socket.socket", "", [], "reach the network", "--allow-net"),
        ("socket.connect", "", [CONNECT, BIND], "listen on 127.0.0.1:0", None),
        ("socket.bind", "", [CONNECT], "listen on a port", None),
        ("socket.socket", UDP, [CONNECT], f"make a socket of another kind than TCP ({UDP})", None),
    ],
)
def test_denied_socket_names_flag_only_for_connections(
    operation: str, path: str, denials: Sequence[Denial], message: str, flag: str | None
) -> None:
    raised = {"kind": "raised", "denied": {"operation": operation, "path": path}}
    outcome = Outcome(ending=Ending.ANSWERED, answer={"raised": raised}, denials=tuple(denials))
    listener = CallListener(
        client=Nobody(), params={}, levels=frozenset(), deadlines=Deadlines(), user="a", state=SessionState()
    )

    with pytest.raises(CallError) as judged:
        judge(outcome, listener, home=None, limits=Limits())

    assert judged.value.message.startswith(f"The tool tried to {message}, which is ")
    assert judged.value.details["flag"] == flag
