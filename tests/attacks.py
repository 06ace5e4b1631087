"""Submissions that try to earn points they have no right to, each with the verdict expected.

Those in SCREENED are refused by the policy. Those in UNSCREENED are run with the policy switched off, so that what
stands behind it, sandbox and judge, is shown to hold alone; RUN are ones that the policy lets through.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAME = "03_fused_add_gelu"

KERNEL = """\
@triton.jit
def add_gelu_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = element < elements
    s = tl.load(a_ptr + element, mask=exists).to(tl.float32) + tl.load(b_ptr + element, mask=exists).to(tl.float32)
    u = 0.7978845608028654 * (s + 0.044715 * s * s * s)
    tl.store(y_ptr + element, s * tl.sigmoid(2 * u), mask=exists)
"""
COPY_KERNEL = """\
@triton.jit
def add_gelu_kernel(a_ptr, y_ptr, elements, BLOCK: tl.constexpr):
    element = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
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
        earned: points that are due.
        state: of the check "values".
        told: a regular expression that the message of "values" matches.
        timeout: seconds a cell may run.
    """

    kernel: str = KERNEL
    launcher: str = LAUNCHER
    earned: float = 0
    state: str = "error"
    told: str = ""
    screened: bool = True
    timeout: float = 30.0


def notebook(kernel: str = KERNEL, launcher: str = LAUNCHER) -> dict:
    content = json.loads((ROOT / "exercises" / f"{NAME}.ipynb").read_text())
    for cell in content["cells"]:
        grade_id = cell["metadata"].get("nbgrader", {}).get("grade_id")
        cell["source"] = {"kernel": kernel, "launcher": launcher}.get(grade_id, cell["source"])
    return content


def before(code: str) -> str:
    """A launcher's cell that runs `code` first."""
    return f"{code}\n\n{LAUNCHER}"


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
        earned=3,  # for the one call with a shape of its own, which was computed as claimed
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
        earned=3,
        state="fail",
        told="argument 1 was changed",
    ),
    "the output is the input": Attack(
        launcher=LAUNCHER.replace("torch.empty_like(a)", "a"), earned=6, state="fail", told="argument 1 was changed"
    ),
    "half the work": Attack(launcher=LAUNCHER.replace("y.numel(), BLOCK", "y.numel() // 2, BLOCK"), state="fail"),
    "hard-coded sizes": Attack(
        launcher=LAUNCHER.replace(
            "    a, b =", "    if a.numel() in (1, 127, 1025):\n        return a + b\n    a, b =", 1
        ),
        earned=9,  # the sizes of the hidden check were computed by the kernel
        state="fail",
    ),
    "no tensor": Attack(launcher="def add_gelu(a, b):\n    return 3.0\n", state="fail", told="got float, expected a"),
    "lazy": Attack(
        launcher="class Lazy:\n    def numel(self):\n        return 1\n\n\ndef add_gelu(a, b):\n    return Lazy()\n",
        state="fail",
        told="got Lazy, expected a tensor",
    ),
    "a kernel that never ends": Attack(
        kernel=KERNEL.replace(
            "    exists =", "    while elements >= 0:\n        elements = elements + 0\n    exists =", 1
        ),
        told="it ran for over 6 s",
        timeout=6.0,
    ),
    "a huge grid": Attack(launcher=LAUNCHER.replace("triton.cdiv(y.numel(), 1024)", "2000000000"), timeout=6.0),
    "a huge tensor": Attack(launcher=LAUNCHER.replace("torch.empty_like(a)", "torch.empty(10**11)")),
    "bits that are no address": Attack(
        kernel=KERNEL.replace(
            "    tl.store", "    tl.store((tl.zeros([BLOCK], tl.int64) + 4096).to(y_ptr.dtype), s)\n    tl.store"
        ),
        state="fail",
        told="outside|out-of-bounds",
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
for path in ["/usr/x", "{root}/helpers/x", "{root}/kernels/x", calls]:
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
for call in [libc.fork, lambda: libc.unshare(0x10000000), lambda: libc.memfd_create(b"x", 0), lambda: libc.ptrace(0)]:
    assert call() == -1
""".replace("{root}", str(ROOT))

# The whole of the sandbox's own side replaced: whatever it says of itself, the judge believes none of it.
_FORGE = """\
import json, torch, helpers.replay.record as record
from IPython.display import display
from pathlib import Path
from helpers.replay.tensors import Storages, inputs_from_json, values_as_json

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
    "a loop that ignores signals": Attack(
        launcher=before("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True:\n    pass"),
        told="'launcher' ran for over 6 s",
        timeout=6.0,
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
        timeout=10.0,
    ),
    "a memory bomb": Attack(
        launcher=before("held = []\nwhile True:\n    held.append(bytearray(1 << 28))"), told="MemoryError|ended"
    ),
    "a disk bomb": Attack(
        launcher=before("with open('/tmp/x', 'wb') as file:\n    while True:\n        file.write(bytes(1 << 20))"),
        told="OSError",
    ),
    "prints without end": Attack(
        launcher=before("while True:\n    print('x' * 100000)"), told="printed over 10,000,000 characters"
    ),
    "one message of 200 MB": Attack(launcher=before("print('x' * 200_000_000)"), timeout=10.0),
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
        forged(_AS_MADE, state="fail", told="is no kernel of your answers"), kernel="pass"
    ),
    "a forged pass": forged('entry = {"stopped": {"state": "pass", "message": "", "look_at": ""}}'),
    "forged operators": forged(
        'entry = {"values": values_as_json(y), "result": storages.view_of(y), "steps": [{"operator": '
        '"aten.from_file.default", "args": ["/etc/passwd"], "kwargs": {}, "made": [storages.view_of(y)]}]}',
        state="fail",
        told="PyTorch computes from_file",
    ),
    "nonsense for a record": forged('entry = {"values": 3, "steps": {"x": []}, "result": [[[]]]}'),
    "records without end": forged("entry = 'x' * 6_000_000", told="printed over|showed something else"),
    "nothing shown": Attack(
        launcher=f"import helpers.replay.record as record\nrecord.emit = lambda *_: None\n{STUB}",
        screened=False,
        told="its cell showed something else",
    ),
    "checks, meter and print patched": Attack(
        launcher="""\
import builtins, torch, helpers.checks, helpers.checks.values, helpers.traffic, helpers.outcome
from IPython import get_ipython
helpers.outcome.FAIL = helpers.outcome.ERROR = helpers.outcome.NOT_ATTEMPTED = "pass"
helpers.outcome.Outcome.state = property(lambda self: "pass", lambda self, value: None)
torch.allclose = torch.equal = lambda *_: True
torch.Tensor.__eq__ = lambda *_: True
builtins.print = lambda *_: None
get_ipython().showtraceback = lambda *_, **__: None
helpers.traffic.measure = lambda *_: None

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


def graded(attack: Attack, seed: int) -> dict:
    """The result of one attack, graded in this process, which keeps its judge for the next."""
    from unittest import mock

    from helpers.grading import grade
    from helpers.grading.class_folder import Found
    from helpers.grading.exercise import exercises_in
    from helpers.grading.workers import Task, work

    content = json.dumps(notebook(attack.kernel, attack.launcher)).encode()
    screen = grade.screen if attack.screened else (lambda *_: [])
    with mock.patch.multiple(grade, CELL_TIMEOUT=attack.timeout, screen=screen):
        return work(Task(Found("", NAME, f"{NAME}.ipynb"), content, exercises_in(only=NAME)[NAME], seed))[0]
