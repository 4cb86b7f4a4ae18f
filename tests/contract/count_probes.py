"""Models for the response cache, for warm-up, and for the statistics of both."""

from __future__ import annotations

import struct

from contract.probes import MODELS, Probe

CACHED = "response_cache { enable: true }\n"
ENSEMBLE = 'platform: "ensemble"\n'
FAULTS = MODELS / "faults.py"
TOLD = """
    input { name: "what" data_type: TYPE_STRING dims: [1] }
    output { name: "Y" data_type: TYPE_FP32 dims: [1] }
"""
FREE = """
    input { name: "X" data_type: TYPE_FP32 dims: [-1] }
    output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
"""
MATRIX = """
    input { name: "X" data_type: TYPE_INT32 dims: [-1, -1] }
    output { name: "Y" data_type: TYPE_INT32 dims: [-1, -1] }
"""
PAIR = """
    input { name: "A" data_type: TYPE_FP32 dims: [1] }
    input { name: "B" data_type: TYPE_INT32 dims: [1] }
    output { name: "OA" data_type: TYPE_FP32 dims: [1] }
    output { name: "OB" data_type: TYPE_INT32 dims: [1] }
"""
ROWS = """
    max_batch_size: 4
    input { name: "X" data_type: TYPE_FP32 dims: [2] }
    output { name: "Y" data_type: TYPE_FP32 dims: [2] }
"""
TEXTS = """
    max_batch_size: 4
    input { name: "T" data_type: TYPE_STRING dims: [2] }
    output { name: "U" data_type: TYPE_STRING dims: [2] }
"""


def over(model: str, taken: str, made: str, io: str) -> str:
    """Return the config of an ensemble of one step; its tensors have the names of the model's."""
    return (
        f"{ENSEMBLE}{io}ensemble_scheduling {{ step {{ "
        f'model_name: "{model}" model_version: -1 '
        f'input_map {{ key: "{taken}" value: "{taken}" }} '
        f'output_map {{ key: "{made}" value: "{made}" }} }} }}'
    )


CACHE_PROBES = {
    "cached": Probe(CACHED + FREE),
    "cached_evicted": Probe(CACHED + FREE),
    "cached_matrix": Probe(CACHED + MATRIX),
    "cached_pair": Probe(CACHED + PAIR),
    "cached_faults": Probe(CACHED + TOLD, FAULTS),
    "cached_again": Probe(CACHED + FREE),
    "cached_rows": Probe(CACHED + "dynamic_batching { }" + ROWS),
    "cached_step": Probe(CACHED + FREE),
    "over_cached": Probe(over("cached_step", "X", "Y", FREE), None),
    "uncached_step": Probe(FREE),
    "cached_chain": Probe(CACHED + over("uncached_step", "X", "Y", FREE), None),
    "faulty_step": Probe(TOLD, FAULTS),
    "cached_faulty_chain": Probe(CACHED + over("faulty_step", "what", "Y", TOLD), None),
}

REFUSED_CACHE_PROBES = {
    "cached_decoupled": Probe(CACHED + FREE + "model_transaction_policy { decoupled: true }"),
    "cached_sequences": Probe(CACHED + ROWS + "sequence_batching { }"),
}


def warmup(model: str, *samples: str) -> Probe:
    """Return a model with these warm-up samples."""
    return Probe(model + "".join(f"model_warmup {{ {sample} }}\n" for sample in samples))


def sample(head: str, filling: str, name: str = "X", of: str = "FP32", dims: str = "[2]") -> str:
    """Return a sample with one input."""
    typed = f"data_type: TYPE_{of}" if of else ""
    value = f"{typed} dims: {dims} {filling}" if dims else f"{typed} {filling}"
    return f'{head} inputs {{ key: "{name}" value {{ {value} }} }}'


ZEROS = sample('name: "zeros" batch_size: 1', "zero_data: true")
FILE = 'name: "file" batch_size: 1'
LETTERS = sample('name: "texts" batch_size: 2', 'input_data_file: "texts"', "T", "STRING")

#: By name: the models, and the files in their folders `warmup`.
WARM_PROBES: dict[str, tuple[Probe, dict[str, bytes]]] = {
    "warm_zeros": (
        warmup(ROWS, sample('name: "z" batch_size: 2 count: 3', "zero_data: true")),
        {},
    ),
    "warm_random": (warmup(ROWS, sample('name: "r" batch_size: 2', "random_data: true")), {}),
    "warm_file": (
        warmup(ROWS, sample('name: "f" batch_size: 2', 'input_data_file: "data"')),
        {"data": struct.pack("<3f", 3, 4, 5)},
    ),
    "warm_texts": (warmup(TEXTS, LETTERS), {"texts": b"\2\0\0\0ab\1\0\0\0c"}),
    "warm_empty_texts": (
        warmup(TEXTS, sample('name: "t" batch_size: 1', "random_data: true", "T", "STRING")),
        {},
    ),
    "warm_twice": (warmup(ROWS, ZEROS, sample('name: "b" batch_size: 2', "zero_data: true")), {}),
    "warm_instances": (warmup(ROWS + "instance_group { count: 2 kind: KIND_CPU }", ZEROS), {}),
    "warm_not_at_all": (warmup(ROWS, sample('name: "n" count: 3', "zero_data: true")), {}),
    "warm_unbatched": (warmup(FREE, ZEROS), {}),
    "warm_cached": (warmup(CACHED + ROWS, ZEROS), {}),
    "warm_dynamic": (
        warmup("dynamic_batching { max_queue_delay_microseconds: 1000 }" + ROWS, ZEROS),
        {},
    ),
    # The following models do not load. No sample runs: the real server sometimes crashes when a
    # running sample fails.
    "warm_nothing": (warmup(ROWS, 'name: "w" batch_size: 1'), {}),
    "warm_other_name": (
        warmup(ROWS, sample('name: "w" batch_size: 1', "zero_data: true", "Q")),
        {},
    ),
    "warm_other_type": (
        warmup(ROWS, sample('name: "w" batch_size: 1', "zero_data: true", of="INT32")),
        {},
    ),
    "warm_no_type": (warmup(ROWS, sample('name: "w" batch_size: 1', "zero_data: true", of="")), {}),
    "warm_other_dims": (
        warmup(ROWS, sample('name: "w" batch_size: 1', "zero_data: true", dims="[3]")),
        {},
    ),
    "warm_no_dims": (
        warmup(ROWS, sample('name: "w" batch_size: 1', "zero_data: true", dims="")),
        {},
    ),
    "warm_free_dims": (
        warmup(ROWS, sample('name: "w" batch_size: 1', "zero_data: true", dims="[-1]")),
        {},
    ),
    "warm_no_data": (warmup(ROWS, sample('name: "w" batch_size: 1', "")), {}),
    "warm_no_file": (warmup(ROWS, sample(FILE, 'input_data_file: "nowhere"')), {}),
    "warm_short_file": (
        warmup(ROWS, sample(FILE, 'input_data_file: "short"')),
        {"short": b"abc"},
    ),
    "warm_cut_texts": (warmup(TEXTS, LETTERS), {"texts": b"\2\0\0\0ab\1\0\0"}),
    "warm_ensemble": (
        Probe(over("warm_zeros", "X", "Y", ROWS) + f"model_warmup {{ {ZEROS} }}", None),
        {},
    ),
}
