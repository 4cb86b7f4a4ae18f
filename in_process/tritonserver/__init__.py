"""Triton's in-process API (`tritonserver`) over the reference server.

    server = tritonserver.Server(model_repository="models").start(wait_until_ready=True)
    for response in server.model("bert").infer(inputs={"TEXT": [["hello"]]}):
        print(response.outputs["LABEL"].to_string_array())
    server.stop()

Names, signatures and errors are those of NVIDIA's package, which is used instead if it is
installed.
"""

from reference_server import __version__ as __version__
from tritonserver._api import Metric as Metric
from tritonserver._api import MetricFamily as MetricFamily
from tritonserver._api import ModelLoadDeviceLimit as ModelLoadDeviceLimit
from tritonserver._api import Options as Options
from tritonserver._api import RateLimiterResource as RateLimiterResource
from tritonserver._api import Server as Server
from tritonserver._api._response import InferenceRequest as InferenceRequest
from tritonserver._api._response import InferenceResponse as InferenceResponse
from tritonserver._api._response import Model as Model
from tritonserver._api._tensor import DLDeviceType as DLDeviceType
from tritonserver._api._tensor import MemoryBuffer as MemoryBuffer
from tritonserver._api._tensor import Tensor as Tensor
from tritonserver._c import AlreadyExistsError as AlreadyExistsError
from tritonserver._c import DataType as DataType
from tritonserver._c import InstanceGroupKind as InstanceGroupKind
from tritonserver._c import InternalError as InternalError
from tritonserver._c import InvalidArgumentError as InvalidArgumentError
from tritonserver._c import LogFormat as LogFormat
from tritonserver._c import LogLevel as LogLevel
from tritonserver._c import MemoryType as MemoryType
from tritonserver._c import MetricFormat as MetricFormat
from tritonserver._c import MetricKind as MetricKind
from tritonserver._c import ModelBatchFlag as ModelBatchFlag
from tritonserver._c import ModelControlMode as ModelControlMode
from tritonserver._c import ModelTxnPropertyFlag as ModelTxnPropertyFlag
from tritonserver._c import NotFoundError as NotFoundError
from tritonserver._c import RateLimitMode as RateLimitMode
from tritonserver._c import TritonError as TritonError
from tritonserver._c import UnavailableError as UnavailableError
from tritonserver._c import UnknownError as UnknownError
from tritonserver._c import UnsupportedError as UnsupportedError
