"""Probes of dumps, profiles, and files for ranges of sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import numpy as np

from ge_runtime.cli.dump_files import read_dump
from ge_runtime.cli.probe_device.exact_graphs import exact_input, rolled, rolling_matmul
from ge_runtime.cli.probe_device.session import (
    SMALL_GRAPH,
    Answer,
    ProbeSession,
    right_or_wrong,
)
from ge_runtime.errors import RuntimeFault

_MAX_NAMES: Final = 20
_API, _TASKS, _METRICS, _PIPE = 1, 2, 4, 1
_RANGED: Final = rolling_matmul(rows=8, width=64, layers=2, least=1)
_ROWS: Final = 5
_FLOAT, _ND = 0, 2


def dump_of_an_execution(session: ProbeSession) -> Answer:
    """Dump all operators of one execution, and read the dump."""
    session.open_device()
    folder = _new_folder(session, "dump")
    config = folder / "acl_dump.json"
    models = [{"model_name": session.compiled(SMALL_GRAPH).stem}]
    section = {"dump_path": str(folder), "dump_mode": "all", "dump_list": models}
    config.write_text(json.dumps({"dump": section}))
    session.call("mdl.init_dump")
    session.call("mdl.set_dump", str(config))
    slot = session.load(SMALL_GRAPH).slot()
    slot.execute()
    session.call("mdl.finalize_dump")
    paths = [path for path in _files(folder) if path != config.name]
    try:
        operators = read_dump(folder)
    except RuntimeFault as fault:
        return Answer(f"{len(paths)} files, which cannot be read", {"why": str(fault)})
    names = {f"to_moved_{layer}" for layer in range(1, SMALL_GRAPH.layers)} | {"to_y"}
    x = exact_input(SMALL_GRAPH.shape())
    last = [each for each in operators if each.name == "to_y"]
    expected = rolled(x, SMALL_GRAPH.layers)
    found = last[0].outputs[0].shaped(x.shape) if last and last[0].outputs else None
    right = found is not None and np.array_equal(found.astype(np.float32), expected)
    layers = [each.name for each in operators if each.name in names]
    depth = paths[0].count("/") if paths else 0
    return Answer(
        f"{len(paths)} files, {depth} folders deep; {len(layers)} of {len(names)} layers by their "
        f"names, {len(operators) - len(layers)} operators of other names; the last layer is "
        f"{'right' if right else 'absent or wrong'}",
        {
            "files": paths[:_MAX_NAMES],
            "operators": [each.name for each in operators][:_MAX_NAMES],
            "tensors": [
                [list(tensor.dims), tensor.format, tensor.original]
                for each in operators[:_MAX_NAMES]
                for tensor in each.outputs
            ],
        },
    )


def profile_of_an_execution(session: ProbeSession) -> Answer:
    """Profile one execution, and list the files of the profile."""
    session.open_device()
    folder = _new_folder(session, "profile")
    session.call("prof.init", str(folder))
    slot = session.load(SMALL_GRAPH).slot()
    data = _API | _TASKS | _METRICS
    config = session.handle("prof.create_config", [session.device], _PIPE, 0, data)
    session.call("prof.start", config)
    slot.execute()
    session.call("prof.stop", config)
    session.call("prof.destroy_config", config)
    session.call("prof.finalize")
    paths = _files(folder)
    folders = sorted({"/".join(path.split("/")[1:2]) for path in paths if "/" in path})
    tops = sorted({path.split("/")[0].split("_")[0] for path in paths})
    return Answer(
        f"{len(paths)} file(s) in {', '.join(tops)}_...: {', '.join(folders)}",
        {"files": paths[:_MAX_NAMES]},
    )


def ranges_of_sizes(session: ProbeSession) -> Answer:
    """Describe a file that is compiled for ranges, and execute it with output address 0."""
    session.open_device()
    number = session.call("mdl.load_from_file", str(session.compiled(_RANGED)))
    desc = session.handle("mdl.create_desc")
    session.call("mdl.get_desc", desc, number)
    sizes = [
        int(session.raw(f"mdl.get_{side}_size_by_index", desc, 0)) for side in ("input", "output")
    ]
    ranges = session.call("mdl.get_input_dims_range", desc, 0)
    dims = session.call("mdl.get_input_dims", desc, 0)["dims"]
    session.call("mdl.destroy_desc", desc)
    x = exact_input(_RANGED.shape(_ROWS))
    address = session.malloc(x.nbytes)
    session.copy_in(address, x)
    inputs = session.dataset([address], [x.nbytes])
    outputs = session.handle("mdl.create_dataset")
    buffer = session.handle("create_data_buffer", 0, 0)
    session.call("mdl.add_dataset_buffer", outputs, buffer)
    input_desc = session.handle("create_tensor_desc", _FLOAT, list(x.shape), _ND)
    session.call("mdl.set_dataset_tensor_desc", inputs, input_desc, 0)
    session.raw("destroy_tensor_desc", input_desc)
    session.call("mdl.execute", number, inputs, outputs)
    output_desc = session.raw("mdl.get_dataset_tensor_desc", outputs, 0)
    count = int(session.raw("get_tensor_desc_num_dims", output_desc)) if output_desc else 0
    output_dims = [
        int(session.call("get_tensor_desc_dim_v2", output_desc, place)) for place in range(count)
    ]
    found = int(session.raw("get_data_buffer_addr", buffer))
    right = False
    if found:
        y = np.empty_like(x)
        session.copy_out(y, found)
        right = bool(np.array_equal(y, rolled(x, _RANGED.layers)))
        session.call("rt.free", found)
    session.call("mdl.destroy_dataset", outputs)
    session.call("destroy_data_buffer", buffer)
    session.call("mdl.unload", number)
    return Answer(
        f"dims {dims}, ranges {ranges['range']}, input {sizes[0]} and output {sizes[1]} bytes; an "
        f"output of address 0 gets {'memory' if found else 'none'}, its dims {output_dims}, "
        f"{right_or_wrong(right)}",
        {
            "dims": dims,
            "ranges": ranges,
            "sizes": sizes,
            "output_dims": output_dims,
            "right": right,
        },
    )


def _new_folder(session: ProbeSession, name: str) -> Path:
    folder = session.folder / name
    folder.mkdir(exist_ok=True)
    return folder


def _files(folder: Path) -> list[str]:
    """Return the relative paths of all files below the folder, sorted."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path.relative_to(folder).as_posix() for path in paths)
