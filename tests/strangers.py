"""More attacks, written from what the grading promises rather than from its code, each with the expected verdict.

TEXTS are refused for what their text says, or could say to another reader. KERNELS use only the allowed language to
cheat. PROCESSES run with the policy switched off, and attack the sandbox, the messages and the machine.
"""

from unittest import mock

import attacks
from attacks import KERNEL, LAUNCHER, STUB, Attack, before, forged

# Texts


def text(launcher: str = "", kernel: str = KERNEL, told: str = "") -> Attack:
    return Attack(kernel=kernel, launcher=f"{launcher}\n\n{LAUNCHER}", state="refused", told=told)


_HIDDEN = "@triton.jit\ndef add_gelu_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK: tl.constexpr):\n    import os\n"

TEXTS = {
    "another encoding": text("# coding: utf-7\nx = 1", told="is UTF-8"),
    "another encoding on the second line": text("# first\n# -*- coding: rot13 -*-", told="line 2: .* is UTF-8"),
    "a page ends": text("x = 1  # \x0cimport os", told=r"U\+000C"),
    "a line ends in Unicode": text("x = '''\u2028import os\u2028'''", told=r"U\+2028"),
    "a paragraph ends in a kernel": text(kernel=KERNEL + "    # \u2029    import os\n", told=r"U\+2029"),
    "a next line in a kernel's text": text(kernel=KERNEL + "    '''\x85def x():'''\n", told=r"U\+0085"),
    "a carriage returns": text("x = 1  # \rimport os", told=r"U\+000D"),
    "a def in two lines": text(kernel=KERNEL.replace("def add", "def \\\nadd"), told="without a break"),
    "a def in two lines and another in its text": text(
        kernel=KERNEL.replace("def add", "def \\\nadd") + f"    '''\n{_HIDDEN}    '''\n", told="without a break"
    ),
    "a decorator in brackets": text(kernel=KERNEL.replace("@triton.jit", "@(triton.jit)"), told="line of its own"),
    "a decorator in two lines": text(kernel=KERNEL.replace("@triton.jit", "@triton.\\\njit"), told="line of its own"),
    "two decorators": text(kernel=f"@triton.jit\n{KERNEL}", told="under @triton.jit alone"),
    "a kernel in a condition": text(
        kernel="if True:\n" + "".join(f"    {line}\n" for line in KERNEL.splitlines()), told="under @triton.jit alone"
    ),
    "prompts": text(f"x = '''\nIn [1]: pass\n'''\n{LAUNCHER}", told="IPython would run other code"),
    "a cell magic": text("%%writefile /tmp/x\nx = 1", told="magics"),
    "wide letters": text("ｅｖａｌ('1')", told="eval isn't available"),
    "a module of functional's": text(
        "torch.nn.functional.importlib.import_module('os')", told="importlib isn't available"
    ),
    "a module's builtins": text("tl.core.builtins", told="tl.core isn't available"),
    "a module by another name": text("m = torch\nm.os.system('true')", told="torch is used here on its own"),
    "a module from a list": text("[m] = [torch.nn.functional]\nm.sys", told="is used here on its own"),
    "a module from a default": text("def f(m=triton):\n    return m.runtime", told="triton is used here on its own"),
    "everything of a module": text("from torch.nn.functional import *", told=r"importing \*"),
    "a frame": text("g = (x for x in [1])\ng.gi_frame.f_back.f_globals", told="gi_frame"),
    "a coroutine's frame": text("async def f():\n    pass", told="not in the language of answers"),
    "text that formats attributes": text("'{0.contiguous.__self__}'.format(1)", told="format isn't available"),
    "a formatted attribute": text("f'{reference.__code__}'", told="reaches into the interpreter"),
    "a class made by a call": text("X = type('X', (), {'numel': 1})", told="type isn't available"),
    "a class": text("class X(torch.Tensor):\n    pass", told="classes aren't graded, and X is one: write functions"),
    "a caught name": text(
        "try:\n    1 / 0\nexcept ZeroDivisionError as check_values:\n    pass", told="not in the language"
    ),
    "a walrus": text("def f(x=(check_values := print)):\n    pass", told="check_values is a name of the exercise"),
    "a walrus in a list": text("[measure := x for x in [print]]", told="measure is a name of the exercise"),
    "a loop's name": text("for reference in [print]:\n    pass", told="reference is a name of the exercise"),
    "a pattern's name": text("match print:\n    case reference:\n        pass", told="not in the language"),
    "a deleted name": text("del reference", told="reference is a name of the exercise"),
    "an unpacked name": text("x, *check_traffic = 1, 2", told="check_traffic is a name of the exercise"),
    "a context's name": text("with torch.no_grad() as tl:\n    pass", told="tl is a name of the exercise"),
    "a kernel of a check's name": text(
        kernel=KERNEL + KERNEL.replace("add_gelu_kernel", "check_values"), told="check_values is a name of the exercise"
    ),
    "the notebook's history": text("x = _ih", told="_ih isn't available"),
    "the way out": text("raise SystemExit", told="SystemExit isn't available"),
    "an operator by name": text("torch.ops.aten.gelu", told="torch.ops isn't available"),
    "autograd's hooks": text("x = torch.ones(1).register_hook(print)", told="register_hook isn't available"),
    "memory by address": text("x = torch.ones(1).untyped_storage()", told="untyped_storage isn't available"),
    "a file mapped": text("x = torch.from_file('/etc/passwd', size=1)", told="torch.from_file isn't available"),
    "arrays of NumPy": text("x = torch.ones(1).numpy().ctypes", told="numpy|ctypes"),
    "a program in a kernel's constant": text(
        "FACTOR = print(1)", KERNEL.replace("0.044715", "FACTOR"), "must be plain numbers"
    ),
    "a power tower as a constant": text("FACTOR = 9**9**9", KERNEL.replace("0.044715", "FACTOR"), "plain numbers"),
    "too deep to check": text("x = " + "+".join("1" * 2000), told="nested too deeply"),
}


# In the language


def kernel(more: str, at: str = "    tl.store", **changes) -> Attack:
    """The right kernel with lines of its own before a place in it."""
    return Attack(kernel=KERNEL.replace(at, f"{more}\n{at}", 1), **changes)


_ARGUMENTS = "a, b, y, y.numel(), BLOCK=1024"
_ONE_LANE = """\
    start = tl.program_id(0) * 0
    if y_ptr.dtype.element_ty == tl.float32:  # of 16 bits it would need a GPU
        tl.atomic_add(y_ptr + start, 0.0)
    tl.store(y_ptr + tl.arange(0, BLOCK), s * 0, mask=(tl.arange(0, BLOCK) < elements) & (tl.program_id(0) > 0))"""

KERNELS = {
    "a def in a docstring": kernel(f'    """\n{_HIDDEN}    """', "    element = ", earned=15, state="pass"),
    "a promise of alignment": kernel(
        "    elements = tl.multiple_of(elements, 1048576)", "    exists", state="error", told="is not true"
    ),
    "a promise about addresses": kernel(
        "    y_ptr = tl.multiple_of(y_ptr + 1, 1048576) - 1", state="error", told="is not true"
    ),
    "an assumption": kernel("    tl.assume(elements > 100000000)", state="error", told="Assume"),
    "an atomic beside a race": kernel(_ONE_LANE, state="fail", told="race|uninitialised|first wrong|elements"),
    "an empty grid": Attack(launcher=LAUNCHER.replace("(triton.cdiv(y.numel(), 1024),)", "(0,)"), state="fail"),
    "an empty grid of wide loads": Attack(
        kernel=KERNEL.replace("BLOCK: tl.constexpr):", "BLOCK: tl.constexpr, wide=1):"),
        launcher=LAUNCHER.replace(
            "    add_gelu_kernel", f"    add_gelu_kernel[(0,)]({_ARGUMENTS})\n    add_gelu_kernel"
        )
        .replace("BLOCK=1024)\n    return", "BLOCK=64)\n    return")
        .replace("[(triton.cdiv(y.numel(), 1024),)]", "[(triton.cdiv(y.numel(), 64),)]"),
        earned=12,  # all but that of the machine code: the launch that did the work has 4-byte loads
        state="pass",
    ),
    "the second input overwritten": kernel(
        "    tl.store(b_ptr + element, s, mask=exists)", state="fail", told="argument 2 was changed"
    ),
    "the output is the second input": Attack(
        launcher=LAUNCHER.replace("torch.empty_like(a)", "b"), state="fail", told="argument 2 was changed"
    ),
    "another dtype": Attack(launcher=LAUNCHER.replace("return y", "return y.double()"), state="fail", told="dtype"),
    "another shape": Attack(
        launcher=LAUNCHER.replace("return y", "return y.view(-1)[:1]"), state="fail", told="shape|computes"
    ),
    "an expanded result": Attack(
        launcher=LAUNCHER.replace("return y", "return y.reshape(-1)[:1].expand(y.numel()).reshape(y.shape)"),
        state="fail",
    ),
    "two results": Attack(launcher=LAUNCHER.replace("return y", "return y, y"), state="fail", told="tuple"),
    "no result": Attack(launcher=LAUNCHER.replace("return y", "return"), state="fail", told="got NoneType"),
    "a kernel that calls itself": kernel(
        "    add_gelu_kernel(a_ptr, b_ptr, y_ptr, elements, BLOCK)", state="error", told="cannot call itself"
    ),
    "a huge block": kernel(
        "    z = tl.zeros([68719476736], tl.float32)", state="error", told="numel|Memory|exceeds|large|zeros"
    ),
    "a huge text": kernel("    z = 'x' * 100000000000", state="error", told="Memory|InterpreterError"),
    "a power tower": kernel("    z = BLOCK ** BLOCK ** BLOCK", timeout=4.0, told="ran for over 4 s|Memory|ended"),
    "64 warps": Attack(
        launcher=LAUNCHER.replace("BLOCK=1024)", "BLOCK=1024, num_warps=64)"), state="error", told="num_warps"
    ),
    "more launch options": Attack(
        launcher=LAUNCHER.replace("BLOCK=1024)", "BLOCK=1024, enable_fp_fusion=False)"),
        state="fail",
        told="the launch option enable_fp_fusion is not graded",
    ),
    "a negative grid": Attack(
        launcher=LAUNCHER.replace("triton.cdiv(y.numel(), 1024)", "-1"), state="error", told="grid"
    ),
    "the answer kept from the public sizes": Attack(
        launcher="seen = []\n\n\n" + LAUNCHER.replace("    return y", "    seen.append(y)\n    return seen[0]"),
        state="fail",
        told="a tensor that was never created",
    ),
}

# With the policy switched off

_SWITCH = "kernel = get_ipython().kernel\n"
_STEPS = 'entry = {"values": values_as_json(y), "result": storages.view_of(y), "steps": STEPS}'
_FIRST = '"args": [{"tensor": storages.view_of(inputs[0])}], "kwargs": {}, "made": [storages.view_of(y)]'
_MADE = f'{{"operator": "aten.empty_like.default", {_FIRST}}}'


def steps(written: str, kernel: str = KERNEL, **changes) -> Attack:
    made = forged(_STEPS.replace("STEPS", written), **({"state": "fail", "told": "."} | changes))
    return Attack(**(vars(made) | {"kernel": kernel}))


def launch(**changes) -> str:
    step = {"kernel": "add_gelu_kernel", "grid": [1], "kwargs": {"BLOCK": 1024}, "args": []} | changes
    return f"[{_MADE}, {step!r}]"


_CALLS = """\
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
numbers = [57, 58, 101, 155, 165, 166, 175, 176, 246, 248, 249, 250, 272, 298, 304, 308, 310, 311, 319, 321, 323, 425]
numbers += [426, 427, 29, 64, 68, 133, 83, 86, 88, 169, 170, 171, 161, 163, 167, 168, 173, 172, 313, 320, 428, 430, 442]
got = {number: libc.syscall(number, 0, 0, 0, 0, 0, 0) for number in numbers}
assert all(value == -1 for value in got.values()), got
"""
_FAMILIES = """\
import socket
for family in range(3, 46):
    if family not in (socket.AF_INET6, socket.AF_NETLINK):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
            try:
                socket.socket(family, kind)
            except OSError:
                continue
            raise AssertionError(family)
"""
_REACH = """\
import glob, os, signal
open_to_all = {"/proc/1/timerslack_ns"}  # opened by anybody, written by its own process
for path in {*glob.glob("/proc/1/*")} - open_to_all | {*glob.glob("/proc/1/fd/*"), *glob.glob("/proc/sys/*/*")}:
    try:
        open(path, "r+b", buffering=0)
    except OSError:
        continue
    raise AssertionError(path)
for end in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):
    try:
        os.kill(1, end)
    except PermissionError:
        pass
"""
_FOLDER = """\
import glob, os
folder = os.path.dirname(glob.glob("/tmp/fusion-*/kernel/*")[0])
for path in glob.glob(folder + "/*"):
    os.unlink(path)
os.chmod(folder, 0)
"""
FLOOD = """\
while True:
    kernel.session.send(kernel.{socket}, "execute_reply", {{"status": "ok"}}, ident=kernel.get_parent("shell") and None,
                        parent=kernel.get_parent(), buffers=[bytes(1 << 20)] * {parts})
"""

PROCESSES = {
    "system calls": Attack(launcher=before(_CALLS), earned=15, state="pass"),
    "sockets of other families": Attack(launcher=before(_FAMILIES), earned=15, state="pass"),
    "the first process and the system's settings": Attack(launcher=before(_REACH), earned=15, state="pass"),
    "its own sockets deleted, its folder locked": Attack(launcher=before(_FOLDER), state="*", earned=None),
    "stops itself": Attack(
        launcher=before("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"), told="ran for over 4 s", timeout=4.0
    ),
    "a flood of parts": Attack(
        launcher=before(_SWITCH + FLOOD.format(socket="iopub_socket", parts=1000)),
        told="printed over|ended the kernel|ran for over",
        timeout=8.0,
    ),
    "a flood behind the check": Attack(
        launcher=before(
            "import threading\n"
            + _SWITCH
            + "def flood():\n"
            + "".join(f"    {line}\n" for line in FLOOD.format(socket="iopub_socket", parts=4).splitlines())
            + "threading.Thread(target=flood, daemon=True).start()"
        ),
        state="*",
        timeout=8.0,
    ),
    "asks for input": Attack(launcher=before("input('password')"), told="StdinNotImplemented|input"),
    "another display for the same": Attack(
        launcher="from IPython.display import display\n"
        "for _ in range(3):\n    display({'application/vnd.kernel-fusion.calls': '[]'}, raw=True)\n" + STUB,
        state="*",
    ),
    "an exception that forges": Attack(
        launcher="class E(Exception):\n    def __str__(self):\n        return 'pass' * 10**7\n"
        "def add_gelu(a, b):\n    raise E\n",
        told="printed over 10,000,000 characters",
    ),
    "no calls": forged("break", state="fail", told="did not make this call"),
    "deep nesting": forged("entry = eval('[' * 90 + ']' * 90)", told="showed something other"),
    "deeper nesting": Attack(
        launcher="import helpers.grading.replay.call_record as record\nfrom IPython.display import display\n"
        "record.emit = lambda *_: display({'text/plain': '', record.MIME: '[' * 100000}, raw=True)\n" + STUB,
        screened=False,
        told="showed something other",
    ),
    "steps without end": steps(f"[{_MADE}] * 200", told="over 64 operations"),
    "a launch of a negative grid": steps(launch(grid=[-1])),
    "a launch of a huge grid": steps(launch(grid=[2**31 - 1, 65535, 65535]), state="*"),
    "a launch of text": steps(launch(grid="xyz"), state="*"),
    "a launch of a million warps": steps(launch(kwargs={"BLOCK": 1024, "num_warps": 10**6}), state="*"),
    "a launch of dunders": steps(launch(kernel="__builtins__")),
    "a launch of arguments that are none": steps(
        launch(args=[{"tl": "pointer"}, {"torch": "load"}, {"kernel": "x"}]), state="*"
    ),
    "a tensor of negative strides": steps(
        launch(args=[{"tensor": {"storage": 0, "dtype": "float32", "shape": [9], "stride": [-1], "offset": 8}}])
    ),
    "a tensor beyond its storage": steps(
        launch(args=[{"tensor": {"storage": 0, "dtype": "float32", "shape": [10**12], "stride": [1], "offset": 0}}])
    ),
    "an operator that sets storages": steps(
        '[{"operator": "aten.set_.source_Storage", "args": [], "kwargs": {}, "made": []}]', told="PyTorch computes set"
    ),
    "an operator that allocates all": steps(
        '[{"operator": "aten.empty.memory_format", "args": [[10**12]], "kwargs": {}, "made": '
        '[{"storage": 2, "dtype": "float32", "shape": [1], "stride": [1], "offset": 0}]}]',
        state="*",
    ),
    "a plain value for a tensor": forged('entry = {"plain": [1.0] * 1000, "values": values_as_json(y)}', state="fail"),
    "a power tower that was recorded": Attack(
        kernel=KERNEL.replace("    tl.store", "    z = BLOCK ** BLOCK ** BLOCK\n    tl.store"),
        launcher=forged(attacks._AS_MADE).launcher,
        told="took over 30 s|ended",
    ),
}
PROCESSES = {name: Attack(**(vars(each) | {"screened": False})) for name, each in PROCESSES.items()}

NOT_RUN = TEXTS
RUN = KERNELS | PROCESSES | {"right, after all of them": Attack(earned=15, state="pass")}


def graded(name: str, seed: int) -> dict:
    """The result of an attack in RUN, as `attacks.graded` gives it."""
    with mock.patch.dict(attacks.ALL_RUN, {name: RUN[name]}):
        return attacks.graded(name, seed)
