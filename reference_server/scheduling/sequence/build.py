"""The work queue of a model that serves sequences."""

from __future__ import annotations

from collections.abc import Mapping

from reference_server.config.scheduler_settings import Direct, SequenceBatching
from reference_server.config.schema import ModelConfig
from reference_server.scheduling.batcher import DynamicBatcher
from reference_server.scheduling.sequence.direct import DirectSequences
from reference_server.scheduling.sequence.inputs import AddedInputs
from reference_server.scheduling.sequence.oldest import OldestSequences
from reference_server.scheduling.sequence.roster import Roster
from reference_server.scheduling.work import WorkQueue


def sequence_queue(
    config: ModelConfig, batching: SequenceBatching, initial: Mapping[str, bytes]
) -> WorkQueue:
    """The queue for the instances of that model; `initial` are the states' first bytes."""
    signature, strategy = config.signature, batching.strategy
    rows = max(1, signature.max_batch_size)
    slots = rows if isinstance(strategy, Direct) else strategy.max_candidates or rows
    roster = Roster(
        config.name,
        len(config.instance_names),
        slots,
        batching.max_idle_us * 1000,
        iterative=batching.iterative,
    )
    inputs = AddedInputs(
        batching,
        batches=signature.batches,
        initial=initial,
        shown=frozenset(output.name for output in signature.outputs),
    )
    if isinstance(strategy, Direct):
        return DirectSequences(roster, strategy, inputs)
    sizes, delay_ns = strategy.preferred_batch_sizes, strategy.max_queue_delay_us * 1000
    return OldestSequences(roster, inputs, lambda: DynamicBatcher(rows, sizes, delay_ns))
