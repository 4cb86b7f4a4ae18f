"""A table of BLS requests and other calls to the server: code for the probe `asks`, and its result.

`real` is the result on tritonserver 2.51.0. `ours` is the result here if it differs, with the
reason. A row without `real` is not run on the real server.
"""

from __future__ import annotations

from dataclasses import dataclass

INTERNAL = "__ErrorCode.INTERNAL: "
UNRUN = "Model {} - Error when running inference: "
KILLS = "this ends the real server, or its model process"
HANGS = "the real server waits for ever"


@dataclass(frozen=True)
class Script:
    """One behaviour."""

    name: str
    code: str
    real: str | None = None
    ours: str | None = None
    reason: str = ""
    model: str = "asks"

    def __str__(self) -> str:
        return self.name

    @property
    def here(self) -> str:
        """The result on the reference server."""
        text = self.real if self.ours is None else self.ours
        assert text is not None
        return text


def fails(name: str, code: str, cause: str, model: str = "echoes") -> Script:
    """Return a row for a request that is not sent."""
    return Script(name, f"R = show({code}.exec())", INTERNAL + UNRUN.format(model) + cause)


def streamed(name: str, inputs: str, *answers: str, **others: str) -> Script:
    """Return a row for the responses to a request with `decoupled=True`."""
    code = f"R = '|'.join(map(show, to({inputs}).exec(decoupled=True)))"
    return Script(name, code, "|".join(answers), **others)


def awaited(name: str, code: str, real: str) -> Script:
    """Return a row for the asynchronous probe."""
    return Script(name, f"async def main():\n    {code}", real, model="asks_later")


NOT_READY = "Failed for execute the inference request. Model '{}' is not ready."
UNKNOWN = "[request id: <id_unknown>] "
ASKED = "Failed to process the request for model 'asks_0_0', message: "
OUT = "[('OUT', [{}])]".format
EMPTY = "[]"


def constructed(name: str, arguments: str, real: str) -> Script:
    """Return a row for the constructor; only the start of the result is compared."""
    return Script(
        name,
        "make = lambda inputs=[], requested_output_names=[], model_name='m', **k: "
        "pb_utils.InferenceRequest(inputs=inputs, requested_output_names=requested_output_names, "
        f"model_name=model_name, **k)\nR = refusal(make, {arguments})[:{len(real)}]",
        real,
    )


CONSTRUCTING = [
    constructed("None as an input", "[None]", "TritonModelException: Input tensor for request "
                "with id '' and model name 'm' should not be empty."),
    constructed("an output without a name", "[], [''], request_id='é'", "TritonModelException: "
                "Requested output name for request with id 'é' and model name 'm' should not be "
                "empty."),
    constructed("outputs in one text", "[], 'abc'", "TypeError"),
    constructed("outputs in a set", "[], {'a'}", "TypeError"),
    constructed("inputs in a dict", "{}", "TypeError"),
    constructed("inputs in a tuple", "(numbers(1),)", "<c_python_backend_utils.InferenceRequest "),
    constructed("a correlation id with a fraction", "correlation_id=1.5",
                "TritonModelException: Correlation ID must be integer or string"),
    constructed("no correlation id", "correlation_id=None", "TypeError"),
    constructed("a negative correlation id", "correlation_id=-1", "RuntimeError"),
    constructed("a correlation id of 65 bits", "correlation_id=2**64", "RuntimeError"),
    constructed("a version in text", "model_version='1'", "TypeError"),
    constructed("a negative timeout", "timeout=-1", "TypeError"),
    constructed("negative flags", "flags=-1", "TypeError"),
    constructed("no trace", "trace=None", "TypeError"),
    constructed("no memory", "preferred_memory=None", "TypeError"),
    constructed("a number for an id", "request_id=5", "TypeError"),
    constructed("a parameter whose key is a number", "parameters={1: 2}", "TritonModelException: "
                "Expect parameters keys to have type str, found type <class 'int'>"),
    constructed("a parameter with a fraction", "parameters={'a': 1.5}", "TritonModelException: "
                "Expect parameters values to have type bool/int/str, found type <class 'float'>"),
    constructed("parameters in a list", "parameters=[1]",
                "TritonModelException: Expect N8pybind114dictE, got <class 'list'>"),
    Script("positional arguments",
           "r = pb_utils.InferenceRequest('id', 5, [numbers(1)], ['OUT'], 'echoes', -1, 3, 9)\n"
           "R = [r.request_id(), r.correlation_id(), r.flags(), r.timeout(), show(r.exec())]",
           f"['id', 5, 3, 9, \"{OUT(1.0)}\"]"),
    Script("attributes of a created request",
           "r = echo(1, request_id='a', parameters={'a': 1, 'é': 'x'})\n"
           "R = [r.parameters(), r.correlation_id(), r.flags(), r.timeout(), "
           "r.requested_output_names(), [t.name() for t in r.inputs()], r.trace().get_context()]",
           "['{\"a\": 1, \"\\\\u00e9\": \"x\"}', 0, 0, 0, {'OUT'}, ['IN'], None]"),
]  # fmt: skip

ASKING = [
    Script("an answer", "R = show(echo(1, 2).exec())", OUT("1.0, 2.0")),
    Script("what the other model sees",
           "R = seen(request_id='i', correlation_id=7, flags=3, timeout=5, "
           "parameters={'a': 1, 'b': 'é', 'c': True})",
           "['i', 7, 3, 5, '{\"a\":1,\"b\":\"é\",\"c\":true}', ['SEEN'], None]"),
    Script("a correlation id in text", "R = seen(correlation_id='s')",
           "['', 's', 0, 0, '{}', ['SEEN'], None]"),
    Script("64-bit parameters without a meaning for the server",
           "R = seen(parameters={'a': -2**63, 'timeout': 5, 'priority': 3})",
           "['', 0, 0, 0, '{\"a\":-9223372036854775808,\"timeout\":5,\"priority\":3}', "
           "['SEEN'], None]"),
    Script("the trace of the request", "R = seen(trace=request.trace())",
           "['', 0, 0, 0, '{}', ['SEEN'], None]"),
    Script("twice the same", "r = echo(4)\nR = show(r.exec()) + show(r.exec())", OUT(4.0) * 2),
    Script("an input that the other model changes",
           "a = np.array([-3, 1], np.float32)\nx = pb_utils.Tensor('IN', a)\n"
           "R = [show(to('echoes', x, outputs=['OUT']).exec()), a.tolist(), x.as_numpy().tolist()]",
           f"[\"{OUT('97.0, 101.0')}\", [-3.0, 1.0], [-3.0, 1.0]]"),
    Script("an answer may be written to",
           "r = echo(1, 2).exec()\na = r.output_tensors()[0].as_numpy()\na[0] = 9\nR = show(r)",
           OUT("9.0, 2.0")),
    Script("an answer goes on by DLPack",
           "t = echo(4, 5).exec().output_tensors()[0]\n"
           "R = show(to('echoes', pb_utils.Tensor.from_dlpack('IN', t), outputs=['OUT']).exec())",
           OUT("4.0, 5.0")),
    Script("on another thread",
           "found = []\nt = threading.Thread(target=lambda: found.append(show(echo(3).exec())))\n"
           "t.start()\nt.join()\nR = found[0]", OUT(3.0)),
    Script("the other model's error", "R = show(echo(-1).exec())", INTERNAL + "no such thing"),
    Script("the other model's error code CANCELLED", "R = show(echo(-4).exec())",
           INTERNAL + "given up"),
    Script("the other model's exception", "R = show(echo(-2).exec()).splitlines()[0]",
           INTERNAL + "Failed to process the request(s) for model 'echoes_0_0', message: "
           "ValueError: not that number"),
    fails("an unknown model", "to('missing', numbers(1))", NOT_READY.format("missing"), "missing"),
    fails("no name", "to('', numbers(1))", NOT_READY.format(""), ""),
    fails("an unknown version", "echo(1, model_version=9)", NOT_READY.format("echoes")),
    fails("an unknown output", "to('echoes', numbers(1), outputs=['X'])",
          "unexpected inference output 'X' for model 'echoes'"),
    fails("an unknown input", "to('echoes', numbers(1, name='X'))",
          "unexpected inference input 'X' for model 'echoes'"),
    fails("no input", "to('echoes', request_id='q')",
          "[request id: q] expected 1 inputs but got 0 inputs for model 'echoes'. Got input(s) [], "
          "but missing required input(s) ['IN']. Please provide all required input(s)."),
    fails("an input twice", "to('echoes', numbers(1), numbers(2))",
          UNKNOWN + "input 'IN' already exists in request"),
    fails("an input of another type", "to('echoes', numbers(1, dtype=np.int32))",
          UNKNOWN + "inference input 'IN' data-type is 'INT32', but model 'echoes' expects 'FP32'"),
    fails("a batch too large", "to('batches', numbers(*[[1]] * 9))",
          UNKNOWN + "inference request batch-size must be <= 8 for 'batches'", "batches"),
    fails("a parameter of 65 bits", "echo(1, parameters={'a': 2**63})",
          "Unsupported value type on parameters"),
    fails("a decoupled model without decoupled=True", "to('counts_up', numbers(1, 0))",
          "Model counts_up is using the decoupled. The current BLS request call doesn't support "
          "models using the decoupled transaction policy. Please use 'decoupled=True' argument to "
          "the 'exec' or 'async_exec' calls for decoupled models.'", "counts_up"),
    Script("before the model executes", "R = self.early",
           "TritonModelException: BLS is only supported during the 'execute' function."),
    Script("a memory that is not there",
           "m = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU)\n"
           "R = show(echo(1, preferred_memory=m).exec()).splitlines()[0]",
           INTERNAL + "BackendMemory::Create, all allocation types failed:"),
    Script("memory of the host",
           "m = pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0)\n"
           "R = show(echo(1, preferred_memory=m).exec())", OUT(1.0)),
    Script("oneself, with no other instance",
           "c = pb_utils.Tensor('CODE', np.array(['R = 1'], object))\n"
           "R = show(to('asks', c).exec())",
           ours=INTERNAL + UNRUN.format("asks") + "the request to model 'asks' would never be "
           "answered, since instances wait for each other: 'asks_0_0' waits for 'asks'",
           reason=HANGS),
    Script("a model that calls back",
           "code = \"async def main(): return show(echo(1, model='asks').exec())\"\n"
           "c = pb_utils.Tensor('CODE', np.array([code], object))\n"
           "R = to('asks_later', c).exec().output_tensors()[0].as_numpy()[0].decode()",
           ours=INTERNAL + UNRUN.format("asks") + "the request to model 'asks' would never be "
           "answered, since instances wait for each other: 'asks_later_0_0' waits for 'asks', "
           "'asks_0_0' waits for 'asks_later'",
           reason=HANGS),
    Script("is_cancelled of a created request", "R = echo(1).is_cancelled()",
           ours="False", reason=KILLS),
]  # fmt: skip

STREAMING = [
    streamed("one answer", "'echoes', numbers(5), outputs=['OUT']", OUT(5.0)),
    streamed("one error", "'echoes', numbers(-1)", INTERNAL + "no such thing"),
    streamed("a model that is not there", "'missing'",
             INTERNAL + UNRUN.format("missing") + NOT_READY.format("missing")),
    streamed("answers and a mark", "'counts_up', numbers(2, 0)", OUT(0.0), OUT(1.0), EMPTY),
    streamed("answers, the last one marked", "'counts_up', numbers(2, 1)", OUT(0.0), OUT(1.0)),
    streamed("a mark alone", "'counts_up', numbers(0, 0)", EMPTY),
    Script("an error first", "R = '|'.join(map(show, to('counts_up', numbers(1, 2))"
           ".exec(decoupled=True)))",
           ours=f"{INTERNAL}a bad beginning|{OUT(0.0)}|{EMPTY}", reason=HANGS),
    Script("an error last", "R = '|'.join(map(show, to('counts_up', numbers(1, 3))"
           ".exec(decoupled=True)))",
           ours=f"{OUT(0.0)}|{INTERNAL}a bad end", reason=HANGS),
    Script("again from the beginning",
           "i = to('counts_up', numbers(2, 0)).exec(decoupled=True)\nnext(i)\n"
           "R = [len(list(i)), len(list(i)), refusal(next, i), iter(i) is i, len(list(i))]",
           "[2, 3, 'StopIteration: Iteration is done for the responses.', True, 3]"),
    Script("an iterator that is dropped",
           "i = to('counts_up', numbers(50, 0)).exec(decoupled=True)\nnext(i)\ndel i\n"
           "R = show(echo(1).exec())", OUT(1.0)),
    Script("cancelled, as newer releases can",
           "i = to('counts_up', numbers(2, 0)).exec(decoupled=True)\n"
           "R = refusal(lambda: i.cancel())[:14] + '|' + str(len(list(i)))",
           "AttributeError|3"),
]  # fmt: skip

AWAITING = [
    awaited("awaited", "return show(await echo(1).async_exec())", OUT(1.0)),
    awaited("a future", "return isinstance(echo(1).async_exec(), asyncio.Future)", "True"),
    awaited("awaited together",
            "return [show(r) for r in await asyncio.gather(*[echo(n).async_exec() "
            "for n in range(3)])]",
            f"[\"{OUT(0.0)}\", \"{OUT(1.0)}\", \"{OUT(2.0)}\"]"),
    awaited("awaited responses",
            "return [show(r) for r in await echo(2, 1, model='counts_up').async_exec("
            "decoupled=True)]", f"[\"{OUT(0.0)}\", \"{OUT(1.0)}\"]"),
    awaited("an awaited unknown model", "return show(await echo(1, model='missing').async_exec())",
            INTERNAL + UNRUN.format("missing") + NOT_READY.format("missing")),
    awaited("blocking the loop", "return show(echo(1).exec())", OUT(1.0)),
    Script("no loop to await on", "R = refusal(echo(1).async_exec)",
           "RuntimeError: no running event loop"),
]  # fmt: skip

NAMES = """
    InferenceRequest InferenceResponse Logger MetricFamily ModelConfig PreferredMemory
    TRITONSERVER_MEMORY_CPU TRITONSERVER_MEMORY_GPU TRITONSERVER_REQUEST_FLAG_SEQUENCE_END
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START TRITONSERVER_REQUEST_RELEASE_ALL
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE TRITONSERVER_RESPONSE_COMPLETE_FINAL
    TRITON_STRING_TO_NUMPY Tensor TritonError TritonModelException
    deserialize_bytes_tensor get_input_config_by_name get_input_tensor_by_name
    get_model_dir get_output_config_by_name get_output_tensor_by_name is_model_ready json
    load_model np numpy_to_triton_type serialize_byte_tensor struct triton_string_to_numpy
    triton_to_numpy_type unload_model using_decoupled_model_transaction_policy
"""

CONTROLLING = [
    Script("the module c_python_backend_utils",
           "import c_python_backend_utils as c\n"
           "i = echo(1).exec(decoupled=True)\n"
           "R = [type(i) is c.ResponseIterator, c.Tensor is pb_utils.Tensor, type(request.trace()) "
           "is c.InferenceTrace, c.load_model is pb_utils.load_model, isinstance(request, "
           "c.InferenceRequest), str(c.COUNTER), str(c.MemoryType.TRITONSERVER_MEMORY_CPU)]",
           "[True, True, True, True, True, 'MetricKind.COUNTER', "
           "'MemoryType.TRITONSERVER_MEMORY_CPU']"),
    Script("the names of the module",
           "R = ' '.join(sorted(name for name in dir(pb_utils) if not name.startswith('__')))",
           " ".join(NAMES.split())),
    Script("which models are ready",
           "ready = pb_utils.is_model_ready\nR = [ready('echoes'), ready('echoes', '1'), "
           "ready('echoes', '2'), ready('missing'), ready('echoes', '0'), ready('echoes', '1x'), "
           "ready(model_name='echoes', model_version=' 1')]",
           "[True, True, False, False, False, True, True]"),
    Script("a model's name in bytes",
           "R = [pb_utils.is_model_ready(b'echoes', b'1'), pb_utils.unload_model(b'missing')]",
           "[True, None]"),
    Script("a log line of invalid UTF-8",
           "pb_utils.Logger.log(b'\\xff')\npb_utils.Logger.log_info(b'\\xff')\n"
           "R = type(pb_utils.TritonError(b'\\xff')).__name__", "TritonError"),
    Script("outputs in other sequences",
           "x = numbers(1)\nR = [len(pb_utils.InferenceResponse(outputs).output_tensors()) for "
           "outputs in ((x, x), range(0), np.array([x, x, x], object))]", "[2, 0, 3]"),
    Script("outputs in other containers",
           "R = [refusal(pb_utils.InferenceResponse, outputs)[:9] for outputs in "
           "({}, 'x', b'x', {1}, iter([]))] == ['TypeError'] * 5", "True"),
    Script("a version of letters", "R = refusal(pb_utils.is_model_ready, 'echoes', 'abc')",
           ours=f"TritonModelException: Failed to check model readiness: {ASKED}failed to get "
           "model version from specified version string 'abc' (details: stol), version should be "
           "an integral value > 0", reason=KILLS),
    Script("a version below zero", "R = refusal(pb_utils.is_model_ready, 'echoes', '-2')",
           ours=f"TritonModelException: Failed to check model readiness: {ASKED}failed to get "
           "model version from specified version string '-2', version should be an integral value "
           "> 0", reason=KILLS),
    Script("unload, and load again",
           "R = [pb_utils.unload_model('comes_and_goes'), pb_utils.is_model_ready("
           "'comes_and_goes'), pb_utils.load_model('comes_and_goes'), pb_utils.is_model_ready("
           "'comes_and_goes'), pb_utils.unload_model('missing')]",
           "[None, False, None, True, None]"),
    Script("load from files",
           "config = json.dumps({'backend': 'python', 'input': [{'name': 'IN', 'data_type': "
           "'TYPE_FP32', 'dims': [2]}], 'output': [{'name': 'OUT', 'data_type': 'TYPE_FP32', "
           "'dims': [2]}]})\nfolder = pb_utils.get_model_dir()\n"
           "source = open(folder + '/../../echoes/1/model.py', 'rb').read()\n"
           "pb_utils.load_model('guest', config, {'file:1/model.py': source})\n"
           "R = [show(to('guest', numbers(1, 2)).exec()), pb_utils.unload_model('guest'), "
           "pb_utils.is_model_ready('guest')]", f"[\"{OUT('1.0, 2.0')}\", None, False]"),
    Script("files in a list", "R = refusal(pb_utils.load_model, 'm', files=[1])",
           "TritonModelException: failed to load model 'm', files should be a dictionary of file "
           "paths and file contents"),
    Script("a file of text",
           "R = refusal(pb_utils.load_model, 'm', '{}', {'file:1/model.py': ''})[:9]",
           "TypeError"),
    Script("load an unknown model", "R = refusal(pb_utils.load_model, 'missing')",
           ours=f"TritonModelException: Failed to load model: {ASKED}failed to load 'missing', "
           "failed to poll from model repository", reason=KILLS),
    Script("an invalid configuration", "R = refusal(pb_utils.load_model, 'echoes', '{')",
           ours=f"TritonModelException: Failed to load model: {ASKED}failed to load 'echoes', "
           "failed to poll from model repository", reason=KILLS),
    Script("parameters of a response, as newer releases have them",
           "R = refusal(pb_utils.InferenceResponse, [], parameters={'a': 1})[:9] + '|' + "
           "refusal(lambda: pb_utils.InferenceResponse([]).parameters())[:14]",
           "TypeError|AttributeError"),
]  # fmt: skip

#: A time limit that ends before an idle model receives the request.
EXPIRED = INTERNAL + "Request timeout expired"
HURRIED = "r = to('impatient', numbers(1), outputs=['OUT'], timeout=1)\n"
LIMITED = [
    Script("a limit that is over at once", HURRIED + "R = show(r.exec())", EXPIRED),
    Script("a limit that is over at once, streamed",
           HURRIED + "R = list(map(show, r.exec(decoupled=True)))",
           f"['{EXPIRED}']"),
    Script("a limit that is over at once, on a thread",
           HURRIED + "R = []\n"
           "t = threading.Thread(target=lambda: R.append(show(r.exec())))\nt.start()\nt.join()",
           f"['{EXPIRED}']"),
    awaited("a limit that is over at once, awaited",
            "return show(await echo(1, model='impatient', timeout=1).async_exec())", EXPIRED),
]  # fmt: skip


SCRIPTS = [*CONSTRUCTING, *ASKING, *STREAMING, *AWAITING, *LIMITED, *CONTROLLING]
