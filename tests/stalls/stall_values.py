"""Values of at most 1 MiB that are expensive to careless code; by name, so that a tool makes its own."""

import json
from collections.abc import Callable
from typing import Any

__all__ = ["MIB", "TEXTS", "VALUES", "size_of"]

# Less the rest of the message.
MIB = (1 << 20) - 1024


def _filled(unit: str, end: str = "", start: str = "", size: int = MIB) -> str:
    room = size - len(end.encode()) - len(start.encode())
    return start + unit * (room // len(unit.encode())) + end


TEXTS: dict[str, str] = {
    "dots": _filled(".", "b", "a"),
    "marks": _filled("\u0301", "", "a")[: MIB // 4] + "\u0316" * (MIB // 4),
    "blanks": _filled(" ", "x"),
    "lines": _filled("\n"),
    "slashes": _filled("/"),
    "blank_slashes": _filled(" /", ": permission denied", "permission denied "),
    "quoted_slashes": _filled("'/", "x", "No such file or directory: "),
    "listens": _filled("listen EPERM "),
    "schemes": _filled("a.", "://x"),
    "connects": _filled("connect"),
    "tokens": _filled("?token=x&key="),
    "data_urls": _filled("data:;base64,"),
    "base64": _filled("iVBORw0KGgo"),
    "base64_lines": _filled("A" * 76 + "\n"),
    "base64_short_runs": _filled("A" * 63 + " "),
    "hex": _filled("0x" + "4d" * 16),
    "brackets": _filled("["),
    "lists": "[" + _filled("[],", "[]]")[1:],
    "byte_list": "[" + _filled("1, ", "1]")[1:],
    "json_strings": json.dumps(["iVBORw0KGgo="] * (MIB // 17)),
    "escapes": _filled("\\u0000"),
    "markers": _filled("[system:"),
    "traceback": _filled('  File "/opt/x", line 1\n    x\n'),
    "capitals": _filled("A_"),
    # Others have their turn between two messages: more of them take longer, and hold the loop no longer.
    "notifications": _filled('{"jsonrpc":"2.0","method":"notifications/x"}\n', size=MIB // 4),
    "answers": _filled('{"jsonrpc":"2.0","id":"x","result":{}}\n', size=MIB // 4),
    "pings": _filled('{"jsonrpc":"2.0","id":"x","method":"ping"}\n', size=MIB // 4),
    "percents": _filled("%25", "%2f"),
    "wide": _filled("\ufdfa"),
    "many_letters": "".join(chr(0x4E00 + n % 20_000) for n in range(MIB // 3)),
}

VALUES: dict[str, Callable[[], Any]] = {
    "empty_lists": lambda: [[]] * (MIB // 4),
    "numbers": lambda: [1] * (MIB // 3),
    "keys": lambda: {f"r{n:06d}": 0 for n in range(MIB // 14)},
    "deep": lambda: json.loads("[" * 400 + "]" * 400),
    "small_base64": lambda: ["iVBORw0KGgoAAAAA"] * (MIB // 20),
    "strings": lambda: ["ab"] * (MIB // 6),
    "long_keys": lambda: {f"{n}" + "k" * 1000: n for n in range(1000)},
    "artifacts": lambda: {
        "results": ["aGVsbG8gd29ybGQhISEh" + str(n) for n in range(20_000)],
        "artifacts": [
            {"name": f"{n}.txt", "b64": "aGVsbG8gd29ybGQh" + f"{n:04d}", "mime": "text/plain"}
            for n in range(200)
        ],
    },
    "alike_artifacts": lambda: {
        "results": 1,
        "artifacts": [{"name": "a" * 250, "b64": "aGVsbG8="} for _ in range(200)],
    },
}


def size_of(name: str) -> int:
    """Return the bytes of a text or value as JSON; 0 if there is none of that name."""
    value = TEXTS[name] if name in TEXTS else VALUES[name]() if name in VALUES else ""
    return len(json.dumps(value, ensure_ascii=False).encode()) if value else 0
