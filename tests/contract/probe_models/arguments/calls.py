"""Every function of the model API with its arguments."""

import asyncio
from functools import partial

import numpy as np
import triton_python_backend_utils as pb_utils

from .kinds import array, request, tensor

REQUIRED = object()


class Argument:
    """One argument of a function.

    Args:
        name: The argument's name; None if it is positional-only.
        good: A valid value.
        needed: Whether the argument must be given.
        text: The text in values of kinds that have a text.
        number: The number in values of kinds that have a number.
        wrap: A function that puts a kind into the argument's value.
        excluded: The kinds that must not be passed.
        label: The name in the matrix, if it is not `name`.
    """

    def __init__(self, name, good=REQUIRED, *, needed=True, text="m", number=1, wrap=None,
                 excluded=(), label=None):  # fmt: skip
        self.name, self.good, self.needed = name, good, needed
        self.text, self.number, self.wrap = text, number, wrap or (lambda value: value)
        self.excluded, self.label = frozenset(excluded), label


class Call:
    """A function and its arguments; `make` returns a new function for each call."""

    def __init__(self, name, make, *arguments):
        self.name, self.make, self.arguments = name, make, arguments


UNSURE = ("bytes, no UTF-8", "str, empty", "bytes, empty", "str, not ASCII", "str, a zero")
#: Kinds whose memory holds the addresses of objects.
OF_ADDRESSES = ("array of objects", "array of Tensor")
#: Kinds with which the call fails in the real server, which then sometimes aborts.
UNLOADABLE = (*UNSURE, "str, half a surrogate pair")
ARRAYS = tuple(name for name in (
    "array, 0-d", "array, 0-d float", "array of 1", "array of 2", "array of none",
    "array of str", "array of bytes", "array of objects", "array of Tensor"))  # fmt: skip


def constructor(name):
    return lambda: getattr(pb_utils, name)


def logged(name):
    return Call(f"Logger.{name}", lambda: getattr(pb_utils.Logger, name),
                Argument("message", "m"))  # fmt: skip


def family(kind, name=""):
    return pb_utils.MetricFamily(
        f"argument_matrix_{kind}{name}", "d", getattr(pb_utils.MetricFamily, kind)
    )


def making_metric(kind):
    """Call `Metric` with a family that outlives the metric: otherwise the real server may crash."""

    def make():
        owner = family(kind, "of")

        def call(*args, **named):
            owner.Metric(*args, **named)

        return call

    return make


def of_metric(kind, method, **named):
    """Return a call of a metric's method."""

    def make():
        owner = family(kind)  # must not be deleted before the call
        function = getattr(owner.Metric({"of": "m"}, **named), method)
        return lambda *args, **named: (function(*args, **named), owner)

    return Call(f"Metric.{method}", make, Argument(None, 1.0))


def sender_of(asked):
    return lambda: asked.get_response_sender().send


def on_loop(function):
    """Await the call on a loop; without a running loop, all kinds would have the same outcome."""

    def call(*args, **named):
        async def main():
            return await function(*args, **named)

        return asyncio.run(main())

    return call


def method(name, *arguments, of=request):
    return Call(f"{type(of()).__name__}.{name}", lambda: getattr(of(), name), *arguments)


def setting_release_flags(asked):
    """Set the release flags of the received request, then reset them.

    With a request created by the model, the real server would write to arbitrary memory.
    """

    def call(*args, **named):
        asked.set_release_flags(*args, **named)
        asked.set_release_flags(1)

    return lambda: call


def config(name, *arguments):
    """Return a call of a method of ModelConfig."""

    def make():
        made = pb_utils.ModelConfig('{"name": "m", "max_batch_size": 0, "input": [], "output": []}')
        return getattr(made, name)

    return Call(f"ModelConfig.{name}", make, *arguments)


def entry(*names):
    good = {"name": "m", "data_type": "TYPE_FP32", "dims": [1]}
    whole = Argument(names[0], good)
    return (whole, *(Argument(names[0], good, wrap=lambda value, key=key: good | {key: value},
                              label=f"{names[0]}[{key!r}]") for key in good))  # fmt: skip


def equality(of):
    return lambda other: of == other


def enumeration(name, of):
    return Call(name, lambda: of, Argument("value", 1))


def calls(asked):
    """Return all calls; `asked` is the request that the model answers."""
    optional = {"needed": False}
    no_load = {"excluded": UNLOADABLE}
    return [
        Call("Tensor", constructor("Tensor"), Argument(None, "IN"), Argument(None, array())),
        Call("Tensor.from_dlpack", lambda: pb_utils.Tensor.from_dlpack, Argument(None, "IN"),
             Argument(None, tensor(), excluded=ARRAYS)),
        method("__dlpack__", Argument("stream", None, needed=False), of=tensor),
        *(method(name, of=tensor) for name in (
            "name", "shape", "is_cpu", "triton_dtype", "__dlpack_device__")),
        method("as_numpy", of=tensor),
        method("to_dlpack", of=tensor),
        Call("InferenceRequest", constructor("InferenceRequest"),
             Argument("request_id", "i", **optional),
             Argument("correlation_id", 5, **optional),
             Argument("inputs", [tensor()]),
             Argument("inputs", [tensor()], wrap=lambda value: [value], label="inputs[0]"),
             Argument("requested_output_names", ["OUT"]),
             Argument("requested_output_names", ["OUT"], wrap=lambda value: [value],
                      label="requested_output_names[0]"),
             Argument("model_name", "echoes", text="echoes"),
             Argument("model_version", 1, **optional),
             Argument("flags", 3, **optional),
             Argument("timeout", 9, **optional),
             Argument("preferred_memory", of_cpu(), **optional),
             Argument("trace", asked.trace(), **optional),
             Argument("parameters", {"a": 1}, **optional),
             Argument("parameters", {"a": 1}, wrap=lambda value: {value: 1}, **optional,
                      label="parameters key"),
             Argument("parameters", {"a": 1}, wrap=lambda value: {"a": value}, **optional,
                      label="parameters['a']")),
        *(method(name) for name in (
            "request_id", "correlation_id", "flags", "timeout", "parameters",
            "requested_output_names", "inputs", "trace")),
        method("set_flags", Argument(None, 1)),
        Call("InferenceRequest.set_release_flags", setting_release_flags(asked), Argument(None, 1)),
        method("exec", Argument("decoupled", False, **optional)),
        Call("InferenceRequest.async_exec", lambda: on_loop(request().async_exec),
             Argument("decoupled", False, **optional)),
        Call("InferenceRequest.is_cancelled", lambda: asked.is_cancelled),
        Call("InferenceRequest.get_response_sender", lambda: asked.get_response_sender),
        Call("InferenceTrace.get_context", lambda: asked.trace().get_context),
        Call("InferenceTrace", lambda: type(asked.trace())),
        Call("ResponseIterator.__next__",
             lambda: request().exec(decoupled=True).__next__),
        Call("InferenceResponseSender", lambda: type(asked.get_response_sender())),
        Call("InferenceResponseSender.is_cancelled",
             lambda: asked.get_response_sender().is_cancelled),
        # Flag 2 is refused, but only once the arguments have been read.
        Call("InferenceResponseSender.send", sender_of(asked),
             Argument("response", None, **optional), Argument("flags", 2, number=2)),
        Call("InferenceResponse", constructor("InferenceResponse"),
             Argument("output_tensors", [tensor()], **optional),
             Argument("output_tensors", [tensor()], wrap=lambda value: [value], **optional,
                      label="output_tensors[0]"),
             Argument("error", pb_utils.TritonError("e"), **optional)),
        *(method(name, of=lambda: pb_utils.InferenceResponse([])) for name in (
            "output_tensors", "has_error", "error")),
        Call("TritonError", constructor("TritonError"), Argument("message", "m"),
             Argument("code", pb_utils.TritonError.NOT_FOUND, **optional)),
        *(method(name, of=lambda: pb_utils.TritonError("e")) for name in ("message", "code")),
        Call("TritonModelException", constructor("TritonModelException"), Argument(None, "m")),
        Call("PreferredMemory", constructor("PreferredMemory"),
             Argument("preferred_memory_type", pb_utils.TRITONSERVER_MEMORY_CPU),
             Argument("preferred_device_id", 0, **optional)),
        enumeration("MemoryType", type(pb_utils.TRITONSERVER_MEMORY_CPU)),
        enumeration("MetricKind", type(pb_utils.MetricFamily.GAUGE)),
        enumeration("TritonError.__ErrorCode", type(pb_utils.TritonError.INTERNAL)),
        enumeration("Logger.LogLevel", pb_utils.Logger.LogLevel),
        *(Call(f"{name} ==", partial(equality, of), Argument("other", of)) for name, of in (
            ("MemoryType", pb_utils.TRITONSERVER_MEMORY_CPU),
            ("MetricKind", pb_utils.MetricFamily.GAUGE),
            ("TritonError.__ErrorCode", pb_utils.TritonError.INTERNAL),
            ("Logger.LogLevel", pb_utils.Logger.WARNING))),
        Call("Logger", constructor("Logger")),
        Call("Logger.log", lambda: pb_utils.Logger.log, Argument("message", "m"),
             Argument("level", pb_utils.Logger.INFO, **optional)),
        *map(logged, ("log_info", "log_warn", "log_error", "log_verbose")),
        Call("MetricFamily", constructor("MetricFamily"),
             Argument("name", "argument_matrix", excluded=UNSURE, text="argument_matrix"),
             Argument("description", "d", excluded=UNSURE),
             Argument("kind", pb_utils.MetricFamily.GAUGE)),
        Call("MetricFamily.Metric", making_metric("GAUGE"),
             Argument("labels", {"of": "m"}, **optional),
             Argument("buckets", None, **optional)),
        Call("MetricFamily.Metric, of a histogram",
             making_metric("HISTOGRAM"),
             Argument("labels", {"of": "m"}, **optional),
             Argument("buckets", [1.0]),
             Argument("buckets", [1.0], wrap=lambda value: [value], label="buckets[0]")),
        of_metric("GAUGE", "increment"),
        of_metric("GAUGE", "set"),
        of_metric("HISTOGRAM", "observe", buckets=[1.0]),
        Call("Metric", lambda: type(family("GAUGE").Metric({"of": "m"}))),
        Call("load_model", lambda: pb_utils.load_model,
             Argument("model_name", "echoes", text="echoes", **no_load),
             Argument("config", "", text="", **optional, excluded=("bytes, no UTF-8",
                      "str, not ASCII", "str, a zero", "str, Enum")),
             Argument("files", None, **optional, excluded=("dict",))),
        Call("unload_model", lambda: pb_utils.unload_model,
             Argument("model_name", "missing", text="missing"),
             Argument("unload_dependents", False, **optional)),
        Call("is_model_ready", lambda: pb_utils.is_model_ready,
             Argument("model_name", "echoes", text="echoes"),
             Argument("model_version", "1", text="1", **optional,
                      excluded=("str, not ASCII", "str, a zero", "bytes, no UTF-8"))),
        Call("get_model_dir", lambda: pb_utils.get_model_dir),
        Call("get_input_tensor_by_name", lambda: pb_utils.get_input_tensor_by_name,
             Argument("inference_request", request()), Argument("name", "IN", text="IN")),
        Call("get_output_tensor_by_name", lambda: pb_utils.get_output_tensor_by_name,
             Argument("inference_response", pb_utils.InferenceResponse([tensor()])),
             Argument("name", "IN", text="IN")),
        *(Call(name, lambda name=name: getattr(pb_utils, name),
               Argument("model_config", {"input": [{"name": "m"}], "output": [{"name": "m"}]}),
               Argument("name", "m")) for name in (
            "get_input_config_by_name", "get_output_config_by_name")),
        Call("using_decoupled_model_transaction_policy",
             lambda: pb_utils.using_decoupled_model_transaction_policy,
             Argument("model_config", {"model_transaction_policy": {"decoupled": True}}),
             Argument("model_config", wrap=lambda value: {"model_transaction_policy": value},
                      label="model_config['model_transaction_policy']")),
        Call("triton_to_numpy_type", lambda: pb_utils.triton_to_numpy_type,
             Argument("data_type", 1)),
        Call("numpy_to_triton_type", lambda: pb_utils.numpy_to_triton_type,
             Argument("data_type", np.float32)),
        Call("triton_string_to_numpy", lambda: pb_utils.triton_string_to_numpy,
             Argument("triton_type_string", "TYPE_FP32", text="TYPE_FP32")),
        Call("serialize_byte_tensor", lambda: pb_utils.serialize_byte_tensor,
             Argument("input_tensor", np.array([b"m"], object)),
             Argument("input_tensor", wrap=of_objects, label="input_tensor[0]")),
        Call("deserialize_bytes_tensor", lambda: pb_utils.deserialize_bytes_tensor,
             Argument("encoded_tensor", b"\1\0\0\0m", text="\1\0\0\0m", excluded=OF_ADDRESSES)),
        Call("ModelConfig", constructor("ModelConfig"), Argument("model_config", "{}", text="{}")),
        config("set_max_batch_size", Argument("max_batch_size", 1)),
        config("set_dynamic_batching"),
        config("add_input", *entry("input"), Argument(
            "input", wrap=lambda value: {"name": "m", "data_type": "T", "dims": [], "optional":
                                         value}, label="input['optional']")),
        config("add_output", *entry("output")),
        config("set_model_transaction_policy",
               Argument("transaction_policy_dict", {"decoupled": True}),
               Argument("transaction_policy_dict", wrap=lambda value: {"decoupled": value},
                        label="transaction_policy_dict['decoupled']")),
    ]  # fmt: skip


def of_objects(value):
    made = np.empty(1, object)
    made[0] = value
    return made


def of_cpu():
    return pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU)
