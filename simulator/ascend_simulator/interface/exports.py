"""The module `acl` and its namespaces, assembled from all functions with a call shape."""

from __future__ import annotations

from types import ModuleType

import ascend_simulator.interface.acl
import ascend_simulator.interface.aipp
import ascend_simulator.interface.bundles
import ascend_simulator.interface.descs
import ascend_simulator.interface.gears
import ascend_simulator.interface.mdl
import ascend_simulator.interface.media
import ascend_simulator.interface.media_tasks
import ascend_simulator.interface.op
import ascend_simulator.interface.prof
import ascend_simulator.interface.rt
import ascend_simulator.interface.rt_ipc
import ascend_simulator.interface.rt_memory
import ascend_simulator.interface.rt_report
import ascend_simulator.interface.util
import ascend_simulator.models.datasets  # noqa: F401 - each import adds functions to EXPORTED
from ascend_simulator.calls import EXPORTED, Exported


def functions(namespace: str) -> dict[str, Exported]:
    """Return the functions of one namespace by name; "" is `acl` itself."""
    prefix = f"{namespace}." if namespace else ""
    return {
        name.removeprefix(prefix): function
        for name, function in EXPORTED.items()
        if name.startswith(prefix) and "." not in name.removeprefix(prefix)
    }


def namespace(name: str) -> ModuleType:
    """Return a module `acl.<name>` with the functions of that namespace."""
    module = ModuleType(f"acl.{name}", f"The functions of acl.{name}, simulated.")
    vars(module).update(functions(name))
    return module
