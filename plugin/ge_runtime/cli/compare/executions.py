"""Execute graphs on the CPU, and compile and execute them on a card."""

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
_SHAPE_FLAGS: Final = (
    "input_shape",
    "input_format",
    "dynamic_batch_size",
    "dynamic_image_size",
    "dynamic_dims",
)


def run_on_cpu(model: Path | ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Execute a file, or a graph of less than 2 GiB, and return all outputs.

    `inputs` may contain arrays that the graph does not use. Raises EngineFault.
    """
    import onnxruntime

    try:
        source = str(model) if isinstance(model, Path) else model.SerializeToString()
        session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        fed = {each.name: inputs[each.name] for each in session.get_inputs() if each.name in inputs}
        return dict(zip(names, session.run(names, fed), strict=True))
    except Exception as error:  # the library and protobuf raise many classes
        raise EngineFault(f"ONNX Runtime: {error}") from error


class CardGraphs:
    """Compiles graphs with the flags of an existing .om file and executes them. Use in a `with`."""

    def __init__(self, device: str, folder: Path, om: Path, config: RuntimeConfig) -> None:
        """Open the device.

        Args:
            device: e.g. npu:0.
            folder: the model's folder; paths in flags are relative to it.
            om: the file; a variant for the device's chip takes precedence.
            config: the model's configuration.

        Raises:
            ArtifactFault, NoDevice, EngineLost: the file or the device cannot be used.
        """
        self.compiled = 0
        """Number of compiled graphs."""
        self._device = device
        self._opened = ExitStack()
        self._backend: DeviceBackend = open_backend(device, DeviceSettings(), engine="om")
        self._opened.callback(self._backend.close)
        with ExitStack() as undo:
            undo.push(self._opened)
            chip = self._backend.hardware
            self.om = for_chip([Artifact(om, "om", "")], chip)[0].path
            """The file for the device's chip."""
            self._flags = _flags(folder, self.om, config, chip)
            self._scratch = Path(self._opened.enter_context(TemporaryDirectory()))
            undo.pop_all()

    def __enter__(self) -> CardGraphs:
        return self

    def __exit__(self, *raised: object) -> None:
        self._opened.close()

    @property
    def hardware(self) -> str:
        """Name of the chip."""
        return self._backend.hardware

    def shapes(self) -> Sequence[Shapes]:
        """Return the input shapes that the file is compiled for. Raises RuntimeFault."""
        engine = self._backend.open([Artifact(self.om, "om", "")], threads=1, outputs=())
        try:
            return engine.shapes or ()
        finally:
            engine.close()

    def run(self, model: ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Compile a graph for the shapes of its inputs, and execute it. Raises RuntimeFault."""
        import onnx

        fed = {each.name: inputs[each.name] for each in model.graph.input}
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
        """Execute a file and return the outputs of these names. Raises RuntimeFault."""
        return _execute(self._backend, om, inputs, names)

    def dump(self, inputs: Mapping[str, Array], names: Sequence[str]) -> list[DumpedOperator]:
        """Execute `om` and return CANN's dump of all operators; empty if CANN writes none.

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
    """Execute a file. `serving`: CANN's dump counts only executions after the load."""
    engine = backend.open([Artifact(om, "om", "")], threads=1, outputs=names)
    try:
        engine.bind([], backend.memory)
        if serving:
            backend.freeze()
        known = {tensor.name for tensor in engine.signature.inputs}
        fed = {name: array for name, array in inputs.items() if name in known}
        if missing := known - fed.keys():
            raise ArtifactFault(
                f"{om}: found no array for {', '.join(sorted(missing))}, expected one for each "
                "input of the graph"
            )
        return engine.run(fed, dict.fromkeys(names))
    finally:
        engine.close()


def _flags(folder: Path, om: Path, config: RuntimeConfig, chip: str) -> list[str]:
    """Return the flags of the file's record, or of config.pbtxt without one; no shapes."""
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
        if flag not in _SHAPE_FLAGS
    ]
