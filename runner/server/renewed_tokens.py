"""Tokens of a list, read again while a server runs: who was taken out is refused from the next request on."""

from fastmcp.server.auth import AuthProvider
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier

from runner.http.context import Site
from runner.http.internals.authentication import replace_tokens
from runner.server.reloading import Take
from runner.settings.parts import ServerSettings
from runner.users.identity import auth_provider
from runner.users.tokens_file import token_prints

__all__ = ["prepare_tokens"]


def prepare_tokens(auth: AuthProvider | None, site: Site, settings: ServerSettings) -> Take:
    """Read the list of tokens; return what takes it over.

    Args:
        auth: What checks tokens.
        site: The routes beside MCP, which know the tokens that hold.
        settings: The settings in force from now on.

    Raises:
        UsageError: The list cannot be used.
    """
    if not isinstance(auth, StaticTokenVerifier):
        return list
    fresh, known = auth_provider(settings), token_prints(settings)
    if not isinstance(fresh, StaticTokenVerifier):
        return list
    tokens = fresh.tokens

    def take() -> list[str]:
        new, gone = len(tokens.keys() - auth.tokens.keys()), len(auth.tokens.keys() - tokens.keys())
        others = sum(auth.tokens[token] != tokens[token] for token in tokens.keys() & auth.tokens.keys())
        replace_tokens(auth, tokens)
        site.renew_tokens(known)
        return [f"tokens: {new} new, {gone} gone, {others} of another user"] if new or gone or others else []

    return take
