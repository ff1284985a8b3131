"""Secrets: their one call has them, and nothing that comes after it, beside it or out of it."""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from attack_support import found_in_memory
from process_tree import descendants, forkservers
from somebody import somebody
from support import TOOLS, Listening, alive, becomes, call, error_code, open_toolset, request

from runner.call import execute
from runner.contract.error_messages import TEXT_MAX_CHARS
from runner.errors import UsageError
from runner.settings.secrets import SecretSettings
from runner.toolset.toolset import Toolset
from runner.users.tool_secrets import CallSecrets, Secrets, read_secret, secret_fault
from runner.worker.failure_capture import _describe
from sandbox.policy import Limits

KEY = 'k3y+with "quotes"-9f2c'
OTHER = "an0ther-value-77"
FILE = TOOLS / "secretive.py"
WITH_SECRET = ["holds", "hands_on", "says", "raises", "dies", "stays", "uses", "writes"]
WITH_SECRET += ["dies_talking", "leaves"]


def secret_file(folder: Path, value: str = KEY, *, name: str = "key", mode: int = 0o600) -> Path:
    path = folder / name
    path.write_text(value)
    path.chmod(mode)
    return path


@asynccontextmanager
async def serving(folder: Path, **more: Any) -> AsyncIterator[Toolset]:
    secrets = {
        "API_KEY": SecretSettings(file=secret_file(folder), tools=WITH_SECRET),
        "OTHER_KEY": SecretSettings(command=("printf", OTHER), tools=["holds"], users=["nobody-else"]),
    }
    async with open_toolset(FILE, folder, secrets=secrets, **more) as toolset:
        yield toolset


def has_it(pid: int) -> bool:
    """Return whether the secret is in the memory of a process, which may have ended meanwhile."""
    try:
        return found_in_memory(pid, KEY.encode())
    except (FileNotFoundError, ProcessLookupError):
        return False


def results(completed: Any) -> Any:
    return completed.processed.value["results"]


@pytest.mark.kernel
@pytest.mark.anyio
async def test_call_and_its_programs_have_secrets_of_tool_and_user(tmp_path: Path) -> None:
    with somebody() as user:
        async with serving(tmp_path) as toolset:
            holds = results(await call(toolset, user, "holds"))
            both = results(await call(toolset, "nobody-else", "holds"))
            handed_on = results(await call(toolset, user, "hands_on"))
            beside = [call(toolset, user, tool) for tool in ("holds", "looks", "holds", "looks")]
            at_once = [results(completed) for completed in await asyncio.gather(*beside)]

    assert holds["lengths"] == {"API_KEY": len(KEY)}
    assert both["lengths"] == {"API_KEY": len(KEY), "OTHER_KEY": len(OTHER)}
    assert handed_on == {"length": len(KEY)}
    assert [one["environ"] for one in at_once if "environ" in one] == [{}, {}]
    assert [one["lengths"] for one in at_once if "lengths" in one] == [{"API_KEY": len(KEY)}] * 2
    assert "API_KEY" not in os.environ


@pytest.mark.kernel
@pytest.mark.anyio
async def test_later_call_of_other_tool_or_user_finds_no_secret(tmp_path: Path) -> None:
    with somebody() as user, somebody() as stranger:
        async with serving(tmp_path) as toolset:
            # A worker that stays has served this user before, and could lie in wait.
            early = results(await call(toolset, user, "looks"))
            holds = results(await call(toolset, user, "holds"))
            again = results(await call(toolset, user, "holds"))
            found = [results(await call(toolset, who, "looks")) for who in (user, stranger)]

    assert holds["lengths"] == again["lengths"] == {"API_KEY": len(KEY)}
    assert len({holds["pid"], again["pid"], early["pid"]}) == 3
    assert not {holds["pid"], again["pid"]} & {looked["pid"] for looked in found}
    for looked in found:
        nothing: dict[str, object] = {
            "environ": {},
            "c": [],
            "import": [],
            "proc": [],
            "module": {},
            "main": None,
        }
        assert looked == nothing | {"pid": looked["pid"]}


@pytest.mark.kernel
@pytest.mark.anyio
@pytest.mark.parametrize("tier", ["process", "user", "namespace"])
async def test_secret_in_use_unreachable_from_other_tool_processes(tmp_path: Path, tier: str) -> None:
    client = Listening()
    with somebody() as user, somebody() as stranger:
        async with serving(tmp_path, isolation=tier) as toolset:
            server = forkservers()[0]
            early = results(await call(toolset, user, "looks"))
            using = asyncio.create_task(execute(toolset, request(user, "uses", {}, client)))
            assert await becomes(lambda: bool(client.notifications))
            pids = list(map(int, str(client.notifications[0][1]["message"]).split()))

            arguments = {"pids": pids, "backwards": KEY[::-1]}
            beside = [results(await call(toolset, who, "pries", **arguments)) for who in (user, stranger)]
            having = {pid for pid in descendants(server) if has_it(pid)}
            using.cancel()
            await asyncio.gather(using, return_exceptions=True)
            assert await becomes(lambda: not any(map(alive, having)))
            late = results(await call(toolset, user, "looks"))
            left = [pid for pid in descendants(server) if has_it(pid)]

    # The call's own process, and the program that it has given it to; these are there to be found.
    assert len(having) == 2
    assert left == []
    for pried in beside:
        # In a namespace of its own a stranger's processes have such numbers, and may have one of these.
        assert pried["readable"] == []
        assert pried["reached"] == [] or tier == "namespace"
    assert beside[0]["reached"] == []
    assert early["environ"] == late["environ"] == {}


@pytest.mark.kernel
@pytest.mark.anyio
async def test_process_with_secret_ends_with_its_call(
    tmp_path: Path,
) -> None:
    with somebody() as user:
        async with serving(tmp_path, background_jobs=True) as toolset:
            first = results(await call(toolset, user, "stays"))
            second = results(await call(toolset, user, "stays"))

            assert first != second
            assert not toolset.has_jobs(user)


@pytest.mark.kernel
@pytest.mark.anyio
async def test_tool_output_has_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client = Listening()
    with somebody() as user:
        async with serving(tmp_path) as toolset:
            completed = await execute(toolset, request(user, "says", {}, client))
            remembered = await call(toolset, user, "remembered")
            failures = [await call(toolset, user, tool) for tool in ("raises", "dies")]

    whole = [completed.processed.value, completed.wire, client.notifications, remembered.processed.value]
    whole += [part for failure in failures for part in (failure.processed.value, failure.wire)]
    text = json.dumps(whole, default=str) + "".join(map(str, (vars(record) for record in caplog.records)))
    assert KEY not in text
    assert json.dumps(KEY)[1:-1] not in text
    assert results(completed) == {
        "text": "<[secret API_KEY]>",
        "list": ["[secret API_KEY]"],
        "[secret API_KEY]": 1,
        "url": "https://x/?k=[secret API_KEY]",
    }
    assert results(remembered) == "[secret API_KEY]"
    assert any("half with [secret API_KEY]" in str(params) for _method, params in client.notifications)
    assert "401 for [secret API_KEY]" in json.dumps(failures[0].processed.value)
    assert error_code(failures[1]) == "E_CRASHED"
    assert "fatal: [secret API_KEY]" in json.dumps(failures[1].processed.value)


@pytest.mark.kernel
@pytest.mark.anyio
async def test_file_with_secret_in_its_name_is_not_reported(tmp_path: Path) -> None:
    with somebody() as user:
        async with serving(tmp_path, generated="keep") as toolset:
            wrote = (await call(toolset, user, "writes")).processed.value

    assert [file["name"] for file in wrote["meta_data"]["generated_files"]] == ["plain.txt"]
    assert KEY not in json.dumps(wrote, ensure_ascii=False)


@pytest.mark.kernel
@pytest.mark.anyio
async def test_tool_file_cannot_read_file_of_secret(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\nfrom fastmcp import FastMCP\nmcp = FastMCP('reader')\n"
        "@mcp.tool\ndef read(path: str) -> str:\n    return Path(path).read_text()\n"
    )
    file = tmp_path / "reader.py"
    file.write_text(code)
    secret = secret_file(tmp_path)
    control = tmp_path / "control.txt"
    control.write_text("may be read")
    secrets = {"API_KEY": SecretSettings(file=secret, tools=["unrelated"])}

    with somebody() as user:
        async with open_toolset(file, tmp_path, secrets=secrets) as toolset:
            allowed = await call(toolset, user, "read", path=str(control))
            denied = await call(toolset, user, "read", path=str(secret))

    assert results(allowed) == "may be read"
    assert denied.processed.is_error
    assert KEY not in json.dumps(denied.processed.value, ensure_ascii=False)


@pytest.mark.anyio
async def test_missing_secrets_all_named_and_server_not_started(tmp_path: Path) -> None:
    secrets = {
        "ONE": SecretSettings(file=tmp_path / "missing", tools=["holds"]),
        "TWO": SecretSettings(command=("false",), tools=["holds"]),
    }

    with pytest.raises(UsageError) as refused:
        async with open_toolset(FILE, tmp_path, secrets=secrets):
            pass

    first, second = str(refused.value).splitlines()
    assert first.startswith("secrets.ONE.file ")
    assert "does not exist" in first
    assert second.startswith("secrets.TWO.command false ended with status 1")


@pytest.mark.parametrize(
    ("content", "mode", "sentence"),
    [
        (KEY, 0o644, "open to other users; chmod 600"),
        ("short", 0o600, "has 5 characters"),
        ("with\0zero-byte", 0o600, "zero byte"),
        ("x" * 70_000, 0o600, "more than 65536 bytes"),
    ],
)
def test_invalid_secret_refused_without_showing_it(
    tmp_path: Path, content: str, mode: int, sentence: str
) -> None:
    secret = SecretSettings(file=secret_file(tmp_path, content, mode=mode), tools=["t"])

    fault = secret_fault("API_KEY", secret)

    assert fault is not None
    assert sentence in fault
    assert content not in fault


def test_one_trailing_line_break_is_not_part_of_value(tmp_path: Path) -> None:
    of_file = SecretSettings(file=secret_file(tmp_path, KEY + "\n"), tools=["t"])
    of_command = SecretSettings(command=("echo", KEY), tools=["t"])

    assert read_secret("A", of_file) == read_secret("B", of_command) == KEY


def test_value_absent_from_repr_of_secrets(tmp_path: Path) -> None:
    secrets = Secrets.read({"API_KEY": SecretSettings(file=secret_file(tmp_path), tools=["t"])})

    assert KEY not in repr(secrets)
    assert KEY not in repr(secrets.of("t", "anybody"))
    assert secrets.of("t", "anybody").values == {"API_KEY": KEY}
    assert not secrets.of("another", "anybody").values


def test_secret_masked_in_all_forms_also_if_nested() -> None:
    secrets = CallSecrets({"LONG": "abcdefgh+ijkl", "SHORT": "abcdefgh"})

    masked = secrets.masked({"a": ["abcdefgh+ijkl", {"abcdefgh": "q=abcdefgh%2Bijkl"}], "n": 1, "z": None})

    assert masked == {"a": ["[secret LONG]", {"[secret SHORT]": "q=[secret LONG]"}], "n": 1, "z": None}


def test_value_masked_in_form_encoding() -> None:
    secrets = CallSecrets({"PASSWORD": "correct horse/battery"})

    assert secrets.masked_text(urlencode({"p": "correct horse/battery"})) == "p=[secret PASSWORD]"


def test_truncated_secret_masked_at_any_cut() -> None:
    secrets = CallSecrets({"KEY": "käse/4&brot", "OTHER": "brotzeit-"})

    for form in ("käse/4&brot", json.dumps("käse/4&brot")[1:-1], quote("käse/4&brot")):
        whole = form.encode() + " and käse/4&brot".encode()
        for cut in range(1, len(form.encode())):
            text = secrets.masked_end(whole[cut:].decode(errors="replace"))
            assert text == "[secret KEY] and [secret KEY]", (form, cut)
    assert secrets.masked_end("zzz brotzeit-") == "zzz [secret OTHER]"
    assert secrets.masked_end("brotzeit-") == "[secret OTHER]"
    assert secrets.masked_end("") == ""


@pytest.mark.kernel
@pytest.mark.anyio
async def test_shortened_output_starts_with_no_partial_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limit = Limits().output_bytes
    afters = [limit - len(KEY) - 50, *(limit - length for length in (1, len(KEY) // 2, len(KEY) - 1))]
    with somebody() as user:
        async with serving(tmp_path) as toolset:
            with caplog.at_level(logging.INFO):
                for after in afters:
                    await call(toolset, user, "dies_talking", after=after)

    printed = [vars(record) for record in caplog.records if record.getMessage() == "tool printed"]
    outputs = [one["line"].rstrip(".") for one in printed]
    # The first has all of it, and shows what was there.
    assert outputs == ["before [secret API_KEY]", *["[secret API_KEY]"] * 3]


@pytest.mark.kernel
@pytest.mark.anyio
async def test_exit_text_of_tool_shows_no_partial_secret(tmp_path: Path) -> None:
    with somebody() as user:
        async with serving(tmp_path) as toolset:
            left = [await call(toolset, user, "leaves", before=before) for before in (0, 199 - len(KEY) // 2)]

    texts = [json.dumps(one.processed.value) for one in left]
    assert ["k3y+" in text for text in texts] == [False, False]
    assert all("[secret API_KEY]" in text for text in texts)


def test_error_text_never_cut_inside_shown_secret() -> None:
    value, before = "k" * 60_000, "x" * (TEXT_MAX_CHARS - 100)

    with pytest.raises(ValueError, match="kkk") as raised:
        raise ValueError(before + value)
    message = str(_describe(raised.value, Path())["message"])

    assert "k" not in CallSecrets({"KEY": value}).masked_text(message)


def test_changed_secrets_known_by_value_and_rule(tmp_path: Path) -> None:
    first, second = secret_file(tmp_path, "value-one", name="a"), secret_file(tmp_path, "value-two", name="b")
    rules = {name: SecretSettings(file=path, tools=["t"]) for name, path in (("A", first), ("B", second))}
    before = Secrets.read(rules)
    first.write_text("value-new")
    narrowed = {**rules, "B": SecretSettings(file=second, tools=["t"], users=["ann"])}

    assert before.changed(Secrets.read(rules)) == ("A",)
    assert before.changed(Secrets.read(narrowed)) == ("A", "B")
    assert not before.changed(before)
