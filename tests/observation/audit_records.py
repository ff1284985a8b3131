"""Records of calls for tests of the audit log, and its lines as they are read back."""

import json
from pathlib import Path
from typing import Any

from runner.observation.audit_log import AuditLog
from runner.observation.call_record import CallRecord, FileFacts

SECRET = "correct horse battery staple"


def record(**more: object) -> CallRecord:
    facts: dict[str, object] = {
        "id": "c1",
        "user": "alice",
        "tool": "report",
        "is_known": True,
        "outcome": "ok",
        "elapsed_s": 0.5,
        "inputs": [FileFacts(sha256="ab" * 32, bytes=7)],
        "denials": [("open", "landlock")],
    }
    return CallRecord(**{**facts, **more})  # type: ignore[arg-type]


def ended(log: AuditLog, **more: object) -> tuple[CallRecord, str]:
    """Return a call that has ended, with the digest of its arguments."""
    return record(**more), log.digest({"text": SECRET})


def lines(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()
    ]
