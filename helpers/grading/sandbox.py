"""The sandbox, built with bubblewrap: which files it sees, and its limits.

The sandbox sees the system, this Python, and the course's helpers and kernels, all read-only, plus a few files it's
given. It has no network, no other processes, no home directory and no environment. A submission's kernel also can't
start a process or write to a file, and its memory and processor time are limited. It communicates through sockets in a
folder of its own.

Raises:
    RuntimeError: bubblewrap doesn't work, so nothing is graded; one line, with the remedy.
"""

import contextlib
import functools
import json
import os
import platform
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import zmq
from jupyter_client.provisioning import LocalProvisioner
from traitlets import Int, Unicode

import helpers
from helpers.grading.confinement import DENIED, NOBODY
from helpers.instruments.diagnosis import bubblewrap

COURSE = Path(helpers.__file__).resolve().parents[1]
KERNEL_NAME = "fusion-sandbox"
START_TIME = 120.0  # seconds to import all, on a slow disk
SCRATCH = 256 << 20  # bytes of /tmp
STARTUP = "/tmp/.ipython/profile_default/startup"
MAX_MESSAGE = 16 << 20  # bytes of one part of a message from a kernel, beyond its results; a longer one is dropped
MAX_WAITING = 16  # messages from a kernel that are held, on each channel, until they are asked for


@functools.cache
def require_sandbox() -> None:
    """Raise RuntimeError if this machine can't sandbox."""
    if platform.machine() not in DENIED:
        raise RuntimeError(f"grading needs x86-64 or aarch64, this is {platform.machine()}: grade on another machine")
    finding = bubblewrap()
    if finding.remedy:
        raise RuntimeError(f"nothing is graded without a sandbox; bubblewrap is {finding.state}: {finding.remedy}")


def environment() -> dict[str, str]:
    """Return the environment variables of a process in the sandbox."""
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(COURSE),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "TRITON_CACHE_DIR": "/tmp/triton",
    }


def command(inside: list[str], seen: list[Path], written: list[Path], options: list[str]) -> list[str]:
    """Return the command that runs `inside` in the sandbox.

    Args:
        inside: program and arguments.
        seen: files and folders to read, at their own paths.
        written: folders to write to.
        options: further options for bubblewrap.
    """
    args = "bwrap --unshare-ipc --unshare-pid --unshare-net --unshare-uts --unshare-cgroup-try".split()
    # One capability, of no use in a namespace: Linux lets no process without it into the memory of one that has it. The
    # idle process has no limits, and the forks have no capability.
    args += "--cap-drop ALL --cap-add CAP_WAKE_ALARM".split()
    if os.getuid():
        args += "--unshare-user --disable-userns --uid 65534 --gid 65534".split()
    args += "--die-with-parent --new-session --clearenv --hostname sandbox".split()
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        folder = Path("/", name)
        if folder.is_symlink():
            args += ["--symlink", os.readlink(folder), str(folder)]
        elif folder.exists():
            args += ["--ro-bind", str(folder), str(folder)]
    args += "--ro-bind /usr /usr --ro-bind-try /etc/ld.so.cache /etc/ld.so.cache --dev /dev".split()
    # bubblewrap makes /proc/sys read-only where it finds it writable, which root's files do not look like from here.
    args += "--proc /proc --ro-bind /proc/sys /proc/sys --size 4096 --tmpfs /dev/shm".split()
    args += ["--perms", "0777", "--size", str(SCRATCH), "--tmpfs", "/tmp"]
    for folder in (*reversed(Path(STARTUP).parents[:-2]), STARTUP):
        args += ["--perms", "0777", "--dir", str(folder)]
    course = [COURSE / package for package in ("helpers", "kernels")]
    read = [*map(Path, dict.fromkeys((sys.base_prefix, sys.prefix))), *course, *seen]
    bound = [("--ro-bind", path) for path in read if not path.is_relative_to("/usr")]
    bound += [("--bind", path) for path in written]
    for folder in sorted({parent for _, path in bound for parent in path.parents} - set(Path("/tmp").parents)):
        if folder != Path("/tmp"):
            args += ["--perms", "0755", "--dir", str(folder)]  # root's own would only be readable by root
    for how, path in bound:
        args += [how, str(path), str(path)]
    for name, value in environment().items():
        args += ["--setenv", name, value]
    return [*args, "--remount-ro", "/dev", "--chdir", "/tmp", *options, *inside]


class ForkServer:
    """Runs `helpers.grading.fork_server`, started on first use; it ends with this process."""

    def __init__(self):
        self._process = None

    def _start(self) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "helpers.grading.fork_server", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=environment(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def fork(self, asked: dict, descriptors: list[int]) -> None:
        """Ask for a fork; RuntimeError, one line, if that fails."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        try:
            socket.send_fds(self._connection, [json.dumps(asked).encode()], descriptors)
            if not select.select([self._connection], [], [], START_TIME)[0]:
                raise RuntimeError(f"the fork server said nothing for {START_TIME:g} s")
            said = self._connection.recv(1 << 12).decode().strip()
        except OSError as error:
            raise RuntimeError(
                f"the fork server ended: {error}: does `python -m helpers.grading.replay.call_record` run?"
            ) from None
        if said:
            raise RuntimeError(said)


fork_server = ForkServer()


def forked(asked: dict, seen: list[Path], written: list[Path], descriptors: Sequence[int] = ()) -> subprocess.Popen:
    """Have bubblewrap build a sandbox around an idle process, and let a fork of the server enter it.

    Args:
        asked: the fork's task, as `fork_server` defines it, with these descriptors.
        seen: files and folders to read, at their own paths.
        written: folders to write to.

    Returns:
        The sandbox, which ends when the fork does, and the other way round.

    Raises:
        RuntimeError: there is no sandbox, or it can't be entered; one line.
    """
    reading, writing = os.pipe()
    # It ends, along with everything in the sandbox, once the other end of its input is closed.
    idle = ["sh", "-c", f": >{STARTUP}/README; stat -c 'ready %d %i' /; read end"]
    sandbox = subprocess.Popen(
        command(idle, seen, written, ["--as-pid-1", "--info-fd", str(writing)]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        pass_fds=[writing],
        start_new_session=True,
    )
    os.close(writing)
    with open(reading) as info, sandbox.stdin, sandbox.stdout, sandbox.stderr:
        ready, *root = sandbox.stdout.readline().split()[:3] or [b""]
        if ready != b"ready":
            raise RuntimeError(f"no sandbox: {sandbox.stderr.read().decode(errors='replace').strip()}")
        inside = os.pidfd_open(json.load(info)["child-pid"])
        try:
            fork_server.fork(
                asked | {"root": [int(each) for each in root]}, [inside, sandbox.stdin.fileno(), *descriptors]
            )
        finally:
            os.close(inside)
    return sandbox


class SandboxProvisioner(LocalProvisioner):
    """Starts a Jupyter kernel in the sandbox; a kernelspec refers to it, as jupyter_client requires.

    Attributes:
        seen: a file that the kernel may read.
        results_size: how many characters the results that a cell outputs take.
    """

    seen = Unicode(config=True)
    results_size = Int(config=True)

    async def pre_launch(self, **kwargs):
        manager = self.parent
        # A socket's path is limited to 107 bytes, which a long TMPDIR would exceed.
        self._folder = tempfile.TemporaryDirectory(prefix="fusion-", dir="/tmp")
        self._sockets = Path(self._folder.name, "kernel")
        self._sockets.mkdir()
        manager.transport, manager.ip = "ipc", str(self._sockets / "s")
        manager.connection_file = str(self._sockets / "connection.json")
        manager.context.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE + self.results_size)
        manager.context.setsockopt(zmq.RCVHWM, MAX_WAITING)
        return await super().pre_launch(**kwargs)

    async def launch_kernel(self, cmd, **_):
        if os.getuid() == 0:  # the kernel will not be
            for path in (self._sockets, Path(self.parent.connection_file)):
                os.chown(path, NOBODY, NOBODY)
        self.process = forked({"kernel": cmd}, [Path(self.seen)], [self._sockets])
        self.pid = self.pgid = self.process.pid
        return self.connection_info

    async def cleanup(self, restart: bool = False):
        await super().cleanup(restart=restart)
        if hasattr(self, "_folder") and not restart:
            self._folder.cleanup()


@contextlib.contextmanager
def kernelspecs(folder: Path, seen: Path, results_size: int):
    """Make Jupyter find only the sandboxed kernel, described in `folder`; it may read the file `seen`, and a cell may
    output results of that many characters."""
    config = {"seen": str(seen), "results_size": results_size}
    spec = {
        # Arguments for ipykernel. IPython would copy a README into its folder, but nothing can be written here.
        "argv": ["-f", "{connection_file}", "--HistoryManager.enabled=False", "--IPKernelApp.log_level=ERROR"],
        "display_name": "Python in the sandbox",
        "language": "python",
        "metadata": {"kernel_provisioner": {"provisioner_name": KERNEL_NAME, "config": config}},
    }
    place = folder / "kernels" / KERNEL_NAME
    place.mkdir(parents=True)
    (place / "kernel.json").write_text(json.dumps(spec))
    with mock.patch.dict(os.environ, JUPYTER_PATH=str(folder)):
        yield
