"""The models of count_scripts.py: scripted models with each scheduler, and ensembles of them."""

from __future__ import annotations

from contract.ensemble_probes import step
from contract.probes import MODELS, Probe

SCRIPTED = MODELS / "scripted.py"
FLAT = """
    input { name: "script" data_type: TYPE_STRING dims: [1] }
    output { name: "said" data_type: TYPE_STRING dims: [1] }
"""
ROWS = "max_batch_size: 4\n" + FLAT
TWO_OUTPUTS = FLAT + 'output { name: "also" data_type: TYPE_STRING dims: [1] }\n'
ANY_LENGTH = TWO_OUTPUTS.replace("dims: [1]", "dims: [-1]", 1)
NUMBERS = """
    max_batch_size: 4
    input { name: "X" data_type: TYPE_FP32 dims: [-1] }
    output { name: "Y" data_type: TYPE_FP32 dims: [-1] }
"""
DECOUPLED = "model_transaction_policy { decoupled: true }\n"
QUEUE = """
    dynamic_batching { default_queue_policy { max_queue_size: 4
    default_timeout_microseconds: 3600000000 allow_timeout_override: true } }
"""
LONG = "max_sequence_idle_microseconds: 600000000"
SAMPLES = """
    model_warmup { name: "w" batch_size: 2 count: 3
    inputs { key: "X" value { data_type: TYPE_FP32 dims: [2] zero_data: true } } }
"""


def ensemble(*steps: str, io: str = FLAT) -> Probe:
    """Return an ensemble with the tensors `script` and `said`, and optionally `also`."""
    return Probe(f'platform: "ensemble"\n{io}ensemble_scheduling {{ {"".join(steps)} }}', None)


def one(model: str, taken: str = "script", made: str = "said") -> str:
    """Return a step that calls a scripted model."""
    return step(model, f"script={taken}", f"said={made}")


PROBES = {
    "plain": Probe(FLAT, SCRIPTED),
    "other": Probe(FLAT, SCRIPTED),
    "pair": Probe(FLAT.replace("dims: [1]", "dims: [2]", 1), SCRIPTED),
    "rows": Probe(ROWS, SCRIPTED),
    "batches": Probe(ROWS + QUEUE, SCRIPTED),
    "cached": Probe(FLAT + "response_cache { enable: true }", SCRIPTED),
    "many": Probe(FLAT + DECOUPLED, SCRIPTED),
    "many_rows": Probe(ROWS + DECOUPLED + "dynamic_batching { }", SCRIPTED),
    "narrow": Probe(
        f"max_batch_size: 1 {FLAT} sequence_batching {{ direct {{ }} {LONG} }}", SCRIPTED
    ),
    "iterative": Probe(ROWS + "sequence_batching { iterative_sequence: true }", SCRIPTED),
    "direct": Probe(
        f"{NUMBERS} sequence_batching {{ direct {{ }} {LONG} }}", MODELS / "sequences.py"
    ),
    "oldest": Probe(
        f"{NUMBERS} sequence_batching {{ oldest {{ max_candidate_sequences: 4 }} {LONG} }}",
        MODELS / "sequences.py",
    ),
    "warm": Probe(NUMBERS + SAMPLES),
    "reloaded": Probe(FLAT, SCRIPTED),
    # Ensembles.
    "over_rows": ensemble(one("rows"), io=ROWS),
    "over_batches": ensemble(one("batches"), io=ROWS),
    "over_cached": ensemble(one("cached")),
    "chain": ensemble(one("plain", made="next"), one("other", taken="next")),
    "outer": ensemble(one("chain")),
    "twins": ensemble(one("plain"), one("other", made="also"), io=TWO_OUTPUTS),
    "twins_of_one": ensemble(one("plain"), one("plain", made="also"), io=TWO_OUTPUTS),
    "over_twins": ensemble(step("twins", "script=script", "said=said also=also"), io=TWO_OUTPUTS),
    "pair_first": ensemble(one("pair"), one("other", made="also"), io=ANY_LENGTH),
    "pair_second": ensemble(one("other"), one("pair", made="also"), io=ANY_LENGTH),
    "over_many": ensemble(one("many")),
    "many_chain": ensemble(one("many", made="next"), one("other", taken="next")),
    "many_outer": ensemble(one("many_chain")),
}

#: Models that a script loads.
LATER = ("warm", "reloaded")
