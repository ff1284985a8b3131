"""The distribution's Firefox, driven by WebDriver BiDi, the protocol that it implements natively.

Playwright drives its own builds of Firefox, which the distribution does not package. With other builds
(`moz-firefox`) it starts, but then calls `emulation.setMediaFeaturesOverride`, which they do not implement.

Source: W3C, WebDriver BiDi, "Session", "Script", "Input" and "Log".
"""

import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

__all__ = ["Firefox", "firefox"]

PROGRAM = "firefox-esr"
PATIENCE_S = 180
# So that Firefox sends no requests of its own.
_PREFERENCES = (
    'user_pref("app.normandy.enabled", false);\n'
    'user_pref("datareporting.policy.dataSubmissionEnabled", false);\n'
    'user_pref("browser.shell.checkDefaultBrowser", false);\n'
    'user_pref("services.settings.server", "data:,");\n'
)
_KEYS = {"Control": "\ue009", "Enter": "\ue007", "Tab": "\ue004", "Escape": "\ue00c", "ArrowDown": "\ue015"}


@dataclass
class Firefox:
    """A window of Firefox.

    Attributes:
        context: Its browsing context id.
        troubles: Uncaught exceptions of the page's scripts, and errors on its console.
    """

    socket: ClientConnection
    context: str = ""
    troubles: list[str] = field(default_factory=list)
    _number: int = 0

    def ask(self, method: str, **params: Any) -> Any:
        """Send a command and return its result. Raises `AssertionError` if the browser refuses it."""
        self._number += 1
        self.socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            reply = json.loads(self.socket.recv(timeout=PATIENCE_S))
            if reply.get("method") == "log.entryAdded" and reply["params"]["level"] == "error":
                self.troubles.append(str(reply["params"]["text"]))
            if reply.get("id") == self._number:
                assert reply["type"] == "success", reply
                return reply["result"]

    def go(self, url: str) -> None:
        """Open an address, and wait until it is loaded."""
        self.ask("browsingContext.navigate", context=self.context, url=url, wait="complete")

    def value(self, expression: str) -> Any:
        """Return the awaited value of an expression in the page, as JSON."""
        text = f"(async () => JSON.stringify((await ({expression})) ?? null))()"
        target = {"context": self.context}
        reply = self.ask("script.evaluate", expression=text, target=target, awaitPromise=True)
        assert reply["type"] == "success", reply
        return json.loads(reply["result"]["value"])

    def until(self, expression: str) -> None:
        """Wait until an expression is true in the page."""
        end = time.monotonic() + PATIENCE_S
        while not self.value(f"!!({expression})"):
            assert time.monotonic() < end, (expression, self.value("document.body.innerText.slice(0, 3000)"))
            time.sleep(0.05)

    def press(self, *chords: str) -> None:
        """Press keys one after another; `Control+k` presses two at once."""
        actions: list[dict[str, str]] = []
        for chord in chords:
            keys = [_KEYS.get(key, key) for key in chord.split("+")]
            actions += [{"type": "keyDown", "value": key} for key in keys]
            actions += [{"type": "keyUp", "value": key} for key in reversed(keys)]
        source = {"type": "key", "id": "keyboard", "actions": actions}
        self.ask("input.performActions", context=self.context, actions=[source])


@contextmanager
def firefox() -> Iterator[Firefox]:
    """Run Firefox with a new profile until the block ends."""
    found = shutil.which(PROGRAM)
    assert found, f"the page is tested in Firefox, too: install the package {PROGRAM}"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "user.js").write_text(_PREFERENCES)
        command = [found, "--headless", "--no-remote", "--remote-debugging-port", "0", "--profile", folder]
        # A file, since Firefox would block on a full pipe.
        log = Path(folder, "said")
        with log.open("w") as into:
            running = subprocess.Popen(command, env=_environment(folder), stdout=into, stderr=into)
        try:
            address = _address(log, running)
            with connect(f"{address}/session", max_size=None, compression=None) as socket:
                window = Firefox(socket)
                window.ask("session.new", capabilities={})
                window.ask("session.subscribe", events=["log.entryAdded"])
                window.context = window.ask("browsingContext.create", type="tab")["context"]
                yield window
        finally:
            running.kill()
            running.wait()


def _address(log: Path, running: "subprocess.Popen[bytes]") -> str:
    """Wait until Firefox logs the address at which it listens; return it."""
    end = time.monotonic() + PATIENCE_S
    while (found := re.search(r"BiDi listening on (ws://\S+)", log.read_text())) is None:
        assert running.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)
    return found[1]


def _environment(folder: str) -> dict[str, str]:
    return {"HOME": folder, "PATH": "/usr/bin:/bin", "MOZ_HEADLESS": "1", "LANG": "C.UTF-8"}
