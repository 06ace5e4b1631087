"""The sandbox, made by bubblewrap: what a process in it can see and use.

It sees the system, this Python and the course's helpers and kernels, read-only, and a few files that it is given. It
has no network, no other process, no home, no environment. A submission's kernel moreover can start no process, write
no byte to any file, and has bounds on memory and on processor time; it talks through sockets in a folder of its own.

Raises:
    RuntimeError: there is no working bubblewrap; one line, with the remedy. Nothing is graded then.
"""

import contextlib
import functools
import json
import os
import platform
import shlex
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import zmq
from jupyter_client.provisioning import LocalProvisioner
from traitlets import Unicode

import helpers
from helpers.doctor import bubblewrap

KERNEL_NAME = "fusion-sandbox"
MEMORY = 2 << 30  # bytes of data a submission's kernel may have
ADDRESSES = 8 << 30  # bytes of address space, of which PyTorch's libraries take some
PROCESSOR_TIME = 120  # seconds
SCRATCH = 256 << 20  # bytes of /tmp
STARTUP = "/tmp/.ipython/profile_default/startup"
MOST_MESSAGE = 64 << 20  # bytes of one message from a kernel; a longer one is dropped, unread

# Linux system calls that a submission's kernel has no use for: new processes, System V and anonymous shared memory
# (which no limit counts), namespaces, other processes' insides, the kernel's keys and programs. clone is for threads.
_DENIED = {
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


@functools.cache
def require_sandbox() -> None:
    """Raise RuntimeError where this machine cannot sandbox."""
    if platform.machine() not in _DENIED:
        raise RuntimeError(f"grading needs x86-64 or aarch64, this is {platform.machine()}: grade on another machine")
    finding = bubblewrap()
    if finding.remedy:
        raise RuntimeError(f"nothing is graded without a sandbox; bubblewrap is {finding.state}: {finding.remedy}")


def command(inside: list[str], seen: list[Path], written: list[Path], limits: str, seccomp: Path | None) -> list[str]:
    """The command that runs `inside` in the sandbox.

    Args:
        inside: program and arguments.
        seen: files and folders to read, at their own paths.
        written: folders to write to.
        limits: shell commands (ulimit) that run first.
        seccomp: a file with a filter of system calls.
    """
    args = "bwrap --unshare-user --unshare-all --disable-userns --cap-drop ALL --uid 65534 --gid 65534".split()
    args += "--die-with-parent --new-session --clearenv --hostname sandbox".split()
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        folder = Path("/", name)
        if folder.is_symlink():
            args += ["--symlink", os.readlink(folder), str(folder)]
        elif folder.exists():
            args += ["--ro-bind", str(folder), str(folder)]
    args += "--ro-bind /usr /usr --ro-bind-try /etc/ld.so.cache /etc/ld.so.cache --proc /proc --dev /dev".split()
    args += ["--size", "4096", "--tmpfs", "/dev/shm", "--size", str(SCRATCH), "--tmpfs", "/tmp", "--dir", STARTUP]
    course = [Path(helpers.__file__).resolve().parents[1] / package for package in ("helpers", "kernels")]
    for path in (*map(Path, dict.fromkeys((sys.base_prefix, sys.prefix))), *course, *seen):
        if not path.is_relative_to("/usr"):
            args += ["--ro-bind", str(path), str(path)]
    for path in written:
        args += ["--bind", str(path), str(path)]
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(course[0].parent),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "TRITON_CACHE_DIR": "/tmp/triton",
    }
    for name, value in environment.items():
        args += ["--setenv", name, value]
    args += ["--remount-ro", "/dev", "--chdir", "/tmp"]
    opened = ""
    if seccomp:
        args += ["--seccomp", "9"]
        opened = f" 9<{shlex.quote(str(seccomp))}"
    args += ["sh", "-c", f'{limits}; exec "$@"', "sh", *inside]
    return ["sh", "-c", f"exec {shlex.join(args)}{opened}"]


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
    for number in _DENIED[machine]:
        program += [(jump_equal, 0, 1, number), (give, 0, 0, error | eperm)]
    program.append((give, 0, 0, allow))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


LIMITS = "; ".join(
    [
        f": >{STARTUP}/README",  # IPython would copy its own there, and no byte can be written
        "ulimit -f 0",  # no byte to any file: there is no disk to fill
        "ulimit -c 0",
        "ulimit -n 512",
        f"ulimit -t {PROCESSOR_TIME}",
        f"ulimit -d {MEMORY >> 10}",
        f"ulimit -v {ADDRESSES >> 10}",
    ]
)


class SandboxProvisioner(LocalProvisioner):
    """Starts a Jupyter kernel in the sandbox; a kernelspec names it, as jupyter_client has it.

    Attributes:
        seen: a file that the kernel may read.
    """

    seen = Unicode(config=True)

    async def pre_launch(self, **kwargs):
        manager = self.parent
        # A socket's path has 107 bytes at most, which a long TMPDIR would exceed.
        self._folder = tempfile.TemporaryDirectory(prefix="fusion-", dir="/tmp")
        folder = Path(self._folder.name)
        sockets = folder / "kernel"
        sockets.mkdir()
        manager.transport, manager.ip = "ipc", str(sockets / "s")
        manager.connection_file = str(sockets / "connection.json")
        manager.context.setsockopt(zmq.MAXMSGSIZE, MOST_MESSAGE)
        kwargs = await super().pre_launch(**kwargs)
        seccomp = folder / "seccomp"
        seccomp.write_bytes(seccomp_filter())
        options = ["--HistoryManager.enabled=False", "--IPKernelApp.log_level=ERROR"]
        kwargs["cmd"] = command(
            [*kwargs["cmd"], *options], [Path(self.seen)], [sockets], limits=LIMITS, seccomp=seccomp
        )
        # What a process writes past Jupyter must not reach the instructor's terminal.
        return kwargs | {"cwd": "/", "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}

    async def cleanup(self, restart: bool = False):
        await super().cleanup(restart=restart)
        if hasattr(self, "_folder") and not restart:
            self._folder.cleanup()


@contextlib.contextmanager
def kernelspecs(folder: Path, seen: Path):
    """Let Jupyter find no kernel but the sandboxed one, described in `folder`; it may read the file `seen`."""
    # tempfile would look for a folder by writing into it.
    start = (
        "import tempfile; tempfile.tempdir = '/tmp'; from ipykernel import kernelapp; kernelapp.launch_new_instance()"
    )
    spec = {
        "argv": [sys.executable, "-c", start, "-f", "{connection_file}"],
        "display_name": "Python in the sandbox",
        "language": "python",
        "metadata": {"kernel_provisioner": {"provisioner_name": KERNEL_NAME, "config": {"seen": str(seen)}}},
    }
    place = folder / "kernels" / KERNEL_NAME
    place.mkdir(parents=True)
    (place / "kernel.json").write_text(json.dumps(spec))
    with mock.patch.dict(os.environ, JUPYTER_PATH=str(folder)):
        yield
