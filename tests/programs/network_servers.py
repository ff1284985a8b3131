"""Web servers on addresses of the wide world, in a network namespace of their own.

Reads orders as lines: `go` when its end of the cable is there, then `seen` for who has been here.

usage: unshare --net python network_servers.py CABLE
"""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CABLE = sys.argv[1]
PLACES = (
    ("93.184.215.14", 80),
    ("93.184.215.14", 8080),
    ("151.101.1.69", 80),
    ("10.1.2.3", 80),
    ("10.1.2.3", 8080),
    ("169.254.169.254", 80),
    ("169.254.169.254", 8080),
)
seen: list[str] = []


class Page(BaseHTTPRequestHandler):
    """Page that names its own address, or redirects elsewhere."""

    def do_GET(self) -> None:
        address = self.server.server_address
        assert isinstance(address, tuple)
        host, port = address[:2]
        seen.append(f"{host}:{port}")
        goes_on = self.path.startswith("/to/")
        self.send_response(302 if goes_on else 200)
        if goes_on:
            self.send_header("Location", f"http://{self.path.removeprefix('/to/')}/")
        text = f"{host}:{port}".encode()
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Discard the log line."""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def main() -> None:
    sys.stdin.readline()
    ip("link", "set", "lo", "up")
    ip("address", "add", "198.18.0.2/24", "dev", CABLE)
    ip("link", "set", CABLE, "up")
    for host in dict.fromkeys(host for host, _ in PLACES):
        ip("address", "add", f"{host}/32", "dev", "lo")
    for place in PLACES:
        threading.Thread(target=ThreadingHTTPServer(place, Page).serve_forever, daemon=True).start()
    print("ready", flush=True)
    for _line in sys.stdin:
        print(json.dumps(seen), flush=True)
        seen.clear()


main()
