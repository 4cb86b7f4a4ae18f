"""`c_python_backend_utils`: what Triton writes in C++, under the module that it comes from.

Models seldom import it: it is where the classes are that `triton_python_backend_utils` does not
show, such as that of an iterator.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from reference_server.backends.python_host.api.constants import MemoryType
from reference_server.backends.python_host.api.iterator import ResponseIterator
from reference_server.backends.python_host.api.metrics import Metric, MetricKind
from reference_server.backends.python_host.api.native import MODULE
from reference_server.backends.python_host.api.sender import InferenceResponseSender
from reference_server.backends.python_host.api.trace import InferenceTrace

_SHARED = (
    *("InferenceRequest", "InferenceResponse", "Logger", "MetricFamily", "PreferredMemory"),
    *("TRITONSERVER_MEMORY_CPU", "TRITONSERVER_MEMORY_GPU", "Tensor", "TritonError"),
    *("TritonModelException", "is_model_ready", "load_model", "unload_model"),
)


def native_module(utils: Mapping[str, object]) -> ModuleType:
    """The module, for the instance that sees `utils` in `triton_python_backend_utils`."""
    module = ModuleType(MODULE)
    vars(module).update(
        {name: utils[name] for name in _SHARED},
        InferenceResponseSender=InferenceResponseSender,
        InferenceTrace=InferenceTrace,
        MemoryType=MemoryType,
        Metric=Metric,
        MetricKind=MetricKind,
        ResponseIterator=ResponseIterator,
        **MetricKind.__members__,
    )
    return module
