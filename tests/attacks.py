"""Submissions that try to earn points they don't deserve, each with the expected verdict.

INVALID are rejected unread, REFUSED are not run. FORGED notebooks claim results that their answers don't produce. RUN
are answers that the policy allows. UNSCREENED run with the policy switched off, to show that the sandbox and the judge
hold on their own. Attacks through file names, links and neighbouring files are in tests/grading/test_grade_class.py.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAME = "03_fused_add_gelu"

KERNEL = """\
@triton.jit
def add_gelu_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = element < elements
    s = tl.load(a_ptr + element, mask=exists).to(tl.float32) + tl.load(b_ptr + element, mask=exists).to(tl.float32)
    u = 0.7978845608028654 * (s + 0.044715 * s * s * s)
    tl.store(y_ptr + element, s * tl.sigmoid(2 * u), mask=exists)
"""
COPY_KERNEL = """\
@triton.jit
def add_gelu_kernel(a_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = element < elements
    tl.store(y_ptr + element, tl.load(a_ptr + element, mask=exists), mask=exists)
"""
LAUNCHER = """\
def add_gelu(a, b):
    a, b = a.contiguous(), b.contiguous()
    y = torch.empty_like(a)
    add_gelu_kernel[(triton.cdiv(y.numel(), 1024),)](a, b, y, y.numel(), BLOCK=1024)
    return y
"""
STUB = "def add_gelu(a, b):\n    raise NotImplementedError  # your code here\n"


@dataclass(frozen=True)
class Attack:
    """A submission and its verdict.

    Args:
        change: changes the notebook that holds the answers, or gives other bytes in its place.
        earned: points that are due; None: whatever its own answers earn.
        state: of the check "values".
        told: a regular expression that the message of "values" matches.
        timeout: seconds a cell may run.
    """

    kernel: str = KERNEL
    launcher: str = LAUNCHER
    change: Callable[[dict], bytes | None] = lambda _: None
    earned: float | None = 0
    state: str = "error"
    told: str = ""
    screened: bool = True
    timeout: float = 30.0

    def content(self) -> bytes:
        """The submitted file."""
        content = notebook(self.kernel, self.launcher)
        return self.change(content) or json.dumps(content).encode()


def notebook(kernel: str = KERNEL, launcher: str = LAUNCHER) -> dict:
    content = json.loads((ROOT / "exercises" / f"{NAME}.ipynb").read_text())
    for cell in content["cells"]:
        grade_id = cell["metadata"].get("nbgrader", {}).get("grade_id")
        cell["source"] = {"kernel": kernel, "launcher": launcher}.get(grade_id, cell["source"])
    return content


def before(code: str) -> str:
    """A launcher's cell that runs `code` first."""
    return f"{code}\n\n{LAUNCHER}"


def cell_of(content: dict, grade_id: str) -> dict:
    return next(c for c in content["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == grade_id)


def code_cell(source: str, **metadata) -> dict:
    return {"cell_type": "code", "source": source, "metadata": metadata, "outputs": [], "execution_count": None}


# Not notebooks of the exercise: nothing of them is run.


def invalid(told: str, change: Callable[[dict], bytes | None]) -> Attack:
    return Attack(change=change, state="invalid", told=told)


INVALID = {
    "an empty file": Attack(change=lambda _: b"\n", state="invalid", told="not JSON"),
    "a cut file": invalid("not JSON", lambda content: json.dumps(content).encode()[:-100]),
    "no text": invalid("not JSON", lambda _: b"\xff\xfe\x00"),
    "deeply nested lists": invalid("not JSON", lambda _: b"[" * 200_000),
    "deeply nested objects": invalid("not JSON", lambda _: b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "a huge file": invalid("is larger than 25 MB", lambda _: b" " * 26_000_000),
    "a number of 5 million digits": invalid("not JSON", lambda _: b"1" * 4_999_999),
    "a list": invalid("not a notebook of format 4", lambda _: b"[]"),
    "cells of numbers": invalid("not a notebook of format 4", lambda _: b'{"cells": [1], "metadata": {}}'),
    "a source of numbers": invalid("not a notebook", lambda content: cell_of(content, "kernel").update(source=[1])),
    "an answer deleted": invalid(
        "no answer cell 'kernel'", lambda content: content["cells"].remove(cell_of(content, "kernel"))
    ),
    "an answer twice": invalid(
        "2 answer cells 'kernel'", lambda content: content["cells"].append(cell_of(content, "kernel"))
    ),
    "an answer in a check's name": invalid(
        "2 answer cells 'launcher'",
        lambda content: cell_of(content, "values")["metadata"]["nbgrader"].update(grade_id="launcher"),
    ),
    "an answer retyped": invalid(
        "in a markdown cell", lambda content: cell_of(content, "kernel").update(cell_type="markdown")
    ),
    "metadata of another type": invalid(
        "no answer cell 'kernel'", lambda content: cell_of(content, "kernel")["metadata"].update(nbgrader=[1])
    ),
    "an id of another type": invalid(
        "no answer cell 'kernel'",
        lambda content: cell_of(content, "kernel")["metadata"]["nbgrader"].update(grade_id=[1]),
    ),
}

# Refused by the policy, by their text: nothing of them is run. All of the policy: tests/grading/test_grade_policy.py.


def refused(told: str, code: str = "", kernel: str = KERNEL) -> Attack:
    return Attack(kernel=kernel, launcher=f"{code}\n\n{LAUNCHER}", state="refused", told=told)


REFUSED = {
    "reads the solutions": refused("open isn't available to answers", "print(open('/work/solutions').read())"),
    "reads the environment": refused("line 1: importing os is not graded", "import os\nprint(os.environ)"),
    "opens a connection": refused("importing socket is not graded", "import socket"),
    "starts a program": refused("importing subprocess", "from subprocess import run"),
    "a shell command": refused("shell commands are not graded", "!cat /etc/passwd"),
    "reaches through the interpreter": refused(
        "reaches into the interpreter", "().__class__.__base__.__subclasses__()"
    ),
    "patches torch.allclose": refused("would patch what it belongs to", "torch.allclose = lambda *_: True"),
    "patches equality": refused("reaches into the interpreter", "torch.Tensor.__eq__ = lambda *_: True"),
    "another reference": refused("reference is a name of the exercise", "def reference(a, b):\n    return a"),
    "another check": refused("check_values is a name of the exercise", "check_values = print"),
    "another meter": refused("measure is a name of the exercise", "import math as measure"),
    "the shell's hooks": refused("get_ipython isn't available", "get_ipython().ast_transformers.clear()"),
    "code in text": refused("exec isn't available", "exec('import os')"),
    "code in a file of tensors": refused("torch.load isn't available", "torch.load('x')"),
    "the compiler writes the kernel": refused("torch.compile isn't available", "torch.compile(reference)"),
    "PyTorch's own kernels by name": refused("torch.ops isn't available", "torch.ops.aten.gelu"),
    "the course's kernel": refused(
        "importing kernels.elementwise is not graded", "from kernels.elementwise import add_gelu"
    ),
    "Python in a kernel": refused(
        "not in the language of kernels|not graded|isn't available|may",
        kernel=KERNEL + "    print(element.handle.data)\n",
    ),
    "Python in a kernel's defaults": refused(
        "default", kernel=KERNEL.replace("BLOCK: tl.constexpr", "BLOCK: tl.constexpr = print(1)")
    ),
}

# The notebook says more than its answers do.


def claim_a_pass(content: dict) -> None:
    """Stored outputs of the solution, counts cleared."""
    solution = json.loads((ROOT / "solutions" / f"{NAME}.ipynb").read_text())
    solved = {cell["id"]: cell for cell in solution["cells"]}
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            cell.update(outputs=solved[cell["id"]]["outputs"], execution_count=None)


def tag_all(content: dict) -> None:
    for cell in content["cells"]:
        cell["metadata"].setdefault("tags", []).extend(["nbval-skip", "raises-exception", "nbval-ignore-output"])


def checks_in(content: dict) -> list[dict]:
    return [cell for cell in content["cells"] if cell["metadata"].get("nbgrader", {}).get("grade")]


def edit_checks(content: dict) -> None:
    for cell in checks_in(content):
        cell["source"] = "assert True"


def delete_checks(content: dict) -> None:
    for cell in checks_in(content):
        content["cells"].remove(cell)


def double_checks(content: dict) -> None:
    content["cells"] += checks_in(content)


def raise_points(content: dict) -> None:
    for cell in checks_in(content):
        cell["metadata"]["nbgrader"]["points"] = 1000
    for entry in content["metadata"]["kernel_fusion"]["original"]:
        entry["points"] = 1000


def forge_the_original(content: dict) -> None:
    for entry in content["metadata"]["kernel_fusion"]["original"]:
        entry["source"] = "pass"


def name_another_kernel(content: dict) -> None:
    content["metadata"]["kernelspec"] = {"name": "evil", "display_name": "evil", "language": "bash"}
    content["metadata"]["language_info"] = {"name": "bash"}


def add_cells(content: dict) -> None:
    content["cells"].insert(0, code_cell("import os\nos._exit(0)"))
    content["cells"].append(code_cell("def add_gelu(a, b):\n    return reference(a, b)"))


def all_of_it(content: dict) -> None:
    for change in (
        claim_a_pass,
        tag_all,
        edit_checks,
        raise_points,
        forge_the_original,
        name_another_kernel,
        add_cells,
    ):
        change(content)


def forgery(change: Callable[[dict], None], launcher: str = STUB) -> Attack:
    return Attack(launcher=launcher, change=change, state="not attempted", told="write your answer above")


FORGED = {
    "outputs of a pass, counts cleared": forgery(claim_a_pass),
    "nbval's markers in an answer": forgery(claim_a_pass, "# NBVAL_SKIP\n# NBVAL_IGNORE_OUTPUT\n" + STUB),
    "nbval's tags on every cell": forgery(tag_all),
    "checks edited": forgery(edit_checks),
    "checks deleted": forgery(delete_checks),
    "checks doubled": replace(forgery(double_checks, LAUNCHER), earned=15, state="pass", told=""),
    "points raised": replace(forgery(raise_points, LAUNCHER), earned=15, state="pass", told=""),
    "the original forged": forgery(forge_the_original),
    "another kernelspec": replace(forgery(name_another_kernel, LAUNCHER), earned=15, state="pass", told=""),
    "cells added": forgery(add_cells),
    "all of it": forgery(all_of_it),
}

# What the policy lets through: the judge alone must not pay for it.
RUN = {
    "right": Attack(earned=15, state="pass"),
    "prints much": Attack(launcher=before("print('<script>' * 1000, chr(27) + '[2J')"), earned=15, state="pass"),
    "calls the reference": Attack(
        launcher="def add_gelu(a, b):\n    return reference(a, b)\n",
        state="fail",
        told="PyTorch computes gelu, outside your kernel",
    ),
    "a decorative kernel": Attack(
        kernel=COPY_KERNEL,
        launcher="""\
def add_gelu(a, b):
    x = torch.nn.functional.gelu(a + b, approximate="tanh").contiguous()
    y = torch.empty_like(x)
    add_gelu_kernel[(triton.cdiv(y.numel(), 1024),)](x, y, y.numel(), BLOCK=1024)
    return y
""",
        state="fail",
        told="PyTorch computes gelu",
    ),
    "a kernel whose result is thrown away": Attack(
        launcher=LAUNCHER.replace("    return y", "    return torch.sigmoid(1.702 * (a + b)) * (a + b)"),
        state="fail",
        told="PyTorch computes",
    ),
    "another exercise's kernel": Attack(
        launcher="def add_gelu(a, b):\n    return torch.relu(a + b)\n", state="fail", told="PyTorch computes relu"
    ),
    "results cached by shape": Attack(
        launcher=LAUNCHER.replace("def add_gelu", "def fresh")
        + "\nseen = {}\n\ndef add_gelu(a, b):\n    key = tuple(a.shape)\n    if key not in seen:\n"
        "        seen[key] = fresh(a, b)\n    return seen[key]\n",
        earned=1,  # for the one check that makes a single call
        state="fail",
    ),
    "nothing but NaN": Attack(
        launcher="def add_gelu(a, b):\n    return torch.full_like(a, float('nan'))\n", state="fail", told="first wrong"
    ),
    "infinity": Attack(
        launcher="def add_gelu(a, b):\n    return torch.full_like(a, float('inf'))\n", state="fail", told="first wrong"
    ),
    "another kernel by a launch option": Attack(
        launcher=LAUNCHER.replace("BLOCK=1024)", "BLOCK=1024, ir_override='/tmp/x.ptx')"),
        state="fail",
        told="the launch option ir_override is not graded",
    ),
    "never written": Attack(
        launcher="def add_gelu(a, b):\n    return torch.empty_like(a)\n", state="fail", told="got nan"
    ),
    "an input overwritten": Attack(
        kernel=KERNEL + "    tl.store(a_ptr + element, s, mask=exists)\n",
        state="fail",
        told="argument 1 was changed",
    ),
    "the output is the input": Attack(
        launcher=LAUNCHER.replace("torch.empty_like(a)", "a"), state="fail", told="argument 1 was changed"
    ),
    "half the work": Attack(launcher=LAUNCHER.replace("y.numel(), BLOCK", "y.numel() // 2, BLOCK"), state="fail"),
    "hard-coded sizes": Attack(
        launcher=LAUNCHER.replace(
            "    a, b =", "    if a.numel() in (1, 127, 1025):\n        return a + b\n    a, b =", 1
        ),
        earned=10,  # the sizes of the hidden check, and those that grow, were computed by the kernel
        state="fail",
    ),
    "no tensor": Attack(launcher="def add_gelu(a, b):\n    return 3.0\n", state="fail", told="got float, expected a"),
    "lazy": Attack(
        launcher="def add_gelu(a, b):\n    return lambda: a + b\n",
        state="fail",
        told="got function, which is neither a tensor nor plain numbers",
    ),
    "a kernel that never ends": Attack(
        kernel=KERNEL.replace(
            "    exists =", "    while elements >= 0:\n        elements = elements + 0\n    exists =", 1
        ),
        # Whichever ends it first: a fast machine makes the 65,536 passes sooner.
        told="it ran for over 4 s|passes through loops in one program instance",
        timeout=4.0,
    ),
    "a huge grid": Attack(launcher=LAUNCHER.replace("triton.cdiv(y.numel(), 1024)", "2000000000"), timeout=4.0),
    "a huge tensor": Attack(launcher=LAUNCHER.replace("torch.empty_like(a)", "torch.empty(10**11)")),
    "bits that are no address": Attack(
        kernel=KERNEL.replace(
            "    tl.store", "    tl.store((tl.zeros([BLOCK], tl.int64) + 4096).to(y_ptr.dtype), s)\n    tl.store"
        ),
        state="fail",
        told="outside|out-of-bounds",
    ),
    "prints the hidden check's inputs": Attack(
        launcher="def add_gelu(a, b):\n    if a.numel() == 4099:\n        raise ValueError(a.tolist())\n"
        + LAUNCHER.partition("\n")[2],
        earned=12,
        state="pass",
    ),
    "HTML and escapes in an error": Attack(
        launcher="def add_gelu(a, b):\n    raise ValueError('<img src=x onerror=alert(1)>' + chr(27) + '[2J')\n",
        told=r"ValueError: <img src=x onerror=alert\(1\)>\[2J",
    ),
    "an exception without an end": Attack(
        launcher="def add_gelu(a, b):\n    raise ValueError('x' * 1000000)\n", told="ValueError: x{100}"
    ),
}

# Behind the policy. A spy answers rightly, and fails its own assertion where it finds what it looks for.
_SPY = """\
import os, glob, socket
seen = [
    *glob.glob("{root}/solutions*"), *glob.glob("{root}/source*"), *glob.glob("{root}/tests*"),
    *glob.glob("{root}/.git*"), *glob.glob("/home/*"), *glob.glob("/root/.[a-oq-z]*"), *glob.glob("/etc/pass*"),
    *[each for each in glob.glob("/proc/[0-9]*/cmdline") if b"pytest" in open(each, "rb").read()],
    *[each for each in os.environ if "SECRET" in each or "TOKEN" in each],
    *[each for each in glob.glob("/tmp/fusion-*/*") if not each.endswith(("/kernel", "/calls.json"))],
]
assert not seen, seen
calls, = glob.glob("/tmp/fusion-judge-*/calls.json")
assert "expected" not in open(calls).read()
for address in [("127.0.0.1", 22), ("10.0.0.1", 80), ("8.8.8.8", 53)]:
    try:
        socket.create_connection(address, timeout=1)
    except OSError:
        continue
    raise AssertionError("there is a network")
assert (os.getuid(), os.getgid(), os.getgroups()) == (65534, 65534, [])
settings = glob.glob("/proc/sys/kernel/*") + glob.glob("/proc/sys/vm/*") + glob.glob("/proc/sys/fs/*")
assert len(settings) > 50
for path in ["/usr/x", "{root}/helpers/x", "{root}/kernels/x", calls, "/proc/sysrq-trigger", *settings]:
    try:
        open(path, "a")
    except OSError:
        continue
    raise AssertionError(path + " can be written")
for path in ["/tmp/x", "/dev/shm/x", os.path.dirname(glob.glob("/tmp/fusion-*/kernel/*")[0]) + "/x"]:
    try:
        with open(path, "wb") as file:
            file.write(bytes(100000000))
    except OSError:
        continue
    raise AssertionError(path + " can be filled")
import ctypes
libc = ctypes.CDLL(None)
status = dict(line.split(":\t") for line in open("/proc/self/status").read().splitlines())
assert [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")] == [0] * 5
assert (status["NoNewPrivs"], status["Seccomp"], status["PPid"]) == ("1", "2", "0")
assert len(glob.glob("/proc/[0-9]*")) == 2
open_files = {os.readlink(each) for each in glob.glob("/proc/self/fd/*") if os.path.lexists(each)}
foreign = [each for each in open_files if not each.startswith(("socket:", "pipe:", "anon_inode:", "/dev/null"))]
assert not foreign, foreign
for path in ["/tmp/x", "/dev/shm/x", os.path.dirname(glob.glob("/tmp/fusion-*/kernel/*")[0]) + "/x"]:
    for make in [os.mkdir, os.mknod, lambda path: os.symlink("/", path), lambda path: open(path, "a"),
                 socket.socket(socket.AF_UNIX).bind]:
        try:
            make(path)
        except PermissionError:
            continue
        raise AssertionError(path + " can be made")
for call in [libc.fork, lambda: libc.unshare(0x10000000), lambda: libc.memfd_create(b"x", 0), lambda: libc.ptrace(0)]:
    assert call() == -1
""".replace("{root}", str(ROOT))

# The whole of the sandbox's own side replaced: whatever it says of itself, the judge believes none of it.
_FORGE = """\
import json, torch, helpers.grading.replay.call_record as record
from IPython.display import display
from pathlib import Path
from helpers.grading.replay.tensors import Storages, inputs_from_json, values_as_json

def emit(check, calls):
    shown = []
    for call in json.loads(Path(calls).read_text())[check]:
        inputs = inputs_from_json(call)
        y = reference(*inputs)
        storages = Storages()
        for x in inputs:
            storages.add(x)
        {entry}
        shown.append(entry)
    display({"text/plain": "pass", record.MIME: json.dumps(shown)}, raw=True)

record.emit = emit
"""


def forged(entry: str, **changes) -> Attack:
    code = _FORGE.replace("{entry}", entry)
    return Attack(launcher=f"{code}\n{STUB}", screened=False, **changes)


_VALUES = 'entry = {"values": values_as_json(y), "steps": [], "result": storages.view_of(y)}'
_AS_MADE = """\
made = storages.view_of(y)
        entry = {"values": values_as_json(y), "result": made, "steps": [
            {"operator": "aten.empty_like.default", "args": [{"tensor": storages.view_of(inputs[0])}], "kwargs": {},
             "made": [made]},
            {"kernel": "add_gelu_kernel", "grid": [1], "kwargs": {"BLOCK": 1024},
             "args": [{"tensor": storages.view_of(x)} for x in (*inputs, y)] + [y.numel()]}]}"""

UNSCREENED = {
    "a spy finds nothing": Attack(launcher=before(_SPY), earned=15, state="pass"),
    "a second spy finds nothing of the first": Attack(launcher=before(_SPY), earned=15, state="pass"),
    "closes every descriptor": Attack(
        launcher=before("import os\nos.closerange(3, 512)"), told="ended the kernel's process"
    ),
    "writes to every descriptor": Attack(
        launcher=before(
            "import contextlib, os\nfor each in range(512):\n    with contextlib.suppress(OSError):\n"
            "        os.write(each, b'\\n')"
        ),
        state="*",
    ),
    "a loop that ignores signals": Attack(
        launcher=before("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True:\n    pass"),
        told="'launcher' ran for over 4 s",
        timeout=4.0,
    ),
    "exit": Attack(launcher=before("import os\nos._exit(0)"), told="ended the kernel's process"),
    "exit in the call": Attack(
        launcher="import os\n\n\ndef add_gelu(a, b):\n    os._exit(0)\n", told="ended the kernel's process"
    ),
    "exit after a while": Attack(
        launcher=before("import os, threading, time\nthreading.Timer(0.3, os._exit, [0]).start()\ntime.sleep(2)"),
        told="ended the kernel's process",
    ),
    "a segmentation fault": Attack(
        launcher=before("import ctypes\nctypes.string_at(0)"), told="ended the kernel's process"
    ),
    "kills all it can": Attack(
        launcher=before("import os\nos.kill(-1, 9)\nos.kill(os.getppid(), 9)\nos.kill(os.getpid(), 9)")
    ),
    "a fork bomb": Attack(launcher=before("import os\nwhile True:\n    os.fork()"), told="PermissionError"),
    "a process": Attack(launcher=before("import subprocess\nsubprocess.run(['sleep', '1'])"), told="PermissionError"),
    "a thread bomb": Attack(
        launcher=before(
            "import threading, time\nwhile True:\n    threading.Thread(target=time.sleep, args=(99,)).start()"
        ),
        timeout=5.0,
    ),
    "a memory bomb": Attack(
        launcher=before("held = []\nwhile True:\n    held.append(bytearray(1 << 28))"), told="MemoryError|ended"
    ),
    "a disk bomb": Attack(
        launcher=before("with open('/tmp/x', 'wb') as file:\n    while True:\n        file.write(bytes(1 << 20))"),
        told="PermissionError",
    ),
    "folders without end": Attack(
        launcher=before(
            "import glob, os\nos.chdir(os.path.dirname(glob.glob('/tmp/fusion-*/kernel/*')[0]))\n"
            "while True:\n    os.mkdir('x')\n    os.chdir('x')"
        ),
        told="PermissionError",
    ),
    "the sandbox's first process rewritten": Attack(
        launcher=before("open('/proc/1/mem', 'r+b', buffering=0)"), told="PermissionError"
    ),
    "shared memory": Attack(
        launcher=before(
            "import mmap\nheld = []\ntry:\n    while True:\n        held.append(mmap.mmap(-1, 1 << 26))\n"
            "except OSError:\n    assert len(held) < 64, len(held)"
        ),
        earned=15,
        state="pass",
    ),
    "messages of nothing without end": Attack(
        launcher=before("from IPython.display import publish_display_data\nwhile True:\n    publish_display_data({})"),
        told="printed over 10,000,000 characters|ran for over 2 s",
        timeout=2.0,
    ),
    "a message with much beside its text": Attack(
        launcher=before(
            "kernel = get_ipython().kernel\nwhile True:\n    kernel.session.send(kernel.iopub_socket, 'stream', "
            "{'name': 'stdout', 'text': ''}, parent=kernel.get_parent(), buffers=[bytes(1 << 24)])"
        ),
        told="printed over 10,000,000 characters|ended the kernel's process",
    ),
    "prints without end": Attack(
        launcher=before("while True:\n    print('x' * 100000)"), told="printed over 10,000,000 characters"
    ),
    "one message of 200 MB": Attack(launcher=before("print('x' * 200_000_000)"), timeout=5.0),
    "prints past Jupyter": Attack(
        launcher=before("import os\nos.write(1, b'PAST JUPYTER' * 100)\nos.write(2, b'PAST JUPYTER' * 100)"),
        earned=15,
        state="pass",
    ),
    "forged values": forged(_VALUES, state="fail", told="nobody made|first wrong|cannot be done again"),
    "forged launches of a kernel that does nothing": replace(
        forged(_AS_MADE, state="fail", told="got nan"),
        kernel="@triton.jit\ndef add_gelu_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):\n    pass\n",
    ),
    "forged launches without a kernel": replace(
        forged(_AS_MADE, state="fail", told="is not a kernel of your answers"), kernel="pass"
    ),
    "a forged pass": forged('entry = {"stopped": {"state": "pass", "message": "", "look_at": ""}}'),
    "forged operators": forged(
        'entry = {"values": values_as_json(y), "result": storages.view_of(y), "steps": [{"operator": '
        '"aten.from_file.default", "args": ["/etc/passwd"], "kwargs": {}, "made": [storages.view_of(y)]}]}',
        state="fail",
        told="PyTorch computes from_file",
    ),
    "nonsense for a record": forged(
        'entry = {"values": 3, "steps": {"x": []}, "result": [[[]]]}', state="fail", told="cannot be done again"
    ),
    "records without end": forged("entry = 'x' * 6_000_000", told="printed over|showed something other"),
    "nothing shown": Attack(
        launcher=f"import helpers.grading.replay.call_record as record\nrecord.emit = lambda *_: None\n{STUB}",
        screened=False,
        told="its cell showed something other",
    ),
    "checks, meter and print patched": Attack(
        launcher="""\
import builtins, torch, helpers.learning.checks, helpers.learning.checks.values
import helpers.instruments.traffic, helpers.learning.outcome
from IPython import get_ipython
helpers.learning.outcome.FAIL = helpers.learning.outcome.ERROR = helpers.learning.outcome.NOT_ATTEMPTED = "pass"
helpers.learning.outcome.Outcome.state = property(lambda self: "pass", lambda self, value: None)
torch.allclose = torch.equal = lambda *_: True
torch.Tensor.__eq__ = lambda *_: True
builtins.print = lambda *_: None
get_ipython().showtraceback = lambda *_, **__: None
helpers.instruments.traffic.measure = lambda *_: None

"""
        + STUB,
        screened=False,
        state="*",
    ),
    "asserts stripped": Attack(
        launcher="""\
import ast
from IPython import get_ipython

class Strip(ast.NodeTransformer):
    def visit_Assert(self, node):
        return ast.Pass()

    def visit_Raise(self, node):
        return ast.Pass()

get_ipython().ast_transformers.append(Strip())
"""
        + STUB,
        screened=False,
        state="*",
    ),
    "a tensor that equals everything": Attack(
        launcher="""\
class Equal(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return True if func in (torch.equal, torch.allclose) else super().__torch_function__(func, types, args, kwargs)

def add_gelu(a, b):
    return a.as_subclass(Equal)
""",
        screened=False,
        state="fail",
    ),
}
UNSCREENED = {name: replace(attack, screened=False) for name, attack in UNSCREENED.items()}


NOT_RUN = INVALID | REFUSED
# At last a worker grades right ones, after all that was done to it.
ALL_RUN = FORGED | RUN | UNSCREENED | {f"right, after all others ({n})": RUN["right"] for n in range(3)}


def graded(name: str, seed: int) -> dict:
    """The result of an attack in ALL_RUN, graded in this process, which keeps its judge for the next."""
    from unittest import mock

    from helpers.grading import grade
    from helpers.grading.class_folder import Found
    from helpers.grading.exercise import exercises_in
    from helpers.grading.workers import Task, work
    from helpers.learning.submission_policy import screening

    attack = ALL_RUN[name]
    screen = screening.screen if attack.screened else (lambda *_: [])
    with mock.patch.object(grade, "CELL_TIMEOUT", attack.timeout), mock.patch.object(screening, "screen", screen):
        return work(Task(Found("", NAME, f"{NAME}.ipynb"), attack.content(), exercises_in(only=NAME)[NAME], seed))[0]
