"""acl.mdl's bundles: files of several models, which are loaded and unloaded together.

The return codes are from GE's api/acl/acl_model/model/model.cpp. CANN writes such files with
aclgrphBundleSaveModel, and the simulator with `models.om.bundle`.
"""

from __future__ import annotations

from pathlib import Path

from ascend_simulator import process
from ascend_simulator.calls import STR, U32, U64, status, value
from ascend_simulator.codes import Code, Refused
from ascend_simulator.interface.descs import host_bytes
from ascend_simulator.models import om
from ascend_simulator.models.loaded import models


class Bundles:
    """The loaded bundles: a `Part` of the process."""

    def __init__(self) -> None:
        self._models: dict[int, list[int]] = {}

    def add(self, found: list[om.Om], file: str) -> int:
        """Load all models of a bundle; return its id. If a load fails, no model stays loaded."""
        loaded: list[int] = []
        try:
            loaded.extend(models().load(each, file=file) for each in found)
        except BaseException:
            for model in loaded:
                models().unload(model)
            raise
        number = models().next_number(planned=False)
        self._models[number] = loaded
        return number

    def get(self, number: int, what: str) -> list[int]:
        """Return the ids of a bundle's models. Raises Refused INVALID_BUNDLE_MODEL_ID."""
        if number not in self._models:
            text = f"{what}: bundle {number}: not loaded"
            raise Refused(Code.INVALID_BUNDLE_MODEL_ID, text)
        return self._models[number]

    def remove(self, number: int) -> None:
        """Unload the models of a bundle. Raises like `get` and `Models.unload`."""
        for model in self.get(number, "bundle_unload"):
            models().unload(model)
        del self._models[number]

    def contain(self, model: int) -> bool:
        """Return whether a model is part of a bundle."""
        return any(model in loaded for loaded in self._models.values())

    def live(self) -> list[str]:
        """Return an empty list: the models are reported with their contexts."""
        return []

    def close(self) -> None:
        """Remove all bundles from the table."""
        self._models.clear()


def bundles() -> Bundles:
    """Return the loaded bundles of the process."""
    return process.current().part(Bundles)


@value("mdl.bundle_load_from_file", STR)
def bundle_load_from_file(path: str) -> int:
    """Load all models of a bundle; return the bundle's id. Refused: like `om.parse_bundle`."""
    return bundles().add(om.parse_bundle(om.content(path), path), Path(path).stem)


@value("mdl.bundle_load_from_mem", U64, U64)
def bundle_load_from_mem(ptr: int, size: int) -> int:
    """Load a bundle from host memory, like bundle_load_from_file."""
    return bundles().add(om.parse_bundle(host_bytes(ptr, size, "bundle_load_from_mem")), "")


@value("mdl.bundle_get_model_num", U32)
def bundle_get_model_num(bundle: int) -> int:
    """Return the number of a bundle's models."""
    return len(bundles().get(bundle, "bundle_get_model_num"))


@value("mdl.bundle_get_model_id", U32, U64)
def bundle_get_model_id(bundle: int, index: int) -> int:
    """Return the id of one model of a bundle. Refused: INVALID_PARAM for an unknown index."""
    loaded = bundles().get(bundle, "bundle_get_model_id")
    if index >= len(loaded):
        text = f"bundle_get_model_id: found {index}, expected below {len(loaded)}"
        raise Refused(Code.INVALID_PARAM, text)
    return loaded[index]


@status("mdl.bundle_unload", U32)
def bundle_unload(bundle: int) -> None:
    """Unload all models of a bundle."""
    bundles().remove(bundle)
