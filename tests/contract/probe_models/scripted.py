"""Executes the Python script in each request of the batch.

A script can use these names: `request`, `sender`, `say` and `fail` (make responses), `FINAL`,
`later` (runs a function on another thread, when `execute` has returned), `kept` (one dict for all
requests of the instance). If it sets `answer`, this is its entry in the list that `execute`
returns; if it sets `returned`, this is returned instead of the list.
"""

import threading

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def say(*texts, name="said"):
    """Return a response with these texts."""
    array = np.array([text.encode() for text in texts], dtype=object)
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array)])


def fail(text, *code):
    """Return an error response."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, *code))


class TritonPythonModel:
    def initialize(self, args):
        self.is_decoupled = '"decoupled":true' in args["model_config"].replace(" ", "")
        self.kept = {}
        self.threads = []

    def execute(self, requests):
        answers = []
        returned = []
        delayed = []
        for request in requests:
            script = pb_utils.get_input_tensor_by_name(request, "script").as_numpy().ravel()[0]
            names = {
                "pb_utils": pb_utils,
                "np": np,
                "request": request,
                "sender": request.get_response_sender(),
                "say": say,
                "fail": fail,
                "FINAL": FINAL,
                "kept": self.kept,
                "later": delayed.append,
                "requests": requests,
            }
            exec(script.decode(), names)
            answers.append(names.get("answer"))
            if "returned" in names:
                returned.append(names["returned"])
            # The script's functions refer to its namespace, which refers to the sender.
            del names
        for work in delayed:
            thread = threading.Thread(target=work)
            thread.start()
            self.threads.append(thread)
        if returned:
            return returned[0]
        return None if self.is_decoupled else answers

    def finalize(self):
        for thread in self.threads:
            thread.join()
