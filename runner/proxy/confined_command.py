"""A remote server that is a command: started confined, with its own scratch home.

It may read the paths that a tool file may read, and the folders of files named in its command. It may write
in its home, which is removed when the connection ends. It runs in the strongest tier in which its own files
are readable.

A command that fetches packages and runs them, as `npx` and `uvx` do, has a folder for them. Each server of
each user has its own, kept between starts, in which files may be written and executed. It is named after the
server's whole entry: a different command never finds its packages.

Source: `docs/output-guard.md`; `docs/proxy.md`, "Fetched servers"; architecture, decisions "Network", "Reads"
and "Programs"; npm-config(7); uv, "Environment variables".
"""

import asyncio
import contextlib
import functools
import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
from mcp import ClientSession

from runner.errors import RunnerError, UsageError
from runner.homes.homes import HomeLease, Homes
from runner.homes.scratch import scratch_folder
from runner.proxy.hints import folder_hint, network_hint, option_hint, relative_hint, variable_hint
from runner.proxy.remote import EVERYBODY, Server, ServerTransport, most_message_bytes
from runner.proxy.stdio_process import LastWords, ServerLines, log_budget, run_command
from runner.proxy.targets import SCRIPTS, Target, Wish
from runner.settings.execution import ExecutionSettings
from runner.settings.isolation import in_force, uids_of, unfit
from runner.settings.lendable import flag_for, of_the_system, shared, within
from runner.settings.live import with_live
from runner.system.state_files import make_folder
from runner.system.threads import in_thread
from runner.system.worker_environment import call_environment, framework_environment, planned_environment
from runner.toolset.grants import opened, readable, refused_word
from runner.toolset.lending import lend
from runner.toolset.policies import GUARD_ONLY, aliases
from runner.toolset.programs import interpreters_of, with_rights
from runner.users.identity import User
from sandbox.errors import IsolationUnavailable
from sandbox.network.destinations import ANYWHERE
from sandbox.policy import MIB, Policy
from sandbox.probe.machine import Tier
from sandbox.readable import sibling_modules
from sandbox.token_bucket import TokenBucket

__all__ = ["check_command", "command_server", "fetches", "package_folder", "package_variables"]

log = logging.getLogger(__name__)

# Entries of a virtual environment, including those of installers, such as Jupyter kernels.
_ENVIRONMENT = ("pyvenv.cfg", "bin", "include", "lib", "lib64", "share", "etc")
# Destination that `--allow-fetch` allows: registries are public, and have many mirrors.
_REGISTRIES = f"{ANYWHERE}:443"
# Programs that fetch packages and run them, with the subcommands that do; empty if no subcommand is needed.
_FETCHERS: Mapping[str, tuple[str, ...]] = {
    "npx": (), "bunx": (), "pnpx": (), "uvx": (), "npm": ("exec", "x"), "pnpm": ("dlx",), "yarn": ("dlx",),
    "bun": ("x",), "uv": ("run", "tool"), "pipx": ("run",),
}  # fmt: skip
# Variables that name CA certificate files, which a network with a private CA needs.
_AUTHORITIES = (
    "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR",
    "SSL_CERT_FILE",
)  # fmt: skip
_FETCHING_S = 180.0
_SAID_CHARS = 500
_LEAST_SECRET_CHARS = 8
# Size of /dev/shm. Large data belongs in the home: no memory limit counts shared memory.
_SHARED_MEMORY_BYTES = 16 * MIB


def check_command(target: Target, settings: ExecutionSettings) -> Path:
    """Return the path of a command's program.

    Raises:
        UsageError: The program does not exist, may not be run, or would have to fetch the server first.
    """
    if not settings.rights().may_run:
        raise UsageError(f"{target.name} is a command, and allow_run lets nothing be run; name its program")
    if settings.allow_fetch and settings.rights().programs:
        raise UsageError("allow_run names the only programs, and allow_fetch runs others; give one of them")
    fetcher = _fetcher(target)
    if fetcher is not None and not fetches(target, settings):
        raise UsageError(
            f"{target.name}: `{fetcher}` fetches the server from a package registry when it starts, and a "
            "confined server has no network. Start with --allow-fetch, or install the server before and name "
            "its program instead"
        )
    name = target.command[0]
    wanted = str(target.folder / name) if "/" in name else name
    found = shutil.which(wanted)
    if found is None:
        raise UsageError(f"{target.name}: there is no program {name}; check the name and PATH")
    return Path(found).absolute()


def command_server(target: Target, settings: ExecutionSettings, contract: Wish) -> Server:
    """Return a server that is a command.

    Raises:
        UsageError: The command cannot be run, or names a file or folder that could not be lent.
        IsolationUnavailable: The tier does not support the command's files or settings.
    """
    program = check_command(target, settings)
    _check_words(program, target, settings)
    files = _files(program, target)
    own = {"allow_read": target.allow_read, "allow_write": target.allow_write}
    named = settings.model_copy(update={key: value for key, value in own.items() if value is not None})
    scripts = (path for path in files if path.suffix in SCRIPTS)
    sources = () if target.source is None else (target.source,)
    lent = lend(named, (program, *scripts, *_packages(program), *sources))
    # The tier of the settings; for `auto`, the strongest that works.
    tier = in_force(lent, files)
    closed = unfit(tier, files, lent)
    if closed is None and lent.allow_fetch and tier not in (Tier.NAMESPACE, Tier.GUARD):
        closed = (
            f"--allow-fetch cannot be given in tier {tier.value}, where no file can be made executable: "
            "leave it out, or start the runner where tier namespace works (see `runner doctor`)"
        )
    if closed is not None:
        raise IsolationUnavailable((closed,))
    if (hint := folder_hint(target.command[1:], lent)) is not None:
        # A server may start without the folder, and report that it is missing in a form we do not recognise.
        log.warning("command folder not lent", extra={"server": target.name, "hint": hint})
    return CommandServer(
        name=target.name,
        contract=contract,
        is_near=True,
        tier=tier,
        files=_named_files(target),
        # The first start depends on the speed of the package registry.
        least_connect_s=_FETCHING_S if fetches(target, settings) else 0.0,
        place="\n".join((str(target.folder), *target.command)),
        target=target,
        program=program,
        settings=lent,
        log_budget=log_budget(),
    )


@dataclass(slots=True, kw_only=True, eq=False)
class CommandServer(Server):
    """A server that is a command.

    Attributes:
        target: The command.
        program: Its program.
        settings: The settings at start-up, with the paths lent to it.
        log_budget: Rate limit for forwarding stderr, shared by its processes, one for each client.
        unused_cwd: The `cwd` of its entry that a warning has reported as unused, if any.
    """

    target: Target
    program: Path
    tier: Tier
    settings: ExecutionSettings
    log_budget: TokenBucket
    unused_cwd: str = ""

    def transport(self, user: User, now: ExecutionSettings) -> ServerTransport:
        """Return a transport to a new process."""
        return ConfinedTransport(self, user, with_live(self.settings, now))

    def hint(self, text: str) -> str | None:
        """Return the option that would have allowed a failed operation, from the server's error output."""
        return option_hint(text, self.settings, self.tier)


@dataclass(eq=False)
class ConfinedTransport(ServerTransport):
    """Transport to one process of the command, which ends with the connection.

    Attributes:
        server: The command.
        user: The user of the process.
        settings: The settings in force, with the paths lent to it.
    """

    server: CommandServer
    user: User
    settings: ExecutionSettings
    _stderr: LastWords | None = field(init=False, default=None)
    _lines: ServerLines | None = field(init=False, default=None)

    @contextlib.asynccontextmanager
    async def connect_session(self, **session_kwargs: Any) -> AsyncIterator[ClientSession]:
        """Start the process; at the end of the block, end it and its descendants.

        It runs in its own folder, or in its user's home if its tools need that (S1-57).

        Raises:
            RuntimeError: Its user's home cannot be used.
        """
        uids = uids_of(self.settings, self.server.tier)
        uid = None if uids is None else uids.of(self.user.segment)
        home: HomeLease | None = None
        reach: Sequence[tuple[str, int]] = ()
        async with contextlib.AsyncExitStack() as stack:
            stderr = stack.enter_context(LastWords(self.server.name, self.server.log_budget))
            # In threads: the server determines how much it writes, and so how long removal takes.
            folder = in_thread(scratch_folder(self.settings.homes, owner=uid))
            scratch = await stack.enter_async_context(folder)
            if self.server.wants_home(self.user):
                try:
                    home = await stack.enter_async_context(self._lease())
                except (RunnerError, OSError) as error:
                    raise RuntimeError(str(error)) from error
                self.home = home
                stack.callback(setattr, self, "home", None)
                if not self.server.fetching.isdisjoint((EVERYBODY, self.user.name)):
                    reach = ((await self.server.loopback.get()).address,)
            # In a thread: computing the readable paths lists folders.
            arguments = await asyncio.to_thread(self._arguments, scratch, home, uid, reach)
            process = run_command(
                (sys.executable, *arguments),
                # Without our secrets: the policy contains the server's variables.
                environment=framework_environment(os.environ, ()),
                errors=stderr.file,
                most_bytes=most_message_bytes(self.settings),
            )
            incoming, outgoing = await stack.enter_async_context(process)
            opening = self.session_class(incoming, outgoing, **session_kwargs)
            session = await stack.enter_async_context(opening)
            self._stderr, self._lines = stderr, incoming
            try:
                yield session
            except (Exception, asyncio.CancelledError):
                if session.protocol_version is None:
                    self.has_read_input = outgoing.are_read()
                    # A start that takes too long is cancelled.
                    with anyio.CancelScope(shield=True):
                        problem = incoming.problem or incoming.misframed(self._masked)
                        self.why = await self._why(problem, stderr)
                raise

    async def last_words(self) -> str:
        """Return the command's stderr tail, with the option that would have helped."""
        if self._stderr is None:
            return ""
        if self._lines is not None and self._lines.ended is not None:
            output = self._masked(await self._stderr.wait())
            self.facts = {"status": self._lines.ended, **({"output": output} if output else {})}
        return await self._why(None, self._stderr)

    def hold(self) -> contextlib.AbstractAsyncContextManager[HomeLease | None]:
        """Lease its user's home for a call, if the command runs there."""
        return contextlib.nullcontext() if self.home is None else self._lease()

    def _lease(self) -> contextlib.AbstractAsyncContextManager[HomeLease]:
        homes = Homes.of(self.settings, uids_of(self.settings, self.server.tier))
        return in_thread(homes.lease(self.user.name))

    async def _why(self, problem: str | None, stderr: LastWords) -> str:
        """Return a problem with the command's stderr tail and the option that would have helped."""
        words, rights = self._masked(await stderr.wait()), self.settings.rights()
        passed = {*rights.variables, *self.server.target.env}
        lending = self.server.hint(words) or variable_hint(words, passed, os.environ)
        lending = lending or folder_hint(self.server.target.command[1:], self.settings)
        if not self.server.target.runs_there:
            lending = lending or relative_hint(words)
        has_network = bool(rights.network) or self.settings.allow_fetch
        hint = network_hint(words, has_network=has_network)
        parts = (problem, hint, f"it said: {words[-_SAID_CHARS:]}" if words else None, lending)
        return "; ".join(part for part in parts if part)

    def _masked(self, text: str) -> str:
        """Return a text without the values of the server's variables, which may be keys."""
        for name, value in self.server.target.env.items():
            # A short value would match ordinary words.
            if len(value) >= _LEAST_SECRET_CHARS:
                text = text.replace(value, f"[value of {name}]")
        return text

    def _arguments(
        self, scratch: Path, home: HomeLease | None, uid: int | None, reach: Sequence[tuple[str, int]]
    ) -> list[str]:
        # Removed before the command starts, or with the folder if it never starts. Not in the home, where
        # another server of this user could overwrite it.
        descriptor, path = tempfile.mkstemp(dir=scratch, prefix=".policy-")
        policy = self._policy(scratch if home is None else home.path, uid)
        if home is not None:
            policy = replace(policy, aliases=aliases(home), reach=(*policy.reach, *reach))
        with os.fdopen(descriptor, "w") as file:
            json.dump(policy.to_json(), file)
        target, rights = self.server.target, self.settings.rights()
        command = (str(self.server.program), *target.command[1:])
        launcher = ("-P", "-m", "sandbox.inside.exec_main", path, str(os.getpid()))
        return [*launcher, *_absolute(command, target.folder, (*rights.read, *rights.write))]

    def _policy(self, home: Path, uid: int | None) -> Policy:
        settings, target, program = self.settings, self.server.target, self.server.program
        is_apart, packages = self.server.tier is Tier.NAMESPACE, None
        if fetches(target, settings) and (is_apart or self.server.tier is Tier.GUARD):
            packages = package_folder(target, settings, self.user.segment, uid)
        environment = framework_environment(os.environ, ())
        personal = call_environment(user=self.user.name, home=home)
        files = _files(program, target)
        beside = tuple(dict.fromkeys(map(_in_place, _code(program, target))))
        real = tuple(dict.fromkeys(file.resolve() for file in files))
        found = readable(
            settings,
            beside=beside,
            files=(*real, *(module for file in beside for module in sibling_modules(file))),
            extra=tuple(folder for file in files for folder in _packages(file)),
        )
        if packages is not None:
            personal |= package_variables(packages, os.environ)
        limits = settings.widest_limits()
        policy = Policy(
            home=home,
            packages=packages if is_apart else None,
            read=found.read,
            list_only=found.list_only,
            # On some systems, packages are found only through the environment's link `lib64`.
            names=(*found.names, *files, program.parent.parent / "lib64"),
            homes=(settings.homes,),
            environment={**planned_environment(limits), **environment, **personal, **target.env},
            limits=limits,
            shared_memory_bytes=_SHARED_MEMORY_BYTES if is_apart else 0,
            closed_ports=settings.closed_ports,
            uid=uid,
            namespaces=is_apart,
            hidden=settings.private_paths,
            guard=False,
            without=GUARD_ONLY if self.server.tier is Tier.GUARD else (),
        )
        rights = settings.rights()
        if target.runs_there:
            cwd = target.folder.resolve()
            reads = (*found.read, *rights.read, *rights.write)
            listed = (*found.list_only, *(file.parent for file in beside))
            if cwd.is_dir() and (cwd in listed or any(within(cwd, top) for top in reads)):
                policy = replace(policy, environment={**policy.environment, "PWD": str(cwd)})
            elif self.server.unused_cwd != str(cwd):
                self.server.unused_cwd = str(cwd)
                flag = flag_for(f"{cwd}/file", "read", homes=settings.homes)
                cure = "" if flag is None else f"; {flag} lends it"
                problem = f"is not open to the command{cure}" if cwd.is_dir() else "does not exist"
                facts = {"server": target.name, "cwd": str(cwd), "problem": f"it {problem}"}
                log.warning("command runs in its home", extra=facts)
        if settings.allow_fetch:
            rights = replace(rights, network=(*rights.network, _REGISTRIES))
        return with_rights(policy, rights, os.environ)


def _code(program: Path, target: Target) -> tuple[Path, ...]:
    """Return the program, as named and resolved, and the words that are scripts or executables.

    Excluded, since private files may lie beside them: data files, the interpreters of scripts, and the
    target of a link in the server's folder that leads out of it.
    """
    real, folder = program.resolve(), target.folder.resolve()
    leads_out = within(_in_place(program), folder) and not within(real, folder)
    scripts = (word for word in _named_files(target) if word.suffix in SCRIPTS or os.access(word, os.X_OK))
    return (program, *(() if leads_out else (real,)), *scripts)


def _check_words(program: Path, target: Target, settings: ExecutionSettings) -> None:
    """Check that the files named in a command, with links resolved, could be lent.

    Raises:
        UsageError: One could not.
    """
    for file, refusal, what, cure in (
        *(
            (file, opened, "its program {}", "install it elsewhere")
            for file in (program, *_interpreters(program))
        ),
        *(
            (file, refused_word, "the word {} of its command", "leave the word out, or name another file")
            for file in _named_files(target)
        ),
    ):
        real = file.resolve()
        for path in (_in_place(file), real):
            why = refusal(path, settings)
            if why is not None:
                called = what.format(file if file == real else f"{file} ({real})")
                raise UsageError(f"{target.name}: {called} {why}; {cure}")


def _in_place(file: Path) -> Path:
    """Return a path whose folders are not links; the file itself may be one."""
    return file.parent.resolve() / file.name


def _files(program: Path, target: Target) -> tuple[Path, ...]:
    """Return the files of a command: its program, its interpreter, and the arguments that are files."""
    files = (program, program.resolve(), *_named_files(target), *_interpreters(program))
    return tuple(dict.fromkeys(files))


def _named_files(target: Target) -> tuple[Path, ...]:
    """Return the arguments of a command that are files."""
    # Not `Path.is_file`, which raises for a word that is too long for a name, such as a script.
    words = (word for word in target.command[1:] if os.path.isfile(target.folder / word))
    return tuple((target.folder / word).absolute() for word in words)


def _packages(file: Path) -> tuple[Path, ...]:
    """Return the folders of installed packages that a program belongs to.

    A Node program lies in `node_modules`; Python in a virtual environment, which has a base interpreter.
    """
    real = file.resolve()
    node = tuple(parent for parent in real.parents if parent.name == "node_modules")[-1:]
    environment = file.parent.parent
    if not (environment / "pyvenv.cfg").is_file():
        return node
    base = real.parent.parent
    # Only if it is an interpreter's folder: a link in the environment may lead into a private folder.
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
    """Return a command with absolute paths for arguments that are files: its working folder is its home.

    Arguments that lie in a lent folder, or are links into one, are made absolute, too.
    """

    def absolute(word: str) -> str:
        path = folder / word
        is_named = os.path.isfile(path) or (
            os.path.exists(path) and any(within(Path(os.path.realpath(path)), top) for top in lent)
        )
        return str(path.absolute()) if is_named else word

    return [command[0], *map(absolute, command[1:])]


def fetches(target: Target, settings: ExecutionSettings) -> bool:
    """Return whether a command may fetch packages: with `--allow-fetch`, or a known fetcher with network."""
    return settings.allow_fetch or (bool(settings.rights().network) and _fetcher(target) is not None)


def package_folder(target: Target, settings: ExecutionSettings, segment: str, uid: int | None) -> Path:
    """Return the folder of one server's packages; create it if it is missing.

    Args:
        target: The server.
        settings: The effective settings.
        segment: The folder name of its user.
        uid: User and group id of the server; None for those of this process.

    Raises:
        OSError: The folder cannot be created.
    """
    source = "" if target.source is None else str(target.source)
    identity = json.dumps([source, target.name, str(target.folder), target.command])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    # By user id: files of another could be neither read nor replaced.
    owner = os.geteuid() if uid is None else uid
    names = (segment, f"{target.name}-{digest}-{owner}")
    make_folder(settings.packages_path, *names)
    folder = settings.packages_path.joinpath(*names)
    if uid is not None:
        os.chown(folder, uid, uid, follow_symlinks=False)
    return folder


def package_variables(folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which package managers store everything in one folder.

    Those of `variables` that name CA certificates within system folders are among them.
    """
    return {
        **{name: variables[name] for name in _AUTHORITIES if of_the_system(Path(variables.get(name) or "."))},
        "XDG_CACHE_HOME": str(folder / "cache"),
        "npm_config_cache": str(folder / "npm"),
        # npm's notice would hide the error in the stderr tail of a server that cannot start.
        "npm_config_update_notifier": "false",
        "BUN_INSTALL": str(folder / "bun"),
        "BUN_TMPDIR": str(folder / "bun" / "tmp"),
        "PIPX_HOME": str(folder / "pipx"),
        "UV_TOOL_DIR": str(folder / "tools"),
        "UV_PYTHON_INSTALL_DIR": str(folder / "python"),
        "UV_PROJECT_ENVIRONMENT": str(folder / "environment"),
        # No server writes bytecode, so all modules would be compiled at each start.
        "UV_COMPILE_BYTECODE": "1",
    }


def _fetcher(target: Target) -> str | None:
    """Return the words that make a command fetch packages, such as `npm exec`; None for any other command."""
    program = Path(target.command[0]).name
    subcommands = _FETCHERS.get(program)
    if subcommands is None:
        return None
    after_option = False
    for word in target.command[1:] if subcommands else ():
        if word in subcommands:
            return f"{program} {word}"
        is_option = word.startswith("-")
        # A word after an option may be its value: `uv --directory FOLDER run server`.
        if not is_option and not after_option:
            return None
        after_option = is_option
    return None if subcommands else program
