"""The operation on the web application, run in this process with the project's own routes, keys and store.

A `user` is known by a bearer token, a `session` by the cookie that the server's own signing makes. The
server keeps files for their session only, which is the stricter way to run it.
"""

import asyncio
import base64
import json
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from asgi_support import asking
from fastmcp import FastMCP

from runner.files.download_links import PURPOSE
from runner.files.file_events import tell
from runner.files.my_files import MyFiles, open_library
from runner.http.context import Site
from runner.http.identify import BROWSER, COOKIE
from runner.http.logins import Login
from runner.server.web import build_app
from runner.settings.auth import Auth
from runner.settings.settings import Settings
from runner.store.protocol import Origin
from runner.users.capability_tokens import Tokens
from runner.users.events import Events
from runner.users.identity import User, auth_provider

__all__ = ["OPERATIONS"]

_VISITOR = "visitor"


def http(case: Mapping[str, Any]) -> dict[str, Any]:
    """Observe the answer to one request."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_Case(case, Path(folder)).observe())


OPERATIONS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {"http": http}


class _Case:
    def __init__(self, case: Mapping[str, Any], folder: Path) -> None:
        self.case, self.folder = case, folder
        self.request: Mapping[str, Any] = case["request"]
        self.token: dict[str, Any] = dict(self.request.get("token") or {})
        (folder / "state").mkdir(mode=0o700)
        named = [file["user"] for file in self._fixtures("files").values()]
        users = {name for name in (*named, self.request.get("user"), _VISITOR) if name}
        self.bearers = {f"{base64.b16encode(user.encode()).decode():0<32}": user for user in users}
        (folder / "users.json").write_text(json.dumps(self.bearers))
        (folder / "users.json").chmod(0o600)
        settings = Settings(
            state_dir=folder / "state",
            store=(folder / "store").as_uri(),
            persist_files_across_sessions=False,
            auth=Auth(kind="static", tokens_file=folder / "users.json"),
        )
        events = Events()
        self.site = Site(
            settings=settings,
            library=replace(open_library(settings), changed=partial(tell, events)),
            events=events,
            tokens=Tokens(settings.state_dir / "tokens.json"),
        )
        mcp: FastMCP[None] = FastMCP("conformance", auth=auth_provider(settings))
        self.web = build_app(mcp, self.site)

    async def observe(self) -> dict[str, Any]:
        path = await self._stored(self.request["path"])
        document = self.request.get("json")
        body = b"" if document is None else json.dumps(document).encode()
        headers = self._headers() if "token" not in self.request else {}
        if document is not None:
            headers["content-type"] = "application/json"
        async with asking(self.web, self.request["method"], path, headers=headers, body=body) as answer:
            if "trigger" in self.case and answer.status == 200:
                content = await self._until_triggered(answer)
            else:
                content = await answer.whole()
        return {
            "status": answer.status,
            "headers": dict(answer.headers),
            "body": content.decode("utf-8", errors="replace"),
        }

    async def _stored(self, path: str) -> str:
        """Put the fixtures into the store; return the path with their ids in it."""
        for placeholder, artifact in self._fixtures("artifacts").items():
            id_ = await self._put(self.site.library.of(_VISITOR, artifact["session"]), artifact)
            path = path.replace("{" + placeholder + "}", id_)
        for key, file in self._fixtures("files").items():
            # In the user's area: of no session in particular.
            id_ = await self._put(replace(self.site.library, persist=True).of(file["user"]), file)
            pattern = "|".join(map(re.escape, (key, quote(key), quote(key, safe=""))))
            path = re.sub(rf"(?<=/)(?:{pattern})(?=$|[?/])", id_, path)
            if self.token.get("key") == key:
                self.token["key"] = id_
        return self._with_token(path)

    async def _put(self, files: MyFiles, file: Mapping[str, Any]) -> str:
        content, name = base64.b64decode(file["data_b64"]), file.get("filename") or "artifact"
        return (await files.put(content, name=name, mime=file.get("mime"), origin=Origin.GENERATED)).id

    def _with_token(self, path: str) -> str:
        spec = self.token
        if not spec:
            return path
        tokens = self.site.tokens if spec.get("secret") is None else self._with_secret(spec["secret"])
        holder = self.site.library.of(spec["user"]).holder
        token = tokens.sign(
            user=holder, key=spec["key"], purpose=PURPOSE, now=self.site.clock(), ttl_s=spec["ttl"]
        )
        if spec.get("tamper_signature"):
            front, _, mac = token.rpartition(".")
            token = f"{front}.{mac[::-1]}"
        return f"{path}{'&' if '?' in path else '?'}token={token}"

    def _with_secret(self, secret: str) -> Tokens:
        """Return what signs with another secret, under the name of the server's own."""
        self.site.tokens.sign(user="", key="", purpose="", now=0, ttl_s=0)
        ((name, _),) = json.loads((self.folder / "state" / "tokens.json").read_text())["keys"]
        # HMAC itself pads a short key with zeros: this is the secret, in a length that a file may have.
        key = secret.encode().ljust(32, b"\0")
        file = self.folder / "other" / "tokens.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"keys": [[name, key.hex()]]}))
        file.chmod(0o600)
        return Tokens(file)

    def _headers(self) -> dict[str, str]:
        user, session = self.request.get("user"), self.request.get("session")
        if session is not None:
            now = self.site.clock()
            token = self.site.tokens.sign(
                user=user or _VISITOR, key=session, purpose=BROWSER, now=now, ttl_s=60
            )
            # A cookie counts where the server has noted that its session holds.
            # Where tokens are listed, a session also names the one that it was made from.
            login = Login(end=int(now) + 60, token=next(iter(self.site.known_tokens or ()), ""))
            self.site.logins.note(User(user or _VISITOR, session), login, now=now)
            return {"cookie": f"{COOKIE}={session}.{token}"}
        bearer = next((token for token, name in self.bearers.items() if name == user), None)
        return {"authorization": f"Bearer {bearer}"} if bearer else {}

    async def _until_triggered(self, answer: Any) -> bytes:
        head = await answer.until(b"listening\n\n")
        content = base64.b64decode(self.case["trigger"]["put_b64"])
        user, session = self.request.get("user") or _VISITOR, self.request.get("session")
        await self.site.library.of(user, session).put(content, name="artifact", origin=Origin.GENERATED)
        # The event is one frame, and its frame one piece.
        data: bytes = await answer.until(b"artifact_stored")
        return bytes(head) + data

    def _fixtures(self, kind: str) -> Mapping[str, Any]:
        return self.case.get(kind) or {}
