"""ATC, CANN's compiler from model.onnx to model.om; build records; AIPP in compiled files.

A build record is stored next to each file that this package compiled. If the record names the same
graph, options, compiler and file, the file need not be compiled again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from ge_runtime.config import Aipp, RuntimeConfig
from ge_runtime.engines.base import Signature
from ge_runtime.errors import ArtifactFault
from ge_runtime.npu.driver.installation import cann_version, read_text_or_none

_CHUNK: Final = 2**20
_LOG_LINES: Final = 20
"""Number of lines at the end of ATC's output that an error contains."""


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """The inputs of a compilation."""

    source_sha256: str
    """Hash of the .onnx file, including external weights."""
    flags: tuple[str, ...]
    """Options that determine the result: shapes, gears, chip, precision."""
    compiler: str
    """The identity of ATC."""
    files: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the files that flags name, by flag."""

    def describes(self, om: Path) -> bool:
        """Return whether the file at `om` was compiled from these inputs."""
        try:
            found = json.loads(record_path(om).read_text(encoding="utf-8"))
            return bool(found == self.as_json(om))
        except (OSError, ValueError, RecursionError):
            return False

    def as_json(self, om: Path) -> dict[str, object]:
        """Return the record, with the hash of the file `om`. Raises OSError if it is missing."""
        files = {"files": dict(self.files)} if self.files else {}
        return {
            "source_sha256": self.source_sha256,
            "flags": list(self.flags),
            "compiler": self.compiler,
            **files,
            "om_sha256": sha256_of(om),
        }

    def write(self, om: Path) -> None:
        """Store the record next to the file."""
        text = json.dumps(self.as_json(om), indent=2) + "\n"
        record_path(om).write_text(text, encoding="utf-8")


class Atc:
    """The compiler `atc` that an environment's PATH has."""

    def __init__(self, path: Path, environment: Mapping[str, str]) -> None:
        self._path = path
        self._environment = environment

    @classmethod
    def find(cls, environment: Mapping[str, str] = os.environ) -> Atc:
        """Find `atc` on PATH. Raises ArtifactFault, with the fix, if it is missing."""
        found = shutil.which("atc", path=environment.get("PATH"))
        if found is None:
            raise ArtifactFault(
                "found no `atc` on PATH, expected CANN's compiler: run `source "
                "/usr/local/Ascend/cann/set_env.sh`, or set_env.sh in the folder that CANN is "
                "installed in"
            )
        return cls(Path(found), environment)

    @property
    def identity(self) -> str:
        """CANN's version, if known, and a hash of the executable."""
        variables = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
        homes = [Path(self._environment[each]) for each in variables if each in self._environment]
        versions = (version for home in homes if (version := _version(home)))
        # The hash is added, because an installation may not have a version.
        return ", ".join([*islice(versions, 1), f"atc {sha256_of(self._path)[:16]}"])

    def compile(self, source: Path, om: Path, flags: Sequence[str]) -> None:
        """Compile `source` to `om`, which is replaced atomically. May take many minutes.

        Raises ArtifactFault, with ATC's output, if it fails.
        """
        # In the folder of `om`: a rename is atomic only within a file system.
        with tempfile.TemporaryDirectory(dir=om.parent, prefix=".build_") as folder:
            output = Path(folder) / "model"
            command = [str(self._path), "--framework=5", f"--model={source}", f"--output={output}"]
            done = subprocess.run(
                [*command, *flags],
                env=dict(self._environment),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",  # the encoding of the output may differ from the locale's
                check=False,
            )
            # Some versions add the system and architecture to the name.
            compiled = sorted(Path(folder).glob("*.om"))
            if done.returncode != 0 or len(compiled) != 1:
                output_end = "\n".join(done.stdout.splitlines()[-_LOG_LINES:])
                raise ArtifactFault(
                    f"{source}: atc failed with exit code {done.returncode}; it was called with "
                    f"{' '.join(flags)} and printed:\n{output_end}"
                )
            compiled[0].replace(om)


def own_precision(chip: str) -> str:
    """Return the `--precision_mode_v2` that changes a graph's types least on a chip.

    The matrix units of 310 and 310P only support FP16 and INT8: with `origin` an FP32 MatMul or
    Conv is executed by the slow AI CPU, or cannot be compiled.
    """
    halves = chip.startswith("Ascend310") and not chip.startswith("Ascend310B")
    return "fp16" if halves else "origin"


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hex. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def content_of(path: Path) -> str:
    """Return the SHA-256 of a file, or of a folder's files with their names. Raises OSError."""
    if not path.is_dir():
        return sha256_of(path)
    digest = hashlib.sha256()
    for each in sorted(file for file in path.rglob("*") if file.is_file()):
        digest.update(f"{each.relative_to(path)}\0{sha256_of(each)}\0".encode())
    return digest.hexdigest()


def ensure_content(path: Path, digest: str) -> None:
    """Raise ArtifactFault if a file's SHA-256 is not `digest`, and OSError if it is missing."""
    if sha256_of(path) != digest:
        raise ArtifactFault(
            f"{path}: found content that has changed since it was loaded, expected the same: "
            "unload the model before replacing a file, or add a new version"
        )


def record_path(om: Path) -> Path:
    """Return the path of a file's build record."""
    return om.with_name(f"{om.name}.json")


def recorded_flag(om: Path, digest: str, name: str) -> str | None:
    """Return the value of an option with which a file was compiled; None if it is not recorded.

    A record may be written by hand for a file that was compiled elsewhere.

    Args:
        om: The compiled file.
        digest: Its SHA-256.
        name: The option, e.g. "--input_shape".
    """
    try:
        record = json.loads(record_path(om).read_text(encoding="utf-8"))
        if record["om_sha256"] == digest:
            values = (flag.partition("=") for flag in record["flags"])
            return next((str(value) for flag, _, value in values if flag == name), None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    return None


def _version(home: Path) -> str:
    """Return the version of a CANN installation and of its components; "" if unknown."""
    text = read_text_or_none(home / "version.cfg")
    return cann_version(home) or "" if text is None else " ".join(text.split())


INPUT_FORMATS: Final = {"RGB888_U8": 3, "YUV400_U8": 4}
"""Values of aclAippInputFormat by format name."""


class ImageInput(NamedTuple):
    """An input of a graph that is computed from images."""

    place: int
    """Index among the graph's inputs, from 0."""
    aipp: Aipp
    sides: tuple[int, int] | None
    """Height and width of the images; None if gears determine them."""
    rows: int
    """Maximum number of images in a batch."""


def insert_op_conf(inputs: Sequence[ImageInput]) -> str:
    """Return the content of the file for ATC's --insert_op_conf."""
    return "\n".join(line for own in inputs for line in _lines(own)) + "\n"


def _lines(own: ImageInput) -> Iterator[str]:
    yield "aipp_op {"
    for name, value in _fields(own).items():
        yield f"  {name}: {value}"
    yield "}"


def _fields(own: ImageInput) -> dict[str, object]:
    aipp, sides = own.aipp, own.sides
    rank = {"related_input_rank": own.place}
    if aipp.is_dynamic:
        assert sides is not None  # `read_aipp` ensures it
        size = own.rows * sides[0] * sides[1] * aipp.channels
        return {"aipp_mode": "dynamic", **rank, "max_src_image_size": size}
    fields: dict[str, object] = {"aipp_mode": "static", **rank, "input_format": aipp.input_format}
    if sides is not None:
        fields |= {"src_image_size_w": sides[1], "src_image_size_h": sides[0]}
    if aipp.swaps:
        fields["rbuv_swap_switch"] = "true"
    if aipp.crop is not None:
        crop = aipp.crop
        fields |= {"crop": "true", "load_start_pos_w": crop.left, "load_start_pos_h": crop.top}
        fields |= {"crop_size_w": crop.width, "crop_size_h": crop.height}
    if any(aipp.border):
        fields["padding"] = "true"
        fields |= {f"{side}_padding_size": size for side, size in aipp.border._asdict().items()}
    for channel, (mean, low, factor) in enumerate(
        zip(aipp.mean, aipp.minimum, aipp.factor, strict=True)
    ):
        fields |= {f"mean_chn_{channel}": mean, f"min_chn_{channel}": low}
        fields[f"var_reci_chn_{channel}"] = factor
    return fields


def differences(found: Mapping[str, float], aipp: Aipp, sides: tuple[int, int] | None) -> list[str]:
    """Compare static AIPP of a compiled file with the configuration; return one line per field.

    Args:
        found: The fields of aclAippInfo.
        aipp: The expected settings.
        sides: Height and width of the images; None if gears determine them.
    """
    crop, border = aipp.crop, aipp.border
    expected: dict[str, float] = {
        "inputFormat": INPUT_FORMATS[aipp.input_format],
        "rbuvSwapSwitch": aipp.swaps,
        "cscSwitch": False,
        "cropSwitch": crop is not None,
        "paddingSwitch": any(border),
    }
    if sides is not None:
        expected |= {"srcImageSizeH": sides[0], "srcImageSizeW": sides[1]}
    if crop is not None:
        expected |= {"loadStartPosW": crop.left, "loadStartPosH": crop.top}
        expected |= {"cropSizeW": crop.width, "cropSizeH": crop.height}
    if any(border):
        expected |= {f"{side}PaddingSize": size for side, size in border._asdict().items()}
    for channel in range(aipp.channels):
        expected[f"meanChn{channel}"] = aipp.mean[channel]
        expected[f"minChn{channel}"] = aipp.minimum[channel]
        expected[f"varReciChn{channel}"] = aipp.factor[channel]
    return [
        f"{name}: found {found.get(name, 0):g}, expected {value:g}"
        for name, value in expected.items()
        # A card stores fractions as FP16.
        if np.float16(found.get(name, 0)) != np.float16(value)
    ]


_FORMAT = "--input_format="


def image_conf(config: RuntimeConfig, signature: Signature, rows: int) -> str:
    """Return the content of --insert_op_conf for a stage; "" without image inputs.

    `rows` is the largest number of rows of an execution.
    """
    geared = {axis for axes in config.gears for axis in axes}
    only = {axis: limit for axis, limit in config.limits.items() if axis not in geared}
    inputs = [
        ImageInput(place, own.aipp, own.sides_at(only), rows)
        for place, tensor in enumerate(signature.inputs)
        if (own := config.images.get(tensor.name)) is not None
    ]
    return insert_op_conf(inputs) if inputs else ""


def with_images(source: Path, flags: Sequence[str]) -> list[str]:
    """Return ATC's flags for a stage with images. Raises ArtifactFault if ATC refuses them."""
    if any(flag.startswith("--dynamic_dims=") for flag in flags):
        raise ArtifactFault(
            f"{source}: found gears of several axes, expected gears of batch only, of height and "
            "width only, or none, because ATC converts images (aipp.<input>) with no other gears"
        )
    # AIPP requires NCHW, independent of the ranks of other inputs.
    return [*(flag for flag in flags if not flag.startswith(_FORMAT)), f"{_FORMAT}NCHW"]


def write_conf(om: Path, content: str) -> Path:
    """Write the file next to the .om. Raises OSError."""
    path = om.with_suffix(".aipp.cfg")
    path.write_text(content, encoding="utf-8")
    return path
