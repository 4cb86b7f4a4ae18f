"""A request batch joined by plain code, as many models do it: padded, executed once, cut apart.

Parameter `pad_to`: `longest` of the batch, or `maximum`, the limits. A graph that is not told where
data ends gives other answers than alone; that is what this costs, not how to do it.
"""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters = {key: entry["string_value"] for key, entry in config["parameters"].items()}
        self._input = config["input"][0]
        axes = iter(parameters[f"axes.{self._input['name']}"].split(","))
        self._limits = [
            int(parameters[f"limit.{next(axes).strip()}"]) if size == -1 else size
            for size in map(int, self._input["dims"])
        ]
        self._to_maximum = parameters["pad_to"] == "maximum"
        self._outputs = [output["name"] for output in config["output"]]
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        path = Path(args["model_repository"], args["model_version"], "model.onnx")
        self._session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
        self._useful = self._counter("plain_useful_elements_total", "Elements of requests", args)
        self._executed = self._counter("plain_executed_elements_total", "With padding", args)
        self._masked = any(put.name == "attention_mask" for put in self._session.get_inputs())

    def _counter(self, name, description, args):
        family = pb_utils.MetricFamily(name, description, pb_utils.MetricFamily.COUNTER)
        self._families = [*getattr(self, "_families", []), family]  # a metric keeps none itself
        return family.Metric(labels={"model": args["model_name"]})

    def execute(self, requests):
        name = self._input["name"]
        arrays = [pb_utils.get_input_tensor_by_name(each, name).as_numpy() for each in requests]
        sizes = self._limits
        if not self._to_maximum:
            sizes = np.max([array.shape[1:] for array in arrays], axis=0)
        ends = np.cumsum([len(array) for array in arrays])
        joined = np.zeros((ends[-1], *sizes), arrays[0].dtype)
        for array, end in zip(arrays, ends, strict=True):
            place = (slice(end - len(array), end), *map(slice, array.shape[1:]))
            joined[place] = array
        self._useful.increment(sum(array.size for array in arrays))
        self._executed.increment(joined.size)
        feeds = {name: joined}
        if self._masked:
            feeds["attention_mask"] = (joined != 0).astype(np.int64)
        results = [
            np.split(result, ends[:-1]) for result in self._session.run(self._outputs, feeds)
        ]
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor(*pair) for pair in zip(self._outputs, parts, strict=True)]
            )
            for parts in zip(*results, strict=True)
        ]
