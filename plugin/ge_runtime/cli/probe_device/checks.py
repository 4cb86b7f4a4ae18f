"""The table of questions for a card, each with the runtime's assumption and its probe.

tests/simulator/trust.md shows this table; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from ge_runtime.cli.probe_device import environment_probes, file_probes, model_probes
from ge_runtime.cli.probe_device.session import Answer

Probe: TypeAlias = Callable[..., Answer]
"""Returns the answer for a session. May raise DriverFault, Unavailable or any other exception."""


@dataclass(frozen=True)
class DeviceCheck:
    """A question that CANN's documents leave open."""

    number: int
    question: str
    assumed: str
    """The answer that ge_runtime assumes."""
    otherwise: str
    """The consequence if the answer differs from `assumed`."""
    probe: Probe
    risk: str = ""
    """A danger to the device that serving does not cause, or ""."""


CHECKS: Final = (
    DeviceCheck(
        1,
        "What does execute_async return while the same model executes on another stream?",
        "nothing that can be relied on: a model belongs to one executor, which has one stream",
        "nothing; an error code would also reveal the mistake on a device",
        model_probes.one_model_on_two_streams,
        risk="two executions share a workspace: wrong results, or an exception of the AI core",
    ),
    DeviceCheck(
        2,
        "Which code does execute return for a missing buffer, or for a buffer that is too short?",
        "500002, after which the executor is reset as after any internal failure of CANN; in "
        "older releases 145000, after which the executor is not reset",
        "nothing while buffers have the model's sizes; if the code meant a lost device, a "
        "mistake would make the card unusable",
        model_probes.buffers_that_do_not_fit,
    ),
    DeviceCheck(
        3,
        "Do workspace, weights and buffers need more than 64 bytes of alignment?",
        "no: malloc aligns its blocks to 64 bytes, and a slot aligns its buffers within its block",
        "slots would need the larger alignment, `npu/driver/stream_executor.py`",
        model_probes.memory_alignment,
        risk="an unusable address raises an exception of the AI core and ends the context",
    ),
    DeviceCheck(
        4,
        "Does query_size need a device?",
        "yes: it is called after set_device",
        "nothing; `ge-runtime inspect` could show sizes on a machine without a card",
        model_probes.sizes_without_a_device,
    ),
    DeviceCheck(
        5,
        "Can a model be executed after a wait for it timed out (507046)?",
        "no: the card counts as lost, because the execution may still write its buffers",
        "another wait would be enough, and the process could continue",
        model_probes.after_a_time_limit,
    ),
    DeviceCheck(
        6,
        "Does pyACL pass WEIGHT_PATH_PTR and WITHOUT_GRAPH_INT32 to load_with_config?",
        "no: neither is used; weights are stored in the .om",
        "nothing; weights in separate files could be served",
        model_probes.options_of_a_load,
    ),
    DeviceCheck(
        7,
        "Can a model's weights be in device memory of another process (IPC)?",
        "no: processes that share weights use the device service",
        "nothing; weights could be shared without the service",
        model_probes.weights_of_another_process,
    ),
    DeviceCheck(
        8,
        "Which Python, NumPy, torch and torch_npu fit this CANN?",
        "the versions in Huawei's tables, which `ge-runtime doctor` contains",
        "doctor's tables would be wrong",
        environment_probes.versions,
    ),
    DeviceCheck(
        9,
        "Which calls of pyACL hold Python's GIL?",
        "all except the waits, as in the open-source binding: so copies and executions are queued",
        "if the waits also held the GIL, the executors of a process would block each other",
        environment_probes.held_gil,
    ),
    DeviceCheck(
        10,
        "Does torchair convert the result of torch.export to a GE graph?",
        "no: torch models are exported to ONNX, or torchair compiles the module",
        "nothing; torch models would need fewer steps",
        environment_probes.torch_export,
    ),
    DeviceCheck(
        11,
        "May a gear be set while another thread submits to the same stream?",
        "no: setting, copies and execution of an executor are under one lock; but executors of "
        "one card set gears while other executors execute",
        "if a setter waited for all streams, executors would not overlap; if a setter failed, "
        "they must not overlap",
        model_probes.gear_while_the_stream_works,
    ),
    DeviceCheck(
        12,
        "What does execute_async cost with other addresses than before?",
        "more than with the same addresses: a slot's addresses never change",
        "nothing; alternating between two slots of an executor may cost more than using one slot",
        model_probes.changed_addresses,
    ),
    DeviceCheck(
        13,
        "Which names of GE-PY 0.0.1 still exist, with which arguments?",
        "all names that the engine uses",
        "the engine ge_session refuses such a GE-PY, and names what is missing",
        environment_probes.ge_py,
    ),
    DeviceCheck(
        14,
        "Does registering shared memory as page-locked allow queued copies from it?",
        "yes, with host_register_v2, but not on Linux up to 5.10, nor if the call is refused, as "
        "documented for 310P and 310B: then the device service copies twice, through its own "
        "memory",
        "copies from registered memory would fail, or block all Python threads of the service",
        environment_probes.registered_memory,
        risk="up to CANN 8.1, a queued copy of memory that is not page-locked may fail in any way",
    ),
    DeviceCheck(
        15,
        "Which names and dims does a model with gears report?",
        "names are node:port:name or plain, the gear's input is last, the outputs' dims are "
        "those of the largest gear until a gear is set, and then those of this gear",
        "outputs would not be found by their names, or the table of gears would be wrong",
        model_probes.description_of_a_geared_model,
    ),
    DeviceCheck(
        16,
        "Is the device memory of a killed process free at once?",
        "yes, or within seconds: the device service is restarted after a crash",
        "the service's models would not fit until the driver has released the memory",
        environment_probes.memory_of_a_killed_process,
    ),
    DeviceCheck(
        17,
        "How exactly does GE-PY return the numbers of a tensor?",
        "floats with six decimals, and booleans not at all; but both exactly if they are read as "
        "integers of the same size",
        "the engine ge_session would return other numbers than the graph computes",
        environment_probes.ge_numbers,
    ),
    DeviceCheck(
        18,
        "What does a model with gears of image sizes report, and are its results right at each "
        "size?",
        "the gear's input is last, height and width of its image are -1, gears are pairs of height "
        "and width, the outputs' dims are those of the gear that was set",
        "such models could not be planned, or would be executed at a wrong size",
        model_probes.description_of_an_image_model,
    ),
    DeviceCheck(
        19,
        "Do executions continue after an exception of the AI core (507015, 507035)?",
        "yes, in a new context and stream, with the models loaded again, as the executor does",
        "these codes would mean a lost device, and the process would have to be restarted",
        model_probes.after_a_failed_execution,
        risk="an exception of the AI core, after which the card may have to be reset",
    ),
    DeviceCheck(
        20,
        "What does a file with static AIPP report about its image, and how does it round?",
        "the input is the raw image with its dims and bytes; parameters are reported as they were "
        "set; (pixel - mean - min) * var is rounded to FP16 once",
        "a plan would be too large or too small; outputs on CPU and card would differ in the last "
        "bit",
        file_probes.static_aipp,
    ),
    DeviceCheck(
        21,
        "How does AIPP convert YUV420SP to colours?",
        "each pair of colours applies to four pixels; products with the matrix are added, shifted "
        "right by 8 without rounding, and limited to 0 to 255",
        "nothing while ge_runtime accepts no such images; the CPU would have to compute the same",
        file_probes.yuv_aipp,
    ),
    DeviceCheck(
        22,
        "What does a file with dynamic AIPP report about its image, and do parameters persist?",
        "one more input is for the parameters; the image has max_src_image_size bytes; parameters "
        "persist for later executions",
        "image buffers would have another size; images after the first would be wrong",
        file_probes.dynamic_aipp,
    ),
    DeviceCheck(
        23,
        "Does DVPP decode a JPEG file to strides of 128 and 16, and resize it?",
        "yes, on all chips with DVPP; a release without acl.media decodes on the host",
        "files would be decoded on the host, each with a warning",
        file_probes.jpeg_by_dvpp,
    ),
    DeviceCheck(
        24,
        "What does a dump of one execution contain?",
        "a folder for time, device, model, its id and a count; a file for each operator, as "
        "`ge-runtime compare` reads it, with the graph's names where nothing was fused",
        "`compare` would use compiled parts, or miss layers",
        file_probes.dump_of_an_execution,
    ),
    DeviceCheck(
        25,
        "Which files does a profile contain?",
        "PROF_... with host and device_0 in it, for msprof to export",
        "nothing; the documentation would show other names",
        file_probes.profile_of_an_execution,
    ),
    DeviceCheck(
        26,
        "What does a file for ranges of sizes report about its outputs, and what does address 0 "
        "do?",
        "the bytes at the upper bounds; an output of address 0 gets memory that rt.free releases, "
        "and its dims are in the dataset after the execution",
        "outputs would be planned too small; memory would be lost in each execution",
        file_probes.ranges_of_sizes,
    ),
)

_STARTED_BY_PROBES: Final[tuple[Probe, ...]] = (
    model_probes.imported_weights,
    environment_probes.holds_memory,
)

PROBES: Final[Mapping[str, Probe]] = {
    probe.__name__: probe for probe in (*(check.probe for check in CHECKS), *_STARTED_BY_PROBES)
}
"""All probes by name, including those that other probes start."""
