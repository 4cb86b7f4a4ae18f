"""The kinds of faults of model folders, and the valid models that they are put into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# ------------------------------------------------------------------------------- valid models

VALID: dict[str, str] = {
    "backend": 'backend: "python"',
    "batch": "max_batch_size: $b",
    "input": 'input { name: "$x" data_type: TYPE_$t dims: [ $n ] }',
    "output": 'output { name: "$y" data_type: TYPE_$t dims: [ $n ] }',
}
#: Further lines of a valid configuration, by kind of the model.
KINDS: dict[str, dict[str, str]] = {
    "plain": {},
    "batcher": {"batching": "dynamic_batching { max_queue_delay_microseconds: 100 }"},
    "sequence": {
        "batching": """sequence_batching {
  control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
  state { input_name: "I" output_name: "O" data_type: TYPE_FP32 dims: [ $n ]
    initial_state { name: "zero" data_type: TYPE_FP32 dims: [ $n ] zero_data: true } }
}"""
    },
    "labelled": {"output": VALID["output"].replace(" }", ' label_filename: "labels.txt" }')},
    "warmed": {
        "warmup": 'model_warmup { name: "w" batch_size: 1 inputs { key: "$x" value { '
        "data_type: TYPE_$t dims: [ $n ] zero_data: true } } }"
    },
    "ensemble": {
        "backend": 'platform: "ensemble"',
        "input": 'input { name: "A" data_type: TYPE_FP32 dims: [ 4 ] }',
        "output": 'output { name: "B" data_type: TYPE_FP32 dims: [ 4 ] }',
        "batch": "max_batch_size: 4",
        "steps": """ensemble_scheduling {
  step { model_name: "step" model_version: -1
    input_map { key: "X" value: "A" } output_map { key: "Y" value: "$w" } }
  step { model_name: "step" model_version: -1
    input_map { key: "X" value: "$w" } output_map { key: "Y" value: "B" } }
}""",
    },
}
STEP = """backend: "python" max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }
"""
CODE: dict[str, str] = {
    "imports": "import json\n\n"
    "import numpy as np\nimport triton_python_backend_utils as pb_utils\n",
    "class": "\nclass TritonPythonModel:",
    "initialize": "    def initialize(self, args):\n"
    "        self.config = json.loads(args['model_config'])\n",
    "complete": "",
    "execute": "    def execute(self, requests):\n"
    "        return [pb_utils.InferenceResponse([]) for _ in requests]\n",
}

# ------------------------------------------------------------------------------- faults

_PYTHON = ("plain", "batcher", "sequence", "labelled", "warmed")


@dataclass(frozen=True)
class Fault:
    """A kind of fault: changes to the configuration, the code and the files of a model.

    Each placeholder, `$` and a letter, becomes a random value. A part that is None is removed.
    """

    config: Mapping[str, str | None] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes | None] = field(default_factory=dict)
    kinds: tuple[str, ...] = ("plain", "batcher")
    #: True if the real server's load never ends unless models do not complete themselves.
    hangs: bool = False


def _config(kinds: tuple[str, ...] = ("plain", "batcher"), **parts: str | None) -> Fault:
    return Fault(config=parts, kinds=kinds)


def _code(**parts: str) -> Fault:
    return Fault(code=parts, kinds=_PYTHON)


def _files(kinds: tuple[str, ...] = ("plain", "batcher"), **files: bytes | None) -> Fault:
    return Fault(files=files, kinds=kinds)


def _batching(text: str) -> Fault:
    return _config(("batcher",), batching=f"dynamic_batching {{ {text} }}")


def _group(text: str) -> Fault:
    return _config(group=f"instance_group {{ {text} }}")


def _sequence(text: str) -> Fault:
    return _config(("sequence",), batching=f"sequence_batching {{ {text} }}")


def _control(kind: str, values: str, name: str = "C") -> str:
    return (
        f'control_input {{ name: "{name}" control {{ kind: CONTROL_SEQUENCE_{kind} {values} }} }}'
    )


def _state(text: str) -> Fault:
    return _sequence(f'state {{ input_name: "I" output_name: "O" {text} }}')


def _initial(text: str) -> Fault:
    return _state(f'data_type: TYPE_FP32 dims: [ $n ] initial_state {{ name: "s" {text} }}')


def _warmup(text: str) -> Fault:
    return _config(("warmed",), warmup=f'model_warmup {{ name: "w" {text} }}')


def _warm_input(text: str) -> Fault:
    return _warmup(f'batch_size: 1 inputs {{ key: "$x" value {{ {text} }} }}')


def _steps(*steps: str) -> Fault:
    text = "\n".join(f"  step {{ {step} }}" for step in steps)
    return _config(("ensemble",), steps=f"ensemble_scheduling {{\n{text}\n}}")


def _step(given: str = "X", tensor: str = "A", made: str = "Y", result: str = "B") -> str:
    return (
        f'model_name: "step" model_version: -1 input_map {{ key: "{given}" value: "{tensor}" }} '
        f'output_map {{ key: "{made}" value: "{result}" }}'
    )


def _ensemble(**parts: str) -> Fault:
    return _config(("ensemble",), **parts)


_INPUT = 'input { name: "$x" data_type: TYPE_$t'
_BOOLS = "int32_false_true: [ 0, 1 ]"

FAULTS: dict[str, Fault] = {
    # The text of config.pbtxt.
    "a misspelt field": _config(batch="max_batchsize: $b"),
    "an unknown field": _config(more="$w: $b"),
    "an unknown message": _config(more="$w { count: $b }"),
    "an open message": _config(input="input { name: \"$x\" data_type: TYPE_$t dims: [ $n ]"),
    "an open list": _config(input=f"{_INPUT} dims: [ $n }}"),
    "a comma at the end of a list": _config(input=f"{_INPUT} dims: [ $n, ] }}"),
    "a brace too many": _config(output='output { name: "$y" data_type: TYPE_$t dims: [ $n ] } }'),
    "an unknown data type": _config(input='input { name: "$x" data_type: $u dims: [ $n ] }'),
    "a data type in quotes": _config(input='input { name: "$x" data_type: "TYPE_$t" dims: 1 }'),
    "a number in quotes": _config(batch='max_batch_size: "$b"'),
    "a word for a number": _config(batch="max_batch_size: auto"),
    "a fraction": _config(batch="max_batch_size: $b.5"),
    "a number beyond 32 bits": _config(batch="max_batch_size: $huge"),
    "a field twice": _config(more="max_batch_size: $b"),
    "a backend twice": _config(more='backend: "python"'),
    "an open string": _config(backend='backend: "python'),
    "a Python comment sign in a name": _config(input=f"{_INPUT.replace('$x', '#$x')} dims: 1 }}"),
    "a parameter that is no message": _config(more='parameters { key: "$w" value: "$b" }'),
    "a parameter of another type": _config(
        more='parameters { key: "$w" value { int64_value: $b } }'
    ),
    "JSON": Fault(files={"config.pbtxt": b'{"name": "m", "backend": "python"}'}),
    "YAML": Fault(files={"config.pbtxt": b"name: m\nbackend: python\n"}),
    "UTF-16": Fault(files={"config.pbtxt": 'backend: "python"\n'.encode("utf-16")}),
    "a byte order mark": Fault(files={"config.pbtxt": b'\xef\xbb\xbfbackend: "python"\n'}),
    "a configuration that is a folder": Fault(
        files={"config.pbtxt": None, "config.pbtxt/x": b""}
    ),
    "Windows line ends": Fault(files={"config.pbtxt": b'backend: "python"\r\nmax_batch: 1\r\n'}),
    # Values of config.pbtxt.
    "another name": _config(more='name: "$w"'),
    "a negative batch": _config(batch="max_batch_size: -$b"),
    "an unknown backend": _config(backend='backend: "$w"'),
    "an unknown platform": _config(backend='platform: "$w"'),
    "no backend": Fault(config={"backend": None}, code={}, files={"1/model.py": None,
                                                                 "1/net.py": b""}),
    "no data type": _config(input='input { name: "$x" dims: [ $n ] }'),
    "no dims": _config(input=f"{_INPUT} }}"),
    "no name": _config(input="input { data_type: TYPE_$t dims: [ $n ] }"),
    "a dim of zero": _config(input=f"{_INPUT} dims: [ $n, 0 ] }}"),
    "a dim below -1": _config(output='output { name: "$y" data_type: TYPE_$t dims: [ -$c ] }'),
    "an output without a type": _config(output='output { name: "$y" dims: [ $n ] }'),
    "an output without a name": _config(output="output { data_type: TYPE_$t dims: [ $n ] }"),
    "a reshape of another size": _config(
        input=f"{_INPUT} dims: [ $n ] reshape {{ shape: [ $n, $c ] }} }}"
    ),
    "a reshape of variable size": _config(
        input=f"{_INPUT} dims: [ -1 ] reshape {{ shape: [ $n ] }} }}"
    ),
    "an image format of two dims": _config(
        input=f"{_INPUT} dims: [ $n, 2 ] format: FORMAT_NCHW }}"
    ),
    "a ragged input without a batcher": _config(
        ("plain",), input=f"{_INPUT} dims: [ -1 ] allow_ragged_batch: true }}"
    ),
    "a ragged shape tensor": _config(
        input=f"{_INPUT} dims: [ $n ] allow_ragged_batch: true is_shape_tensor: true }}"
    ),
    "a shape tensor of fractions": _config(
        input='input { name: "$x" data_type: TYPE_FP32 dims: [ $n ] is_shape_tensor: true }'
    ),
    "GPUs without a GPU": _group("kind: KIND_GPU"),
    "a GPU without a GPU": _group("kind: KIND_GPU gpus: [ $c ]"),
    "GPUs for the CPU": _group("kind: KIND_CPU gpus: [ $c ]"),
    "GPUs for the model": _group("kind: KIND_MODEL gpus: [ 0 ]"),
    "an unknown kind": _group("kind: CPU"),
    "a negative count": _group("count: -$c"),
    "a passive instance alone": _group("kind: KIND_CPU passive: true"),
    "secondary devices of the CPU": _group(
        "kind: KIND_CPU secondary_devices { kind: KIND_NVDLA device_id: $c }"
    ),
    "an instance group of an ensemble": _ensemble(group="instance_group { count: $c }"),
    "a preferred size beyond the batch": _batching("preferred_batch_size: [ $o ]"),
    "a negative preferred size": _batching("preferred_batch_size: [ -$c ]"),
    "a preferred size of zero": _batching("preferred_batch_size: [ 0 ]"),
    "a negative delay": _batching("max_queue_delay_microseconds: -$c"),
    "a default level that is too large": _batching(
        "priority_levels: $c default_priority_level: $o"
    ),
    "no default level": _batching("priority_levels: $c"),
    "a policy of a level that is too large": _batching(
        "priority_levels: $c default_priority_level: 1 "
        "priority_queue_policy { key: $o value { max_queue_size: 1 } }"
    ),
    "levels in order": _batching(
        "preserve_ordering: true priority_levels: $c default_priority_level: 1"
    ),
    "a batcher without batches": _config(("batcher",), batch="max_batch_size: 0"),
    "two schedulers": _config(("batcher",), more="sequence_batching { }"),
    "versions that are not there": _config(
        more="version_policy { specific { versions: [ $o ] } }"
    ),
    "no versions": _config(more="version_policy { specific { } }"),
    "two policies of versions": _config(
        more="version_policy { all { } latest { num_versions: $c } }"
    ),
    "a cache of a decoupled model": _config(
        more="response_cache { enable: true } model_transaction_policy { decoupled: true }"
    ),
    "another file": Fault(config={"more": 'default_model_filename: "$w.py"'}, hangs=True),
    "a file that is no code": Fault(
        config={"more": 'default_model_filename: "$w.txt"'}, files={"1/$w.txt": b""}
    ),
    "an unknown agent": _config(more='model_repository_agents { agents { name: "$w" } }'),
    "an invalid switch of the backend": _config(
        more='parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "$w" } }'
    ),
    "a batch input without a type": _config(
        more='batch_input { kind: BATCH_ELEMENT_COUNT target_name: "$w" source_input: "$x" }'
    ),
    "a batch input of an unknown input": _config(
        more='batch_input { kind: BATCH_ELEMENT_COUNT target_name: "$w" '
        'data_type: TYPE_INT32 source_input: "$w" }'
    ),
    "a batch output of an unknown output": _config(
        more='batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "$x" '
        'target_name: "$w" }'
    ),
    # Sequences.
    "a control twice": _sequence(
        f"{_control('START', _BOOLS, 'A')} {_control('START', _BOOLS, 'B')}"
    ),
    "a control without values": _sequence(_control("START", "")),
    "a control of three values": _sequence(_control("READY", "int32_false_true: [ 0, 1, $c ]")),
    "a control of two types": _sequence(
        _control("END", f"{_BOOLS} fp32_false_true: [ 0, 1 ]")
    ),
    "an id of fractions": _sequence(_control("CORRID", "data_type: TYPE_FP32")),
    "an id without a type": _sequence(_control("CORRID", "")),
    "a control without a name": _sequence(_control("START", _BOOLS, "")),
    "a control without a kind": _sequence('control_input { name: "C" }'),
    "a utilization beyond 1": _sequence("direct { minimum_slot_utilization: $c.5 }"),
    "two strategies": _sequence("direct { } oldest { max_candidate_sequences: $c }"),
    "a preferred size of the oldest beyond the batch": _sequence(
        "oldest { max_candidate_sequences: 4 preferred_batch_size: [ $o ] }"
    ),
    "a state without a type": _state("dims: [ $n ]"),
    "a state without dims": _state("data_type: TYPE_FP32"),
    "a state without a name": _sequence('state { output_name: "O" data_type: TYPE_FP32 dims: 1 }'),
    "an initial state of another type": _initial("data_type: TYPE_INT8 dims: $n zero_data: true"),
    "an initial state of other dims": _initial("data_type: TYPE_FP32 dims: $o zero_data: true"),
    "an initial state without data": _initial("data_type: TYPE_FP32 dims: $n"),
    "an initial state without its file": _initial('data_type: TYPE_FP32 dims: $n data_file: "$w"'),
    "an initial state without a name": _state(
        "data_type: TYPE_FP32 dims: [ $n ] initial_state { data_type: TYPE_FP32 dims: $n "
        "zero_data: true }"
    ),
    # Other files.
    "labels that are not there": _files(("labelled",), **{"labels.txt": None}),
    "labels elsewhere": _config(
        output='output { name: "$y" data_type: TYPE_$t dims: 1 label_filename: "../$w.txt" }'
    ),
    "labels in a folder": Fault(
        kinds=("labelled",), files={"labels.txt": None, "labels.txt/x": b""}
    ),
    "a warm-up of another type": _warm_input("data_type: TYPE_$v dims: $n zero_data: true"),
    "a warm-up of other dims": _warm_input("data_type: TYPE_$t dims: $o zero_data: true"),
    "a warm-up without data": _warm_input("data_type: TYPE_$t dims: $n"),
    "a warm-up without its file": _warm_input(
        'data_type: TYPE_$t dims: $n input_data_file: "$w"'
    ),
    "a warm-up of another input": _warmup(
        'batch_size: 1 inputs { key: "$w" value { data_type: TYPE_$t dims: $n zero_data: true } }'
    ),
    "a warm-up without inputs": _warmup("batch_size: 1"),
    "a warm-up of too large a batch": _warmup(
        'batch_size: $o inputs { key: "$x" value { data_type: TYPE_$t dims: $n zero_data: true } }'
    ),
    "a warm-up without a type": _warm_input("dims: $n zero_data: true"),
    # Ensembles.
    "a step that is not there": _steps(_step().replace("step", "$w"), ),
    "a step of another version": _steps(_step().replace("-1", "$o")),
    "a step of an unknown input": _steps(_step(given="$w")),
    "a step of an unknown output": _steps(_step(made="$w")),
    "a step without an input": _steps(
        'model_name: "step" output_map { key: "Y" value: "B" }'
    ),
    "a tensor that no step writes": _steps(_step(tensor="$w")),
    "an output that no step writes": _steps(_step(result="$w")),
    "a tensor that two steps write": _steps(_step(), _step()),
    "steps in a circle": _steps(
        _step(tensor="$w", result="B"), _step(tensor="B", result="$w")
    ),
    "no steps": _ensemble(steps="ensemble_scheduling { }"),
    "no scheduling": _ensemble(steps=""),
    "a step without a name": _steps(_step().replace('model_name: "step"', "")),
    "an ensemble of another type": _ensemble(
        input='input { name: "A" data_type: TYPE_INT32 dims: [ 4 ] }'
    ),
    "an ensemble of other dims": _ensemble(
        input='input { name: "A" data_type: TYPE_FP32 dims: [ $o ] }'
    ),
    "an ensemble of larger batches": _ensemble(batch="max_batch_size: $o"),
    "an ensemble of another output type": _ensemble(
        output='output { name: "B" data_type: TYPE_INT64 dims: [ 4 ] }'
    ),
    "an ensemble with a backend": _ensemble(more='backend: "python"'),
    "an ensemble that batches": _ensemble(more="dynamic_batching { }"),
    "steps of an ordinary model": _config(more="ensemble_scheduling { }"),
    "a warm-up of an ensemble": _ensemble(
        more='model_warmup { name: "w" batch_size: 1 inputs { key: "A" value { '
        "data_type: TYPE_FP32 dims: 4 zero_data: true } } }"
    ),
    # Code.
    "a missing colon": _code(**{"class": "\nclass TritonPythonModel"}),
    "a missing bracket": _code(execute="    def execute(self, requests):\n        return [$c\n"),
    "a wrong indentation": _code(execute="    def execute(self, requests):\n    return []\n"),
    "a tab": _code(execute="    def execute(self, requests):\n\treturn []\n        return 1\n"),
    "a return outside of functions": _code(imports=CODE["imports"] + "return\n"),
    "an await outside of coroutines": _code(initialize="    await $w\n"),
    "a keyword for a name": _code(imports="import json\nclass = $c\n"),
    "a null byte": _code(imports=CODE["imports"] + "\0"),
    "an unknown encoding": _code(imports="# -*- coding: $w -*-\n" + CODE["imports"]),
    "no UTF-8": Fault(files={"1/model.py": b"# \xff\nclass TritonPythonModel: pass\n"}),
    "an empty file": Fault(files={"1/model.py": b""}),
    "another class": _code(**{"class": "\nclass $W:"}),
    "a class of lower case": _code(**{"class": "\nclass tritonpythonmodel:"}),
    "a class in a condition": _code(**{"class": "\nif False:\n  class TritonPythonModel:"}),
    "a class in the main block": _code(
        **{"class": '\nif __name__ == "__main__":\n  class TritonPythonModel:'}
    ),
    "a class in a function": _code(**{"class": "\ndef make():\n  class TritonPythonModel:"}),
    "a class that is deleted": _code(
        execute=CODE["execute"] + "\n\ndel TritonPythonModel\n"
    ),
    "a number as the class": Fault(files={"1/model.py": b"TritonPythonModel = 5\n"}),
    "a module as the class": Fault(files={"1/model.py": b"import json as TritonPythonModel\n"}),
    "an unknown base": _code(**{"class": "\nclass TritonPythonModel($W):"}),
    "an unknown decorator": _code(**{"class": "\n@$w\nclass TritonPythonModel:"}),
    "an unknown decorator of a method": _code(execute="    @$w\n" + CODE["execute"]),
    "an unknown default": _code(
        execute="    def execute(self, requests, $w=$W):\n        return []\n"
    ),
    "an unknown annotation": _code(
        execute="    def execute(self, requests: $W):\n        return []\n"
    ),
    "an unknown name": _code(imports=CODE["imports"] + "LIMIT = $W\n"),
    "an unknown name in the class": _code(initialize="    limit = $W\n"),
    "a name before its definition": _code(imports="LIMIT = $w\n$w = 1\n" + CODE["imports"]),
    "a module without its import": _code(imports="import json\nLIMIT = np.float32(1)\n"),
    "pb_utils without its import": _code(imports="import json\nERROR = pb_utils.TritonError\n"),
    "a missing module of the model": _code(imports=CODE["imports"] + "from . import $w\n"),
    "a missing name of a module of the model": Fault(
        code={"imports": CODE["imports"] + "from .helper import $w\n"},
        files={"1/helper.py": b"x = 1\n"},
    ),
    "a module of the model with a syntax error": Fault(
        code={"imports": CODE["imports"] + "from . import helper\n"},
        files={"1/helper.py": b"def (:\n"},
    ),
    "an import beyond the model": _code(imports=CODE["imports"] + "from .. import $w\n"),
    "an unknown name of pb_utils": _code(imports=CODE["imports"] + "A = pb_utils.$W\n"),
    "an import of an unknown name of pb_utils": _code(
        imports=CODE["imports"] + "from triton_python_backend_utils import $W\n"
    ),
    "Tensor during the import": _code(imports=CODE["imports"] + "A = pb_utils.Tensor\n"),
    "Logger during the import": _code(initialize="    logger = pb_utils.Logger\n"),
    "an import of Tensor": _code(
        imports=CODE["imports"] + "from triton_python_backend_utils import Tensor\n"
    ),
    "a request in an annotation": _code(
        execute="    def execute(self, requests: list[pb_utils.InferenceRequest]):\n"
        "        return []\n"
    ),
    "initialize without arguments": _code(initialize="    def initialize(self):\n        pass\n"),
    "initialize with two arguments": _code(
        initialize="    def initialize(self, args, $w):\n        pass\n"
    ),
    "initialize without self": _code(initialize="    def initialize():\n        pass\n"),
    "initialize as a value": _code(initialize="    initialize = $c\n"),
    "__init__ with an argument": _code(
        initialize="    def __init__(self, $w):\n        self.$w = $w\n"
    ),
    "__init__ with a keyword": _code(
        initialize="    def __init__(self, *, $w):\n        self.$w = $w\n"
    ),
    "__init__ without self": _code(initialize="    def __init__():\n        pass\n"),
    "an abstract class": _code(
        imports=CODE["imports"] + "import abc\n",
        **{"class": "\nclass TritonPythonModel(abc.ABC):"},
        initialize="    @abc.abstractmethod\n    def $w(self): ...\n",
    ),
    "auto_complete_config with self": _code(
        complete="    def auto_complete_config(self, config):\n        return config\n"
    ),
    "auto_complete_config without arguments": _code(
        complete="    @staticmethod\n    def auto_complete_config():\n        return None\n"
    ),
    "auto_complete_config without a result": _code(
        complete="    @staticmethod\n    def auto_complete_config(config):\n"
        "        config.set_max_batch_size(4)\n"
    ),
    "auto_complete_config that returns nothing": _code(
        complete="    @staticmethod\n    def auto_complete_config(config):\n        return\n"
    ),
    "auto_complete_config that returns a dict": _code(
        complete="    @staticmethod\n    def auto_complete_config(config):\n"
        "        return config.as_dict()\n"
    ),
    "auto_complete_config that is a generator": _code(
        complete="    @staticmethod\n    def auto_complete_config(config):\n"
        "        yield config\n"
    ),
    # Code that raises exceptions, some of them only for certain values.
    "an exception in initialize": _code(
        initialize="    def initialize(self, args):\n        raise ValueError('$w')\n"
    ),
    "an exception in __init__": _code(
        initialize="    def __init__(self):\n        raise ValueError('$w')\n"
    ),
    "an exception during the import": _code(imports="raise RuntimeError('$w')\n"),
    "a missing key": _code(
        initialize="    def initialize(self, args):\n        self.key = args['$w']\n"
    ),
    "a missing parameter": _code(
        initialize="    def initialize(self, args):\n"
        "        self.key = json.loads(args['model_config'])['parameters']['$w']\n"
    ),
    "a missing package": _code(imports="import $w_missing\n" + CODE["imports"]),
    "a missing name of a package": _code(imports="from json import $w\n" + CODE["imports"]),
    "a missing file of data": _code(imports="DATA = open('$w').read()\n" + CODE["imports"]),
    "an exception in auto_complete_config": _code(
        complete="    @staticmethod\n    def auto_complete_config(config):\n"
        "        raise ValueError('$w')\n"
    ),
    "an input without its type in auto_complete_config": _code(
        complete="    @staticmethod\n    def auto_complete_config(config):\n"
        "        config.add_input({'name': '$w'})\n        return config\n"
    ),
    "another type in auto_complete_config": _code(
        complete="    @staticmethod\n    def auto_complete_config(config):\n"
        "        config.add_input({'name': '$x', 'data_type': 'TYPE_$v', 'dims': [$n]})\n"
        "        return config\n"
    ),
    "an exit": _code(imports="raise SystemExit($c)\n"),
    # Files of the code.
    "no code": Fault(files={"1/model.py": None, "1/readme": b""}, hangs=True),
    "code of another name": Fault(
        files={"1/model.py": None, "1/Model.py": b"class TritonPythonModel: pass\n"}, hangs=True
    ),
    "code that is a folder": Fault(files={"1/model.py": None, "1/model.py/x": b""}, hangs=True),
    "code beside the configuration": Fault(
        files={"1/model.py": None, "1/x": b"", "model.py": b"class TritonPythonModel: pass\n"},
        hangs=True,
    ),
    "no version": Fault(files={"1/model.py": None, "model.py": b"class TritonPythonModel: pass\n"}),
    "a version with a letter": Fault(
        files={"1/model.py": None, "v1/model.py": b"class TritonPythonModel: pass\n"}
    ),
    "a version that is a file": Fault(files={"1/model.py": None, "1": b""}),
    "a pointer of Git LFS": Fault(
        files={"1/model.py": b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 2\n"}
    ),
    "a notebook": Fault(files={"1/model.py": b'{"cells": [], "metadata": {"x": null}}\n'}),
    # No faults.
    "nothing": Fault(kinds=tuple(KINDS)),
    "a lazy annotation": _code(
        imports="from __future__ import annotations\n\n" + CODE["imports"],
        execute="    def execute(self, requests: list[pb_utils.Tensor]):\n        return []\n",
    ),
    "a name that is defined in both branches": _code(
        imports=CODE["imports"] + "if json:\n    LIMIT = 1\nelse:\n    LIMIT = 2\nLIMIT += 1\n"
    ),
    "a builtin name": _code(imports=CODE["imports"] + "LIMIT = len(__name__) + len(__file__)\n"),
    "an optional import": _code(
        imports="try:\n    import $w_missing\nexcept ImportError:\n    $w_missing = None\n"
        + CODE["imports"]
    ),
    "names of the class": _code(initialize="    limit = $c\n    double = limit * 2\n"),
    "a default of the completion": _code(
        complete="    @staticmethod\n    def auto_complete_config(config):\n"
        "        config.set_max_batch_size(config.as_dict()['max_batch_size'])\n"
        "        return config\n"
    ),
    "a completion on all paths": _code(
        complete="    @staticmethod\n    def auto_complete_config(config):\n"
        "        if config is None:\n            raise ValueError\n        else:\n"
        "            return config\n"
    ),
    "an unknown name in a function": _code(
        execute="    def execute(self, requests):\n        return $W\n"
    ),
    "no execute": _code(execute="    pass\n"),
    "an input twice": _config(more='input { name: "$x" data_type: TYPE_$t dims: [ $n ] }'),
}  # fmt: skip
#: The faults that only the model's code shows when it runs; `check` need not name them.
NEEDS_CODE = frozenset(
    {
        "a missing key",
        "a missing parameter",
        "a missing package",
        "a missing name of a package",
        "a missing file of data",
        "an input without its type in auto_complete_config",
        "another type in auto_complete_config",
    }
)
