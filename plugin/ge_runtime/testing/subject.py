"""A model, opened so that a test decides which requests share an execution."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ge_runtime.assembly import Assembly, assemble
from ge_runtime.clock import SystemClock
from ge_runtime.errors import RequestFault
from ge_runtime.runtime import Runtime
from ge_runtime.scheduling.request_batch import Answer
from ge_runtime.testing.drawing import Drawn
from ge_runtime.testing.steering import Choice, Groups, Steered

_SETTINGS: Final = {
    # Executions so dear that all that can share one does; and nothing depends on the clock.
    "cost": "launch_us=1000000, element_ns=1, element2_ns=0",
    "warmup": "none",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request batch."""

    answers: Sequence[Answer]
    """Of all requests in order; none if the runtime raised."""
    groups: Groups
    """The requests of each execution, in order of execution; those that were refused are in
    none."""
    failures: int
    """Executions that failed, and were executed again in parts."""
    raised: Exception | None = None
    """What the runtime raised for all of the request batch."""


class Subject:
    """An open model. For one thread."""

    def __init__(self, parts: Assembly, runtime: Runtime, steered: Steered) -> None:
        self.parts = parts
        self._runtime = runtime
        self._steered = steered

    @classmethod
    @contextmanager
    def opened(
        cls,
        version_dir: Path,
        model_config: Mapping[str, object],
        *,
        derived: Collection[str] = (),
        parameters: Mapping[str, str] | None = None,
    ) -> Iterator[Subject]:
        """The model in `version_dir`, for the length of a `with`.

        parameters: in place of those that `model_config` has. What requests are made of here is
        not recorded in the model's histogram. Raises what `Runtime.open` raises.
        """
        given = model_config.get("parameters")
        entries = dict(given) if isinstance(given, Mapping) else {}
        for key, text in {**_SETTINGS, **(parameters or {})}.items():
            entries[key] = {"string_value": text}
        name = f"{model_config.get('name', 'model')}_conformance"
        parts = assemble(
            version_dir,
            {**model_config, "parameters": entries},
            instance_name=name,
            derived=derived,
        )
        steered = Steered(parts.partitioner, parts.gears, parts.config.rows)
        parts = replace(parts, partitioner=steered, config=replace(parts.config, histogram=None))
        runtime = Runtime(name, version_dir, parts, SystemClock())
        try:
            yield cls(parts, runtime, steered)
        finally:
            runtime.close()

    def run(self, batch: Sequence[Drawn], choice: Choice | None, poison: int) -> Outcome:
        """The answers to a batch in the executions of this choice; None: those of the model.

        poison: the byte that memory is filled with before each execution.
        """
        for executor in self.parts.executors:
            executor.poison(poison)
        self._steered.choice = choice
        self._steered.groups = []
        before = self._runtime.counts()
        try:
            answers = self._infer(batch)
        except Exception as error:  # of any kind: it takes down all of the request batch
            return Outcome([], self._steered.groups, 0, raised=error)
        failures = self._runtime.counts().since(before).isolations
        sound = [i for i, answer in enumerate(answers) if not isinstance(answer, RequestFault)]
        planned = self._steered.groups
        groups = [[sound[place] for place in group] for group in planned]
        # While the answers are held: memory that is used again too early shows.
        self._steered.choice = None
        self._infer(batch[:1])
        return Outcome(answers, groups, failures)

    def _infer(self, batch: Sequence[Drawn]) -> list[Answer]:
        return self._runtime.infer(
            [drawn.given for drawn in batch], originals=[drawn.originals for drawn in batch]
        )
