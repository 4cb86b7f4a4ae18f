"""All parameters that a model may have in config.pbtxt.

`docs/runtime.md` shows these tables; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ge_runtime.config import parameters as readers
from ge_runtime.config.parameters import ConfigErrors, Family, Parameters, Setting

ENGINE: Final = Setting(
    "engine",
    readers.text,
    "auto",
    "`auto`, `onnxruntime`, `torch`, `om` or `ge_session` (experimental, as is `torch` on a card), "
    "or [one of another package](#an-engine-of-your-own)",
    "`auto`",
)
STAGES: Final = Setting[tuple[str, ...]](
    "stages",
    readers.stages,
    (),
    "names of artifacts in order of execution, each once",
    "the single artifact, `model`",
)
DEVICES: Final = Setting[tuple[str, ...]](
    "devices",
    readers.names,
    ("cpu",),
    "one engine and executor for each, all of one kind, e.g. `cpu, cpu`, `cuda:0, cuda:1` or "
    "`npu:0, npu:1`; an execution goes to the executor with the fewest queued rows",
    "`cpu`",
)
THREADS: Final = Setting[int | None](
    "intra_op_threads",
    readers.whole(1),
    None,
    "number of threads that one execution may use",
    "cores of the process / (instances x devices), at least 1",
)
COST: Final = Setting[readers.GivenCost | None](
    "cost",
    readers.cost,
    None,
    "`calibrate`: measured at load for about a second unless an earlier start has done so, and "
    "corrected while serving; or the fixed cost of an execution: `launch_us=120, element_ns=35.2, "
    "element2_ns=0.01`, and `growth_ns=2` if rows become more expensive with their number "
    "([what these mean](ragged.md#what-an-execution-costs))",
    "`calibrate`",
)
COST_CACHE: Final = Setting(
    "cost_cache",
    readers.cost_cache,
    "auto",
    "where measured costs are kept for the next start: `auto`, `off`, or a folder, inside the "
    "version folder if it is relative",
    "`auto`: `$GE_RUNTIME_CACHE/costs`, else `$XDG_CACHE_HOME/ge_runtime/costs`, else "
    "`~/.cache/ge_runtime/costs`",
)
OVERSIZE: Final = Setting(
    "oversize",
    readers.choice("error", "fallback"),
    "error",
    "what to do with a request that fits no gear: `error` refuses it, `fallback` executes it alone "
    "at its own size",
    "`error`",
)
PACKING: Final = Setting[str | None](
    "packing", readers.text, None, "the axis along which rows are joined instead of padded"
)
ROWS_MOST: Final = Setting[int | None](
    "rows",
    readers.whole(1),
    None,
    "largest number of rows of an execution; only with `max_batch_size: 0` and prepared tensors",
)
IO_BUFFERS: Final = Setting(
    "io_buffers",
    readers.whole(1),
    1,
    "on a card: sets of buffers for inputs and outputs that each executor has, 1 to 4; with 2, "
    "[copies are made while another execution computes](ascend.md#copies-beside-executions)",
    "1",
)
POOL_MIB: Final = Setting[int | None](
    "workspace_pool_mib",
    readers.whole(1),
    None,
    "capacity in MiB of the pool of workspace that all models of the process share; on a GPU, of "
    "one engine of ONNX Runtime; on a card, of the workspace of an executor, and for `ge_session` "
    "of its own arena",
    "no pool: engines allocate what they need",
)
UNPLANNED: Final = Setting(
    "unplanned_memory",
    readers.switch("allowed", "refused", default=False),
    False,
    "`allowed`: a `model.om` that ATC compiled for [ranges of sizes](ascend.md#ranges-of-sizes), "
    "without gears, is executed outside the memory plan; or `refused`",
    "`refused`",
)
PROFILE: Final = Setting[str | None](
    "profile",
    readers.text,
    None,
    "on a card: which executions msprof records, and where: `dir=/var/prof, batches=20, from=100, "
    "metrics=pipe` ([ascend](ascend.md#profiling-and-dump))",
)
DUMP: Final = Setting[str | None](
    "dump",
    readers.text,
    None,
    "on a card: in which executions the tensors of operators are recorded, and where: "
    "`dir=/var/dump, batches=1, from=1, mode=output, layers=conv1;pool1`",
)
PLACEMENT: Final = Setting(
    "placement",
    readers.choice("local", "service"),
    "local",
    "`local`: executed by the model's own process; `service`: by the process that owns the device, "
    "see [service.md](service.md)",
    "`local`",
)
RESIDENT_ROWS: Final = Setting[int | None](
    "resident_rows",
    readers.whole(1),
    None,
    "number of rows of each resident output that the device has room for",
    "four batches",
)
RESIDENT_READS: Final = Setting(
    "resident_reads",
    readers.whole(1),
    1,
    "number of times that a resident row is read before it is freed",
    "1",
)
RESIDENT_S: Final = Setting(
    "resident_s",
    readers.whole(1),
    60,
    "seconds after which a resident row is freed even if it was read less often",
    "60",
)
RESIDENT_SPARE_S: Final = Setting(
    "resident_spare_s",
    readers.whole(1),
    5,
    "seconds after which it is freed while other rows lack room",
    "5",
)
SERVICE_WEIGHT: Final = Setting(
    "service_weight",
    readers.weight,
    1.0,
    "with `placement: service`: the process's share of the device while others need it too; 2 is "
    "twice as much as 1",
    "1",
)
SERVICE_PRIORITY: Final = Setting(
    "service_priority",
    readers.whole(0),
    0,
    "with `placement: service`: executions of higher priority are executed first; a whole number",
    "0",
)
HISTOGRAM: Final = Setting[str | None](
    "histogram",
    readers.histogram,
    None,
    "a file inside the version folder: request sizes are added to it when the model is unloaded, "
    "and `auto` gears are derived from it when it is loaded",
)
WARMUP: Final = Setting(
    "warmup",
    readers.choice("gears", "none"),
    "gears",
    "`gears`: each gear is executed once at load; or `none`",
    "`gears`",
)
EARLY_ANSWERS: Final = Setting(
    "early_answers",
    readers.switch("true", "false", default=True),
    True,
    "`true`: answers are sent after their execution, see [below](#early-answers); `false`: all "
    "answers of a request batch are sent after its last execution",
    "`true`",
)
LOAD_CHECK: Final = Setting(
    "load_check",
    readers.switch("on", "off", default=True),
    True,
    "`on`: a load ends with seeded requests, which must get the same answers alone, padded and "
    "beside other requests ([any-graph.md](any-graph.md#what-is-checked-at-load)); or `off`",
    "`on`",
)
REPRODUCIBLE: Final = Setting(
    "reproducible",
    readers.switch("true", "false", default=False),
    False,
    "`true`: each request is executed at its own gear with all rows of the gear, so that its "
    "answer has the same bits alone and beside other requests "
    "([any-graph.md](any-graph.md#answers-to-the-bit)); needs `gears.batch`, one number, and gears "
    "for every axis",
    "`false`",
)
DEVICE_IDS: Final = Setting[tuple[int, ...] | None](
    "device_ids", readers.card_ids, None, "cards by number, e.g. `0, 1`, instead of `devices`"
)
EXEC_BLOCKS: Final = Setting(
    "device_exec_blocks", readers.whole(1), 1, "engines on each of `device_ids`", "1"
)
STATIC_MODEL: Final = Setting(
    "static_model",
    readers.switch("1", "0", default=False),
    False,
    "`1`: every axis, and `batch`, must have gears",
    "`0`",
)

SETTINGS: Final[tuple[Setting[Any], ...]] = (
    *(ENGINE, STAGES, DEVICES, THREADS, COST, COST_CACHE, OVERSIZE, PACKING, ROWS_MOST, IO_BUFFERS),
    *(POOL_MIB, UNPLANNED, PROFILE, DUMP, PLACEMENT, SERVICE_WEIGHT, SERVICE_PRIORITY),
    *(RESIDENT_ROWS, RESIDENT_READS, RESIDENT_S, RESIDENT_SPARE_S, HISTOGRAM, WARMUP),
    *(EARLY_ANSWERS, LOAD_CHECK, REPRODUCIBLE, DEVICE_IDS, EXEC_BLOCKS, STATIC_MODEL),
)
"""Parameters of the whole model."""

AXES: Final = Family(
    "axes.<input or output>",
    readers.names,
    "a name for each `-1` in the tensor's dims, in order, separated by commas; for outputs also "
    "relations such as `(height + 1) // 2`",
    "needed for every tensor with a `-1` (see below)",
)
LIMIT: Final = Family(
    "limit.<axis>",
    readers.whole(1),
    "the largest size of the axis; memory is planned from it",
    "needed for every axis",
)
MINIMUM: Final = Family(
    "min.<axis>", readers.whole(1), "the smallest size of a request along the axis", "1"
)
ALIGN: Final = Family(
    "align.<axis>",
    readers.whole(1),
    "executions have multiples of this size, as a graph's strides may need; along an `equal` axis "
    "requests must have such sizes, along others they are padded to them; the limit, and gears, "
    "must be such sizes",
    "1",
)
AXIS_LENGTH: Final = Family(
    "axis_length.<axis>",
    readers.text,
    "the input (integers, one for each row) with each row's true length along the axis",
    "a row is as long as its request's tensor",
)
GEARS: Final = Family(
    "gears.<axes>",
    readers.text,
    "the sizes that executions are prepared for: `16, 32, 64` for `gears.tokens`; `batch` stands "
    "for the rows: `gears.batch`; of several axes together: `32x16, 8x64` for "
    "`gears.batch,tokens`; or `auto 4`, derived at load",
    "free: a batch is as large as its longest row",
)
MASK: Final = Family(
    "mask.<graph input>",
    readers.names,
    "axes, separated by commas: the graph input is generated, 1 where a row has data along all of "
    "them and 0 where there is padding; shape [batch, *axes], of the graph input's own type",
)
LENGTHS: Final = Family(
    "lengths.<graph input>",
    readers.text,
    "one axis: each row's true length; shape [batch], or [batch, 1] if the graph has that shape",
)
POSITIONS: Final = Family(
    "positions.<graph input>",
    readers.text,
    "one axis: 0, 1, 2, ... along it, 0 in padding; shape [batch, axis]",
)
OFFSETS: Final = Family(
    "offsets.<graph input>",
    readers.text,
    "one axis: the accumulated true lengths of rows, from 0; shape [batch + 1]",
)
CONSTANT: Final = Family(
    "constant.<graph input>",
    readers.names,
    "the same value in every execution: one for all elements, or all elements in row-major order, "
    "e.g. `16000` or `1, 0.5`; of the graph's own type, without a batch dimension",
)
STATE: Final = Family(
    "state.<graph input>",
    readers.text,
    "the graph's output that becomes this input at the next request of the same sequence; 0 at the "
    "first: see [state](#state-that-travels-with-a-sequence)",
)
BATCH_AXIS: Final = Family(
    "batch_axis.<tensor>",
    readers.batch_dim,
    "which dim of the graph's input or output counts rows, from 0: 1 for `[tokens, batch, "
    "features]`; or `none` for a tensor without. Requests and answers always have their rows first",
    "0",
)
RANGE: Final = Family(
    "range.<input>",
    readers.text,
    "the lowest and the highest value of an element, e.g. `0..30521` for ids of a vocabulary: a "
    "request with another value in its data is refused",
    "any value",
)
PADDING: Final = Family(
    "padding.<axis>",
    readers.text,
    "`masked`, `equal` or `neutral`: whether sizes along the axis may differ within one execution, "
    "see [any-graph.md](any-graph.md#who-may-share-an-execution)",
    "`masked` if the graph receives where data ends, else `equal`",
)
PAD: Final = Family(
    "pad.<input>",
    readers.text,
    "the value of padding; for floats also `inf`, `-inf`, `nan`",
    "0; 1 for a length",
)
DEFAULT: Final = Family(
    "default.<input>",
    readers.text,
    "the value of all elements of an optional input that a request lacks",
    "0",
)
PASS: Final = Family(
    "pass.<output>",
    readers.text,
    "an input of the same type and dims, of any type: the output is that input, unchanged",
)
PREPARED: Final = Family(
    "prepared.<tensor>",
    readers.text,
    "an input of the graph that the model's own code computes from the request's: `INT64[tokens]`",
)
RESIDENT: Final = Family(
    "resident.<input or output>",
    readers.text,
    "a tensor whose rows [stay on the device](service.md#tensors-that-stay-on-the-device) between "
    "two models of an ensemble: its type and dims, for an input also the model that computes it: "
    "`FP32[384] of text_encoder`",
)
AIPP: Final = Family(
    "aipp.<input>",
    readers.text,
    "the graph's input is computed from images, UINT8 [height, width, channels]: normalised, "
    "channels first; see [images](images.md)",
)
JPEG: Final = Family(
    "jpeg.<prepared tensor>",
    readers.text,
    "the input, STRING of dims [1], whose JPEG files are decoded to this tensor, UINT8 [height, "
    "width, 1 or 3]: by a card's DVPP, or on the host; see [images](images.md#jpeg-files)",
)
GRAPH_GE: Final = Family(
    "graph.ge.<option>",
    readers.text,
    "an option of Ascend's compiler, for `ge-runtime build`: `aicoreNum`, `deterministic`, "
    "`enableSingleStream`, `externalWeight` (`0` unless for `ge_session`: weights are in the .om), "
    "`exec.disableReuseMemory`, `exec.precision_mode_v2`; for `ge_session` also `inputShape`, "
    "`dynamicDims`, `graph_key`, `graph_compiler_cache_dir`",
)
SESSION_GE: Final = Family("session.ge.<option>", readers.text, "as `graph.ge.<option>`")
GE: Final = Family("ge.<option>", readers.text, "as `graph.ge.<option>`")
ATC: Final = Family(
    "atc.<flag>",
    readers.text,
    "any other flag of ATC, for `ge-runtime build`: `atc.op_select_implmode`. The path in a flag "
    "that names a file is relative to the model's folder, and inside it; see "
    "[ascend](ascend.md#other-flags-of-atc)",
)

FAMILIES: Final[tuple[Family[Any], ...]] = (
    *(AXES, LIMIT, MINIMUM, ALIGN, AXIS_LENGTH, GEARS, MASK, LENGTHS, POSITIONS, OFFSETS, CONSTANT),
    *(STATE, BATCH_AXIS, RANGE, PADDING, PAD, DEFAULT, PASS, PREPARED, RESIDENT, AIPP, JPEG),
    *(GRAPH_GE, SESSION_GE, GE, ATC),
)
"""Parameters of single tensors, axes and options."""


def read_parameters(model_config: Mapping[str, object], errors: ConfigErrors) -> Parameters:
    """Read the parameters of a model configuration in Triton's JSON form."""
    return Parameters.read(model_config, SETTINGS, FAMILIES, errors)
