"""Models that complete their configurations: their files and the code of `auto_complete_config`.

`recorded/auto_complete.jsonl` has the completed configurations and the reasons of failed loads.
"""

from __future__ import annotations

from dataclasses import dataclass

BARE = 'backend: "python"\n'
BOTH = (
    BARE + 'input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] } ]\n'
    'output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] } ]\n'
)


@dataclass(frozen=True)
class Completion:
    """A model whose `body` changes the configuration `c`; `fails` if its load fails."""

    name: str
    body: str
    config: str | None = BOTH
    fails: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def model(self) -> str:
        """Return the name of the model's folder."""
        return self.name.replace(" ", "_")

    @property
    def source(self) -> str:
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
               fails=True),
    Completion("another type",
               "c.add_input({'name': 'IN', 'data_type': 'TYPE_INT32', 'dims': [2]})", fails=True),
    Completion("another type of an output",
               "c.add_output({'name': 'OUT', 'data_type': 'TYPE_INT32', 'dims': [2]})", fails=True),
    Completion("other dims", "c.add_output({'name': 'OUT', 'data_type': 'TYPE_FP32', 'dims': [3]})",
               fails=True),
    Completion("optional after all",
               "c.add_input({'name': 'IN', 'data_type': 'TYPE_FP32', 'dims': [2], 'optional': 1})",
               fails=True),
    Completion("a foreign key", "c.add_input({'name': 'IN', 'shape': [2]})", fails=True),
    Completion("no name", "c.add_output({'data_type': 'TYPE_FP32', 'dims': [2]})", fails=True),
    Completion("no type", "c.add_output({'name': 'OUT'})", fails=True),
    Completion("no dims", "c.add_input({'name': 'OUT', 'data_type': 'TYPE_FP32'})", fails=True),
    Completion("a policy with more", "c.set_model_transaction_policy({'other': 1})", fails=True),
    Completion("another policy", "c.set_model_transaction_policy({'decoupled': True})",
               BOTH + "model_transaction_policy { decoupled: false }", fails=True),
    Completion("another scheduler", "c.set_dynamic_batching()",
               BOTH + "max_batch_size: 4 sequence_batching { }", fails=True),
    Completion("a NumPy batch size", "import numpy as np; c.set_max_batch_size(np.int32(4))",
               fails=True),
    Completion("NumPy dims",
               "import numpy as np; c.add_input({'name': 'X', 'data_type': 'TYPE_FP32', "
               "'dims': [np.int64(1)]})", fails=True),
    Completion("a set", "c.as_dict()['parameters'] = {1}", fails=True),
    Completion("bytes", "c.as_dict()['name'] = b'x'", fails=True),
    Completion("an array", "import numpy as np; c.as_dict()['input'] = np.zeros(1)", fails=True),
    Completion("a configuration in itself", "c.as_dict()['parameters'] = c.as_dict()", fails=True),
    Completion("another as_dict",
               "class Own(type(c)):\n    def as_dict(self): return {1}\nc.__class__ = Own"),
    Completion("not a configuration", "return c.as_dict()", fails=True),
]  # fmt: skip
