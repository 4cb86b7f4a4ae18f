"""The checks: what only a device can tell, what is assumed until then, the probe that asks it.

tests/simulator/trust.md shows these as a table, which a test holds against this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from ge_runtime.cli.probe_device import (
    environment_probes,
    image_probes,
    model_probes,
    record_probes,
)
from ge_runtime.cli.probe_device.session import Answer

Probe: TypeAlias = Callable[..., Answer]
"""(session) -> answer. Raises DriverFault, Unavailable, or anything."""


@dataclass(frozen=True)
class DeviceCheck:
    """A question that no document answers."""

    number: int
    question: str
    assumed: str
    """What ge_runtime takes for the answer meanwhile."""
    otherwise: str
    """What would be wrong if the answer were another."""
    probe: Probe
    risk: str = ""
    """What asking may do to a device; "" if it does nothing that serving does not."""


CHECKS: Final = (
    DeviceCheck(
        1,
        "What does execute_async answer while the same model executes on another stream?",
        "nothing that can be relied on: a model belongs to one executor, which has one stream",
        "nothing; a code would let a mistake be found on a device, too",
        model_probes.one_model_on_two_streams,
        risk="two executions share a workspace: wrong results, or an exception of the AI core",
    ),
    DeviceCheck(
        2,
        "Which code does execute give for a buffer too few, or too short?",
        "500002, after which the executor is reset as after any failure of CANN's own; 145000 in "
        "older releases, after which it is not",
        "nothing while buffers are what the model asks for; a code of a lost device would give the "
        "card up for a mistake",
        model_probes.buffers_that_do_not_fit,
    ),
    DeviceCheck(
        3,
        "Do workspace, weights and buffers need more than 64 bytes of alignment?",
        "64 is enough: malloc's blocks start there, and a slot's buffers within its block",
        "slots would have to be laid out by that multiple, `ascend/stream_executor.py`",
        model_probes.memory_alignment,
        risk="an address that the AI core cannot use ends in its exception, and the context's end",
    ),
    DeviceCheck(
        4,
        "Does query_size need a device?",
        "yes: it is asked after set_device",
        "nothing; `ge-runtime inspect` could tell sizes on a machine without a card",
        model_probes.sizes_without_a_device,
    ),
    DeviceCheck(
        5,
        "Can a model be executed after the wait for it ran out of time (507046)?",
        "no: the card counts as lost, as what still runs may write its buffers at any time",
        "a wait would be enough, and the process could go on",
        model_probes.after_a_time_limit,
    ),
    DeviceCheck(
        6,
        "Do WEIGHT_PATH_PTR and WITHOUT_GRAPH_INT32 of load_with_config pass pyACL?",
        "no: neither is used; weights lie in the .om",
        "nothing; weights in files of their own could be served",
        model_probes.options_of_a_load,
    ),
    DeviceCheck(
        7,
        "Can a model's weights lie in device memory of another process (IPC)?",
        "no: processes that are to share weights use the device service",
        "nothing; weights could be shared without the service",
        model_probes.weights_of_another_process,
    ),
    DeviceCheck(
        8,
        "Which Python, NumPy, torch and torch_npu fit this CANN?",
        "those of Huawei's tables, which `ge-runtime doctor` has",
        "doctor's tables would be wrong",
        environment_probes.versions,
    ),
    DeviceCheck(
        9,
        "Which calls of pyACL hold Python's lock (GIL)?",
        "all but the waits, as the open-source binding does: so only queued copies and executions",
        "if the waits held it, too, executors of one process would stand still for each other",
        environment_probes.pythons_lock,
    ),
    DeviceCheck(
        10,
        "Does torchair make a GE graph of what torch.export gives?",
        "no: torch models come through ONNX, or torchair compiles the module",
        "nothing; a shorter way for torch models",
        environment_probes.torch_export,
    ),
    DeviceCheck(
        11,
        "May a gear be set while another thread submits to the same stream?",
        "no: setting, copies and execution of an executor are under one lock; but executors of one "
        "card set gears while others execute",
        "if a setter waited for all streams, executors would not overlap; if it failed, they must "
        "not",
        model_probes.gear_while_the_stream_works,
    ),
    DeviceCheck(
        12,
        "What does execute_async cost with other addresses than before?",
        "more than with the same: a slot's addresses never change",
        "nothing; two slots on one executor in turn may cost more than one",
        model_probes.changed_addresses,
    ),
    DeviceCheck(
        13,
        "Which names of GE-PY 0.0.1 are still there, with which arguments?",
        "all that are used",
        "the engine ge_session refuses such a GE-PY, and names what it lacks",
        environment_probes.ge_py,
    ),
    DeviceCheck(
        14,
        "Does registering shared memory as page-locked make queued copies from it possible?",
        "yes, by host_register_v2, but not on Linux up to 5.10, nor where the call is refused, as "
        "documented for 310P and 310B: there the device service copies at once",
        "copies would hold up all Python threads of the device service, or fail when they run",
        environment_probes.registered_memory,
        risk="up to CANN 8.1, a queued copy of memory that is not page-locked may fail in any way",
    ),
    DeviceCheck(
        15,
        "What are the tensors of a model with gears called, and which dims does it tell?",
        "names are node:port:name or plain, the gear's input is last, the outputs' dims are the "
        "largest gear's until one is set, and then that one's",
        "outputs would not be found by their names, or the table of gears would be wrong",
        model_probes.what_a_model_tells,
    ),
    DeviceCheck(
        16,
        "Is the device memory of a process that was killed free at once?",
        "yes, or within seconds: the device service is started again after it",
        "its models would not fit before the driver has cleared up",
        environment_probes.memory_of_the_dead,
    ),
    DeviceCheck(
        17,
        "How exactly does GE-PY tell the numbers of a tensor?",
        "floats with six decimals and truth values not at all, but all of them to the bit if they "
        "are read as integers of their size",
        "the engine ge_session would answer with numbers that are not those of the graph",
        environment_probes.ge_numbers,
    ),
    DeviceCheck(
        18,
        "What does a model with gears of image sizes tell, and is it right at each of them?",
        "as one with other gears: the gear's input is last, height and width of its image are "
        "open, gears are pairs of height and width, the outputs' dims those of the gear that was "
        "set",
        "such models could not be planned, or would be executed at a wrong size",
        model_probes.what_a_model_of_images_tells,
    ),
    DeviceCheck(
        19,
        "Do executions go on after one that the AI core failed in (507015, 507035)?",
        "yes, in a new context and stream, with the models loaded again: that is what an executor "
        "does",
        "these codes would be those of a lost device, and the process would have to be restarted",
        model_probes.after_a_failed_execution,
        risk="an exception of the AI core, after which the card may have to be reset",
    ),
    DeviceCheck(
        20,
        "What does a file with static AIPP tell of its image, and how are its numbers rounded?",
        "the input is the raw image, its dims and bytes; parameters are told as they were set; "
        "a pixel less mean and min, times var, is rounded to FP16 once",
        "a plan would be too large or too small; answers on CPU and card would differ in a last "
        "bit",
        image_probes.static_aipp,
    ),
    DeviceCheck(
        21,
        "How does AIPP make colours of YUV420SP?",
        "each pair of colours is that of four pixels; products with the matrix are added and "
        "shifted right by 8 without rounding, and limited to 0 to 255",
        "nothing while ge_runtime takes no such images; how it would compute them elsewhere",
        image_probes.yuv_aipp,
    ),
    DeviceCheck(
        22,
        "What does a file with dynamic AIPP tell of its image, and do its parameters stay?",
        "one more input is for the parameters; the image has max_src_image_size bytes; what is "
        "set stays for later executions",
        "buffers of images would be of another size; images after the first would be wrong",
        image_probes.dynamic_aipp,
    ),
    DeviceCheck(
        23,
        "Does DVPP decode a JPEG file to strides of 128 and 16, and resize it?",
        "yes, on all chips with DVPP; a release without acl.media decodes on the host",
        "files would be decoded on the host, after a warning for each",
        image_probes.jpeg_by_dvpp,
    ),
    DeviceCheck(
        24,
        "What does a dump of one execution look like?",
        "a folder for time, device, model, its id and a count; a file for each operator, as "
        "`ge-runtime compare` reads it, with the graph's names where nothing was fused",
        "`compare` would go by compiled parts, or miss layers",
        record_probes.dump_of_an_execution,
    ),
    DeviceCheck(
        25,
        "Which files does a profile have?",
        "PROF_... with host and device_0 in it, for msprof to export",
        "nothing; the page would show other names",
        record_probes.profile_of_an_execution,
    ),
    DeviceCheck(
        26,
        "What does a file for ranges of sizes tell of its outputs, and what comes of address 0?",
        "the most bytes, of the upper bounds; an output of address 0 gets memory, to be freed "
        "with rt.free, and its dims are in the dataset after the execution",
        "outputs would be planned too small; memory would be lost in each execution",
        record_probes.ranges_of_sizes,
    ),
)

_STARTED: Final[tuple[Probe, ...]] = (
    model_probes.imported_weights,
    environment_probes.holds_memory,
)
"""By other probes."""

PROBES: Final[Mapping[str, Probe]] = {
    probe.__name__: probe for probe in (*(check.probe for check in CHECKS), *_STARTED)
}
"""By name, with those that other probes start."""
