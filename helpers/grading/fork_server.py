"""A process that has already imported PyTorch, Triton and the course, and forks itself into sandboxes.

    python -m helpers.grading.fork_server SOCKET

Importing takes longer than running most submissions, so it's done once. The server knows nothing about a class: no
exercise, no seed, no submission. It receives each fork's task on the socket, as JSON:

    {"kernel": arguments of ipykernel}    a submission's kernel
    {"replay": true}                      `helpers.grading.replay.replayer`, a socket as one more descriptor
    {"judge": true}                       `helpers.grading.replay.server`, a socket as one more descriptor

with `root`, device and inode of the sandbox's root, and two descriptors: a process in the sandbox (pidfd), and the pipe
whose closing ends the sandbox. It answers with an empty line, or with the reason for refusing.

A fork drops everything it shares with the server before it reads a byte of a submission: it enters every namespace of
the sandbox at once, closes all descriptors except that pipe's, gives up all privileges, and takes on limits and a
filter of system calls. Only a copy of the server's memory remains: libraries, and the same address layout for each
fork.
"""

import contextlib
import gc
import json
import os
import resource
import signal
import socket
import sys
import tempfile
import threading

from helpers.grading.confinement import (
    JUDGE,
    KERNEL,
    REPLAY,
    adopt_orphans,
    denied_filter,
    enter,
    filter_system_calls,
    give_up_privileges,
    limit_resources,
    no_new_files_filter,
)

MAX_ASKED = 1 << 16  # bytes of one request
# Entering a mount namespace puts us at its first root, but bubblewrap builds the sandbox at the chroot's.
CHROOT = b"from a chroot there is no way into a sandbox, only past it to this machine's files: grade outside it\n"


def close_all_but(kept: int) -> None:
    os.closerange(3, kept)
    os.closerange(kept + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def become(asked: dict, held: int, descriptors: list[int]) -> None:
    """Turn this process, in the sandbox, into the requested one."""
    os.setsid()
    os.chdir("/tmp")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    close_all_but(held)
    tempfile.tempdir = "/tmp"  # it would test for a folder by writing to it
    if "kernel" in asked:
        from ipykernel import kernelapp

        limit_resources(KERNEL)
        give_up_privileges()
        filter_system_calls(denied_filter())
        kernel = kernelapp.IPKernelApp.instance()
        kernel.initialize(asked["kernel"])  # makes its sockets and IPython's folders
        filter_system_calls(no_new_files_filter())
        kernel.start()
    else:
        from helpers.grading.replay import replayer, server

        limit_resources(JUDGE if "judge" in asked else REPLAY)
        give_up_privileges()
        filter_system_calls(denied_filter(processes=True))  # both run NVIDIA's assembler
        (server if "judge" in asked else replayer).main()


def fork(connection: socket.socket, asked: dict, sandbox: int, held: int, *descriptors: int) -> None:
    """Fork into the sandbox. Two forks: a process enters a new PID namespace with its children alone."""
    if os.fork():
        return
    status = 1
    try:
        enter(sandbox)
        root = os.stat("/")
        if [root.st_dev, root.st_ino] != asked["root"]:
            connection.send(CHROOT)
        elif os.fork():
            connection.send(b"\n")
        else:
            become(asked, held, descriptors)
        status = 0
    except OSError as error:
        with contextlib.suppress(OSError):
            connection.send(f"no way into the sandbox: {error}: grading needs Linux 5.8 or later\n".encode())
    finally:
        os._exit(status)


def import_all() -> None:
    """Import everything that a submission's kernel and the judge need, from ipykernel to Triton's interpreter."""
    import ipykernel.kernelapp  # noqa: F401
    import torch
    import triton
    import triton.language as tl

    import helpers.grading.replay.call_record
    import helpers.grading.replay.replayer
    import helpers.grading.replay.server  # noqa: F401
    from helpers.instruments.resources import compile_for
    from helpers.instruments.traffic import measure

    @triton.jit
    def copy_kernel(x_ptr, y_ptr):
        tl.store(y_ptr, tl.load(x_ptr))

    torch.set_num_threads(1)
    # PyTorch and Triton import many modules on first use, and Triton reads all its files at the first compile.
    measure(copy_kernel[(1,)], torch.ones(1), torch.ones(1))
    with tempfile.TemporaryDirectory() as folder, triton.knobs.cache.scope():
        triton.knobs.cache.dir = folder
        for device in ("A100", "H100"):
            compile_for(copy_kernel, torch.ones(1), torch.ones(1), device=device).instructions  # noqa: B018


def main() -> None:
    import_all()
    if threading.active_count() > 1 or len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("an import has started a thread, which a fork would not have")
    # Reap forks without waiting: their sandbox ends only once they are gone.
    adopt_orphans()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    connection = socket.socket(fileno=int(sys.argv[1]))
    while True:
        asked, descriptors, _, _ = socket.recv_fds(connection, MAX_ASKED, 4)
        if not asked:  # the worker has ended
            return
        fork(connection, json.loads(asked), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


if __name__ == "__main__":
    main()
