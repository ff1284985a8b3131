"""A remote server that is a command: started confined, with a scratch home of its own.

It may read what a tool file may read, with the folders of the files that its command names; it may write in
its home, which goes when the connection ends; it runs in the strongest tier in which it can read itself. A
command that fetches packages and runs them has a folder for them (`runner.proxy.fetched_packages`).

Source: `docs/output-guard.md`; architecture, decisions "Network", "Reads" and "Programs".
"""

import asyncio
import contextlib
import functools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
from mcp import ClientSession

from runner.errors import RunnerError, UsageError
from runner.homes.homes import HomeLease, Homes
from runner.homes.scratch import scratch_folder
from runner.proxy.fetched_packages import (
    REGISTRIES,
    authority_variables,
    check_fetching,
    fetches,
    package_folder,
    package_variables,
)
from runner.proxy.hints import UnlentPaths, folder_hint, network_hint, option_hint, variable_hint
from runner.proxy.http_transport import most_message_bytes
from runner.proxy.remote import Reach, Server, ServerTransport, StartFailed
from runner.proxy.stderr import LastWords, log_budget
from runner.proxy.stdio_process import spoken_with
from runner.proxy.targets import SCRIPTS, Target, Wish
from runner.settings.execution import ExecutionSettings, SettingsT
from runner.settings.isolation import in_force, uids_of, unfit
from runner.settings.lendable import of_the_system, shared, within
from runner.settings.live import with_live
from runner.system.threads import in_thread
from runner.system.worker_environment import call_environment, framework_environment, planned_environment
from runner.toolset.grants import opened, readable, refused_word
from runner.toolset.lending import lend
from runner.toolset.policies import GUARD_ONLY, aliases
from runner.toolset.programs import interpreters_of, with_rights
from runner.users.identity import User
from sandbox.errors import IsolationUnavailable
from sandbox.layers.mounts import EMPTY
from sandbox.policy import MIB, Policy
from sandbox.probe.machine import Tier
from sandbox.readable import sibling_modules
from sandbox.token_bucket import TokenBucket

__all__ = ["check_command", "command_server", "lent_to"]

# Of a virtual environment; what an installer puts there beside packages, such as kernels of Jupyter, too.
_ENVIRONMENT = ("pyvenv.cfg", "bin", "include", "lib", "lib64", "share", "etc")
_FETCHING_S = 180.0
_SAID_CHARS = 500
_LEAST_SECRET_CHARS = 8
# For names and what is passed on through them; large ones have the home. No limit of memory counts it.
_SHARED_MEMORY_BYTES = 16 * MIB


def check_command(target: Target, settings: ExecutionSettings) -> Path:
    """Return the program that a command names.

    Raises:
        UsageError: There is no such program, it may not be run, or it would have to fetch the server first.
    """
    if not settings.rights().may_run:
        raise UsageError(f"{target.name} is a command, and allow_run lets nothing be run; name its program")
    check_fetching(target, settings)
    name = target.command[0]
    wanted = str(target.folder / name) if "/" in name else name
    found = shutil.which(wanted)
    if found is None:
        raise UsageError(f"{target.name}: there is no program {name}; check the name and PATH")
    return Path(found).absolute()


def lent_to(target: Target, program: Path, settings: SettingsT) -> SettingsT:
    """Return the settings of one command, with its words and what is lent to it looked at.

    Raises:
        UsageError: Something of it cannot be lent, or a word names a file that could not be lent either.
    """
    _check_words(program, target, settings)
    own = {"allow_read": target.allow_read, "allow_write": target.allow_write}
    named = settings.model_copy(update={key: value for key, value in own.items() if value is not None})
    scripts = (path for path in _files(program, target) if path.suffix in SCRIPTS)
    sources = () if target.source is None else (target.source,)
    return lend(named, (program, *scripts, *_packages(program), *sources))


def command_server(target: Target, settings: ExecutionSettings, contract: Wish) -> Server:
    """Return a server that is a command.

    Raises:
        UsageError: The command cannot be run, or names what could not be lent.
        IsolationUnavailable: In the tier that was asked for it could not be read.
    """
    program = check_command(target, settings)
    lent = lent_to(target, program, settings)
    files = (*_files(program, target), *_interpreters(program))
    # The tier that is asked for, or the strongest there is.
    tier = in_force(lent, files)
    closed = unfit(tier, files, lent)
    if closed is None and lent.allow_fetch and tier not in (Tier.NAMESPACE, Tier.GUARD):
        closed = (
            f"--allow-fetch cannot be given in tier {tier.value}, where no file can be made executable: "
            "leave it out, or start the runner where tier namespace works (see `runner doctor`)"
        )
    if closed is not None:
        raise IsolationUnavailable((closed,))
    allowing = functools.partial(
        option_hint,
        rights=lent.rights(),
        homes=lent.homes,
        unseen=(*map(Path, EMPTY), lent.homes) if tier is Tier.NAMESPACE else (),
        shares_memory=tier is Tier.NAMESPACE,
    )
    unlent = UnlentPaths(target.name, lent.rights(), homes=lent.homes, never=lent.private_paths)
    # Each client has a process of its own, and all of them write to one log.
    make = functools.partial(
        ConfinedTransport, target, program, allowing=allowing, log_budget=log_budget(), unlent=unlent
    )

    def hint(failure: str) -> str | None:
        found = allowing(failure)
        if found is None:
            # An option that only may have helped is for the operator's log.
            unlent.note(failure)
        return found

    def start(user: User, now: ExecutionSettings, reach: Reach | None) -> ServerTransport:
        return make(with_live(lent, now), user, tier, reach=reach)

    return Server(
        name=target.name,
        transport=start,
        is_command=True,
        contract=contract,
        is_near=True,
        tier=tier,
        files=_named_files(target),
        hint=hint,
        # The first start depends on the speed of the package registry.
        least_connect_s=_FETCHING_S if fetches(target, settings) else 0.0,
        place="\n".join((str(target.folder), *target.command)),
    )


@dataclass(eq=False)
class ConfinedTransport(ServerTransport):
    """The way to one process of the command, which ends with the connection.

    Attributes:
        target: The command.
        program: Its program.
        settings: The settings, with what is lent to it.
        user: Whose it is.
        tier: The tier that it runs in.
        allowing: Returns the option that would have helped it, from its error output.
        reach: Tells which addresses of ours it may reach, for a command that runs in the home of its user
            (S1-57) and not in a folder of its own.
        log_budget: How much of its standard error is passed on, with that of its other processes.
        unlent: Gets what it may read that is not lent to it.
    """

    target: Target
    program: Path
    settings: ExecutionSettings
    user: User
    tier: Tier
    allowing: Callable[[str], str | None]
    log_budget: TokenBucket
    unlent: UnlentPaths
    reach: Reach | None = None
    _stderr: LastWords | None = field(init=False, default=None)

    @contextlib.asynccontextmanager
    async def connect_session(self, **session_kwargs: Any) -> AsyncIterator[ClientSession]:
        """Start the process, and end it and all that it started when the block ends.

        Raises:
            StartFailed: The home of its user cannot be used.
        """
        uids = uids_of(self.settings, self.tier)
        uid = None if uids is None else uids.of(self.user.segment)
        with LastWords(self.target.name, self.log_budget) as stderr:
            async with self._folders(uid) as (scratch, home):
                reach = () if self.reach is None else tuple(await self.reach())
                # In a thread: what may be read is found by looking through folders.
                arguments = await asyncio.to_thread(self._arguments, scratch, home, uid, reach)
                async with (
                    spoken_with(
                        (sys.executable, *arguments),
                        # No secret of ours: what the server may see is in its policy.
                        environment=framework_environment(os.environ, ()),
                        errors=stderr.file,
                        most_bytes=most_message_bytes(self.settings),
                    ) as (incoming, outgoing, has_unread),
                    self.session_class(incoming, outgoing, **session_kwargs) as session,
                ):
                    self._stderr = stderr
                    try:
                        yield session
                    except (Exception, asyncio.CancelledError):
                        if session.protocol_version is None:
                            self.has_read_input = not has_unread()
                            # A start that takes too long is cancelled.
                            with anyio.CancelScope(shield=True):
                                problem = incoming.problem or incoming.misframed(self._masked)
                                self.why = await self._why(problem, stderr)
                        raise

    async def last_words(self) -> str:
        """Return what the command wrote last, with the option that would have helped."""
        return "" if self._stderr is None else await self._why(None, self._stderr)

    def hold(self) -> contextlib.AbstractAsyncContextManager[HomeLease | None]:
        """Hold the home of its user for a call, if the command runs in one."""
        if self.home is None:
            return contextlib.nullcontext()
        homes = Homes.of(self.settings, uids_of(self.settings, self.tier))
        return in_thread(homes.lease(self.user.name))

    @contextlib.asynccontextmanager
    async def _folders(self, uid: int | None) -> AsyncIterator[tuple[Path, HomeLease | None]]:
        """Yield a folder of the command's own and, if it is to run there, the home of its user.

        Raises:
            StartFailed: The home cannot be used; the message has the reason.
        """
        settings = self.settings
        async with contextlib.AsyncExitStack() as stack:
            # In threads: the server decides how much it writes, and so how long removal takes.
            folder = in_thread(scratch_folder(settings.homes, owner=uid))
            scratch = await stack.enter_async_context(folder)
            if self.reach is None:
                yield scratch, None
                return
            homes = Homes.of(settings, uids_of(settings, self.tier))
            try:
                home = await stack.enter_async_context(in_thread(homes.lease(self.user.name)))
            except (RunnerError, OSError) as error:
                raise StartFailed(str(error)) from error
            self.home = home
            try:
                yield scratch, home
            finally:
                self.home = None

    async def _why(self, problem: str | None, stderr: LastWords) -> str:
        """Return a problem with what the command wrote last, and with the option that would have helped."""
        words, rights = self._masked(await stderr.wait()), self.settings.rights()
        passed = {*rights.variables, *self.target.env}
        lending = self.allowing(words) or variable_hint(words, passed, os.environ)
        lending = lending or folder_hint(
            self.target.command[1:], (*rights.read, *rights.write), self.settings.homes
        )
        has_network = bool(rights.network) or self.settings.allow_fetch
        hint = network_hint(words, has_network=has_network)
        parts = (problem, hint, f"it said: {words[-_SAID_CHARS:]}" if words else None, lending)
        return "; ".join(part for part in parts if part)

    def _masked(self, text: str) -> str:
        """Return a text without the values of the server's variables, which may be keys."""
        for name, value in self.target.env.items():
            # A short one would match ordinary words.
            if len(value) >= _LEAST_SECRET_CHARS:
                text = text.replace(value, f"[value of {name}]")
        return text

    def _arguments(
        self, scratch: Path, home: HomeLease | None, uid: int | None, reach: tuple[tuple[str, int], ...]
    ) -> list[str]:
        # Gone before the command starts; and with the folder, if it never does. Never in the home, where
        # another server of the same user could write something else into it meanwhile.
        descriptor, path = tempfile.mkstemp(dir=scratch, prefix=".policy-")
        policy = self._policy(scratch if home is None else home.path, uid)
        if home is not None:
            policy = replace(policy, aliases=aliases(home), reach=(*policy.reach, *reach))
        with os.fdopen(descriptor, "w") as file:
            json.dump(policy.to_json(), file)
        command = (str(self.program), *self.target.command[1:])
        launcher = ("-P", "-m", "sandbox.inside.exec_main", path, str(os.getpid()))
        rights = self.settings.rights()
        return [*launcher, *_absolute(command, self.target.folder, (*rights.read, *rights.write))]

    def _policy(self, home: Path, uid: int | None) -> Policy:
        settings = self.settings
        packages = None
        if fetches(self.target, settings) and self.tier in (Tier.NAMESPACE, Tier.GUARD):
            packages = package_folder(self.target, settings, self.user.segment, uid)
        environment = framework_environment(os.environ, ())
        personal = call_environment(user=self.user.name, home=home)
        files = (*_files(self.program, self.target), *_interpreters(self.program))
        beside = tuple(dict.fromkeys(map(_in_place, _code(self.program, self.target))))
        real = tuple(dict.fromkeys(file.resolve() for file in files))
        found = readable(
            settings,
            beside=beside,
            files=(*real, *(module for file in beside for module in sibling_modules(file))),
            extra=tuple(folder for file in files for folder in _packages(file)),
        )
        self.unlent.readable = (*found.read, *found.list_only)
        if packages is not None:
            personal |= {**authority_variables(os.environ), **package_variables(packages)}
        limits = settings.widest_limits()
        policy = Policy(
            home=home,
            packages=packages if self.tier is Tier.NAMESPACE else None,
            read=found.read,
            list_only=found.list_only,
            # On some systems, packages are found through the link `lib64` of an environment alone.
            names=(*found.names, *files, self.program.parent.parent / "lib64"),
            homes=(settings.homes,),
            environment={**planned_environment(limits), **environment, **personal, **self.target.env},
            limits=limits,
            shared_memory_bytes=_SHARED_MEMORY_BYTES if self.tier is Tier.NAMESPACE else 0,
            closed_ports=settings.closed_ports,
            uid=uid,
            namespaces=self.tier is Tier.NAMESPACE,
            hidden=settings.private_paths,
            guard=False,
            without=GUARD_ONLY if self.tier is Tier.GUARD else (),
        )
        rights = settings.rights()
        if settings.allow_fetch:
            rights = replace(rights, network=(*rights.network, REGISTRIES))
        return with_rights(policy, rights, os.environ)


def _code(program: Path, target: Target) -> tuple[Path, ...]:
    """Return the program, as it is called and where it lies, and the words that are scripts or programs.

    Private files may lie beside a word that names data, beside an interpreter that a script names, and
    beside a program that a link in the server's folder leads to.
    """
    real, folder = program.resolve(), target.folder.resolve()
    leads_out = within(_in_place(program), folder) and not within(real, folder)
    scripts = (word for word in _named_files(target) if word.suffix in SCRIPTS or os.access(word, os.X_OK))
    return (program, *(() if leads_out else (real,)), *scripts)


def _check_words(program: Path, target: Target, settings: ExecutionSettings) -> None:
    """Check that no word of a command, and no link that it names, leads to what could not be lent.

    Raises:
        UsageError: One does.
    """
    for file in (program, *_interpreters(program)):
        for path in (_in_place(file), file.resolve()):
            why = opened(path, settings)
            if why is not None:
                raise UsageError(f"{target.name}: its program {_called(file)} {why}; install it elsewhere")
    for file in _named_files(target):
        for path in (_in_place(file), file.resolve()):
            why = refused_word(path, settings)
            if why is not None:
                raise UsageError(
                    f"{target.name}: the word {_called(file)} of its command {why}; leave the word out, or "
                    "name another file"
                )


def _called(file: Path) -> str:
    real = file.resolve()
    return str(file) if file == real else f"{file} ({real})"


def _in_place(file: Path) -> Path:
    """Return a path whose folders are not links; the file itself may be one."""
    return file.parent.resolve() / file.name


def _files(program: Path, target: Target) -> tuple[Path, ...]:
    """Return the files that a command names: its program, and what of its arguments is a file."""
    return tuple(dict.fromkeys([program, program.resolve(), *_named_files(target)]))


def _named_files(target: Target) -> tuple[Path, ...]:
    """Return the files among the words of a command, behind its program."""
    words = (word for word in target.command[1:] if _is_file(target.folder, word))
    return tuple((target.folder / word).absolute() for word in words)


def _is_file(folder: Path, word: str) -> bool:
    # Not `Path.is_file`, which raises for a word that is too long for a name, such as a script.
    return os.path.isfile(folder / word)


def _packages(file: Path) -> tuple[Path, ...]:
    """Return the folders of installed packages that a program is one of, or runs with.

    Node lies in one; Python in a virtual environment, with another interpreter that it stands for.
    """
    real = file.resolve()
    node = tuple(parent for parent in real.parents if parent.name == "node_modules")[-1:]
    environment = file.parent.parent
    if not (environment / "pyvenv.cfg").is_file():
        return node
    base = real.parent.parent
    # Only if it is an interpreter's: a link of that environment may lead to a program in a private folder.
    is_python = any(base.glob("lib/python3*/os.py")) and not (of_the_system(base) or shared(base))
    # Not the environment as a whole: `pyvenv.cfg` can be put into a project, beside its `.env` and keys.
    parts = tuple(environment / name for name in _ENVIRONMENT if not (environment / name).is_symlink())
    return (*node, *parts, *((base,) if is_python else ()))


@functools.lru_cache(maxsize=64)
def _interpreters(program: Path) -> tuple[Path, ...]:
    """Return the interpreter that the kernel starts for a script, as named and resolved."""
    named = (Path(name) for name in interpreters_of(program, os.environ.get("PATH", os.defpath)))
    found = [path for path in named if path.is_absolute() and path.exists()]
    return tuple(dict.fromkeys([*found, *(path.resolve() for path in found)]))


def _absolute(command: Sequence[str], folder: Path, lent: Sequence[Path]) -> list[str]:
    """Return a command whose arguments that are files are absolute: its working folder is its home.

    So is what of them lies in what is lent, or leads there.
    """
    rest = [
        str((folder / word).absolute()) if _is_file(folder, word) or _is_lent(folder / word, lent) else word
        for word in command[1:]
    ]
    return [command[0], *rest]


def _is_lent(path: Path, lent: Sequence[Path]) -> bool:
    try:
        real = Path(os.path.realpath(path, strict=True))
    except OSError:
        return False
    return any(within(real, top) for top in lent)
