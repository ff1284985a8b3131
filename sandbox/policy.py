"""Everything one worker may touch, as a frozen value. Anything not named is denied.

A policy is made by the host, sent to the zygote as JSON, and put in place before any code
of the tool author runs.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

__all__ = ["MIB", "Limits", "Policy"]

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Resource limits of one worker.

    Attributes:
        memory_bytes: Private writable memory of each process, beyond that inherited from the zygote.
        call_memory_bytes: Memory of all processes of one call together, shared memory counted once.
        cpu_s: Processor seconds of each process.
        file_bytes: Largest file a process may write.
        home_bytes: Disk usage of a home, including open unlinked files.
        home_entries: Files and folders of a home.
        open_files: File descriptors of each process.
        call_processes: Processes and threads of one call.
        frame_bytes: Largest single frame the host accepts from the worker.
        output_bytes: Standard output and error of one call that the host keeps; the rest is dropped.
        processes: Processes and threads of a zygote and all its calls together, if they have a user id
            of their own or a cgroup.
        total_memory_bytes: Memory of a zygote and all its calls together, if they have a cgroup.
    """

    memory_bytes: int = 2048 * MIB
    call_memory_bytes: int = 4096 * MIB
    cpu_s: int = 600
    file_bytes: int = 51_200 * MIB
    home_bytes: int = 131_072 * MIB
    home_entries: int = 100_000
    open_files: int = 1024
    call_processes: int = 256
    frame_bytes: int = 64 * MIB
    output_bytes: int = 1 * MIB
    processes: int = 512
    total_memory_bytes: int = 4096 * MIB

    def __post_init__(self) -> None:
        # Not `asdict`, which copies: this runs several times in each call.
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"limit {name} must be positive, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Rights of one zygote and its workers.

    Attributes:
        home: The one folder a worker may write, or None for a worker that may write nothing.
        aliases: Other names of the home, linked to it if there are namespaces.
        scratch: Warm-up folder: writable while the program loads, read-only for workers.
        packages: Folder of fetched packages, written, executed and kept by its creator. Files in it get
            the modes that programs set. Requires namespaces.
        read: Hierarchies that may be read, listed and executed; a file counts as its own hierarchy. No
            component of a path is a link, so that no link can redirect a grant.
        homes: Folders that contain the homes of users; the guard explains denied reads there.
        list_only: Hierarchies whose folders may be listed, but files not read; no path component is a link.
        lent_read: Readable paths lent by an operator, like `read`.
        lent_write: Paths other than the home that an operator lends to read and write, without execution.
        names: Links that name readable or writable paths. They grant no right.
        programs: Whether other programs may be run, inside the same confinement.
        run: The only files that may be executed; if empty, all readable ones.
        reach: Numeric IP addresses and ports to which the host connects a worker on request.
            All other network access is denied.
        net: Further reachable destinations, as `sandbox.network.destinations` parses them.
        sockets: Whether the processes of a zygote may have UNIX sockets in the home, to reach only each
            other. Requires namespaces.
        shared_memory_bytes: Size of a /dev/shm of the zygote's own; 0 for none. Requires namespaces:
            elsewhere /dev/shm is shared with the machine.
        closed_ports: Ports that stay closed even if `net` allows them.
        environment: The whole environment of a worker.
        limits: Resource limits.
        uid: User and group id that the zygote takes before it loads the program, or None for the host's.
        gid: Separate group id, if the user id belongs to an account of this machine, whose other processes
            must not be counted.
        umask: The file mode creation mask of the zygote and its workers.
        namespaces: Whether the zygote has its own view of files, processes and the network. Paths not
            named here are then absent below `homes`, `hidden` and the folders without system files.
        hidden: Files and folders that are absent if there are namespaces.
        guard: Whether the Python patches explain denials. They never protect.
        renewable: Whether workers serve several calls for a host without CAP_SYS_RESOURCE, which renews their
            soft limits of processor time and memory for each call and could not raise hard ones.
        without: Layers left out, by the names of `sandbox.inside.confine.LAYERS`. Only the tier
            `guard` leaves any out, and tests that show what each layer stops.
    """

    home: Path | None = None
    aliases: tuple[Path, ...] = ()
    scratch: Path | None = None
    packages: Path | None = None
    read: tuple[Path, ...] = ()
    homes: tuple[Path, ...] = ()
    list_only: tuple[Path, ...] = ()
    lent_read: tuple[Path, ...] = ()
    lent_write: tuple[Path, ...] = ()
    names: tuple[Path, ...] = ()
    programs: bool = True
    run: tuple[Path, ...] = ()
    reach: tuple[tuple[str, int], ...] = ()
    net: tuple[str, ...] = ()
    sockets: bool = False
    shared_memory_bytes: int = 0
    closed_ports: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    uid: int | None = None
    gid: int | None = None
    umask: int = 0o077
    namespaces: bool = False
    hidden: tuple[Path, ...] = ()
    guard: bool = True
    renewable: bool = False
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        folders = self.own_folders
        lent = (*self.lent_read, *self.lent_write, *self.names, *self.aliases)
        for path in (*folders, *self.read, *self.homes, *self.list_only, *self.hidden, *self.run, *lent):
            if not path.is_absolute():
                raise ValueError(f"a policy names absolute paths only, got {str(path)!r}")
        if self.uid is not None and self.uid <= 0:
            raise ValueError(f"a user id of a zygote's own is positive, got {self.uid}")
        if self.sockets and not self.namespaces:
            # A process that can bind a name in the machine's network could impersonate one of its services.
            raise ValueError("sockets need namespaces: names of sockets are everybody's elsewhere")
        if self.shared_memory_bytes and not self.namespaces:
            raise ValueError("shared memory needs namespaces: /dev/shm is everybody's elsewhere")
        if self.packages is not None and not self.namespaces:
            # A filter cannot see the path of a chmod.
            raise ValueError("packages need namespaces: modes could be changed of any file elsewhere")
        if self.shared_memory_bytes < 0:
            raise ValueError(f"shared memory cannot have {self.shared_memory_bytes} bytes")

    @property
    def own_folders(self) -> tuple[Path, ...]:
        """Return the writable folders that only this zygote has."""
        return tuple(path for path in (self.home, self.scratch, self.packages) if path is not None)

    @property
    def has_own_id(self) -> bool:
        """True if only processes and files of the zygote's user have its user id."""
        return self.uid is not None and self.gid is None

    @property
    def is_gated(self) -> bool:
        """True if any connection is allowed, through the gate."""
        return self.has_network or self.sockets

    @property
    def has_network(self) -> bool:
        """True if any network destination may be reached."""
        return bool(self.reach or self.net)

    def to_json(self) -> dict[str, object]:
        """Return a JSON object from which `from_json` creates an equal policy."""
        return {
            "home": str(self.home) if self.home else None,
            "aliases": [str(path) for path in self.aliases],
            "scratch": str(self.scratch) if self.scratch else None,
            "packages": str(self.packages) if self.packages else None,
            "read": [str(path) for path in self.read],
            "homes": [str(path) for path in self.homes],
            "list_only": [str(path) for path in self.list_only],
            "lent_read": [str(path) for path in self.lent_read],
            "lent_write": [str(path) for path in self.lent_write],
            "names": [str(path) for path in self.names],
            "programs": self.programs,
            "run": [str(path) for path in self.run],
            "reach": [list(address) for address in self.reach],
            "net": list(self.net),
            "sockets": self.sockets,
            "shared_memory_bytes": self.shared_memory_bytes,
            "closed_ports": list(self.closed_ports),
            "environment": dict(self.environment),
            "limits": asdict(self.limits),
            "uid": self.uid,
            "gid": self.gid,
            "umask": self.umask,
            "namespaces": self.namespaces,
            "hidden": [str(path) for path in self.hidden],
            "guard": self.guard,
            "renewable": self.renewable,
            "without": list(self.without),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> "Policy":
        """Create a policy from the result of `to_json`.

        Raises:
            ValueError: A key is missing or a value has the wrong type.
        """
        try:
            return cls(
                home=_optional_path(data["home"]),
                aliases=_paths(data["aliases"]),
                scratch=_optional_path(data["scratch"]),
                packages=_optional_path(data["packages"]),
                read=_paths(data["read"]),
                homes=_paths(data["homes"]),
                list_only=_paths(data["list_only"]),
                lent_read=_paths(data["lent_read"]),
                lent_write=_paths(data["lent_write"]),
                names=_paths(data["names"]),
                programs=bool(data["programs"]),
                run=_paths(data["run"]),
                reach=_addresses(data["reach"]),
                net=_names(data["net"]),
                sockets=bool(data["sockets"]),
                shared_memory_bytes=_optional_integer(data["shared_memory_bytes"]) or 0,
                closed_ports=_ports(data["closed_ports"]),
                environment=_strings(data["environment"]),
                limits=Limits(**_integers(data["limits"])),
                uid=_optional_integer(data["uid"]),
                gid=_optional_integer(data["gid"]),
                umask=_optional_integer(data["umask"]) or 0,
                namespaces=bool(data["namespaces"]),
                hidden=_paths(data["hidden"]),
                guard=bool(data["guard"]),
                renewable=bool(data["renewable"]),
                without=_names(data["without"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a policy: {error}") from error


def _optional_path(value: object) -> Path | None:
    return None if value is None else Path(str(value))


def _optional_integer(value: object) -> int | None:
    if value is None or isinstance(value, int):
        return value
    raise TypeError("expected a number")


def _paths(value: object) -> tuple[Path, ...]:
    if not isinstance(value, list):
        raise TypeError("expected a list of paths")
    return tuple(Path(str(item)) for item in value)


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError("expected a list of names")
    return tuple(str(item) for item in value)


def _addresses(value: object) -> tuple[tuple[str, int], ...]:
    if not isinstance(value, list):
        raise TypeError("expected a list of addresses")
    return tuple((str(host), int(port)) for host, port in value)


def _ports(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise TypeError("expected a list of ports")
    return tuple(int(port) for port in value)


def _strings(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise TypeError("expected an object of strings")
    return {str(key): str(item) for key, item in value.items()}


def _integers(value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        raise TypeError("expected an object of integers")
    return {str(key): int(item) for key, item in value.items()}
