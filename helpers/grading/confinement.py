"""Confine a process before it runs a submission: limit its namespaces, privileges, system calls and resources.

bubblewrap confines the programs it starts. This module lets a forked process confine itself in the same way. No package
offers this: bubblewrap's --seccomp and libseccomp's bindings only filter new programs, and restarting Python
and PyTorch would take longer than the grading.
"""

import ctypes
import os
import platform
import resource
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass

NOBODY = 65534
ROOM = 1 << 30  # bytes of address space beyond data: libraries, and stacks and heaps of threads, mostly empty


@dataclass(frozen=True)
class Allowance:
    """Resource limits for a process.

    Args:
        memory: bytes of data that it may have; with ROOM, also the limit on added address space, which bounds shared
            memory, because that does not count as data.
        processor_time: seconds.
        file: size in bytes of the largest file that it may write.
        files: the maximum number of descriptors.
    """

    memory: int
    processor_time: int
    file: int
    files: int


PROCESSES = 4096  # and threads, of the user that a sandbox's are, in all its sandboxes
KERNEL = Allowance(memory=2 << 30, processor_time=120, file=0, files=512)
REPLAY = Allowance(memory=4 << 30, processor_time=300, file=64 << 20, files=64)
JUDGE = Allowance(memory=8 << 30, processor_time=86400, file=256 << 20, files=256)

# Linux system calls that nothing here has a use for: System V and anonymous shared memory (which no limit counts),
# namespaces, other processes' insides, the kernel's keys and programs.
NEW_PROCESSES = {"x86_64": (57, 58), "aarch64": ()}  # fork, vfork; clone is for threads
DENIED = {
    "x86_64": (
        *(29, 64, 68, 319, 447),  # shmget, semget, msgget, memfd_create, memfd_secret
        *(272, 308, 155, 165, 166, 101, 310, 311),  # unshare, setns, pivot_root, mount, umount2, ptrace, process_vm_*
        *(
            248,
            249,
            250,
            321,
            298,
            323,
            425,
            426,
            427,
        ),  # add_key, request_key, keyctl, bpf, perf, userfaultfd, io_uring
    ),
    "aarch64": (
        *(194, 190, 186, 279, 447),
        *(97, 268, 41, 40, 39, 117, 270, 271),
        *(217, 218, 219, 280, 241, 282, 425, 426, 427),
    ),
}
# And those with which it could fill a disk, or its folder on the host, with empty files: mkdir, mknod, creat, symlink,
# link, openat2 (whose flags are in memory), bind (a socket in the file system); open where it may make a file.
MAKE_FILES = {
    "x86_64": (83, 258, 133, 259, 85, 88, 266, 86, 265, 437, 49),
    "aarch64": (34, 33, 36, 37, 437, 200),
}
OPEN = {"x86_64": {2: 1, 257: 2}, "aarch64": {56: 2}}  # open and openat: which argument holds the flags
# Sockets of the file system, and of the Internet and its settings, for which a sandbox has its own namespace. Others,
# such as those between a virtual machine and its host (AF_VSOCK), know no namespace.
SOCKET = {"x86_64": 41, "aarch64": 198}
FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_CLONE_THREAD = 0x00010000

# From Linux's headers: sched.h, prctl.h, seccomp.h, capability.h.
_USER, _PID, _NETWORK, _MOUNTS, _IPC, _HOST, _CGROUP = (
    *(0x10000000, 0x20000000, 0x40000000, 0x00020000, 0x08000000, 0x04000000, 0x02000000),
)
_ALL_NAMESPACES = _USER | _PID | _NETWORK | _MOUNTS | _IPC | _HOST | _CGROUP
_CAPBSET_DROP, _NO_NEW_PRIVS, _CHILD_SUBREAPER = 24, 38, 36
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_FILTER, _ALL_THREADS = 1, 1
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_char_p))


def call(name: str, *arguments) -> None:
    """Call a function of the C library; OSError where it fails."""
    long = [ctypes.c_ulong(each) if isinstance(each, int) else each for each in arguments]
    if getattr(_libc, name)(*long) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def enter(process: int) -> None:
    """Enter all namespaces of a process, given its descriptor (pidfd); children enter its PID namespace.

    Raises:
        OSError: Linux is older than 5.8, or forbids it.
    """
    # A sandbox made by root stays in root's user namespace: in a new one, root would still be root to /proc/sys.
    call("setns", process, _ALL_NAMESPACES if os.getuid() else _ALL_NAMESPACES & ~_USER)


def adopt_orphans() -> None:
    """Become the parent of this process's orphaned descendants, in any namespace."""
    call("prctl", _CHILD_SUBREAPER, 1, 0, 0, 0)


def limit_resources(limits: Allowance) -> None:
    with open("/proc/self/statm") as pages:
        used = int(pages.read().split()[0]) * resource.getpagesize()
    most = {
        resource.RLIMIT_DATA: limits.memory,
        resource.RLIMIT_AS: used + limits.memory + ROOM,
        resource.RLIMIT_CPU: limits.processor_time,
        resource.RLIMIT_FSIZE: limits.file,
        resource.RLIMIT_NOFILE: limits.files,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: PROCESSES,
    }
    for limit, value in most.items():
        resource.setrlimit(limit, (value, value))


def give_up_privileges() -> None:
    """Drop all capabilities for good: no program it runs and no new user namespace can regain them.

    If root is grading, this process becomes the user nobody. That user can't write root's files or /proc/sys.
    """
    with open("/proc/sys/kernel/cap_last_cap") as last:
        for capability in range(int(last.read()) + 1):
            call("prctl", _CAPBSET_DROP, capability, 0, 0, 0)
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    call("prctl", _NO_NEW_PRIVS, 1, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    call("capset", ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))


def filter_system_calls(program: bytes) -> None:
    """Make the kernel refuse a filter's system calls in all threads of this process, permanently."""
    filtered = ctypes.byref(_Filter(len(program) // 8, program))
    # prctl would filter this thread alone.
    call("syscall", _SECCOMP[platform.machine()], _SET_FILTER, _ALL_THREADS, filtered)


_LOAD, _EQUAL, _ANY, _ABOVE, _GIVE = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_EPERM, _ENOSYS = 1, 38


def denied_filter(processes: bool = False) -> bytes:
    """Return a filter, in the kernel's BPF, that answers the DENIED system calls with an error.

    clone3 passes its flags in memory, so it fails with ENOSYS and the C library falls back to clone.

    Args:
        processes: whether new processes are allowed, or only threads; new namespaces never are.
    """
    machine = platform.machine()
    program = [
        (_LOAD, 0, 0, 4),  # the architecture: other tables of system calls are not served
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_GIVE, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),  # the number
        (_ABOVE, 0, 1, 0x40000000),  # x32's numbers
        (_GIVE, 0, 0, _ERROR | _ENOSYS),
        (_EQUAL, 0, 1, _CLONE3),
        (_GIVE, 0, 0, _ERROR | _ENOSYS),
        (_EQUAL, 0, 4, _CLONE[machine]),
        (_LOAD, 0, 0, 16),  # its flags, in the low half of the first argument
        (_ANY, 1, 0, _ALL_NAMESPACES) if processes else (_ANY, 0, 1, _CLONE_THREAD),
        (_GIVE, 0, 0, _ALLOW),
        (_GIVE, 0, 0, _ERROR | _EPERM),
        (_EQUAL, 0, 3 + len(FAMILIES), SOCKET[machine]),
        (_LOAD, 0, 0, 16),  # its family
        *((_EQUAL, len(FAMILIES) - place, 0, family) for place, family in enumerate(FAMILIES)),
        (_GIVE, 0, 0, _ERROR | _EPERM),
        (_GIVE, 0, 0, _ALLOW),
    ]
    return assembled(program + refusals(DENIED[machine] + (() if processes else NEW_PROCESSES[machine])))


def no_new_files_filter() -> bytes:
    """Return a filter that stops a process, filtered as above, from creating a named file, folder or socket."""
    machine = platform.machine()
    program = [(_LOAD, 0, 0, 0)]
    for number, place in OPEN[machine].items():
        program += [
            (_EQUAL, 0, 4, number),
            (_LOAD, 0, 0, 16 + 8 * place),
            (_ANY, 0, 1, os.O_CREAT),
            (_GIVE, 0, 0, _ERROR | _EPERM),
            (_GIVE, 0, 0, _ALLOW),
        ]
    return assembled(program + refusals(MAKE_FILES[machine]))


def refusals(numbers: Iterable[int]) -> list[tuple[int, int, int, int]]:
    """Return instructions that answer these system calls with EPERM and let all others through."""
    return [each for number in numbers for each in ((_EQUAL, 0, 1, number), (_GIVE, 0, 0, _ERROR | _EPERM))]


def assembled(program: list[tuple[int, int, int, int]]) -> bytes:
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in [*program, (_GIVE, 0, 0, _ALLOW)])
