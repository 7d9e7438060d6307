"""The system calls that a sandboxed program may not make, as a filter for bubblewrap's `--seccomp`.

The filter is classic BPF (Linux, Documentation/userspace-api/seccomp_filter.rst): 8 bytes an
instruction, run on every call. It denies what escapes from the sandbox's limits or reaches deep
into the kernel: namespaces, mounts, tracing, System V and POSIX message queues and shared memory
that no limit counts, keys, BPF, io_uring, modules, clocks, and sockets that are neither of the
machine itself nor of the internet protocols (the sandbox has no network anyway). All else is
allowed: a program is a process like any other, in a file system of its own.
"""

import errno
import functools
import platform
import struct

# Name -> its number on x86-64 and on 64-bit ARM; None where the machine has no such call. Numbers
# from 424 on are the same everywhere.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "fanotify_init": (300, 262),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "seccomp": (317, 277),
    "personality": (135, 92),
    "modify_ldt": (154, None),
    "iopl": (172, None),
    "ioperm": (173, None),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "syslog": (103, 116),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "adjtimex": (159, 171),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "vmsplice": (278, 75),
}
_CLONE, _CLONE3 = (56, 220), (435, 435)
_SOCKETS = ((41, 198), (53, 199))  # socket, socketpair
_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, then NEWUSER, NEWPID and NEWNET together.
_NEW_NAMESPACE = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x70000000
_X32 = 0x40000000  # numbers of the x86-64 kernel's second table of calls
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7), "arm64": (1, 0xC00000B7)}

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _fail(number: int) -> bytes:
    return _instruction(_RETURN, _ERROR | number)


@functools.cache
def denying_filter(machine: str = "") -> bytes | None:
    """The filter's bytes for a machine (of `platform.machine()`; this one by default), None if its
    numbers are not known here."""
    if (machine or platform.machine()) not in _MACHINES:
        return None
    column, architecture = _MACHINES[machine or platform.machine()]
    parts = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_EQUAL, architecture, if_true=1),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
    ]
    if column == 0:
        parts += [_instruction(_AT_LEAST, _X32, if_false=1), _fail(errno.ENOSYS)]
    for numbers in _DENIED.values():
        number = numbers[column]
        if number is not None:
            parts += [_instruction(_EQUAL, number, if_false=1), _fail(errno.EPERM)]
    # Its flags lie in memory, which a filter cannot read; the C library then uses clone.
    parts += [_instruction(_EQUAL, _CLONE3[column], if_false=1), _fail(errno.ENOSYS)]
    parts += [
        _instruction(_EQUAL, _CLONE[column], if_false=4),
        _instruction(_LOAD, _FIRST_ARGUMENT),
        _instruction(_ANY_BIT, _NEW_NAMESPACE, if_false=1),
        _fail(errno.EPERM),
        _instruction(_RETURN, _ALLOW),
    ]
    for numbers in _SOCKETS:
        parts += [
            _instruction(_EQUAL, numbers[column], if_false=len(_FAMILIES) + 3),
            _instruction(_LOAD, _FIRST_ARGUMENT),
        ]
        for place, family in enumerate(_FAMILIES):
            parts.append(_instruction(_EQUAL, family, if_true=len(_FAMILIES) - place))
        parts += [_fail(errno.EAFNOSUPPORT), _instruction(_RETURN, _ALLOW)]
    parts.append(_instruction(_RETURN, _ALLOW))
    return b"".join(parts)
