"""Models of a few lines; `write_probes` appends a class that derives from one of them."""

import json
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def text_input(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel()[0].decode()


def texts(name, *values, shape=(-1,)):
    return pb_utils.Tensor(name, np.array([*values], dtype=object).reshape(shape))


class Answers:
    """Returns one answer for each request."""

    def execute(self, requests):
        return [self.answer(request) for request in requests]


class Identity(Answers):
    """Returns each input as the output at the same position in the configuration."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        pairs = zip(config["input"], config["output"], strict=True)
        self.output_of = {given["name"]: wanted["name"] for given, wanted in pairs}

    def answer(self, request):
        outputs = [
            pb_utils.Tensor(self.output_of[given.name()], given.as_numpy())
            for given in request.inputs()
        ]
        # Inputs arrive in any order, so the order of the configuration is used.
        outputs.sort(key=lambda tensor: list(self.output_of.values()).index(tensor.name()))
        return pb_utils.InferenceResponse(outputs)


class Mirror(Answers):
    """Returns, as JSON text, all properties of a request except its tensors."""

    def answer(self, request):
        facts = {
            "id": request.request_id(),
            "correlation": request.correlation_id(),
            "flags": request.flags(),
            "timeout": request.timeout(),
            "cancelled": request.is_cancelled(),
            "parameters": json.loads(request.parameters() or "{}"),
            "outputs": sorted(request.requested_output_names()),
            "inputs": sorted(tensor.name() for tensor in request.inputs()),
        }
        text = json.dumps(facts).encode()
        return pb_utils.InferenceResponse([texts("facts", text), texts("again", text)])


class Order(Answers):
    """Returns the order of the inputs of a request."""

    def answer(self, request):
        names = " ".join(tensor.name() for tensor in request.inputs())
        made = [pb_utils.Tensor(name, np.ones(1, np.float32)) for name in ("2nd", "third")]
        return pb_utils.InferenceResponse([texts("ORDER", names.encode()), *made])


class Decoupled:
    """Ends each request without a response. Over HTTP, requests to it are refused before."""

    def execute(self, requests):
        for request in requests:
            request.get_response_sender().send(flags=FINAL)


class NoExecute:
    """Loads, but cannot execute requests."""


class Held:
    """Writes the file `begun` when it has a request; answers when the file `go` exists."""

    def initialize(self, args):
        folder = Path(args["model_repository"])
        self.begun, self.go = folder / "begun", folder / "go"

    def execute(self, requests):
        self.begun.touch()
        while not self.go.exists():
            time.sleep(0.01)
        return [pb_utils.InferenceResponse([]) for _ in requests]


class Given(Answers):
    """Returns the inputs that it received, with their values, and properties of the request."""

    def answer(self, request):
        tensors = sorted(
            f"{tensor.name()}={tensor.as_numpy().ravel().tolist()}" for tensor in request.inputs()
        )
        facts = [request.request_id(), request.timeout(), request.parameters()]
        facts += [request.correlation_id(), request.flags()]
        text = " ".join([*tensors, *map(str, facts)]).encode()
        return pb_utils.InferenceResponse([texts("told", text, shape=(1, 1))])


class Repeats(Answers):
    """Converts the number n to the words `n n+100`."""

    def answer(self, request):
        number = pb_utils.get_input_tensor_by_name(request, "A").as_numpy().ravel()[0]
        words = f"{number:g} {number + 100:g}".encode()
        return pb_utils.InferenceResponse([texts("told", words, shape=(1, 1))])


class Sends:
    """An ordinary model that uses its response sender; for `1.`, the final flag is separate."""

    def execute(self, requests):
        for request in requests:
            word = text_input(request, "what")
            sender = request.get_response_sender()
            value = np.array([[float(word.rstrip("."))]], np.float32)
            answer = pb_utils.InferenceResponse(
                [pb_utils.Tensor("Y", value), pb_utils.Tensor("Z", value)]
            )
            if word.endswith("."):
                sender.send(answer)
                sender.send(flags=FINAL)
            else:
                sender.send(answer, flags=FINAL)


class Flow(Answers):
    """Executes the words of its input in order; for ordinary and for decoupled models.

    A number is sent as Y and Z, `y1` only as Y, `z1` only as Z; `none` sends neither, and `error`
    an error. A word with `!` at its end is the last response.
    """

    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.is_decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)

    def execute(self, requests):
        if not self.is_decoupled:
            return [self.response(text_input(request, "what")) for request in requests]
        for request in requests:
            self.stream(request.get_response_sender(), text_input(request, "what").split())
        return None

    def response(self, word):
        if word == "error":
            error = pb_utils.TritonError("told to", pb_utils.TritonError.UNAVAILABLE)
            return pb_utils.InferenceResponse(error=error)
        number = word.lstrip("yz")
        names = () if word == "none" else ("YZ" if number == word else word[0].upper())
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, np.array([[float(number)]], np.float32)) for name in names]
        )

    def stream(self, sender, words):
        for word in words:
            if word.endswith("!"):
                sender.send(self.response(word[:-1]), flags=FINAL)
                return
            sender.send(self.response(word))
        sender.send(flags=FINAL)


class TellsContext(Answers):
    """Returns its trace context, and the contexts of its requests to the model NAME, if any.

    The first of these is sent on behalf of the request, the second is not.
    """

    def answer(self, request):
        context = request.trace().get_context()
        contexts = ["None" if context is None else context]
        if name := text_input(request, "NAME"):
            for traced in ({"trace": request.trace()}, {}):
                asked = pb_utils.InferenceRequest(
                    model_name=name,
                    requested_output_names=["TOLD"],
                    inputs=[texts("NAME", "")],
                    **traced,
                ).exec()
                found = pb_utils.get_output_tensor_by_name(asked, "TOLD").as_numpy()
                contexts.append(found[0].decode())
        return pb_utils.InferenceResponse([texts("TOLD", *contexts)])
