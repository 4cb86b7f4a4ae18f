"""All parameters that a model may have in config.pbtxt.

`docs/parameters.md` shows these tables; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ge_runtime.config import parameters as readers
from ge_runtime.config.parameters import MOST_THREADS, ConfigErrors, Family, Parameters, Setting

ENGINE: Final = Setting(
    "engine",
    readers.text,
    "auto",
    "`auto`, `onnxruntime`, `torch`, `om` or `ge_session`, or [one of another "
    "package](runtime.md#an-engine-of-your-own). `ge_session`, and `torch` on a card, are "
    "experimental",
    "`auto`",
)
STAGES: Final = Setting[tuple[str, ...]](
    "stages",
    readers.stages,
    (),
    "names of artifacts, each once. They are executed in this order",
    "the single artifact, `model`",
)
DEVICES: Final = Setting[tuple[str, ...]](
    "devices",
    readers.names,
    ("cpu",),
    "a list of devices of one kind, e.g. `cpu, cpu`, `cuda:0, cuda:1` or `npu:0, npu:1`. "
    "Each entry gets an engine and an executor; an execution goes to the executor with the "
    "fewest queued rows",
    "`cpu`",
)
THREADS: Final = Setting[int | None](
    "intra_op_threads",
    readers.whole(1, MOST_THREADS),
    None,
    "the largest number of threads of one execution",
    "cores of the process / (instances x devices), at least 1; 1 for small executions",
)
COST: Final = Setting[readers.GivenCost | None](
    "cost",
    readers.cost,
    None,
    "`calibrate`, or [fixed numbers](ragged.md#what-an-execution-costs): `launch_us=120, "
    "element_ns=35.2, element2_ns=0.01`, and `growth_ns=2` if each row costs more in larger "
    "executions. `calibrate` measures the cost of executions at load, in about a second, or "
    "reads the cost that an earlier start stored. It corrects the cost while serving",
    "`calibrate`",
)
COST_CACHE: Final = Setting(
    "cost_cache",
    readers.cost_cache,
    "auto",
    "`auto`, `off`, or a folder; a relative path is inside the version folder. Measured "
    "costs are stored there for the next start",
    "`auto`: `$GE_RUNTIME_CACHE/costs`, else `$XDG_CACHE_HOME/ge_runtime/costs`, else "
    "`~/.cache/ge_runtime/costs`",
)
OVERSIZE: Final = Setting(
    "oversize",
    readers.choice("error", "fallback"),
    "error",
    "`error` or `fallback`. A request that fits no gear is refused by `error`, and executed "
    "alone at its own size by `fallback`",
    "`error`",
)
PACKING: Final = Setting[str | None](
    "packing", readers.text, None, "an axis. Rows are joined along it instead of padded"
)
ROWS_MOST: Final = Setting[int | None](
    "rows",
    readers.whole(1),
    None,
    "the largest number of rows of an execution. Allowed only with `max_batch_size: 0` and a "
    "`prepared.<tensor>` or `generate.<output>`, because then the model makes the rows",
)
IO_BUFFERS: Final = Setting(
    "io_buffers",
    readers.whole(1),
    1,
    "on a card: 1 to 4. Each executor has this many sets of buffers for inputs and outputs; "
    "with 2 or more, [copies are made while another execution "
    "computes](ascend.md#copies-beside-executions)",
    "1",
)
POOL_MIB: Final = Setting[int | None](
    "workspace_pool_mib",
    readers.whole(1),
    None,
    "a size in MiB. On the CPU: the size of one pool for all models of the process. On a GPU: "
    "the size of the arena of each ONNX Runtime engine. On a card: the size of the workspace of "
    "each executor. With `ge_session`, which requires this parameter: the size of all memory "
    "that GE allocates",
    "no pool: engines allocate what they need",
)
UNPLANNED: Final = Setting(
    "unplanned_memory",
    readers.switch("allowed", "refused", default=False),
    False,
    "`allowed` or `refused`. A `model.om` that ATC compiled for [ranges of "
    "sizes](ascend.md#ranges-of-sizes), without gears, needs memory that no plan contains; "
    "`allowed` executes it, `refused` refuses the load",
    "`refused`",
)
EXECUTION_TIMEOUT: Final = Setting(
    "execution_timeout_s",
    readers.whole(1),
    60,
    "on a card: seconds, at most 900. After this time an execution is assumed to hang and the card "
    "is lost. The largest value of all models of the process on the card applies to all",
    "60",
)
OPERATOR_TIMEOUT: Final = Setting[int | None](
    "operator_timeout_s",
    readers.whole(1),
    None,
    "on a card: seconds, fewer than `execution_timeout_s`. CANN ends an operator after this time; "
    "its [execution fails](ascend.md#errors-classes-and-cures) and the card stays usable. The "
    "largest value of all models of the process on the card applies to all",
    "half of `execution_timeout_s`, at most the chip's maximum",
)
TORCH_COMPILER: Final = Setting(
    "torch_compiler",
    readers.choice("ge", "npugraph_ex"),
    "ge",
    "for `engine: torch` on a card: `ge` or `npugraph_ex`. `ge` compiles a graph of GE for each "
    "gear; `npugraph_ex` [captures](ascend.md#torch_npu-and-ge-py) the operators of each gear once",
    "`ge`",
)
PROFILE: Final = Setting[str | None](
    "profile",
    readers.text,
    None,
    "on a card: a folder and a choice of executions, e.g. `dir=/var/prof, batches=20, "
    "from=100, metrics=pipe`. [msprof](ascend.md#profiling-and-dump) records these "
    "executions",
)
DUMP: Final = Setting[str | None](
    "dump",
    readers.text,
    None,
    "on a card: a folder and a choice of executions, e.g. `dir=/var/dump, batches=1, from=1, "
    "mode=output, layers=conv1;pool1`. The tensors of the operators of these executions are "
    "[written to the folder](ascend.md#profiling-and-dump)",
)
PLACEMENT: Final = Setting(
    "placement",
    readers.choice("local", "service"),
    "local",
    "`local` or `service`. The graph is executed by the model's own process (`local`), or by "
    "the [process that owns the device](service.md) (`service`)",
    "`local`",
)
RESIDENT_ROWS: Final = Setting[int | None](
    "resident_rows",
    readers.whole(1),
    None,
    "a number of rows. The device has memory for this many rows of each `resident.<output>`",
    "four batches",
)
RESIDENT_READS: Final = Setting(
    "resident_reads",
    readers.whole(1),
    1,
    "a number. A row of a `resident.<output>` is freed after it was read this many times",
    "1",
)
RESIDENT_S: Final = Setting(
    "resident_s",
    readers.whole(1),
    60,
    "seconds. After this time a row of a `resident.<output>` is freed even if it was read fewer "
    "than `resident_reads` times",
    "60",
)
RESIDENT_SPARE_S: Final = Setting(
    "resident_spare_s",
    readers.whole(1),
    5,
    "seconds. A row of a `resident.<output>` may be freed after this time if the device has "
    "no memory for another row",
    "5",
)
SERVICE_WEIGHT: Final = Setting(
    "service_weight",
    readers.weight,
    1.0,
    "with `placement: service`: a number. While several processes need the device, each gets "
    "a share in proportion to its weight",
    "1",
)
SERVICE_PRIORITY: Final = Setting(
    "service_priority",
    readers.whole(0),
    0,
    "with `placement: service`: a whole number. Executions of higher priority are executed first",
    "0",
)
HISTOGRAM: Final = Setting[str | None](
    "histogram",
    readers.histogram,
    None,
    "a file inside the version folder. At unload, the sizes of requests are added to this "
    "file; at load, `auto` gears are derived from it",
)
WARMUP: Final = Setting(
    "warmup",
    readers.choice("gears", "none"),
    "gears",
    "`gears` or `none`. With `gears`, each gear is executed once at load",
    "`gears`",
)
EARLY_ANSWERS: Final = Setting(
    "early_answers",
    readers.switch("true", "false", default=True),
    True,
    "`true` or `false`. With `true`, a response is sent when its execution has ended, see [early "
    "answers](runtime.md#early-answers); with `false`, all responses of a request batch are sent "
    "after its last execution",
    "`true`",
)
LOAD_CHECK: Final = Setting(
    "load_check",
    readers.switch("on", "off", default=True),
    True,
    "`on` or `off`. With `on`, each load ends with a "
    "[check](any-graph.md#what-is-checked-at-load): random requests (with a fixed seed) must "
    "have the same response alone, padded, and together with other requests",
    "`on`",
)
INT8: Final = Setting(
    "int8",
    readers.switch("rows", "off", default=False),
    False,
    "`rows` or `off`. With `rows`, the graph is rewritten at its first load to [INT8 with a scale "
    "per row](any-graph.md#int8-that-does-not-depend-on-the-batch); the load log has the error. "
    "Only for `engine: onnxruntime` on the CPU",
    "`off`",
)
UNPAD: Final = Setting(
    "unpad",
    readers.switch("auto", "off", default=False),
    False,
    "`auto` or `off`. With `auto`, an encoder is rewritten at load so that [padding is not "
    "computed](ragged.md#encoders-without-padding), if that is measured to be faster; the load "
    "log has the result. Only for `engine: onnxruntime` on the CPU",
    "`off`",
)
REPRODUCIBLE: Final = Setting(
    "reproducible",
    readers.switch("true", "false", default=False),
    False,
    "`true` or `false`. With `true`, the response to a request has [the same "
    "bits](any-graph.md#answers-to-the-bit) alone and together with other requests: each request "
    "is executed in the gear that it would have alone, with all rows of this gear. `true` requires "
    "one number in `gears.batch`, and gears for every axis",
    "`false`",
)
STATE_GROWTH: Final = Setting[str | None](
    "state_growth",
    readers.text,
    None,
    "a relation of axes, e.g. `frames // 4`. Each request makes the [growing "
    "states](runtime.md#states-that-grow) of its sequence larger by this size",
    "the only axis of the inputs",
)
STATE_BLOCKS: Final = Setting[int | None](
    "state_blocks",
    readers.whole(1),
    None,
    "a number. All sequences together have this many blocks of memory for growing states; a block "
    "holds 16 elements along `past`",
    "enough for `max_batch_size` sequences of the largest size",
)
STATE_FULL: Final = Setting(
    "state_full",
    readers.switch("evict", "refuse", default=False),
    False,
    "`refuse` or `evict`. If no block is free, `refuse` refuses the request, and `evict` ends the "
    "sequence that is idle longest",
    "`refuse`",
)
DEVICE_IDS: Final = Setting[tuple[int, ...] | None](
    "device_ids", readers.card_ids, None, "the numbers of cards, e.g. `0, 1`. Replaces `devices`"
)
EXEC_BLOCKS: Final = Setting(
    "device_exec_blocks",
    readers.whole(1),
    1,
    "a number. Each card of `device_ids` gets this many engines",
    "1",
)
STATIC_MODEL: Final = Setting(
    "static_model",
    readers.switch("1", "0", default=False),
    False,
    "`1` or `0`. With `1`, a model is refused if an axis, or `batch`, has no gears",
    "`0`",
)

SETTINGS: Final[tuple[Setting[Any], ...]] = (
    *(ENGINE, STAGES, DEVICES, THREADS, COST, COST_CACHE, OVERSIZE, PACKING, ROWS_MOST, IO_BUFFERS),
    *(POOL_MIB, UNPLANNED, EXECUTION_TIMEOUT, OPERATOR_TIMEOUT, TORCH_COMPILER, PROFILE, DUMP),
    *(PLACEMENT, SERVICE_WEIGHT, SERVICE_PRIORITY),
    *(RESIDENT_ROWS, RESIDENT_READS, RESIDENT_S, RESIDENT_SPARE_S, HISTOGRAM, WARMUP),
    *(EARLY_ANSWERS, LOAD_CHECK, INT8, UNPAD, REPRODUCIBLE),
    *(STATE_GROWTH, STATE_BLOCKS, STATE_FULL, DEVICE_IDS, EXEC_BLOCKS, STATIC_MODEL),
)
"""Parameters of the whole model."""

AXES: Final = Family(
    "axes.<input or output>",
    readers.names,
    "names of axes, separated by commas: one for each `-1` in the tensor's dims, in order. An "
    "output may also have relations of axes, such as `(height + 1) // 2`",
    "needed for every tensor with a `-1`",
)
LIMIT: Final = Family(
    "limit.<axis>",
    readers.whole(1),
    "a size. No request may be larger along the axis; memory is planned for this size",
    "needed for every axis",
)
TOTAL: Final = Family(
    "limit.total.<axis>",
    readers.whole(1),
    "a number of at least `limit.<axis>`. It [limits rows x size](ragged.md#limits-of-tokens) of "
    "executions and requests along the axis, with padding. Memory is planned for this number "
    "instead of all rows at the limit. Not allowed with gears of the axis or of batch",
    "rows x limit",
)
MINIMUM: Final = Family(
    "min.<axis>", readers.whole(1), "a size. No request may be smaller along the axis", "1"
)
ALIGN: Final = Family(
    "align.<axis>",
    readers.whole(1),
    "a number. The sizes of executions along the axis are multiples of it, for example because "
    "the graph has strides. The limit and the gears must be multiples. Requests are padded to a "
    "multiple. If the axis has `padding` `equal`, the sizes of requests must be multiples",
    "1",
)
AXIS_LENGTH: Final = Family(
    "axis_length.<axis>",
    readers.text,
    "an input with one integer per row. It gives the true length of each row along the axis",
    "a row is as long as its request's tensor",
)
GEARS: Final = Family(
    "gears.<axes>",
    readers.text,
    "the sizes that executions may have, for example `16, 32, 64` for `gears.tokens`, or `32x16, "
    "8x64` for `gears.batch,tokens`. The axis `batch` is the number of rows. `auto 4` derives four "
    "sizes at load",
    "free: a batch is as large as its longest row",
)
MASK: Final = Family(
    "mask.<graph input>",
    readers.names,
    "axes, separated by commas. The graph input is generated: 1 where a row has data along all "
    "these axes, 0 where it has padding. Its shape is [batch, *axes], and its type is that of "
    "the graph. With [growing states](runtime.md#states-that-grow) also `past + tokens`",
)
LENGTHS: Final = Family(
    "lengths.<graph input>",
    readers.text,
    "one axis. The graph input is generated: the true length of each row. Its shape is "
    "[batch], or [batch, 1] if the graph has that shape",
)
POSITIONS: Final = Family(
    "positions.<graph input>",
    readers.text,
    "one axis. The graph input is generated: 0, 1, 2, ... along the axis, and 0 in padding. "
    "Its shape is [batch, axis]. With [growing states](runtime.md#states-that-grow) the first "
    "number is the row's size along `past`",
)
OFFSETS: Final = Family(
    "offsets.<graph input>",
    readers.text,
    "one axis. The graph input is generated: the accumulated true lengths of the rows, from "
    "0. Its shape is [batch + 1]",
)
CONSTANT: Final = Family(
    "constant.<graph input>",
    readers.names,
    "one value for all elements, or the values of all elements in row-major order, e.g. "
    "`16000` or `1, 0.5`. The graph input is generated: it has these values in every "
    "execution, the graph's type, and no batch dimension",
)
STATE: Final = Family(
    "state.<graph input>",
    readers.text,
    "an output of the graph. Its value becomes this graph input at the next request of the "
    "same sequence; at the first request the input is 0. See "
    "[state](runtime.md#state-that-travels-with-a-sequence)",
)
BATCH_AXIS: Final = Family(
    "batch_axis.<tensor>",
    readers.batch_dim,
    "a number from 0, or `none`. This dim of the graph's tensor counts rows: 1 for `[tokens, "
    "batch, features]`; `none` for a tensor that has no rows. In requests and responses the "
    "rows are always the first dim",
    "0",
)
RANGE: Final = Family(
    "range.<input>",
    readers.text,
    "the lowest and the highest value of an element, e.g. `0..30521` for the ids of a "
    "vocabulary. A request with another value in its data is refused",
    "any value",
)
PADDING: Final = Family(
    "padding.<axis>",
    readers.text,
    "`masked`, `equal` or `neutral`. Decides whether sizes along the axis [may "
    "differ](any-graph.md#who-may-share-an-execution) within one execution",
    "`masked` if a graph input marks where the data of a row ends, otherwise `equal`",
)
PAD: Final = Family(
    "pad.<input>",
    readers.text,
    "a value; for floats also `inf`, `-inf`, `nan`. Padding of the input has this value",
    "0; 1 for a length",
)
DEFAULT: Final = Family(
    "default.<input>",
    readers.text,
    "a value. If a request lacks this optional input, all its elements have this value",
    "0",
)
PASS: Final = Family(
    "pass.<output>",
    readers.text,
    "an input with the type and the dims of the output; BYTES is allowed. The output is a "
    "copy of this input",
)
GENERATE: Final = Family(
    "generate.<output>",
    readers.text,
    "type and dims of the graph's logits, e.g. `FP32[tokens, 50257]`. The model [streams "
    "tokens](runtime.md#models-that-stream-tokens)",
)
PREPARED: Final = Family(
    "prepared.<tensor>",
    readers.text,
    "type and dims, e.g. `INT64[tokens]`. The model's own code (`prepare`) computes this "
    "graph input from the inputs of the request",
)
RESIDENT: Final = Family(
    "resident.<input or output>",
    readers.text,
    "type and dims, for an input also the model that computes it: `FP32[384] of "
    "text_encoder`. The rows of this tensor [stay on the "
    "device](service.md#tensors-that-stay-on-the-device) between two models of an ensemble",
)
AIPP: Final = Family(
    "aipp.<input>",
    readers.text,
    "settings of the conversion, see [images](images.md). The graph's input (normalised, channels "
    "first) is computed from images, UINT8 [height, width, channels]",
)
JPEG: Final = Family(
    "jpeg.<prepared tensor>",
    readers.text,
    "an input, STRING of dims [1]. Its JPEG files are decoded to this tensor, UINT8 [height, "
    "width, 1 or 3], by a card's DVPP or on the host; see [images](images.md#jpeg-files)",
)
GRAPH_GE: Final = Family(
    "graph.ge.<option>",
    readers.text,
    "a value of an option of Ascend's compiler, for `ge-runtime build`. Options: "
    "`aicoreNum`, `deterministic`, `enableSingleStream`, `exec.disableReuseMemory`, "
    "`exec.precision_mode_v2`, and `externalWeight`, which must be `0` (weights are in the "
    "`.om`) except for `ge_session`. `ge_session` also has `inputShape`, `dynamicDims`, "
    "`graph_key`, `graph_compiler_cache_dir`",
)
SESSION_GE: Final = Family("session.ge.<option>", readers.text, "as `graph.ge.<option>`")
GE: Final = Family("ge.<option>", readers.text, "as `graph.ge.<option>`")
ATC: Final = Family(
    "atc.<flag>",
    readers.text,
    "the value of any other flag of ATC, for `ge-runtime build`, e.g. `atc.op_select_implmode`. "
    "If it is a file, its path is relative to the model's folder and must be inside it; see "
    "[ascend](ascend.md#other-flags-of-atc)",
)

FAMILIES: Final[tuple[Family[Any], ...]] = (
    *(
        AXES,
        LIMIT,
        TOTAL,
        MINIMUM,
        ALIGN,
        AXIS_LENGTH,
        GEARS,
        MASK,
        LENGTHS,
        POSITIONS,
        OFFSETS,
        CONSTANT,
    ),
    *(STATE, BATCH_AXIS, RANGE, PADDING, PAD, DEFAULT, PASS, PREPARED),
    *(GENERATE, RESIDENT, AIPP, JPEG),
    *(GRAPH_GE, SESSION_GE, GE, ATC),
)
"""Parameters of single tensors, axes and options."""


def read_parameters(model_config: Mapping[str, object], errors: ConfigErrors) -> Parameters:
    """Read the parameters of a model configuration in Triton's JSON form."""
    return Parameters.read(model_config, SETTINGS, FAMILIES, errors)
