"""A table of the Python backend's behaviours: the code of a model and the outcome.

Each row has the body of an `execute`. `reply(value)` makes the responses with `str(value)` in the
output TEXT, and `refusal(function)` returns the exception of a call as text. The numbers are those
of the backend's checklist, whose facts were observed on tritonserver 2.51.0.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

HEAD = """
import numpy as np
import triton_python_backend_utils as pb_utils

def reply(value):
    text = np.array([str(value)], dtype=object)
    return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)])]

def refusal(function, *arguments, **named):
    try:
        function(*arguments, **named)
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def strings(*elements):
    return np.array(elements, dtype=object)

def given(request, name="IN"):
    return pb_utils.get_input_tensor_by_name(request, name)

class TritonPythonModel:
    def execute(self, requests):
"""


@dataclass(frozen=True)
class Row:
    """One behaviour: the model's reply, or the error of its request.

    `fails` is the message after `Failed to process ...`, with `{file}` for the model's file,
    `{line}` for the first line of the body and `{next}` for the second. `ours_alone` is the reason
    why the real server does not run the row.
    """

    number: int
    feature: str
    body: str
    reply: str | None = None
    fails: str | None = None
    ours_alone: str = ""

    def __str__(self) -> str:
        return f"{self.number}: {self.feature}"

    @property
    def source(self) -> str:
        """The model's file."""
        return HEAD + textwrap.indent(textwrap.dedent(self.body).strip(), " " * 8) + "\n"

    def failure(self, file: str) -> str:
        """`fails` of the model in `file`."""
        assert self.fails is not None
        line = HEAD.count("\n") + 1
        return self.fails.format(file=file, line=line, next=line + 1)


ROWS = [
    Row(
        13,
        "a list that is too short",
        "return []",
        fails="Number of InferenceResponse objects do not match the number of InferenceRequest "
        "objects. InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0\n",
    ),
    Row(
        13,
        "a tuple",
        "return tuple(reply(1))",
        fails="Expected a list in the execute return, found type '<class 'tuple'>'.",
    ),
    Row(
        13,
        "a bare response",
        "return reply(1)[0]",
        fails="Expected a list in the execute return, found type "
        "'<class 'c_python_backend_utils.InferenceResponse'>'.",
    ),
    Row(
        13,
        "a request in the list",
        "return requests",
        fails="Expected an 'InferenceResponse' object in the execute function return list, "
        "found type '<class 'c_python_backend_utils.InferenceRequest'>'.",
    ),
    Row(
        14,
        "None without a response",
        "return None",
        fails="The model has dropped the request: found no complete response; expected a returned "
        "response or the final flag.",
        ours_alone="the client of the real server waits for ever",
    ),
    Row(
        15,
        "undeclared outputs are dropped",
        "return [pb_utils.InferenceResponse([pb_utils.Tensor('NOPE', np.zeros(1)), "
        "*reply('kept')[0].output_tensors()])]",
        reply="kept",
    ),
    Row(
        16,
        "an output of any type and shape passes",
        """
        text = pb_utils.Tensor("TEXT", strings("shaped").reshape(1, 1, 1))
        return [pb_utils.InferenceResponse([text])]
        """,
        reply="shaped",
    ),
    Row(
        17,
        "an exception",
        "def helper(): raise ValueError('bad value here')\nhelper()",
        fails="ValueError: bad value here\n\nAt:\n"
        "  {file}({line}): helper\n  {file}({next}): execute\n",
    ),
    Row(
        17,
        "an exception without text",
        "raise KeyboardInterrupt",
        fails="KeyboardInterrupt: <EMPTY MESSAGE>\n\nAt:\n  {file}({line}): execute\n",
    ),
    Row(
        17,
        "an exception that the API raises",
        "pb_utils.Tensor('', np.zeros(1))",
        fails="TritonModelException: Tensor name cannot be an empty string.\n\nAt:\n"
        "  {file}({line}): execute\n",
    ),
    Row(
        17, "exit", "raise SystemExit(3)", fails="SystemExit: 3\n\nAt:\n  {file}({line}): execute\n"
    ),
    Row(
        27,
        "Tensor of other element types",
        "return reply({refusal(pb_utils.Tensor, 'X', np.zeros(1, t))"
        " for t in ['c8', 'U1', '>f4', 'M8[s]', 'g']})",
        reply="{'TritonModelException: NumPy dtype is not supported.'}",
    ),
    Row(
        27,
        "a name in bytes",
        "return reply(pb_utils.Tensor('né'.encode(), np.zeros((0, 2))).name())",
        reply="né",
    ),
    Row(
        28,
        "as_numpy gives the array that was given",
        "a = np.arange(6.0)\nreturn reply(pb_utils.Tensor('X', a).as_numpy() is a)",
        reply="True",
    ),
    Row(
        28,
        "a received array is one, and writable",
        """
        x = given(requests[0])
        x.as_numpy()[0] = 7
        return reply([x.as_numpy() is x.as_numpy(), x.as_numpy().tolist(), x.shape()])
        """,
        reply="[True, [7.0, 2.0], [2]]",
    ),
    Row(
        29,
        "arrays out of order are copied",
        "a = pb_utils.Tensor('X', np.arange(6.0).reshape(2, 3).T).as_numpy()\n"
        "return reply([a.flags.c_contiguous, a.tolist()])",
        reply="[True, [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]]",
    ),
    Row(
        30,
        "strings are encoded when the tensor is made",
        """
        array = strings("before")
        text = pb_utils.Tensor("TEXT", array)
        array[0] = "after"
        return [pb_utils.InferenceResponse([text])]
        """,
        reply="before",
    ),
    Row(
        30,
        "strings arrive as bytes",
        "return reply(given(requests[0], 'STRINGS').as_numpy())",
        reply=r"[b'a' b'\xc3\xa9']",
    ),
    Row(
        32,
        "DLPack to NumPy and back",
        """
        x = given(requests[0])
        y = pb_utils.Tensor.from_dlpack("Y", x)
        z = pb_utils.Tensor.from_dlpack("Z", y.to_dlpack())
        return reply([np.from_dlpack(y).tolist(), z.as_numpy().tolist(), z.__dlpack_device__()])
        """,
        reply="[[1.0, 2.0], [1.0, 2.0], (1, 0)]",
    ),
    Row(
        32,
        "DLPack of strings",
        "return reply(refusal(given(requests[0], 'STRINGS').to_dlpack))",
        reply="TritonModelException: DLPack does not have support for string tensors.",
    ),
    Row(
        32,
        "DLPack of nothing suitable",
        "return reply(refusal(pb_utils.Tensor.from_dlpack, 'Y', 5))",
        reply="TritonModelException: Provided tensor is not supported. Tensor must be a DLPack "
        "capsule         or have `__dlpack__` and `__dlpack_device__` attributes",
    ),
    Row(
        33,
        "DLPack of a NumPy array",
        "return reply(pb_utils.Tensor.from_dlpack('Y', np.arange(3)).as_numpy().tolist())",
        reply="[0, 1, 2]",
        ours_alone="the real stub dies",
    ),
    Row(
        34,
        "triton_dtype",
        "return reply(given(requests[0]).triton_dtype())",
        reply="11",
        ours_alone="the real method always raises",
    ),
    Row(
        35,
        "request accessors",
        """
        r = requests[0]
        r.inputs().clear()
        return reply([
            [i.name() for i in r.inputs()], r.request_id(), r.correlation_id(), r.flags(),
            r.timeout(), sorted(r.requested_output_names()), r.is_cancelled(),
        ])
        """,
        reply="[['IN', 'STRINGS'], 'é7', 0, 0, 0, ['OUT', 'TEXT'], False]",
    ),
    Row(
        35,
        "parameters are JSON text",
        "return reply(requests[0].parameters())",
        reply='{"i":5,"s":"é\\n","b":true,"d":1.5}',
    ),
    Row(
        35,
        "flags may be set",
        "r = requests[0]\nr.set_flags(3)\nreturn reply([r.flags(), refusal(r.set_flags, -1)[:9]])",
        reply="[3, 'TypeError']",
    ),
    Row(
        45,
        "TritonError",
        """
        e = pb_utils.TritonError("text", pb_utils.TritonError.NOT_FOUND)
        return reply([e.message(), e.code(), str(e.code()), e.code() == 2, e.code().name])
        """,
        reply="['text', <__ErrorCode.NOT_FOUND: 2>, '__ErrorCode.NOT_FOUND', True, 'NOT_FOUND']",
    ),
    Row(
        45,
        "InferenceResponse of None",
        "return reply([refusal(pb_utils.InferenceResponse, [None]),"
        " refusal(pb_utils.InferenceResponse, None)[:9]])",
        reply="['TritonModelException: Output tensor for inference response should not be empty.',"
        " 'TypeError']",
    ),
    Row(
        50,
        "Logger",
        """
        log = pb_utils.Logger
        log.log_verbose("v")
        log.log("x", log.VERBOSE)
        return reply([str(log.INFO), repr(log.ERROR), refusal(log)[:9]])
        """,
        reply="['LogLevel.INFO', '<LogLevel.ERROR: 2>', 'TypeError']",
    ),
    Row(
        52,
        "metrics",
        """
        make = pb_utils.MetricFamily
        counter = make("checklist_counter", "d", make.COUNTER)
        gauge = make(name="checklist_gauge", description="d", kind=make.GAUGE)
        count, level = counter.Metric({"a": "1"}), gauge.Metric(labels=None)
        count.increment(2)
        counter.Metric({"a": "1"}).increment(0.5)
        level.set(4)
        level.increment(-6)
        return reply([count.value(), level.value(), repr(make.GAUGE), str(make.HISTOGRAM)])
        """,
        reply="[2.5, -2.0, '<MetricKind.GAUGE: 1>', 'MetricKind.HISTOGRAM']",
    ),
    Row(
        52,
        "metrics of other arguments",
        """
        make = pb_utils.MetricFamily
        counter = make("checklist_counter", "d", make.COUNTER)
        hist = make("checklist_hist", "d", make.HISTOGRAM)
        return reply("\\n".join(refusal(*call) for call in [
            (counter.Metric, ["a"]), (counter.Metric, {}, [1]), (counter.Metric, {}, (1,)),
            (hist.Metric,), (hist.Metric, "a", (1,)), (counter.Metric, {"a": b"x"}),
        ]))
        """,
        reply="TritonModelException: Failed to create metric. Labels must be a dictionary.\n"
        "TritonModelException: Failed to create metric. Unexpected buckets found.\n"
        "TritonModelException: Failed to create metric. Buckets must be a list.\n"
        "TritonModelException: Failed to create metric. Missing required buckets.\n"
        "TritonModelException: Failed to create metric. Labels must be a dictionary.\n"
        "TypeError: Object of type bytes is not JSON serializable",
    ),
    Row(
        52,
        "a metric whose family is gone",
        """
        family = pb_utils.MetricFamily("checklist_gone", "d", pb_utils.MetricFamily.COUNTER)
        metric = family.Metric()
        del family
        return reply([refusal(metric.increment, -1), refusal(metric.value)[:57]])
        """,
        reply='["TritonModelException: Failed to increment metric value: Invalid metric operation '
        "as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should be "
        "deleted AFTER its corresponding 'Metric' objects have been deleted.\", "
        "'TritonModelException: Failed to get metric value: Invalid']",
    ),
    Row(
        52,
        "a name that no family can have",
        "return reply(refusal(pb_utils.MetricFamily, '', 'd', pb_utils.MetricFamily.GAUGE))",
        reply="TritonModelException: Error when creating MetricFamily: Failed to process the "
        "request for model 'm_0_0', message: Invalid metric name",
        ours_alone="a call that fails in the real server sometimes aborts it",
    ),
    Row(
        62,
        "names of the module",
        "return reply([__name__, __package__, __file__ == pb_utils.get_model_dir() + '/model.py'])",
        reply="['1.model', '1', True]",
    ),
]
