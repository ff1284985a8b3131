"""Keys in Redis. All begin with one name, so other programs can share the database."""

from dataclasses import dataclass

__all__ = ["RedisKeys"]


@dataclass(frozen=True, slots=True)
class RedisKeys:
    """The keys of a fleet.

    Attributes:
        fleet: Its name.
    """

    fleet: str

    @property
    def prefix(self) -> str:
        """Return what all of them begin with."""
        return f"{self.fleet}:"

    @property
    def freed(self) -> str:
        """Return the channel on which is said that a place has become free."""
        return f"{self.fleet}:freed"

    @property
    def eager(self) -> str:
        """Return what is there while a host waits for a place."""
        return f"{self.fleet}:eager"

    def queue(self, node: str) -> str:
        """Return the name of the docket from which a node takes calls."""
        return f"{self.fleet}:queue:{node}"

    def node(self, node: str) -> str:
        """Return where a node says that it is there; gone once it is silent."""
        return f"{self.fleet}:node:{node}"

    def nodes(self, release: str) -> str:
        """Return the set of nodes that serve a release."""
        return f"{self.fleet}:nodes:{release}"

    def load(self, node: str) -> str:
        """Return the set of calls that a node has, each with when its lease ends."""
        return f"{self.fleet}:load:{node}"

    def call(self, call: str) -> str:
        """Return where a call stands."""
        return f"{self.fleet}:call:{call}"

    def said(self, host: str) -> str:
        """Return the stream of what nodes say to a host."""
        return f"{self.fleet}:said:{host}"

    def told(self, node: str) -> str:
        """Return the stream of what hosts tell a node."""
        return f"{self.fleet}:told:{node}"

    def user(self, release: str, segment: str) -> str:
        """Return which node has the workers of a user."""
        return f"{self.fleet}:user:{release}:{segment}"

    def state(self, segment: str) -> str:
        """Return the session state that tools keep for a user."""
        return f"{self.fleet}:state:{segment}"

    def running(self, kind: str, whose: str = "") -> str:
        """Return the set of calls that count for a limit of calls at once."""
        return f"{self.fleet}:running:{kind}:{whose}"

    def rate(self, kind: str, whose: str = "") -> str:
        """Return what was used of a rate."""
        return f"{self.fleet}:rate:{kind}:{whose}"

    @property
    def sessions(self) -> str:
        """Return the sessions whose files end with them, by when each was last used."""
        return f"{self.fleet}:sessions"

    def session_uses(self, digest: str) -> str:
        """Return who uses such a session now."""
        return f"{self.fleet}:session-uses:{digest}"

    def session_end(self, digest: str) -> str:
        """Return what is there while a host ends such a session."""
        return f"{self.fleet}:session-end:{digest}"

    @property
    def events(self) -> str:
        """Return the channel on which is said what has become of files and lists."""
        return f"{self.fleet}:events"

    @property
    def waits_at(self) -> str:
        """Return at which node users wait whose worker is there."""
        return f"{self.fleet}:waits-at"

    def turns(self) -> tuple[str, str, str]:
        """Return who waits, when each last asked, and whose turn it is when."""
        return f"{self.fleet}:waiting", f"{self.fleet}:asked", f"{self.fleet}:turns"
