"""Downloads: `GET /api/files/download/{key}?token=…` streams one stored file to the holder of its token.

The token is the permission, so a request needs neither cookie nor login. It opens one file of one user,
until it expires or for one use, which is used up once its first bytes are read. It counts as a request of
that user.

Source: requirements S0-52, S0-53; rule H2 of the conformance cases; `docs/serving.md`.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runner.errors import RunnerError
from runner.files.download_links import PURPOSE, name_in
from runner.files.my_files import Library
from runner.http.file_response import OpenedResponse, failed, file_response, gone
from runner.http.requests_per_user import count_for
from runner.http.responses import refused
from runner.http.wrong_keys import note_wrong
from runner.users.capability_tokens import TokenError, Tokens, named_in

__all__ = ["routes"]

_log = logging.getLogger(__name__)

# A requested key may be as long as a request, and is logged each time.
_KEY_CHARS = 64


def routes(tokens: Tokens, library: Library, *, clock: Callable[[], float]) -> list[Route]:
    """Return the download route.

    Args:
        tokens: Verifier of capability tokens.
        library: The files of all users.
        clock: Returns the time in seconds since the epoch.
    """

    async def download(request: Request) -> Response | OpenedResponse:
        key, token = request.path_params["key"], request.query_params.get("token", "")
        check, use = (
            partial(act, token, purpose=PURPOSE, key=key, now=clock())
            for act in (tokens.check, tokens.verify)
        )
        try:
            holder = await run_sync(check)
            files = library.held_by(holder)
            count_for(request, files.user)
            file = await files.by_id(key)
            # Files with equal content share their id, and a link is for one of their names.
            named = await files.find(name_in(token)) if file else None
            file = named if named is not None and named.id == key else file
        except TokenError as error:
            note_wrong(request, "link", key, *named_in(token))
            _log.debug("download refused", extra={"key": key[:_KEY_CHARS], "reason": str(error)})
            return refused(403, str(error))
        except RunnerError as error:
            return failed(key, error)
        answer = gone() if file is None else file_response(request, files, file)
        if not isinstance(answer, OpenedResponse):
            return answer
        return replace(answer, use=use)

    return [Route("/api/files/download/{key}", download, methods=["GET"])]
