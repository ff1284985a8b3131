"""Policies of a user's pool: user id, scratch folder, and facts for its program.

They depend on the settings, the tool files and the tier; user pools differ only in user and access.

Source: requirements S1-46 to S1-49, S1-55 to S1-57 and S1-101.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from runner.errors import UsageError
from runner.homes.homes import USUAL_HOMES, HomeLease, Homes
from runner.homes.scratch import scratch_folder
from runner.settings.execution import ExecutionSettings
from runner.settings.isolation import unfit
from runner.system.worker_environment import (
    call_environment,
    homeless_environment,
    load_environment,
    planned_environment,
)
from runner.toolset.grants import readable
from runner.toolset.user_pool import HomeAccess
from runner.users.identity import User
from runner.worker.targets import EntryPoint, entry_of, split_target
from sandbox.errors import IsolationUnavailable, LoadError
from sandbox.policy import Policy
from sandbox.probe.machine import Tier
from sandbox.readable import Readable

__all__ = ["GUARD_ONLY", "PolicyBuilder", "aliases"]

GUARD_ONLY = ("landlock", "seccomp")
"""Layers that the tier `guard` omits, for a kernel without them. It protects nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyBuilder:
    """Policy parts that are equal for every user pool of a toolset.

    Attributes:
        settings: The effective settings.
        targets: The tool files, as given.
        homes: Where users' homes are made.
        environment: Environment of the forkserver.
        tier: Isolation tier of every call.
        lasting: Whether more than one call is expected.
    """

    settings: ExecutionSettings
    targets: tuple[str, ...]
    homes: Homes
    environment: Mapping[str, str]
    tier: Tier
    lasting: bool

    def policy(self, user: User | None, access: HomeAccess, home: HomeLease | None, scratch: Path) -> Policy:
        """Return the policy of this user's zygote. Reads the folder of the tool file."""
        found = self._readable()
        shown = (home.path,) if access is HomeAccess.READ and home is not None else ()
        name = user.name if user is not None else "nobody"
        limits = self.settings.widest_limits()
        environment = load_environment(self.environment, user=name, scratch=scratch)
        return Policy(
            home=home.path if home is not None and access is HomeAccess.WRITE else None,
            aliases=aliases(home) if access is HomeAccess.WRITE else (),
            scratch=scratch,
            read=(*found.read, *(path.resolve() for path in shown)),
            names=(*found.names, *shown),
            homes=(self.settings.homes,),
            list_only=found.list_only,
            environment={**planned_environment(limits), **environment},
            limits=limits,
            closed_ports=self.settings.closed_ports,
            namespaces=self.tier is Tier.NAMESPACE,
            hidden=self.settings.private_paths,
            guard=True,
            without=self._left_out(),
        )

    def _left_out(self) -> tuple[str, ...]:
        """Return the layers that the tier omits: none, except for `--isolation guard`."""
        return GUARD_ONLY if self.tier is Tier.GUARD else ()

    @contextmanager
    def uid(self, segment: str) -> Iterator[int | None]:
        """Hold the user id that the tier assigns to the processes of a user, or of nobody, if any.

        Raises:
            IsolationUnavailable: A process of that user id could not read the tool files.
            LoadError: One of them is not a tool file any more.
        """
        uids = self.homes.uids
        if uids is None:
            yield None
            return
        with nullcontext(uids.of(segment)) if segment else uids.of_nobody() as uid:
            # In the tier with user ids, access to the interpreter was checked before.
            more = (Path(sys.executable),) if self.tier is Tier.PROCESS else ()
            files = [entry.file for entry in self._entries()]
            closed = unfit(self.tier, [*files, *more], self.settings)
            if closed is not None:
                raise IsolationUnavailable((closed,))
            yield uid

    def config(
        self, user: User | None, access: HomeAccess, home: HomeLease | None, scratch: Path
    ) -> dict[str, object]:
        """Return the configuration of its program."""
        name = user.name if user is not None else "nobody"
        if home is not None and access is HomeAccess.WRITE:
            environment = call_environment(user=name, home=home.path)
        else:
            environment = homeless_environment(user=name, empty=scratch / "empty")
        return {
            "files": list(self.targets),
            "call_environment": environment,
            "lasting": self.lasting,
            # With reused workers, only a user's first call would be faster, and each spare would be larger.
            "rehearses": self.lasting and self.settings.reuse.calls == 1,
        }

    def _entries(self) -> list[EntryPoint]:
        """Return the current tool files: a link may have changed since the start.

        Raises:
            LoadError: One of them is not a tool file any more.
        """
        try:
            return [entry_of(target) for target in self.targets]
        except UsageError as error:
            raise LoadError(str(error)) from error

    def _readable(self) -> Readable:
        entries = self._entries()
        found = readable(
            self.settings,
            beside=[file for entry in entries for file in entry.beside],
            files=[file for entry in entries for file in (entry.file, entry.config) if file is not None],
            extra=(Path(__file__).parents[1],),
        )
        # Under their given names, too: a link to a file must exist in the sandbox as well.
        called = (*(entry.named for entry in entries), *(Path(split_target(t)[0]) for t in self.targets))
        return found._replace(names=(*found.names, *called))

    def scratch(self, owner: int | None) -> AbstractContextManager[Path]:
        """Make its scratch folder, which is removed at the end; `owner` is the user id from `uid`."""
        return scratch_folder(self.settings.homes, owner=owner)


def aliases(home: HomeLease | None) -> tuple[Path, ...]:
    """Return the home's alias for tools that name `/tmp/{username}/`, if the home is elsewhere."""
    usual = None if home is None else USUAL_HOMES / home.segment
    return () if usual is None or home is None or usual == home.path else (usual,)
