"""Records each batch, then waits while the file `closed` exists in its folder, and answers.

X is the number of times a request with an id is rescheduled; 666 makes the batch fail.
"""

import json
import time
from pathlib import Path

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.folder = Path(args["model_repository"])
        self.instance = args["model_instance_name"]
        config = json.loads(args["model_config"])["sequence_batching"]
        self.controls = [entry["name"] for entry in config["control_input"]]
        self.states = config["state"]
        self.iterative = config["iterative_sequence"]
        self.times = {}

    def execute(self, requests):
        line = json.dumps([self.instance, [self.facts(request) for request in requests]])
        with (self.folder / "batches").open("a") as file:
            file.write(line + "\n")
        while (self.folder / "closed").exists():
            time.sleep(0.005)
        return [self.answer(request) for request in requests]

    def facts(self, request):
        given = {tensor.name(): tensor for tensor in request.inputs()}
        known = [*self.controls]
        if request.request_id():  # in a null request, only the controls have a meaning
            known += [state["input_name"] for state in self.states]
        arrays = {name: given[name].as_numpy() for name in known}
        return {
            "id": request.request_id(),
            "sequence": request.correlation_id(),
            "flags": request.flags(),
            "wanted": sorted(request.requested_output_names()),
            "inputs": sorted(given),
            "shape": list(given["X"].shape()),
            **{
                name: [array.dtype.name, array.shape, str(array.tolist())]
                for name, array in arrays.items()
            },
        }

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "X")
        name = request.request_id()
        value = int(x.as_numpy().ravel()[0]) if name else 0
        if value == 666:
            raise ValueError("the number of the beast")
        if self.iterative and self.times.setdefault(name, value) > 0:
            self.times[name] -= 1
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        self.times.pop(name, None)
        outputs = [pb_utils.Tensor("Y", x.as_numpy())]
        for state in self.states:
            left = pb_utils.get_input_tensor_by_name(request, state["input_name"])
            outputs.append(pb_utils.Tensor(state["output_name"], left.as_numpy() + 1))
        return pb_utils.InferenceResponse(outputs)
