"""Graphs executed on the CPU by ONNX Runtime, and compiled and executed on a card."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from ge_runtime.cli.dump_files import DumpedOperator, read_dump
from ge_runtime.config import ATC_FILES, ATC_FLAGS, RuntimeConfig, Window
from ge_runtime.engines.artifact import Artifact, for_chip
from ge_runtime.engines.backend import DeviceBackend, DeviceSettings, open_backend
from ge_runtime.engines.base import Shapes
from ge_runtime.errors import ArtifactFault, EngineFault
from ge_runtime.npu.driver.atc import Atc, own_precision, record_path
from ge_runtime.specs import Array

if TYPE_CHECKING:
    from onnx import ModelProto

_PRECISION: Final = "ge.exec.precision_mode_v2"
_SHAPES: Final = (
    "input_shape",
    "input_format",
    "dynamic_batch_size",
    "dynamic_image_size",
    "dynamic_dims",
)


class Cpu:
    """ONNX Runtime, with its usual optimizations."""

    def run(self, model: Path | ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """All outputs. model: a file, or a graph of less than 2 GiB. Raises EngineFault."""
        import onnxruntime

        try:
            given = str(model) if isinstance(model, Path) else model.SerializeToString()
            session = onnxruntime.InferenceSession(given, providers=["CPUExecutionProvider"])
            names = [output.name for output in session.get_outputs()]
            wanted = {own.name for own in session.get_inputs()}
            fed = {name: array for name, array in inputs.items() if name in wanted}
            return dict(zip(names, session.run(names, fed), strict=True))
        except Exception as error:  # what the library and protobuf raise is of many classes
            raise EngineFault(f"ONNX Runtime: {error}") from error


class CardGraphs:
    """Graphs on a card, each compiled with the flags that a file was made with. Use in a `with`."""

    def __init__(self, device: str, folder: Path, om: Path, config: RuntimeConfig) -> None:
        """folder: the model's, where paths of flags begin. om: there may be one for the chip.

        Raises ArtifactFault, NoDevice or EngineLost.
        """
        self.compiled = 0
        self._device = device
        self._opened = ExitStack()
        self._backend: DeviceBackend = open_backend(device, DeviceSettings(), engine="om")
        self._opened.callback(self._backend.close)
        with ExitStack() as undo:
            undo.push(self._opened)
            chip = self._backend.hardware
            self.om = for_chip([Artifact(om, "om", "")], chip)[0].path
            """The file for this chip."""
            self._flags = _flags(folder, self.om, config, chip)
            self._scratch = Path(self._opened.enter_context(TemporaryDirectory()))
            undo.pop_all()

    def __enter__(self) -> CardGraphs:
        return self

    def __exit__(self, *raised: object) -> None:
        self._opened.close()

    @property
    def hardware(self) -> str:
        return self._backend.hardware

    def shapes(self) -> Sequence[Shapes]:
        """The shapes of its inputs that the file executes. Raises RuntimeFault."""
        engine = self._backend.open([Artifact(self.om, "om", "")], threads=1, outputs=())
        try:
            return engine.shapes or ()
        finally:
            engine.close()

    def run(self, model: ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compile it for these shapes, and execute it. Raises RuntimeFault."""
        import onnx

        wanted = [own.name for own in model.graph.input]
        fed = {name: inputs[name] for name in wanted}
        source, om = self._scratch / "cut.onnx", self._scratch / "cut.om"
        onnx.save(model, source)
        shapes = ";".join(f"{n}:{','.join(map(str, a.shape))}" for n, a in fed.items())
        ranks = {array.ndim for array in fed.values()}
        layout = {4: "NCHW", 5: "NCDHW"}.get(min(ranks), "ND") if len(ranks) == 1 else "ND"
        flags = (f"--input_shape={shapes}", f"--input_format={layout}", *self._flags)
        Atc.find().compile(source, om, flags)
        self.compiled += 1
        return self.run_file(om, fed, [own.name for own in model.graph.output])

    def run_file(
        self, om: Path, inputs: Mapping[str, Array], names: Sequence[str]
    ) -> dict[str, Array]:
        """Execute a file that is there. Raises RuntimeFault."""
        return _execute(self._backend, om, inputs, names)

    def dump(self, inputs: Mapping[str, Array], names: Sequence[str]) -> list[DumpedOperator]:
        """What CANN dumps of all operators of an execution of `om`; nothing where it refuses.

        Raises RuntimeFault or OSError.
        """
        with TemporaryDirectory(dir=self._scratch) as folder:
            window = Window("dump", folder, first=1, count=1, mode="all")
            settings = DeviceSettings(window=window)
            backend = open_backend(self._device, settings, engine="om")
            try:
                _execute(backend, self.om, inputs, names, serving=True)
            finally:
                backend.close()
            return read_dump(Path(folder))


def _execute(
    backend: DeviceBackend,
    om: Path,
    inputs: Mapping[str, Array],
    names: Sequence[str],
    *,
    serving: bool = False,
) -> dict[str, Array]:
    """serving: it counts as an execution after the load, the backend's last."""
    engine = backend.open([Artifact(om, "om", "")], threads=1, outputs=names)
    try:
        engine.bind([], backend.memory)
        if serving:
            backend.freeze()
        known = {tensor.name for tensor in engine.signature.inputs}
        fed = {name: array for name, array in inputs.items() if name in known}
        if lacking := known - fed.keys():
            raise ArtifactFault(f"{om}: found no input for {', '.join(sorted(lacking))}")
        return engine.run(fed, dict.fromkeys(names))
    finally:
        engine.close()


def _flags(folder: Path, om: Path, config: RuntimeConfig, chip: str) -> list[str]:
    """Those of the file's record but for shapes; without one those that config.pbtxt has."""
    try:
        recorded = json.loads(record_path(om).read_text(encoding="utf-8"))["flags"]
        pairs = [flag.removeprefix("--").partition("=")[::2] for flag in recorded]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        options = {_PRECISION: own_precision(chip), **config.ge_options}
        pairs = [("soc_version", chip), *config.atc_flags.items()]
        pairs += [(ATC_FLAGS[option].removeprefix("--"), text) for option, text in options.items()]
    return [
        f"--{flag}={(folder / value).resolve() if flag in ATC_FILES else value}"
        for flag, value in pairs
        if flag not in _SHAPES
    ]
