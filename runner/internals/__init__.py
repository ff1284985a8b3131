"""The only package that touches private names of fastmcp and mcp; their minor versions are pinned.

Each module holds what one part of the program needs of them, and is imported by its own name: a worker has no
use for what a host needs.

What fails when a private name changes its meaning: `tests/protocol/test_internals.py`, for what one process
can show; `tests/http/test_direct.py`, `tests/http/test_direct_sessions.py` and
`tests/protocol/test_direct_lines.py` for what seals a question, for which headers mirror arguments, for which
era a connection begins in, and for what is under way in a session.
"""
