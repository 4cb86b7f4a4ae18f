"""What executions of a graph take, from its contract: the shapes of gears, and a memory plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ge_runtime.batching.gears import Gear
from ge_runtime.batching.ragged import Geometry
from ge_runtime.config import RuntimeConfig
from ge_runtime.engines.base import Engine
from ge_runtime.engines.contract import Contract
from ge_runtime.memory.plan import ANSWER_SLOTS, Need, Plan
from ge_runtime.specs import ROWS, UNKNOWN


def answer_slots(config: RuntimeConfig) -> int:
    """How many executions' answers a model has room for.

    With the device service one more, through which answers go that all slots are in use for.
    """
    return ANSWER_SLOTS + (config.service_share is not None)


@dataclass(frozen=True, slots=True)
class Footprint:
    """The sizes of a model's tensors at any gear."""

    contract: Contract
    batched: bool
    """Whether the graph's tensors have a batch dimension."""
    packed: str | None
    """The axis along which rows are joined; a gear's extent of it is that of one row."""

    def shapes(self, gear: Gear) -> dict[str, tuple[int, ...]]:
        """The shapes of the graph's inputs, by name."""
        geometry = self._geometry(gear)
        first = 0 if self.batched else 1  # without rows, batches still have a first dim of 1
        return {feed.spec.name: feed.shape(geometry)[first:] for feed in self.contract.feeds}

    def plan(
        self, engine: Engine, gears: Iterable[Gear], *, answer_slots: int = ANSWER_SLOTS
    ) -> Plan:
        """The plan for executions at these gears, at least one, one at a time.

        answer_slots: how many executions' answers are kept. Outputs with UNKNOWN dims are not
        planned: the engine allocates them. Takes milliseconds for each gear, as the graph is
        analysed at its shapes; nothing is executed.
        """
        needs = [self._need(engine, gear) for gear in gears]
        io_bytes = engine.device_io_bytes()
        return Plan.of(
            needs,
            weights_bytes=engine.weights_bytes(),
            answer_slots=answer_slots,
            device_io_bytes=max(need.io_bytes for need in needs) if io_bytes is None else io_bytes,
        )

    def _need(self, engine: Engine, gear: Gear) -> Need:
        geometry = self._geometry(gear)
        outputs = [spec for spec in self.contract.outputs if UNKNOWN not in spec.dims]
        return Need(
            sizes={ROWS: gear.rows, **geometry.extents},
            inputs={
                feed.spec.name: (feed.spec.dtype, feed.shape(geometry))
                for feed in self.contract.feeds
            },
            outputs={spec.name: (spec.dtype, geometry.shape(spec)) for spec in outputs},
            intermediates=engine.intermediates(self.shapes(gear)),
            # What is cut to a request's own sizes is copied, for each row at most.
            copies={spec.name: gear.rows for spec in outputs if spec.axes},
            pieces=gear.rows,
        )

    def _geometry(self, gear: Gear) -> Geometry:
        extents = dict(gear.extents)
        if self.packed is not None:
            extents[self.packed] *= gear.rows
        return Geometry(gear.rows, extents, packed=self.packed)
