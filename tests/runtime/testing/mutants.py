"""Faults planted in the runtime, one at a time. Each must be found by the conformance suite."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from runtime.testing.models import (
    FREE,
    GEARED_IMAGES,
    GEARED_TOKENS,
    IMAGES,
    JOINT,
    ONE_GEAR,
    OPTIONAL,
    TAGGED,
    TOKENS,
    Model,
)

from ge_runtime.batching import admission, feeds
from ge_runtime.batching.admission import Default
from ge_runtime.engines.onnx import OnnxEngine
from ge_runtime.engines.torch import TorchEngine
from ge_runtime.memory.arena import AnswerSlots, Arena
from ge_runtime.runtime import Runtime
from ge_runtime.scheduling import executor
from ge_runtime.scheduling.request_batch import RequestBatch


@dataclass(frozen=True)
class Mutant:
    """Replaces `place.name` with `broken`, whose first argument is the original."""

    models: tuple[Model, ...]
    place: Any
    name: str
    broken: Any

    def plant(self, monkeypatch):
        sound = getattr(self.place, self.name)

        def broken(*args, **kwargs):
            return self.broken(sound, *args, **kwargs)

        monkeypatch.setattr(self.place, self.name, broken)


def all_ones(sound, layout, axes, mask):
    mask[...] = 1


def one_too_far(sound, layout, axes, mask):
    """Extends the mask by one element past each row's data, where there is room."""
    sound(layout, axes, mask)
    mask[:, 1:] |= mask[:, :-1].copy()


def either_axis(sound, layout, axes, mask):
    mask[...] = 0
    for row, ends in enumerate(layout.ends(axes)):
        mask[row, : ends[0]] = 1
        mask[row, :, : ends[1]] = 1


def leaves_padding(sound, layout, spec, pad, batch):
    before = batch.copy()
    sound(layout, spec, pad, batch)
    for row, ends in enumerate(layout.ends(spec.axes)):
        inside = tuple(map(slice, spec.shape(dict(zip(spec.axes, ends, strict=True)))))
        before[(row, *inside)] = batch[(row, *inside)]
    batch[: layout.filled] = before[: layout.filled]


def copies_tails(sound, layout, spec, pad, batch):
    """Treats all of each tensor as data."""
    batch[...] = pad
    for block, span in zip(layout.blocks, layout.spans, strict=True):
        part = block.tensors[spec.name]
        corner = tuple(map(slice, np.minimum(part.shape[1:], batch.shape[1:])))
        batch[(span, *corner)] = part[(slice(None), *corner)]


def leaves_rows_of_padding(sound, layout, spec, pad, batch):
    before = batch[layout.filled :].copy()
    sound(layout, spec, pad, batch)
    batch[layout.filled :] = before


def shorter(sound, *args):
    return [max(1, length - 1) for length in sound(*args)]


def longer(sound, axis, name, tensor, size):
    return [min(size, length + 1) for length in sound(axis, name, tensor, size)]


def nothing(sound, *args):
    return np.zeros_like(sound(*args))


def without_reset(sound, layout, axis, positions):
    positions[...] = np.arange(len(positions))


def rows_swapped(sound, layout, spec, pad, batch):
    sound(layout, spec, pad, batch)
    ends = np.cumsum(layout.lengths[spec.axes[0]])
    batch[: ends[-1]] = batch[: ends[-1]][::-1].copy()


def later(sound, feed, layout, batch):
    sound(feed, layout, batch)
    np.minimum(batch + 1, batch[-1], out=batch)


def a_row_late(sound, layout, spec, batch, *args):
    return sound(layout, spec, np.roll(batch, 1, axis=0), *args)


def a_column_late(sound, layout, spec, batch, *args):
    return sound(layout, spec, np.roll(batch, 1, axis=-1), *args)


def reversed_answers(sound, *args, **kwargs):
    return sound(*args, **kwargs)[::-1]


def passed_to_the_next(sound, self, answers, originals):
    sound(self, answers, originals[1:] + originals[:1])


def always_the_same(sound, slots):
    """Hands out a slot again that was not released."""
    return Arena(slots._slots[0], "answers")


def all_but_the_last(sound, engine, inputs, outputs):
    own = sound(engine, inputs, dict.fromkeys(outputs))
    for name, planned in outputs.items():
        if planned is not None and planned.size:
            planned.reshape(-1)[:-1] = own[name].reshape(-1)[:-1]
            own[name] = planned
    return own


#: Without gears and with gears of two axes; the faults do not depend on other gears.
_ENCODERS = (FREE, JOINT)

MUTANTS = {
    "mask of ones": Mutant(_ENCODERS, feeds, "fill_mask", all_ones),
    "mask of ones for images": Mutant((IMAGES, GEARED_IMAGES), feeds, "fill_mask", all_ones),
    "mask one too far": Mutant(_ENCODERS, feeds, "fill_mask", one_too_far),
    "mask where either axis reaches": Mutant(
        (IMAGES, GEARED_IMAGES), feeds, "fill_mask", either_axis
    ),
    "padding not written": Mutant((FREE, GEARED_IMAGES), feeds, "gather", leaves_padding),
    "tails copied": Mutant(_ENCODERS, feeds, "gather", copies_tails),
    "rows of padding not written": Mutant(
        (ONE_GEAR, JOINT), feeds, "gather", leaves_rows_of_padding
    ),
    "lengths one short": Mutant((JOINT, TOKENS), admission, "read_lengths", shorter),
    "lengths one long": Mutant((JOINT, TOKENS), admission, "read_lengths", longer),
    "default not applied": Mutant((OPTIONAL,), Default, "of", nothing),
    "positions without reset": Mutant(
        (TOKENS, GEARED_TOKENS), feeds, "fill_packed_positions", without_reset
    ),
    "packed backwards": Mutant((TOKENS, GEARED_TOKENS), feeds, "pack", rows_swapped),
    "offsets one late": Mutant((TOKENS, GEARED_TOKENS), feeds.Offsets, "write", later),
    "unpacked one late": Mutant((TOKENS, GEARED_TOKENS), executor, "unpack", a_row_late),
    "cropped a column late": Mutant((IMAGES, GEARED_IMAGES), executor, "scatter", a_column_late),
    "rows of another request": Mutant((JOINT, IMAGES), executor, "scatter", a_row_late),
    "answers of an execution swapped": Mutant(
        (FREE, IMAGES), executor, "scatter", reversed_answers
    ),
    "answers of a request batch swapped": Mutant(
        (FREE, TOKENS), RequestBatch, "results", reversed_answers
    ),
    "slot reused while held": Mutant((IMAGES, TOKENS), AnswerSlots, "take", always_the_same),
    "inputs passed to others": Mutant((TAGGED,), Runtime, "_finish", passed_to_the_next),
}

ON_ANY_ENGINE = ("mask of ones", "padding not written", "offsets one late")
"""Faults that are planted on the second engine too; the others do not depend on the engine."""

ENGINE_MUTANTS = {
    "onnxruntime": Mutant((FREE, IMAGES, TOKENS), OnnxEngine, "run", all_but_the_last),
    "torch": Mutant((TOKENS,), TorchEngine, "run", all_but_the_last),
}
