"""Models that complete their configurations, each in its own way: what stands in their files, what
their `auto_complete_config` does, and why the load fails, if it does.

The texts are tritonserver 2.51.0's, after `Internal: ` and before the place in the file.
"""

from __future__ import annotations

from dataclasses import dataclass

BARE = 'backend: "python"\n'
BOTH = (
    BARE + 'input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] } ]\n'
    'output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] } ]\n'
)
FUNCTION = "in auto-complete-config function for model '{model}'"


@dataclass(frozen=True)
class Completion:
    """`body` works on `c`; `fails` may name the model by `{model}`."""

    name: str
    body: str
    config: str | None = BOTH
    fails: str = ""

    def __str__(self) -> str:
        return self.name

    @property
    def model(self) -> str:
        """A name that a folder can have."""
        return self.name.replace(" ", "_")

    @property
    def source(self) -> str:
        """The model's file."""
        lines = "\n".join(f"        {line}" for line in self.body.splitlines())
        return (
            "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(c):\n"
            f"{lines}\n        return c\n\n    def execute(self, requests):\n        return []\n"
        )


IN = "{'name': 'IN', 'data_type': 'TYPE_FP32', 'dims': [2]}"
OUT = "{'name': 'OUT', 'data_type': 'TYPE_FP32', 'dims': [2]}"
MORE = "{'name': 'MORE', 'data_type': 'TYPE_STRING', 'dims': [-1], 'optional': True}"

COMPLETIONS = [
    Completion("nothing", "pass"),
    Completion("all of it",
               f"c.set_max_batch_size(4)\nc.add_input({IN})\nc.add_output({OUT})", BARE),
    Completion("without a file", f"c.add_input({IN})\nc.add_output({OUT})", None),
    Completion("the same again", f"c.add_input({IN})\nc.add_output({OUT})"),
    Completion("an optional input", f"c.add_input({MORE})"),
    Completion("a larger batch", "c.set_max_batch_size(16)", BOTH + "max_batch_size: 8"),
    Completion("dynamic batching", "c.set_max_batch_size(4)\nc.set_dynamic_batching()"),
    Completion("dynamic batching without batches", "c.set_dynamic_batching()"),
    Completion("dynamic batching again", "c.set_dynamic_batching()",
               BOTH + "max_batch_size: 4 dynamic_batching { preferred_batch_size: [ 2 ] }"),
    Completion("decoupled", "c.set_model_transaction_policy({'decoupled': True})"),
    Completion("not decoupled", "c.set_model_transaction_policy({'decoupled': False})"),
    Completion("an empty policy", "c.set_model_transaction_policy({})"),
    Completion("parameters by hand", "c.as_dict()['parameters'] = {'a': {'string_value': 'b'}}"),
    Completion("instances by hand", "c.as_dict()['instance_group'] = [{'count': 3}]"),
    Completion("a type that is none",
               "c.add_input({'name': 'X', 'data_type': 'FP32', 'dims': [1]})"),
    Completion("dims in text",
               "c.add_input({'name': 'X', 'data_type': 'TYPE_FP32', 'dims': ['1']})"),
    Completion("dims with a fraction",
               "c.add_input({'name': 'X', 'data_type': 'TYPE_FP32', 'dims': [1.5]})"),
    Completion("a smaller batch", "c.set_max_batch_size(2)", BOTH + "max_batch_size: 8",
               "ValueError: configuration specified max_batch_size 8, but in auto-complete-config "
               "function for model '{model}' specified max_batch_size 2"),
    Completion("another type",
               "c.add_input({'name': 'IN', 'data_type': 'TYPE_INT32', 'dims': [2]})",
               fails="ValueError: unable to load model '{model}', configuration expects datatype "
               "TYPE_FP32 for input 'IN', model provides TYPE_INT32"),
    Completion("another type of an output",
               "c.add_output({'name': 'OUT', 'data_type': 'TYPE_INT32', 'dims': [2]})",
               fails="ValueError: unable to load model '{model}', configuration expects datatype "
               "TYPE_FP32 for output 'OUT', model provides TYPE_INT32"),
    Completion("other dims",
               "c.add_output({'name': 'OUT', 'data_type': 'TYPE_FP32', 'dims': [3]})",
               fails="ValueError: model '{model}', tensor 'OUT': the model expects dims [3] but "
               "the model configuration specifies dims [2]"),
    Completion("optional after all",
               "c.add_input({'name': 'IN', 'data_type': 'TYPE_FP32', 'dims': [2], 'optional': 1})",
               fails="ValueError: model '{model}', tensor 'IN': the model expects optional 1 but "
               "the model configuration specifies optional False"),
    Completion("a foreign key", "c.add_input({'name': 'IN', 'shape': [2]})",
               fails=f"ValueError: input 'IN' {FUNCTION} contains property other than 'name', "
               "'data_type', 'dims' and 'optional'."),
    Completion("no name", "c.add_output({'data_type': 'TYPE_FP32', 'dims': [2]})",
               fails=f"ValueError: output {FUNCTION} is missing 'name' property."),
    Completion("no type", "c.add_output({'name': 'OUT'})",
               fails=f"ValueError: output 'OUT' {FUNCTION} is missing 'data_type' property."),
    Completion("no dims", "c.add_input({'name': 'OUT', 'data_type': 'TYPE_FP32'})",
               fails=f"ValueError: input 'OUT' {FUNCTION} is missing 'dims' property."),
    Completion("a policy with more", "c.set_model_transaction_policy({'other': 1})",
               fails=f"ValueError: model transaction property {FUNCTION} contains property other "
               "than 'decoupled'."),
    Completion("another policy", "c.set_model_transaction_policy({'decoupled': True})",
               BOTH + "model_transaction_policy { decoupled: false }",
               "ValueError: trying to change decoupled property in auto-complete-config for model "
               "'{model}', which is already set to 'False'."),
    Completion("another scheduler", "c.set_dynamic_batching()",
               BOTH + "max_batch_size: 4 sequence_batching { }",
               "ValueError: Configuration specified scheduling_choice as 'sequence_batching', but "
               "auto-complete-config function for model '{model}' tries to set scheduling_choice "
               "as 'dynamic_batching'"),
    Completion("a NumPy batch size",
               "import numpy as np; c.set_max_batch_size(np.int32(4))",
               fails="TypeError: Object of type int32 is not JSON serializable"),
    Completion("NumPy dims",
               "import numpy as np; c.add_input({'name': 'X', 'data_type': 'TYPE_FP32', "
               "'dims': [np.int64(1)]})",
               fails="TypeError: Object of type int64 is not JSON serializable"),
    Completion("a set", "c.as_dict()['parameters'] = {1}",
               fails="TypeError: Object of type set is not JSON serializable"),
    Completion("bytes", "c.as_dict()['name'] = b'x'",
               fails="TypeError: Object of type bytes is not JSON serializable"),
    Completion("an array", "import numpy as np; c.as_dict()['input'] = np.zeros(1)",
               fails="TypeError: Object of type ndarray is not JSON serializable"),
    Completion("a configuration in itself", "c.as_dict()['parameters'] = c.as_dict()",
               fails="ValueError: Circular reference detected"),
    Completion("another as_dict",
               "class Own(type(c)):\n    def as_dict(self): return {1}\nc.__class__ = Own"),
    Completion("not a configuration", "return c.as_dict()",
               fails="auto_complete_config function in model '{model}' must return a valid "
               "pb.ModelConfig object."),
]  # fmt: skip
