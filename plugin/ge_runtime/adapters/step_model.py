"""Models of Triton's backends `onnxruntime`, `openvino` or `pytorch`, for use in a model.py."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from ge_runtime.adapters.responses import (
    FaultLog,
    PbUtils,
    Request,
    Result,
    read_inputs,
    respond_to,
)
from ge_runtime.errors import ArtifactFault, RuntimeFault
from ge_runtime.scheduling.dispatch import isolate
from ge_runtime.specs import Tensors
from ge_runtime.steps.onnx_step import OnnxStep
from ge_runtime.steps.openvino_step import OpenVinoStep
from ge_runtime.steps.step_config import StepConfig, join, part
from ge_runtime.steps.torch_step import TorchStep

Step: TypeAlias = OnnxStep | OpenVinoStep | TorchStep
Config = TypeVar("Config")

DEFAULT_MAX_BATCH_SIZE: Final = "default-max-batch-size"
"""The parameter that passes the server's setting `default-max-batch-size` to `complete`."""
_DEFAULT: Final = 4
"""Triton's default of the setting `default-max-batch-size`."""
_STEPS: Final[Mapping[str, type[OnnxStep] | type[OpenVinoStep] | type[TorchStep]]] = {
    "onnxruntime": OnnxStep,
    "openvino": OpenVinoStep,
    "pytorch": TorchStep,
}


class StepModel:
    """One instance of a model of one of these backends. For one thread at a time."""

    def __init__(self, args: Mapping[str, str], pb_utils: PbUtils) -> None:
        """Open and check the graph.

        Args:
            args: The arguments of `initialize`.
            pb_utils: The module `triton_python_backend_utils`.

        Raises:
            ArtifactFault: The graph cannot be opened, or does not match config.pbtxt. Triton shows
                the message and does not load the model.
        """
        config = json.loads(args["model_config"])
        self._pb_utils = pb_utils
        self._config = StepConfig.read(config)
        self._log = FaultLog(pb_utils, args["model_instance_name"])
        folder = Path(args["model_repository"]) / args["model_version"]
        try:
            self._step = _open(config["backend"], self._config, folder)
            try:
                self._step.check()
            except BaseException:
                self._step.close()
                raise
        except RuntimeFault as fault:
            # Servers append the traceback of an exception; the message is complete without it.
            raise fault.with_traceback(None) from fault.__cause__
        for line in self._step.notes:
            pb_utils.Logger.log_warn(line)

    @staticmethod
    def complete(config: Config, pb_utils: PbUtils) -> Config:
        """Complete a `pb_utils.ModelConfig` from the graph, as the backend does. Blocks.

        Raises:
            ArtifactFault: The graph cannot be opened.
        """
        given: dict[str, Any] = config.as_dict()  # type: ignore[attr-defined]
        read = StepConfig.read(given)
        try:
            step = _open(given["backend"], read, Path(pb_utils.get_model_dir()))
            try:
                step.complete(given, read.whole(DEFAULT_MAX_BATCH_SIZE, _DEFAULT))
            finally:
                step.close()
        except RuntimeFault as fault:
            raise fault.with_traceback(None) from fault.__cause__
        return config

    def execute(self, requests: Sequence[Request]) -> list[object]:
        """Return one InferenceResponse per request, in order. Blocks until all are answered."""
        return respond_to(
            self._pb_utils,
            requests,
            read_inputs,
            lambda batch, _: self._answer(batch),
            (),
            self._log,
            always=[state.output.name for state in self._config.states],
        )

    def close(self) -> None:
        """Free the graph."""
        self._step.close()

    def _answer(self, batch: Sequence[Tensors]) -> list[Result]:
        """Return the result of each request; all share one execution if they have a batch dim."""
        results: list[Result] = [RuntimeFault("not executed")] * len(batch)

        def execute(places: Sequence[int]) -> None:
            own = [batch[place] for place in places]
            outputs = part(self._config, own, self._step.run(join(self._config, own)))
            for place, result in zip(places, outputs, strict=True):
                results[place] = result

        places = range(len(batch))
        for together in [places] if self._config.batches else [[place] for place in places]:
            # Triton's backends fail the whole batch; here only the request that causes it fails.
            isolate(together, execute, results.__setitem__, lambda waiting: waiting)
        return results


def _open(backend: str, config: StepConfig, folder: Path) -> Step:
    kind = _STEPS.get(backend)
    if kind is None:
        raise ArtifactFault(f"backend: found '{backend}', expected one of: {', '.join(_STEPS)}")
    return kind.open(config, folder)
