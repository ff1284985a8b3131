"""Tables of denied and inspected system calls, with their numbers for each architecture.

Each name is used by the filter. None: this architecture never had that call.

Source: linux arch/x86/entry/syscalls/syscall_64.tbl; include/uapi/asm-generic/unistd.h for aarch64.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = [
    "ARCHITECTURES",
    "ATTRIBUTES",
    "CHANGED_MODE",
    "DENIED",
    "NEWEST",
    "SIGNALS",
    "TIMES",
    "Architecture",
    "present_architecture",
]

# file_setattr, Linux 6.17. Newer calls fail with ENOSYS in a confined process.
NEWEST = 469

# Fail with EPERM whatever the arguments.
_DENIED: Mapping[str, tuple[int, int | None]] = {
    # Access to other processes.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    # Programs, queues and keys inside the kernel: large attack surface, no honest use in a tool. io_setup
    # also uses up a fixed quota of the whole machine.
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_setup": (206, 0),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "lsm_set_self_attr": (460, 460),
    # Namespaces and mounts; statmount and listmount reveal the names of mounted homes.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "unshare": (272, 97),
    "setns": (308, 268),
    # The machine as a whole, and obsolete calls.
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "vhangup": (153, 58),
    "lookup_dcookie": (212, 18),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "_sysctl": (156, None),
    "personality": (135, 92),
    # Opening files by handle, and watching access by others.
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27),
    # Memory and queues that outlive a process or escape its memory limit.
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "mq_timedsend": (242, 182),
    "mq_timedreceive": (243, 183),
    "mq_notify": (244, 184),
    "mq_getsetattr": (245, 185),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "vmsplice": (278, 75),
    # Page placement and flushing that slow others down.
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "ioprio_set": (251, 30),
    "sync": (162, 81),
    "syncfs": (306, 267),
    # Devices, owners and attributes, which Landlock does not govern.
    "mknod": (133, None),
    "mknodat": (259, 33),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}
# Reading attributes by path, which Landlock does not govern; reading them by descriptor is allowed.
_ATTRIBUTES: Mapping[str, tuple[int, int | None]] = {
    "getxattr": (191, 8),
    "lgetxattr": (192, 9),
    "getxattrat": (464, 464),
    "listxattr": (194, 11),
    "llistxattr": (195, 12),
    "listxattrat": (465, 465),
}
# Return success without effect.
_CHANGED_MODE: Mapping[str, tuple[int, int | None]] = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
}
# Fail with EPERM where times of unwritable files could be set.
_TIMES: Mapping[str, tuple[int, int | None]] = {
    "utime": (132, None),
    "utimes": (235, None),
    "utimensat": (280, 88),
    "futimesat": (261, None),
}
# Fail with EPERM where Landlock cannot confine signals.
_SIGNALS: Mapping[str, tuple[int, int | None]] = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}
# Inspected for their arguments.
_JUDGED: Mapping[str, tuple[int, int | None]] = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "timer_create": (222, 107),
    "setsid": (112, 157),
    "setpgid": (109, 154),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "setpriority": (141, 140),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "ioctl": (16, 29),
    "fcntl": (72, 25),
    "close_range": (436, 436),
    "mmap": (9, 222),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    "setsockopt": (54, 208),
    "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445),
    "seccomp": (317, 277),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115),
    "renameat2": (316, 276),
}

DENIED = tuple(_DENIED)
ATTRIBUTES = tuple(_ATTRIBUTES)
CHANGED_MODE = tuple(_CHANGED_MODE)
SIGNALS = tuple(_SIGNALS)
TIMES = tuple(_TIMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One architecture the filter can be built for.

    Attributes:
        name: As `uname -m` prints it.
        audit: Its AUDIT_ARCH number, which the kernel hands to the filter.
        numbers: Number of each system call of this module that exists on it.
        foreign_bit: Bit of a call number that marks another calling convention (x32), or 0.
    """

    name: str
    audit: int
    numbers: Mapping[str, int]
    foreign_bit: int

    def number(self, name: str) -> int:
        """Return the number of a call that every architecture has."""
        return self.numbers[name]

    def known(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """Return the numbers of those of `names` that this architecture has."""
        return tuple(self.numbers[name] for name in names if name in self.numbers)


_TABLE = {**_DENIED, **_ATTRIBUTES, **_CHANGED_MODE, **_TIMES, **_SIGNALS, **_JUDGED}

ARCHITECTURES = (
    Architecture(
        name="x86_64",
        audit=0xC000_003E,
        numbers=MappingProxyType({name: numbers[0] for name, numbers in _TABLE.items()}),
        foreign_bit=0x4000_0000,
    ),
    Architecture(
        name="aarch64",
        audit=0xC000_00B7,
        numbers=MappingProxyType(
            {name: numbers[1] for name, numbers in _TABLE.items() if numbers[1] is not None}
        ),
        foreign_bit=0,
    ),
)


def present_architecture() -> Architecture | None:
    """Return the architecture of this process, or None if the filter has no numbers for it."""
    # A 32-bit interpreter on a 64-bit kernel uses another system call table.
    if sys.maxsize <= 2**32:
        return None
    machine = os.uname().machine
    return next((known for known in ARCHITECTURES if known.name == machine), None)
