"""One model of the prepared copy: its configuration, and the reason if it cannot run here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto
from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from reference_server.checking import here, layout
from reference_server.config import complete
from reference_server.config.pbtxt import FILE_NAME
from reference_server.core.errors import ServerError
from reference_server.options import BACKEND_DIRECTORY
from reference_server.repository.model_files import SHIPPED, locate_code
from reference_server.repository.model_folders import ModelFolder, ModelId

_EXPORT = "export the model to ONNX, or serve with --stub-model"


@dataclass(slots=True)
class TriedModel:
    """One model of the copy."""

    name: str
    folder: Path
    source: Path | None
    config: ConfigProto | None = None
    """The configuration; None if it cannot be read, empty without a file."""
    notes: list[str] = field(default_factory=list)
    stand_in: str = ""
    """The reason why a stand-in replaces the model, or ""."""
    cure: str = ""
    """The fix for the reason in `stand_in`, or for another fault of the model's code."""
    packages: list[str] = field(default_factory=list)
    """Missing Python packages."""

    @property
    def steps(self) -> Sequence[str]:
        """The models of the ensemble's steps; empty for other models."""
        steps = self.config.ensemble_scheduling.step if self.config else ()
        return [step.model_name for step in steps]

    def versions(self) -> tuple[int, ...]:
        """Return the numbers of the version folders, ascending."""
        return ModelFolder(ModelId(self.name), self.folder).versions()

    def write(self) -> None:
        """Write the configuration; no file if it is empty."""
        assert self.config is not None
        file = self.folder / FILE_NAME
        file.unlink(missing_ok=True)
        text = text_format.MessageToString(self.config)
        if text:
            file.write_text(text, encoding="utf-8")

    def move_to_cpu(self) -> None:
        """Move instances from the GPU to the CPU."""
        assert self.config is not None
        for group in self.config.instance_group:
            if group.kind == ModelInstanceGroup.KIND_GPU or group.gpus:
                group.kind = ModelInstanceGroup.KIND_CPU
                del group.gpus[:]
                self.notes.append("its instances are moved from the GPU to the CPU")
            del group.profile[:]


def missing(model: TriedModel) -> tuple[str, str]:
    """Return the reason why a model cannot run on this machine, and the fix.

    The reason is "" if the model can run. Missing packages are added to `model.packages`.
    """
    config = ConfigProto()
    assert model.config is not None
    config.CopyFrom(model.config)
    complete.complete(config, model.folder)
    if config.platform == "ensemble":
        return "", ""
    version = model.folder / str(max(model.versions(), default=1))
    try:
        code = locate_code(config, version, BACKEND_DIRECTORY)
    except ServerError as error:
        if error.path == ("backend",):
            return f"the backend {config.backend or config.platform} is not installed", _EXPORT
        return error.message, "remove the field `runtime`"
    if code is None:
        return "", ""
    artifact = version / config.default_model_filename
    if code == SHIPPED:
        if not artifact.exists():
            return f"{version.name}/{artifact.name} is missing", "put the file there"
        if artifact.is_file() and layout.is_pointer(artifact):
            return f"{version.name}/{artifact.name} is a Git LFS pointer", "git lfs pull"
        if fault := here.backend_fault(config):
            model.packages.append(fault[1].removeprefix("pip install "))
            return fault[0], fault[1]
        for found in here.file_faults(version):
            if found.file == artifact:
                return (
                    f"{version.name}/{artifact.name}{found.text.partition(artifact.name)[2][1:]}",
                    found.hint,
                )
        return "", ""
    if not code.exists():
        return f"{version.name}/{code.name} is missing", "put the file there"
    if code.is_relative_to(model.folder):
        needs = here.MachineUse(code)
        model.packages += [here.pip_name(name.split(".")[0]) for name in needs.missing]
        model.packages = sorted(set(model.packages))
        if model.packages:
            model.cure = f"pip install {' '.join(model.packages)}, or --install"
        else:
            model.cure = next((fault.hint for fault in needs.faults if fault.hint), "")
    return "", model.cure
