"""Run one entry: plain, and behind the runner in each tier and era, and say where the answers differ."""

import asyncio
import itertools
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compat_client import MODERN, SESSION, Peer, ServerEnded, started
from compat_compare import Answer, compared, failed, normalised
from compat_entries import Entry
from compat_install import Laid

__all__ = ["SAME", "TIERS", "Runs", "outcome_of"]

TIERS = ("process", "user", "namespace")
SAME = "same"
_ERAS = {"package": (MODERN,), "file": (MODERN, SESSION), "command": (MODERN, SESSION)}
_HEAD = "from fastmcp import FastMCP\n\nmcp = FastMCP('compat')\n\n"
_numbers = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Locations and interpreters with which entries are run.

    Attributes:
        laid: What is installed.
        scratch: A folder for this run, which every user id may enter.
        private: Where the runners keep state and store, which nobody else may enter.
        port: Of a web server on this machine, which answers tools that ask one.
        tiers: The tiers that are tried.
        sessions_in: The tier in which servers are spoken to with sessions as well.
    """

    laid: Laid
    scratch: Path
    private: Path
    port: int
    tiers: Sequence[str] = TIERS
    sessions_in: str = TIERS[-1]


@dataclass(frozen=True, kw_only=True)
class _Side:
    """One run of an entry's server: plain where there is no tier."""

    entry: Entry
    runs: Runs
    tier: str = ""
    flagged: bool = False
    folder: Path
    user: str = field(default_factory=lambda: f"c-{uuid.uuid4().hex[:10]}")

    @property
    def places(self) -> dict[str, str]:
        """Return what words in braces stand for, in commands and in answers."""
        laid, name = self.runs.laid, self.entry.name
        python = laid.pythons[self.entry.environment]
        return {
            "python": str(python),
            "bin": str(python.parent),
            "node": str(laid.node),
            "npm": str(laid.npm.get(name, "/nonexistent")),
            "lent": str(self.folder / "lent"),
            "port": str(self.runs.port),
            "source": str(laid.sources.get(self.entry.sdist, laid.checkout)),
        }

    @property
    def hidden(self) -> dict[str, str]:
        """Return the places that answers may name, with this run's own folders."""
        own = f"/tmp/{self.user}" if self.tier else str(self.folder / "here")
        places = {key: value for key, value in self.places.items() if key in ("lent", "source", "npm")}
        return {**places, "work": own}

    def command(self) -> list[str]:
        """Return what is started."""
        python = self.runs.laid.pythons["tools"]
        options = self._options()
        if self.entry.kind == "command":
            words = [_fill(word, self.places) for word in self.entry.command]
            return [str(python), "-m", "runner", "proxy", *options, "--", *words] if self.tier else words
        file = str(self._tool_file())
        if self.tier:
            return [str(python), "-m", "runner", "serve", *options, file]
        return [
            str(python),
            str(python.parent / "fastmcp"),
            "run",
            file,
            "--no-banner",
            "--transport",
            "stdio",
        ]

    def _options(self) -> list[str]:
        flags = [_fill(flag, self.places) for flag in self.entry.flags if flag.startswith("--")]
        return ["--isolation", self.tier, "--user", self.user, *(flags if self.flagged else ())]

    def _tool_file(self) -> Path:
        if self.entry.kind == "file":
            return Path(self.places["source"]) / self.entry.file
        file = self.folder / "tools" / "tool.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(_HEAD + self.entry.code)
        return file

    def variables(self) -> dict[str, str]:
        """Return the environment."""
        variables = {name: _fill(value, self.places) for name, value in self.entry.variables.items()}
        flags = [flag.split("=", 1) for flag in self.entry.flags if not flag.startswith("--")]
        ours = {
            "RUNNER_STATE_DIR": str(self.runs.private / self.folder.name / "state"),
            # The machine may be busy, and the plain server gets as long.
            "RUNNER_LOAD_TIMEOUT_S": "90",
            "RUNNER_STORE": (self.runs.private / self.folder.name / "store").as_uri(),
            **({name: _fill(value, self.places) for name, value in flags} if self.flagged else {}),
        }
        return {
            "PATH": f"{self.places['bin']}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.folder / "here"),
            "LANG": "C.UTF-8",
            "FASTMCP_CHECK_FOR_UPDATES": "off",
            **variables,
            **(ours if self.tier else {}),
        }


async def outcome_of(entry: Entry, runs: Runs) -> dict[str, Any]:
    """Return what was found of one entry.

    Returns:
        `digest` of the entry, `version`, `plain` (empty, or how it fails without the runner), `sessions`
        (whether the plain server knows sessions only) and `toolsets`: by tier and era, `bare` and
        `flagged`, each `same` or the first difference.
    """
    laid = runs.laid
    outcome: dict[str, Any] = {"digest": entry.digest, "version": _version(entry, laid), "toolsets": {}}
    if entry.name in laid.failures or entry.environment not in laid.pythons:
        return {**outcome, "plain": f"not installed: {laid.failures.get(entry.name, 'no environment')}"}
    eras = _ERAS[entry.kind] if runs.sessions_in in runs.tiers else (MODERN,)
    try:
        reference = await _plain(entry, runs, eras)
    except ServerEnded as error:
        return {**outcome, "plain": str(error)}
    if SESSION in eras:
        outcome["sessions"] = reference[MODERN] is reference[SESSION]
    outcome["plain"] = next((problem for era in eras for problem in _unwanted(entry, reference[era])), "")
    for tier in runs.tiers:
        # A tier is about what processes may do, an era about messages: sessions are tried in one tier.
        tried = eras if tier == runs.sessions_in else eras[:1]
        outcome["toolsets"][tier] = {
            era: await _toolset(entry, runs, tier, era, reference[era]) for era in tried
        }
    return outcome


async def _plain(entry: Entry, runs: Runs, eras: Sequence[str]) -> dict[str, dict[str, Answer]]:
    """Return the plain server's answers in each era; those of a session where it knows sessions only."""
    found: dict[str, dict[str, Answer]] = {}
    try:
        found[MODERN] = await _answers(entry, runs, MODERN)
    except ServerEnded:
        if entry.kind == "package":
            raise
    if SESSION in eras or not found:
        found[SESSION] = await _answers(entry, runs, SESSION)
    return {era: found.get(era, found.get(SESSION, {})) for era in eras}


async def _toolset(
    entry: Entry, runs: Runs, tier: str, era: str, reference: Mapping[str, Answer]
) -> dict[str, str]:
    """Return how the runner's answers differ without the entry's options, and with them where it does."""
    toolset = {"bare": await _verdict(entry, runs, tier, era, reference, flagged=False)}
    if entry.flags and toolset["bare"] != SAME:
        toolset["flagged"] = await _verdict(entry, runs, tier, era, reference, flagged=True)
    return toolset


async def _verdict(
    entry: Entry, runs: Runs, tier: str, era: str, reference: Mapping[str, Answer], *, flagged: bool
) -> str:
    try:
        ours = await _answers(entry, runs, era, tier=tier, flagged=flagged)
    except ServerEnded as error:
        return str(error)
    difference = compared(reference, ours)
    return SAME if difference is None else str(difference)


async def _answers(
    entry: Entry, runs: Runs, era: str, *, tier: str = "", flagged: bool = False
) -> dict[str, Answer]:
    """Start a server, ask for its lists and make the calls; return the normalised answers by label.

    Raises:
        ServerEnded: It did not start, ended, or did not answer in time.
    """
    folder = runs.scratch / f"{next(_numbers)}"
    for name in ("here", "lent"):
        (folder / name).mkdir(parents=True)
    side = _Side(entry=entry, runs=runs, tier=tier, flagged=flagged, folder=folder)
    for name, content in entry.files.items():
        (folder / "lent" / name).write_text(content)
    try:
        log = folder / "log"
        async with started(
            side.command(), folder=folder / "here", variables=side.variables(), log=log
        ) as peer:
            await peer.greet(era)
            return {
                label: normalised(answer, entry.rules, side.hidden)
                for label, answer in await _call_results(peer, entry, side.places)
            }
    finally:
        for own in (folder, runs.private / folder.name, Path(f"/tmp/{side.user}")):
            await asyncio.to_thread(shutil.rmtree, own, ignore_errors=True)


async def _call_results(peer: Peer, entry: Entry, places: Mapping[str, str]) -> list[tuple[str, Answer]]:
    lists = ("tools",) if entry.kind == "package" else ("tools", "resources", "prompts")
    # What a plain server does not offer is not asked of it, and what it was not asked is not compared.
    offered = [name for name in lists if name in peer.offers]
    answers = [(f"{name}/list", await peer.request(f"{name}/list", {}, entry.timeout_s)) for name in offered]
    for number, call in enumerate(entry.calls, 1):
        answer = await peer.request(call.method, _filled(call.params, places), entry.timeout_s)
        answers.append((f"{call.label} ({number})", answer))
    return answers


def _unwanted(entry: Entry, answers: Mapping[str, Answer]) -> list[str]:
    """Return what went wrong without the runner, and was not to."""
    called = list(answers.items())[-len(entry.calls) :] if entry.calls else []
    return [
        f"{label}: {failed(answer) or 'no error, where one was wanted'}"
        for call, (label, answer) in zip(entry.calls, called, strict=True)
        if bool(failed(answer)) != call.fails
    ]


def _version(entry: Entry, laid: Laid) -> str:
    if entry.npm:
        return entry.npm[0].rpartition("@")[2]
    if entry.sdist:
        return entry.sdist.partition("==")[2]
    name = entry.requires[0] if entry.requires else ""
    return laid.versions.get(entry.environment, {}).get(name.split("[")[0].split("==")[0].lower(), "")


def _fill(word: str, places: Mapping[str, str]) -> str:
    for name, value in places.items():
        word = word.replace("{" + name + "}", value)
    return word


def _filled(value: Any, places: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _fill(value, places)
    if isinstance(value, list):
        return [_filled(item, places) for item in value]
    if isinstance(value, Mapping):
        return {key: _filled(item, places) for key, item in value.items()}
    return value
