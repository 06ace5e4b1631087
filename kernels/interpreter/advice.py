"""Explain failures inside an interpreted kernel in terms of the kernel; Python's own messages are about the
interpreter."""

import linecache
import re

_NOT_IN_TL = {
    "tanh": "write 2 * tl.sigmoid(2 * x) - 1",
    "gelu": "write 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))",
    "relu": "write tl.where(x < 0, 0.0, x)",
    "silu": "write x * tl.sigmoid(x)",
    "pow": "write x * x * x",
    "mean": "write tl.sum(x) / n",
    "var": "write tl.sum of the squared distances from the mean, over n",
}
_DTYPES = {"float": "float32", "half": "float16", "bfloat16": "bfloat16", "double": "float64", "int": "int32"}

# (Python's or Triton's message, its explanation); \1 is the first group's match.
_MEANINGS = (
    (r"for \*\* or pow", "a block has no **: write s * s * s for a cube, tl.sqrt(s) for a root"),
    (r"for @:", "a block has no @: write tl.dot(a, b)"),
    (r"bad operand type for abs", "a block has no abs(): write tl.abs(x)"),
    (r"argument 'input' .*must be Tensor, not tensor", "torch takes no blocks: use tl's functions, such as tl.exp"),
    (r"'NoneType' object has no attribute 'to_tensor'", "NumPy takes no blocks: use tl's functions, such as tl.exp"),
    (
        r"cannot reshape array of size \d+ into shape \(\)|only .*arrays can be converted to Python scalars",
        "a block of values is not one number: float(), range() and math's functions take one; use tl's functions",
    ),
    (r"'torch.dtype' object has no attribute", "a kernel's dtypes are Triton's: write x.to(tl.float32)"),
    (r"'dtype' object is not callable", "a dtype is not a function: write x.to(tl.float32)"),
    (r"'int' object is not iterable", "a block cannot be indexed or looped over: load elements, or use tl.sum, tl.max"),
    (r"unsupported tensor index", "index a block with : and None only, x[:, None]; to use a part, load that part"),
    (
        r"Shape element \d+ must have type|arange's arguments must be of type tl.constexpr",
        "a block's size is known when the kernel is compiled: take it from a parameter declared tl.constexpr",
    ),
    (
        r"arange's range must be a power of 2|Shape element \d+ must be a power of 2",
        "a block's size is a power of two: take triton.next_power_of_2(n), and mask what lies past n",
    ),
    (r"'tensor' has no len\(\)", "a block has no len(): pass the number of elements to the kernel"),
    (r"does not support item assignment", "a block cannot be changed in place: write tl.where(condition, new, old)"),
    (r"Expected dtype .*but got (\w+)", r"this function takes fp32 or fp64, got \1: write x.to(tl.float32) first"),
    (r"numpy data itemsize .* for triton type int", "an integer is passed instead of a float: write 2.0, not 2"),
    (r"Unsupported ptr type", "tl.load and tl.store take a pointer: write tl.load(x_ptr + offsets)"),
    (r"cannot cast .* to|incompatible types? .*pointer", "a pointer is used as a value: tl.load it first"),
    (
        r"invalid operands of type .*float",
        "&, | and % of floats are not defined: compare first, or convert to integers",
    ),
    (
        r"'(\w+)' object has no attribute 'type'",
        r"\1 is passed instead of a tensor: launch with a torch.Tensor, and load from its pointer",
    ),
    (
        r"not supported between instances of .*'NoneType'",
        "None is passed instead of a number: pass that argument (tl.flip takes its dimension)",
    ),
    (r"maximum recursion depth", "a kernel cannot call itself: write a loop"),
    (r"'Builder' object has no attribute 'create_(\w+)'", r"the interpreter has no \1: it needs a GPU"),
    (
        r"^\(triton\.language\.(\w+)(?:, triton\.language\.(\w+))?\b.*\)$",
        r"libdevice has no such function of \1 \2: write x.to(tl.float32) first",
    ),
    (r"^'complex\d+'", "a kernel has no complex numbers: pass torch.view_as_real(x)"),
    (r"integer to be specialized too large", "an integer argument takes at most 64 bits: pass a smaller one"),
    (
        r"acc\.type\.element_ty == out_dtype",
        "tl.dot's acc has its result's shape and out_dtype, float32 unless given: tl.zeros((rows, columns), out_dtype)",
    ),
    (
        r"Cannot make_shape_compatible: incompatible dimensions at index (\d+): (\d+) and (\d+)",
        r"these blocks have \2 and \3 elements along axis \1: check which need x[:, None] and which x[None, :]",
    ),
    (r"multiple values for argument '_semantic'", "too many positional arguments: pass all but the first few by name"),
)
LONGEST = 300  # characters


def _unsaid(error: Exception) -> str:
    """Describe an error without a message: its name, and for an assertion, its condition."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if isinstance(error, AssertionError) and trace is not None:
        return f"`{linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno).strip()}` does not hold"
    return type(error).__name__


def meaning(error: Exception) -> str:
    """Explain an error to the kernel's author in one line; without a better explanation, return the error's own
    message."""
    said = " ".join(str(error).split()) or _unsaid(error)
    if missing := re.fullmatch(r"module 'triton\.language(?:\.\w+)?' has no attribute '(\w+)'", said):
        mend = _NOT_IN_TL.get(missing[1], "build it from tl.exp, tl.log, tl.sqrt, tl.erf, tl.sigmoid and tl.where")
        return f"tl has no {missing[1]}: {mend}"
    if missing := re.fullmatch(r"'tensor' object has no attribute '(\w+)'", said):
        if missing[1] in _DTYPES:
            return f"a block has no .{missing[1]}(): write x.to(tl.{_DTYPES[missing[1]]})"
        return (
            f"a block has no .{missing[1]}: {_NOT_IN_TL.get(missing[1], 'blocks have the methods of tl, not of torch')}"
        )
    for pattern, means in _MEANINGS:
        if found := re.search(pattern, said):
            return " ".join(found.expand(means).split()).replace(" : write", ": write")  # \2 may be nothing
    return said if len(said) <= LONGEST else f"{said[:LONGEST]} ..."
