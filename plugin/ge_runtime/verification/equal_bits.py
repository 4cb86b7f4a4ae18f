"""Equal bits: with `reproducible: true`, the bits of an answer depend on the request alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Final

from ge_runtime.batching.gears import Gear, Gears
from ge_runtime.config import RuntimeConfig
from ge_runtime.errors import EngineFault, OutOfMemory
from ge_runtime.scheduling.executor import Executor
from ge_runtime.verification.cures import REPRODUCIBLE, Refused, one_row_cure
from ge_runtime.verification.distance import compare_all
from ge_runtime.verification.executions import Executions
from ge_runtime.verification.plan import served_gear, sizes_within
from ge_runtime.verification.probes import request_text

_PARAMETER: Final = "parameter 'reproducible'"
_EQUAL_EXECUTIONS: Final = 3


def check_bits(
    executions: Executions, config: RuntimeConfig, gears: Gears, executors: Sequence[Executor]
) -> int:
    """Check all gears, however long it takes, and return the number of gears.

    Requests of several sizes are executed alone and beside each other, in every row of every gear,
    on each executor.

    Raises:
        Refused: Bits of an answer depend on its row, on other requests or on chance.
    """
    every = gears.every()
    for gear in every:
        sizes = [
            own
            for own in sizes_within(config, gear.extents)
            if served_gear(config, gears, [own]) == gear
        ]
        try:
            _check_places(executions, config, gear, [*sizes[:2], gear.extents], executors)
        except (EngineFault, OutOfMemory) as fault:
            raise Refused(
                f"{_PARAMETER}: found a failed execution of {gear}: {fault}; "
                "expected gears that the graph executes, for values within 'range.<input>'",
                [one_row_cure(config)],
            ) from fault
    return len(every)


def _check_places(
    executions: Executions,
    config: RuntimeConfig,
    gear: Gear,
    sizes: Sequence[Mapping[str, int]],
    executors: Sequence[Executor],
) -> None:
    """Execute requests of these sizes alone, then together, each in all rows in turn."""
    probes = [executions.values.block(own, (5, at)) for at, own in enumerate(sizes)]
    alone = [executions.execute([probe], gear)[0] for probe in probes]
    room = min(gear.rows, config.rows)
    for executor, first in product(executors, range(len(probes))):
        places = [(first + place) % len(probes) for place in range(room)]
        answers = executions.execute([probes[at] for at in places], gear, executor)
        for place, (at, answer) in enumerate(zip(places, answers, strict=True)):
            differences = compare_all(executions.results, answer, alone[at])
            if not differences:
                continue
            again = (executions.execute([probes[at]], gear)[0] for _ in range(_EQUAL_EXECUTIONS))
            by_chance = any(compare_all(executions.results, each, alone[at]) for each in again)
            how = (
                "equal executions" if by_chance else f"row {place} beside other requests and alone"
            )
            expected = "an engine with deterministic results" if by_chance else "the same bits"
            raise Refused(
                f"{_PARAMETER}: found {request_text(probes[at])} whose answer has different bits "
                f"in {how}, executed as {gear}: {differences[0]}; expected {expected}",
                [REPRODUCIBLE] if by_chance else [one_row_cure(config), REPRODUCIBLE],
            )
