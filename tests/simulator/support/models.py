"""Small models, compiled as atc does, and a driver that loads and executes them with `acl`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from runtime.support.graphs import onnx_model
from simulator.support.driving import D2H, H2D, content, ok

from ascend_simulator import SimulatorViolation, atc

SOC = "AscendSimulator"
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
GEAR = "ascend_mbatch_shape_data"
DTYPES = {0: np.float32, 1: np.float16, 3: np.int32, 9: np.int64, 12: np.bool_}
MATRIX = (np.arange(12, dtype=np.float32).reshape(4, 3) - 5) / 8
node = helper.make_node


def breaks(rule: str):
    """Expect the block to violate this rule."""
    return pytest.raises(SimulatorViolation, match=re.escape(f"[{rule}]"))


def rows(n="n"):
    """x [n, 4] to y [n, 3], a product with MATRIX."""
    return onnx_model(
        [node("MatMul", ["x", "matrix"], ["y"], name="product")],
        [("x", FLOAT, [n, 4])],
        [("y", FLOAT, [n, 3])],
        {"matrix": MATRIX},
    )


def texts():
    """ids, mask [n, t] to total [n] and kept [n, t]: two outputs, one with two variable dims."""
    return onnx_model(
        [
            node("Mul", ["ids", "mask"], ["kept"], name="mul"),
            node("ReduceSum", ["kept", "axis"], ["total"], keepdims=0, name="sum"),
        ],
        [("ids", INT64, ["n", "t"]), ("mask", INT64, ["n", "t"])],
        [("total", INT64, ["n"]), ("kept", INT64, ["n", "t"])],
        {"axis": np.array([1])},
    )


def image():
    """x [1, 1, h, w] to y of the same dims, doubled."""
    return onnx_model(
        [node("Add", ["x", "x"], ["y"], name="add")],
        [("x", FLOAT, [1, 1, "h", "w"])],
        [("y", FLOAT, [1, 1, "h", "w"])],
    )


def nonzero():
    """x [n] to the indices of its nonzero values: dims that depend on data."""
    return onnx_model(
        [node("NonZero", ["x"], ["y"])], [("x", FLOAT, ["n"])], [("y", INT64, [1, "m"])]
    )


def compile_to(folder: Path, model: onnx.ModelProto, name: str = "model", /, **flags: str) -> str:
    """Compile a model with atc; return the path. Defaults: "origin", for the simulator's chip."""
    source = folder / f"{name}.onnx"
    onnx.save(model, source)
    given = {
        "framework": "5",
        "model": str(source),
        "output": str(folder / name),
        "soc_version": SOC,
        "precision_mode_v2": "origin",
        **flags,
    }
    return str(atc.run([f"--{flag}={value}" for flag, value in given.items()]))


def rows_om(folder: Path, gears: str = "1,4,8", **flags: str) -> str:
    """`rows` with gears of the first dim."""
    shape = {"input_shape": "x:-1,4", "dynamic_batch_size": gears}
    return compile_to(folder, rows(), "rows", **shape, **flags)


def texts_om(folder: Path, gears: str = "1,4,1,4;2,8,2,8;4,8,4,8", **flags: str) -> str:
    """`texts` with gears of all four dims."""
    return compile_to(
        folder,
        texts(),
        "texts",
        input_format="ND",
        input_shape="ids:-1,-1;mask:-1,-1",
        dynamic_dims=gears,
        **flags,
    )


def image_om(folder: Path, gears: str = "2,3;4,4") -> str:
    """`image` with gears of height and width."""
    return compile_to(folder, image(), "image", input_shape="x:1,1,-1,-1", dynamic_image_size=gears)


def static_om(folder: Path, n: int = 2) -> str:
    """`rows` with a fixed number of rows."""
    return compile_to(folder, rows(), "static", input_shape=f"x:{n},4")


@dataclass
class Buffers:
    """A dataset and its buffers, by index."""

    dataset: int
    handles: list[int] = field(default_factory=list)
    ptrs: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)


class Loaded:
    """A model in its own memory, with one set of buffers."""

    def __init__(self, acl, path: str) -> None:
        self.acl = acl
        mdl = acl.mdl
        self.work_bytes, self.weight_bytes = ok(mdl.query_size(path))
        self.work = self.malloc(self.work_bytes)
        self.weights = self.malloc(self.weight_bytes)
        self.id = ok(
            mdl.load_from_file_with_mem(
                path, self.work, self.work_bytes, self.weights, self.weight_bytes
            )
        )
        self.desc = mdl.create_desc()
        ok(mdl.get_desc(self.desc, self.id))
        sizes = [
            mdl.get_input_size_by_index(self.desc, place)
            for place in range(mdl.get_num_inputs(self.desc))
        ]
        self.inputs = self.buffers(sizes)
        sizes = [
            mdl.get_output_size_by_index(self.desc, place)
            for place in range(mdl.get_num_outputs(self.desc))
        ]
        self.outputs = self.buffers(sizes)

    @property
    def gear_place(self) -> int:
        return ok(self.acl.mdl.get_input_index_by_name(self.desc, GEAR))

    def malloc(self, nbytes: int) -> int:
        return ok(self.acl.rt.malloc(nbytes, 0)) if nbytes else 0

    def buffers(self, sizes) -> Buffers:
        """Return a dataset of new memory of these sizes."""
        made = Buffers(self.acl.mdl.create_dataset())
        for size in sizes:
            ptr = self.malloc(size)
            handle = self.acl.create_data_buffer(ptr, size)
            ok(self.acl.mdl.add_dataset_buffer(made.dataset, handle))
            made.handles.append(handle)
            made.ptrs.append(ptr)
            made.sizes.append(size)
        return made

    def set_batch(self, batch: int) -> int:
        mdl = self.acl.mdl
        return mdl.set_dynamic_batch_size(self.id, self.inputs.dataset, self.gear_place, batch)

    def set_dims(self, *dims: int) -> int:
        given = {"name": "", "dimCount": len(dims), "dims": list(dims)}
        mdl = self.acl.mdl
        return mdl.set_input_dynamic_dims(self.id, self.inputs.dataset, self.gear_place, given)

    def write(self, place: int, array: np.ndarray) -> None:
        """Copy an array to an input."""
        array = np.ascontiguousarray(array)
        copy = self.acl.rt.memcpy
        ptr, size = self.inputs.ptrs[place], self.inputs.sizes[place]
        ok(copy(ptr, size, array.ctypes.data, array.nbytes, H2D))

    def read(self, place: int) -> np.ndarray:
        """Return an output at the gear last set."""
        mdl = self.acl.mdl
        dims = ok(mdl.get_cur_output_dims(self.desc, place))["dims"]
        array = np.empty(dims, DTYPES[mdl.get_output_data_type(self.desc, place)])
        ptr = self.outputs.ptrs[place]
        ok(self.acl.rt.memcpy(array.ctypes.data, array.nbytes, ptr, array.nbytes, D2H))
        return array

    def output_bytes(self, place: int) -> bytes:
        """Return all bytes of an output's buffer."""
        return content(self.outputs.ptrs[place], self.outputs.sizes[place])

    def execute(self) -> int:
        return self.acl.mdl.execute(self.id, self.inputs.dataset, self.outputs.dataset)

    def execute_async(self, stream: int = 0) -> int:
        datasets = self.inputs.dataset, self.outputs.dataset
        return self.acl.mdl.execute_async(self.id, *datasets, stream)

    def release(self) -> None:
        """Release all objects in the documented order."""
        acl = self.acl
        for made in (self.inputs, self.outputs):
            for handle in made.handles:
                ok(acl.destroy_data_buffer(handle))
            ok(acl.mdl.destroy_dataset(made.dataset))
        ok(acl.mdl.destroy_desc(self.desc))
        ok(acl.mdl.unload(self.id))
        for ptr in (*self.inputs.ptrs, *self.outputs.ptrs, self.work, self.weights):
            if ptr:
                ok(acl.rt.free(ptr))
