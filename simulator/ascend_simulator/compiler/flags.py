"""ATC's command line: the flags that the simulator implements, ignores or refuses, and the chips.

A flag that would change the results, the sizes or the interface of a model is implemented or
refused, never ignored. Flags that only tune a compiler are accepted without effect.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final


class CompileFault(Exception):
    """A command line or a model that ATC refuses.

    Attributes:
        code: ATC's error code, such as "E10035".
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


KNOWN: Final = (
    "AscendSimulator",
    *("Ascend310", "Ascend310B1", "Ascend310B2", "Ascend310B3", "Ascend310B4"),
    *("Ascend310P1", "Ascend310P3", "Ascend310P5", "Ascend310P7"),
    *("Ascend910A", "Ascend910B", "Ascend910PremiumA", "Ascend910ProA", "Ascend910ProB"),
    *("Ascend910B1", "Ascend910B2", "Ascend910B2C", "Ascend910B3", "Ascend910B4", "Ascend910B4-1"),
    *("Ascend910_9361", "Ascend910_9362", "Ascend910_9372", "Ascend910_9381", "Ascend910_9382"),
    *("Ascend910_9391", "Ascend910_9392"),
    *("Ascend950DT_9581", "Ascend950DT_9582", "Ascend950DT_9584"),
    *("Ascend950PR_9579", "Ascend950PR_9589", "Ascend950PR_9599"),
)
"""The chips that --soc_version may name, by family."""

_FOLLOWED: Final[Mapping[str, str]] = {
    "model": "the .onnx file",
    "output": "the path of the .om, without its suffix",
    "framework": "5, ONNX",
    "mode": "0, an offline model (default)",
    "soc_version": "the chip, as acl.get_soc_name() names it",
    "input_format": "ND, NCHW (default) or NCDHW",
    "input_shape": '"name:d,d,d;name2:d,d"; -1 is a variable dim, "1~8" a range',
    "dynamic_batch_size": '"1,2,4": gears of the first dim',
    "dynamic_image_size": '"h,w;h,w": gears of height and width',
    "dynamic_dims": '"v,v;v,v": gears of every -1',
    "precision_mode_v2": "fp16 (default) or origin",
    "precision_mode": "older form of precision_mode_v2: force_fp16 or must_keep_origin_dtype",
    "input_fp16_nodes": '"name;name2": inputs of type FP16',
    "insert_op_conf": "the AIPP configuration file, static or dynamic",
    "output_type": "FP32 or FP16: the type of floating-point outputs",
    "singleop": "a JSON file of operators, instead of a model; --output is then a folder",
    "disable_reuse_memory": "1: intermediate values share no memory",
}
_WITHOUT_EFFECT: Final = frozenset(
    (
        *("aicore_num", "deterministic", "enable_single_stream", "log"),
        *("op_compiler_cache_dir", "op_compiler_cache_mode", "op_debug_level"),
        *("op_precision_mode", "op_select_implmode", "optypelist_for_implmode"),
        *("buffer_optimize", "enable_small_channel", "fusion_switch_file", "debug_dir"),
    )
)
_SWITCH: Final = ("0", "1")
_TRUTH: Final = ("true", "false")
_CHOICES: Final[Mapping[str, Sequence[str]]] = {
    "buffer_optimize": ("l2_optimize", "off_optimize", "l1_optimize", "l1_and_l2_optimize"),
    "deterministic": _SWITCH,
    "enable_single_stream": _TRUTH,
    "enable_small_channel": _SWITCH,
    "log": ("default", "debug", "info", "warning", "error", "null"),
    "op_compiler_cache_mode": ("enable", "force", "disable"),
    "op_debug_level": ("0", "1", "2", "3", "4"),
    "op_select_implmode": (
        *("high_precision", "high_performance"),
        *("high_precision_for_all", "high_performance_for_all"),
    ),
    "disable_reuse_memory": _SWITCH,
}
"""The documented values of flags; an empty value means the default."""
_CODES: Final[Mapping[Sequence[str], str]] = {_SWITCH: "E10006", _TRUTH: "E10005"}
_NUMBER: Final = re.compile(" *-?[0-9]+ *")
_PATH: Final = re.compile("[A-Za-z0-9_./\u4e00-\u9fa5-]+")
_REFUSED: Final = frozenset(
    (
        *("external_weight", "out_nodes", "input_shape_range", "weight"),
        *("compression_optimize_conf", "enable_compress_weight", "compress_weight_conf"),
        *("customize_dtypes", "keep_dtype", "is_output_adjust_hw_layout", "om"),
        *("is_input_adjust_hw_layout", "modify_mixlist", "virtual_type", "auto_tune_mode"),
        *("sparsity", "status_check", "distributed_cluster_build", "json", "dump_mode"),
    )
)
_OFF: Final = frozenset({"", "0", "false"})
"""Values that switch off a flag of _REFUSED, so that the flag is accepted."""

_PRECISIONS: Final[Mapping[tuple[str, str], str]] = {
    ("precision_mode_v2", "fp16"): "fp16",
    ("precision_mode_v2", "origin"): "origin",
    ("precision_mode", "force_fp16"): "fp16",
    ("precision_mode", "must_keep_origin_dtype"): "origin",
}
_FORMATS: Final = ("NCHW", "ND", "NCDHW")
"""The formats that ATC accepts for ONNX files; NHWC is for TensorFlow's."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a command line, checked as far as possible without the model."""

    model: str
    output: str
    """The path of the .om, without its suffix."""
    soc: str
    input_format: str = "NCHW"
    input_shape: str = ""
    batch_gears: str | None = None
    image_gears: str | None = None
    dims_gears: str | None = None
    precision: str = "fp16"
    """`--precision_mode_v2`; FP16 by default, as in ATC."""
    fp16_inputs: tuple[str, ...] = ()
    insert_op_conf: str = ""
    """The path of the AIPP file; '' without AIPP."""
    output_type: str = ""
    """FP32 or FP16; '' keeps each output's type."""
    reuse_memory: bool = True

    @property
    def fp16_outputs(self) -> bool:
        """True if FP32 outputs are converted to FP16."""
        return self.output_type == "FP16"


def usage() -> str:
    """Return the text of `atc --help`."""
    lines = [f"  --{name:<22}{text}" for name, text in _FOLLOWED.items()]
    return "\n".join(
        [
            "atc of the Ascend simulator: compiles an ONNX file to a simulated .om. Implemented:",
            *lines,
            *_wrapped("Accepted without effect", _WITHOUT_EFFECT),
            *_wrapped("Refused", _REFUSED),
        ]
    )


def _wrapped(what: str, names: Iterable[str]) -> list[str]:
    indent = "  "
    text = ", ".join(sorted(names))
    return [what, *textwrap.wrap(text, 90, initial_indent=indent, subsequent_indent=indent)]


def read(arguments: Sequence[str], soc: str) -> Options:
    """Parse the command line. Raises CompileFault.

    `soc` is the simulated chip, accepted in addition to KNOWN.
    """
    given = split(arguments)
    for name, value in given.items():
        if name in _REFUSED and value.lower() not in _OFF:
            raise CompileFault("E10055", f"--{name}: not simulated")
    if given.get("mode", "0") != "0":
        raise _wrong(given, "mode", "the simulator only supports 0, an offline model")
    if "framework" not in given:
        raise CompileFault("E10007", "--framework is missing; expected 5, ONNX")
    if given["framework"] != "5":
        raise _wrong(given, "framework", "the simulator only supports 5, ONNX")
    for name in ("model", "output", "soc_version"):
        if not given.get(name):
            raise CompileFault("E10054", f"--{name} is missing or empty")
    for name in ("model", "output", "insert_op_conf"):
        if given.get(name) and not _PATH.fullmatch(given[name]):
            reason = "expected letters, digits, '_', '-', '.', '/' and Chinese characters"
            raise _wrong(given, name, reason)
    if given["output"].endswith("/"):
        raise _wrong(given, "output", "expected a file name after the folder", "E10022")
    chips = sorted({soc, *KNOWN})
    if given["soc_version"] not in chips:
        raise _wrong(given, "soc_version", f"expected one of {', '.join(chips)}")
    if given.setdefault("input_format", "NCHW") not in _FORMATS:
        raise _wrong(given, "input_format", f"expected one of {', '.join(_FORMATS)}")
    if given.get("output_type", "") not in ("", "FP32", "FP16"):
        raise _wrong(given, "output_type", "the simulator only supports FP32 and FP16")
    for name, choices in _CHOICES.items():
        if given.get(name) and given[name] not in choices:
            reason = f"expected one of {', '.join(choices)}"
            raise _wrong(given, name, reason, _CODES.get(choices, "E10001"))
    if given.get("optypelist_for_implmode") and not given.get("op_select_implmode"):
        raise _wrong(given, "optypelist_for_implmode", "expected --op_select_implmode as well")
    return Options(
        model=given["model"],
        output=given["output"],
        soc=given["soc_version"],
        input_format=given["input_format"],
        input_shape=given.get("input_shape", ""),
        batch_gears=given.get("dynamic_batch_size"),
        image_gears=given.get("dynamic_image_size"),
        dims_gears=given.get("dynamic_dims"),
        precision=_precision(given),
        fp16_inputs=tuple(filter(None, given.get("input_fp16_nodes", "").split(";"))),
        insert_op_conf=given.get("insert_op_conf", ""),
        output_type=given.get("output_type", ""),
        reuse_memory=given.get("disable_reuse_memory") != "1",
    )


def number(text: str) -> int:
    """Parse a decimal number. Raises ValueError for other text, even if `int` accepts it."""
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def split(arguments: Sequence[str]) -> dict[str, str]:
    """Return the flags by name. `--name=value` and `--name value` are equivalent."""
    given: dict[str, str] = {}
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not name:
            raise CompileFault("E10001", f"found {argument!r}, expected a flag --name=value")
        if name not in _FOLLOWED and name not in _WITHOUT_EFFECT and name not in _REFUSED:
            raise CompileFault("E10001", f"--{name} is not a flag of atc")
        if not equals:
            value = next(rest, "")
        given[name] = value.strip()
    return given


def _precision(given: Mapping[str, str]) -> str:
    requested = [name for name in ("precision_mode_v2", "precision_mode") if given.get(name)]
    if len(requested) > 1:
        raise CompileFault("E10056", "--precision_mode and --precision_mode_v2 exclude each other")
    if not requested:
        return "fp16"
    (name,) = requested
    precision = _PRECISIONS.get((name, given[name]))
    if precision is None:
        known = ", ".join(value for flag, value in _PRECISIONS if flag == name)
        raise _wrong(given, name, f"the simulator supports {known}")
    return precision


def _wrong(given: Mapping[str, str], name: str, reason: str, code: str = "E10001") -> CompileFault:
    return CompileFault(code, f"--{name}={given[name]}: {reason}")
