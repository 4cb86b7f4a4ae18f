"""Commits, on request, each fault that a model can have, and some unusual valid actions."""

import numpy as np
import triton_python_backend_utils as pb_utils

GOOD = np.array([1.0], dtype=np.float32)


def output(array, name="Y"):
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, np.asarray(array))])


def error(text, *code):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, *code))


class TritonPythonModel:
    def execute(self, requests):
        wanted = pb_utils.get_input_tensor_by_name(requests[0], "what").as_numpy()[0].decode()
        verb, _, rest = wanted.partition(" ")
        return getattr(self, verb)(rest, requests)

    def answer(self, kind, _):
        """Answer with an unusual output."""
        # Created only on request, because some of these outputs cannot be created.
        makers = {
            "good": lambda: output(GOOD),
            "nothing": lambda: pb_utils.InferenceResponse([]),
            "another name": lambda: output(GOOD, "Z"),
            "one more": lambda: pb_utils.InferenceResponse(
                [pb_utils.Tensor("Z", GOOD), pb_utils.Tensor("Y", GOOD)]
            ),
            "the same name twice": lambda: pb_utils.InferenceResponse(
                [pb_utils.Tensor("Y", GOOD), pb_utils.Tensor("Y", GOOD + 1)]
            ),
            "no elements": lambda: output(GOOD[:0]),
            "a scalar": lambda: output(np.float32(7)),
            "another shape": lambda: output(np.arange(6, dtype=np.float32).reshape(2, 3)),
            "a transposed view": lambda: output(np.arange(6, dtype=np.float32).reshape(2, 3).T),
            "a stepped view": lambda: output(np.arange(6, dtype=np.float32)[::-2]),
            "int64": lambda: output(np.array([-(2**63), 2**63 - 1])),
            "uint64": lambda: output(np.array([2**64 - 1], dtype=np.uint64)),
            "bool": lambda: output(np.array([True, False])),
            "float16": lambda: output(GOOD.astype(np.float16)),
            "float64": lambda: output(np.array([0.1, 1e300, -0.0, 5e-324])),
            "special floats": lambda: output(
                np.array([np.nan, np.inf, -np.inf, 3.4028235e38, 1e-45], dtype=np.float32)
            ),
            "bytes objects": lambda: output(np.array([b"a", b"", b"\x00b"], dtype=object)),
            "str objects": lambda: output(np.array(["é", "数字"], dtype=object)),
            "number objects": lambda: output(np.array([1, None, 2.5], dtype=object)),
            "fixed bytes": lambda: output(np.array([b"abc", b"d"])),
            "bytes that are not utf-8": lambda: output(np.array([b"\xff\xfe"], dtype=object)),
            "control characters": lambda: output(np.array(['"\\/\n\t\x01\x7f'], dtype=object)),
            "unicode array": lambda: output(np.array(["abc"])),
            "complex": lambda: output(np.array([1j])),
            "big endian": lambda: output(np.array([1], dtype=">f4")),
            "no name": lambda: output(GOOD, ""),
        }
        return [makers[kind]()]

    def raises(self, kind, _):
        """Raise an exception in execute."""
        if kind == "deep":
            self.raises("ValueError", _)
        raise {
            "ValueError": ValueError("bad value here"),
            "no text": ValueError,
            "KeyError": KeyError("k"),
            "unicode": RuntimeError("naïve 数字"),
            "two lines": RuntimeError('one\n"two"'),
            "SystemExit": SystemExit(3),
            "KeyboardInterrupt": KeyboardInterrupt(),
            "TritonModelException": pb_utils.TritonModelException("a refusal of the model"),
        }[kind]

    def logs(self, text, _):
        """Write a warning, and answer."""
        pb_utils.Logger.log_warn(text)
        return [output(GOOD)]

    def error(self, kind, _):
        """Answer with a TritonError."""
        if kind == "default":
            return [error("the default code")]
        if kind == "with tensors":
            fault = pb_utils.TritonError("the error wins", pb_utils.TritonError.NOT_FOUND)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", GOOD)], fault)]
        if kind == "without text":
            return [error("")]
        if kind == "unicode":
            return [error('naïve "数字"\n', pb_utils.TritonError.INVALID_ARG)]
        return [error(f"a fault of kind {kind}", getattr(pb_utils.TritonError, kind))]

    def returns(self, kind, _):
        """Return something that is not one response per request."""
        return {
            "too few": [],
            "too many": [output(GOOD), output(GOOD)],
            "tuple": (output(GOOD),),
            "dict": {},
            "int": 1,
            "str": "Y",
            "list of int": [1],
            "list of str": ["Y"],
        }[kind]

    def sends(self, kind, requests):
        """Answer through the response sender."""
        sender = requests[0].get_response_sender()
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        if kind == "and returns none":
            sender.send(output(GOOD), flags=final)
            return None
        if kind == "and returns a list of none":
            sender.send(output(GOOD), flags=final)
            return [None]
        if kind == "the flag afterwards":
            sender.send(output(GOOD))
            sender.send(flags=final)
            return None
        if kind == "an error":
            sender.send(error("sent, not returned", pb_utils.TritonError.UNAVAILABLE), flags=final)
            return None
        if kind == "after the end":
            sender.send(output(GOOD), flags=final)
            sender.send(output(GOOD))
        return None
