"""A process with PyTorch, Triton and the course imported, which forks a kernel into each sandbox that is made for one.

    python -m helpers.grading.fork_server SOCKET

To import takes longer than to run most submissions, so it is done once. The server knows nothing of a class: no
exercise, no seed, no submission. For each kernel it is sent, on the socket, the arguments of ipykernel as JSON, with
two descriptors: of a process in the sandbox (pidfd), and of the pipe whose end ends the sandbox. It answers with an
empty line, or with why there is no kernel.

A fork gives up what it shares with the server before it reads a byte of a submission: it enters every namespace of the
sandbox at once, closes all descriptors but that pipe's, gives up all privileges, and takes on limits and a filter of
system calls. What is left is a copy of the server's memory: libraries, and the layout of addresses, the same for each.
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
    adopt_orphans,
    enter,
    filter_system_calls,
    give_up_privileges,
    limit_resources,
)

MOST_ASKED = 1 << 16  # bytes of one request


def close_all_but(kept: int) -> None:
    os.closerange(3, kept)
    os.closerange(kept + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def become_kernel(arguments: list[str], held: int) -> None:
    """In the sandbox: from here on this is a kernel of ipykernel."""
    os.setsid()
    os.chdir("/tmp")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    close_all_but(held)
    limit_resources()
    give_up_privileges()
    filter_system_calls()
    tempfile.tempdir = "/tmp"  # it would look for a folder by writing into it
    from ipykernel import kernelapp

    kernelapp.launch_new_instance(argv=arguments)


def fork_kernel(connection: socket.socket, arguments: list[str], sandbox: int, held: int) -> None:
    """Fork a kernel into the sandbox. Two forks: a process enters a new PID namespace with its children alone."""
    if os.fork():
        return
    status = 1
    try:
        enter(sandbox)
        if os.fork():
            connection.send(b"\n")
        else:
            become_kernel(arguments, held)
        status = 0
    except OSError as error:
        with contextlib.suppress(OSError):
            connection.send(f"no way into the sandbox: {error}: grading needs Linux 5.8 or later\n".encode())
    finally:
        os._exit(status)


def import_all() -> None:
    """What the kernel of a submission needs, from ipykernel to Triton's interpreter."""
    import ipykernel.kernelapp  # noqa: F401
    import torch

    import helpers.replay.record  # noqa: F401
    from helpers.traffic import measure
    from kernels.elementwise.add_gelu import add_gelu

    torch.set_num_threads(1)
    # PyTorch and Triton import half of themselves at first use.
    measure(add_gelu, torch.ones(1), torch.ones(1))


def main() -> None:
    import_all()
    if threading.active_count() > 1 or len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("an import has started a thread, which a fork would not have")
    # The forks are reaped by nobody's waiting: their sandbox ends only when they are gone.
    adopt_orphans()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    connection = socket.socket(fileno=int(sys.argv[1]))
    while True:
        asked, descriptors, _, _ = socket.recv_fds(connection, MOST_ASKED, 2)
        if not asked:  # the worker has ended
            return
        fork_kernel(connection, json.loads(asked), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


if __name__ == "__main__":
    main()
