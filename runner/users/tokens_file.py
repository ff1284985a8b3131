"""The list of accepted tokens, in `auth.tokens_file`: a JSON object from token to username.

Source: `docs/serving.md`.
"""

import hashlib
import json
from pathlib import Path

from runner.errors import UsageError
from runner.settings.parts import IdentitySettings
from runner.system.private_files import read_private

__all__ = ["token_print", "token_prints", "users_by_token"]

_SETTING = "auth.tokens_file"
_MIN_TOKEN_CHARS = 16
_MOST_BYTES = 64 * 1024 * 1024


def users_by_token(path: Path) -> dict[str, str]:
    """Return the user of each token in a file.

    Raises:
        UsageError: The file cannot be used.
    """
    raw = read_private(_SETTING, path, most_bytes=_MOST_BYTES)
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{_SETTING} {path} cannot be read: {error}") from error
    if not isinstance(content, dict) or not all(isinstance(user, str) and user for user in content.values()):
        raise UsageError(f"{_SETTING} {path} must be a JSON object from token to user name")
    if short := [user for token, user in content.items() if len(token) < _MIN_TOKEN_CHARS]:
        raise UsageError(
            f"{_SETTING} {path}: the token of {', '.join(sorted(short))} has fewer than "
            f"{_MIN_TOKEN_CHARS} characters; make one with: openssl rand -hex 32"
        )
    return content


def token_print(token: str) -> str:
    """Return the SHA-256 of a token, which identifies the token without revealing it."""
    return hashlib.sha256(token.encode()).hexdigest()


def token_prints(settings: IdentitySettings) -> frozenset[str] | None:
    """Return `token_print` of all valid tokens, or None without a list of them.

    Raises:
        UsageError: The tokens file cannot be used.
    """
    if settings.auth.tokens_file is None or settings.auth.kind == "none":
        return None
    return frozenset(map(token_print, users_by_token(settings.auth.tokens_file)))
