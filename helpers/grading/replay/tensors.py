"""Write arguments and results as JSON: the bytes of storages with views of them, and plain values as they are.

A plain value is anything JSON can hold: a number, a string, or a list or dictionary of these. A view is `{"storage":
number, "dtype": "float32", "shape": [..], "stride": [..], "offset": elements}`, plus "meta": true if the tensor has no
memory. Storages are numbered in the order in which they first appear, so two processes that see the same call number
them alike.
"""

import base64
import math

import torch

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}
MAX_BYTES = 1 << 28  # of one storage that a record asks for
MAX_RESULTS = 8  # tensors that one call returns
MAX_TENSORS = 16  # in one message: results, and inputs that were changed


class Storages:
    """All storages so far. Each is kept alive, so that a later one at the same address can't be mistaken for it."""

    def __init__(self):
        self.tensors: list[torch.Tensor] = []
        self._numbers: dict[int, int] = {}

    def add(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor's storage, adding the storage if it's new."""
        key = tensor.untyped_storage()._cdata
        if key not in self._numbers:
            self._numbers[key] = len(self.tensors)
            self.tensors.append(tensor)
        return self._numbers[key]

    def knows(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._numbers

    def view_of(self, tensor: torch.Tensor) -> dict:
        """Return a tensor as a view of its storage, adding the storage if it's new."""
        return {
            "storage": self.add(tensor),
            "dtype": name_of(tensor.dtype),
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
            "offset": tensor.storage_offset(),
        } | ({"meta": True} if tensor.is_meta else {})

    def tensor_of(self, view: dict) -> torch.Tensor:
        """Return the tensor that a view describes.

        Raises:
            ValueError: it is outside its storage, or its dtype differs from the storage's.
        """
        number, dtype = view["storage"], DTYPES[view["dtype"]]
        if not (isinstance(number, int) and 0 <= number < len(self.tensors)):
            raise ValueError("a tensor that was never created")
        base = self.tensors[number]
        if base.dtype.itemsize != dtype.itemsize:
            raise ValueError(f"a view of {name_of(base.dtype)} as {name_of(dtype)} is not graded")
        try:
            return torch.as_strided(base.view(dtype), view["shape"], view["stride"], view["offset"])
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"a view outside its tensor: {str(error).splitlines()[0]}") from None


def name_of(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"tensors of {name} are not graded")
    return name


def inputs_as_json(inputs: tuple) -> dict:
    """Return `{"storages": [bytes in base64], "inputs": [views]}`, including strides, offsets and shared storages.

    An input that is not a tensor is written as `{"plain": value}`.
    """
    views, raw = inputs_packed(inputs)
    return {"storages": [base64.b64encode(each).decode() for each in raw], "inputs": views}


def inputs_from_json(written: dict) -> tuple:
    return inputs_unpacked(written["inputs"], [base64.b64decode(each) for each in written["storages"]])


def inputs_packed(inputs: tuple) -> tuple[list[dict], list[bytes]]:
    """Return views of the inputs, and the bytes of their storages."""
    storages = Storages()
    views = [storages.view_of(x) if isinstance(x, torch.Tensor) else {"plain": x} for x in inputs]
    return views, [b"" if x.is_meta else bytes_in(x.untyped_storage()) for x in storages.tensors]


def bytes_in(storage: torch.UntypedStorage) -> bytes:
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy().tobytes()


def have_memory(values: tuple) -> bool:
    """Return whether all tensors in a call's inputs have memory."""
    return not any(isinstance(x, torch.Tensor) and x.is_meta for x in values)


def inputs_unpacked(views: list[dict], raw: list[bytes]) -> tuple:
    whole = [
        torch.frombuffer(bytearray(each), dtype=torch.uint8) if each else torch.empty(0, dtype=torch.uint8)
        for each in raw
    ]
    # In a buffer, an input may start at any byte; a fresh storage is aligned, like PyTorch's own.
    storages = [each.clone().untyped_storage() for each in whole]

    def unpacked(view: dict) -> object:
        if "plain" in view:
            return view["plain"]
        shape, stride, dtype = view["shape"], view["stride"], DTYPES[view["dtype"]]
        if "meta" in view:
            return torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        return torch.empty(0, dtype=dtype).set_(storages[view["storage"]], view["offset"], shape, stride)

    return tuple(map(unpacked, views))


def tensors_packed(tensors: list[torch.Tensor]) -> tuple[list[dict], bytes]:
    """Return `[{"dtype", "shape"}]`, and all elements in order, without their layout."""
    described = [{"dtype": name_of(each.dtype), "shape": list(each.shape)} for each in tensors]
    return described, b"".join(map(elements_in, tensors))


def elements_in(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def tensors_unpacked(described: list[dict], raw: bytes) -> list[torch.Tensor]:
    """Return the tensors that another process described.

    Raises:
        ValueError: they don't match the description, or there are too many.
    """
    if not isinstance(described, list) or len(described) > MAX_TENSORS:
        raise ValueError("no list of tensors")
    found, start = [], 0
    for each in described:
        dtype, shape = DTYPES[each["dtype"]], each["shape"]
        if not isinstance(shape, list) or not all(type(size) is int and 0 <= size <= MAX_BYTES for size in shape):
            raise ValueError("no shape")
        end = start + math.prod(shape) * dtype.itemsize
        if end > len(raw):
            raise ValueError("fewer bytes than elements")
        part = raw[start:end]
        flat = torch.frombuffer(bytearray(part), dtype=dtype) if part else torch.empty(0, dtype=dtype)
        found.append(flat.reshape(shape).clone())
        start = end
    if start != len(raw):
        raise ValueError("more bytes than elements")
    return found


def is_plain(value: object) -> bool:
    """Return whether JSON can hold this result as it is, so it's neither a tensor nor None."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    return all(map(is_plain, value)) if isinstance(value, list | tuple) else isinstance(value, int | float | str)


# The entry for a plain result among values: the check judges it, because several results may be right.
PLAIN = {"dtype": "plain", "shape": [], "values": ""}


def values_as_json(result: object) -> dict | list[dict]:
    """Return `{"dtype", "shape", "values"}`: the elements in order, in base64, with that dtype; or PLAIN.

    For a tuple of tensors, return a list. A tensor without memory has no values.
    """
    if isinstance(result, tuple) and any(isinstance(tensor, torch.Tensor) for tensor in result):
        return [values_as_json(tensor) for tensor in result]
    if not isinstance(result, torch.Tensor):
        return PLAIN
    written = {"dtype": name_of(result.dtype), "shape": list(result.shape)}
    raw = b"" if result.is_meta else elements_in(result)
    return written | {"values": base64.b64encode(raw).decode()}
