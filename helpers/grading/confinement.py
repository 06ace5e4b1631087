"""What a process gives up before it runs a submission: its namespaces, privileges, system calls, abundance.

bubblewrap confines the programs that it starts. A process that was forked into a sandbox does here what bubblewrap
would have done for it.
"""

import ctypes
import os
import platform
import resource
import struct

MEMORY = 2 << 30  # bytes of data a submission's kernel may have
ADDRESSES = 8 << 30  # bytes of address space, of which PyTorch's libraries take some
PROCESSOR_TIME = 120  # seconds
LIMITS = {
    resource.RLIMIT_FSIZE: 0,  # no byte to any file: there is no disk to fill
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_NOFILE: 512,
    resource.RLIMIT_CPU: PROCESSOR_TIME,
    resource.RLIMIT_DATA: MEMORY,
    resource.RLIMIT_AS: ADDRESSES,
}

# Linux system calls that a submission's kernel has no use for: new processes, System V and anonymous shared memory
# (which no limit counts), namespaces, other processes' insides, the kernel's keys and programs. clone is for threads.
DENIED = {
    "x86_64": (
        *(57, 58),  # fork, vfork
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
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_CLONE_THREAD = 0x00010000

# From Linux's headers: sched.h, prctl.h, seccomp.h, capability.h.
_USER, _PID, _NETWORK, _MOUNTS, _IPC, _HOST, _CGROUP = (
    *(0x10000000, 0x20000000, 0x40000000, 0x00020000, 0x08000000, 0x04000000, 0x02000000),
)
_ALL_NAMESPACES = _USER | _PID | _NETWORK | _MOUNTS | _IPC | _HOST | _CGROUP
_CAPBSET_DROP, _NO_NEW_PRIVS, _CHILD_SUBREAPER, _SECCOMP, _SECCOMP_MODE_FILTER = 24, 38, 36, 22, 2
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
    """Enter every namespace of a process, of which `process` is a descriptor (pidfd); children enter that of PIDs.

    Raises:
        OSError: Linux is older than 5.8, or forbids it.
    """
    call("setns", process, _ALL_NAMESPACES)


def adopt_orphans() -> None:
    """Become the parent of what this process's children leave behind, in whatever namespace."""
    call("prctl", _CHILD_SUBREAPER, 1, 0, 0, 0)


def limit_resources() -> None:
    for limit, most in LIMITS.items():
        resource.setrlimit(limit, (most, most))


def give_up_privileges() -> None:
    """No capability now or later: not by any program that is run, nor by a new user namespace."""
    call("prctl", _NO_NEW_PRIVS, 1, 0, 0, 0)
    with open("/proc/sys/kernel/cap_last_cap") as last:
        for capability in range(int(last.read()) + 1):
            call("prctl", _CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    call("capset", ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))


def filter_system_calls() -> None:
    """Let the kernel refuse what `seccomp_filter` lists, from now on."""
    program = seccomp_filter()
    call("prctl", _SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(_Filter(len(program) // 8, program)), 0, 0)


def seccomp_filter() -> bytes:
    """A filter, in the kernel's BPF, that answers the denied system calls with an error.

    clone makes threads alone (CLONE_THREAD); clone3 hides its flags in memory and is answered with ENOSYS, at which
    the C library falls back to clone.
    """
    machine = platform.machine()
    load, jump_equal, jump_set, jump_above, give = 0x20, 0x15, 0x45, 0x35, 0x06
    allow, error, kill = 0x7FFF0000, 0x00050000, 0x80000000
    eperm, enosys = 1, 38
    program = [
        (load, 0, 0, 4),  # the architecture: other tables of system calls are not served
        (jump_equal, 1, 0, _AUDIT_ARCH[machine]),
        (give, 0, 0, kill),
        (load, 0, 0, 0),  # the number
        (jump_above, 0, 1, 0x40000000),  # x32's numbers
        (give, 0, 0, error | enosys),
        (jump_equal, 0, 1, _CLONE3),
        (give, 0, 0, error | enosys),
        (jump_equal, 0, 4, _CLONE[machine]),
        (load, 0, 0, 16),  # its flags: the low half of the first argument
        (jump_set, 0, 1, _CLONE_THREAD),
        (give, 0, 0, allow),
        (give, 0, 0, error | eperm),
    ]
    for number in DENIED[machine]:
        program += [(jump_equal, 0, 1, number), (give, 0, 0, error | eperm)]
    program.append((give, 0, 0, allow))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
