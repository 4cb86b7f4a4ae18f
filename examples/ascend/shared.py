"""Common code of the Ascend examples: a card, a loaded model, datasets of inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass, field

import acl
import numpy as np

HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3
HUGE_FIRST = 0


def check(ret, what="acl"):
    """Raise RuntimeError with CANN's text for a return code other than 0."""
    if ret != 0:
        raise RuntimeError(f"{what}: {ret} {acl.get_recent_err_msg() or ''}")


def got(answer):
    """Check the return code, and return the values before it."""
    *values, ret = answer
    check(ret)
    return values[0] if len(values) == 1 else values


class Card:
    """Device 0 with its own context and stream; a context manager."""

    def __enter__(self):
        check(acl.init(), "init")
        check(acl.rt.set_device(0), "set_device")
        self.context = got(acl.rt.create_context(0))
        self.stream = got(acl.rt.create_stream())
        return self

    def __exit__(self, *raised):
        if any(raised):
            return  # keep the original error
        check(acl.rt.destroy_stream(self.stream), "destroy_stream")
        check(acl.rt.destroy_context(self.context), "destroy_context")
        check(acl.rt.reset_device(0), "reset_device")
        check(acl.finalize(), "finalize")


@dataclass
class Buffers:
    """A dataset with the data buffers, addresses and sizes in bytes of its tensors."""

    dataset: int
    handles: list = field(default_factory=list)
    ptrs: list = field(default_factory=list)
    sizes: list = field(default_factory=list)


class Model:
    """A model loaded from a file. `buffers` allocates datasets; `release` frees all of them."""

    def __init__(self, path):
        self.id = got(acl.mdl.load_from_file(path))
        self.desc = acl.mdl.create_desc()
        check(acl.mdl.get_desc(self.desc, self.id), "get_desc")
        self._made = []

    def buffers(self):
        """Allocate a dataset of inputs and one of outputs on the device."""
        mdl = acl.mdl
        inputs = range(mdl.get_num_inputs(self.desc))
        outputs = range(mdl.get_num_outputs(self.desc))
        return (
            self._dataset([mdl.get_input_size_by_index(self.desc, place) for place in inputs]),
            self._dataset([mdl.get_output_size_by_index(self.desc, place) for place in outputs]),
        )

    def gear_place(self):
        """Return the index of the gear input."""
        name = "ascend_mbatch_shape_data"
        return got(acl.mdl.get_input_index_by_name(self.desc, name))

    def release(self):
        """Free the datasets, their memory, and the model."""
        for made in self._made:
            for handle, ptr in zip(made.handles, made.ptrs, strict=True):
                check(acl.destroy_data_buffer(handle), "destroy_data_buffer")
                check(acl.rt.free(ptr), "free")
            check(acl.mdl.destroy_dataset(made.dataset), "destroy_dataset")
        check(acl.mdl.unload(self.id), "unload")
        check(acl.mdl.destroy_desc(self.desc), "destroy_desc")

    def _dataset(self, sizes):
        made = Buffers(acl.mdl.create_dataset())
        for size in sizes:
            ptr = got(acl.rt.malloc(size, HUGE_FIRST))
            handle = acl.create_data_buffer(ptr, size)
            _, ret = acl.mdl.add_dataset_buffer(made.dataset, handle)
            check(ret, "add_dataset_buffer")
            made.handles.append(handle)
            made.ptrs.append(ptr)
            made.sizes.append(size)
        self._made.append(made)
        return made


def upload(array, ptr, size):
    """Copy an array to the card synchronously."""
    data = array.tobytes()
    source = acl.util.bytes_to_ptr(data)
    check(acl.rt.memcpy(ptr, size, source, len(data), HOST_TO_DEVICE), "memcpy")


def download(ptr, shape, dtype=np.float32):
    """Copy an array from the card synchronously."""
    array = np.empty(shape, dtype)
    target = array.ctypes.data
    check(acl.rt.memcpy(target, array.nbytes, ptr, array.nbytes, DEVICE_TO_HOST), "memcpy")
    return array


def pictures(count, height=32, width=32):
    """Return images [count, 3, height, width], each of one colour."""
    colours = np.random.default_rng(count).random((count, 3, 1, 1), np.float32)
    return np.broadcast_to(colours, (count, 3, height, width)).copy()
