"""Finds the configuration of a decoder with past keys and values, by names and executions.

The free sizes of such a graph depend on each other: a mask is as long as the past and the new
tokens together. Therefore, unlike in other graphs, the sizes cannot be found one by one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from ge_runtime.discovery.configuration import Configuration, Tensor
from ge_runtime.discovery.graph import Port
from ge_runtime.discovery.study import Content, Rows, Study, last_true
from ge_runtime.specs import PAST, Array, DType

_WORDS: Final = re.compile(r"past|present|key_?values?|kv|cache|new|next|in|out(put)?|input")
"""Words in which the names of a state's input and output may differ."""
_FLOATS: Final = (DType.FP32, DType.FP16)
_IDS: Final = ("input_ids", "decoder_input_ids")
_MOST_TOKENS: Final = 2048
"""Largest number of tried tokens of a sequence."""
_MOST_REQUEST: Final = 128
"""Largest number of tokens of a request; longer prompts are sent in parts."""
_TOLERANCE: Final = 1e-4
"""Allowed difference of equal logits from several executions, relative to the largest logit."""


@dataclass(frozen=True, slots=True)
class _Decoder:
    """The ports of a decoder."""

    ids: Port
    states: Mapping[Port, Port]
    """The output of each state, by its input."""
    logits: Port
    mask: Port | None
    positions: Port | None

    def run(
        self, study: Study, ids: Array, past: Mapping[str, Array] | None = None
    ) -> dict[str, Array] | None:
        """Execute ids, [batch, tokens], after a past; None if the graph fails."""
        given = dict(past or {})
        rows, count = ids.shape
        for port in self.states if past is None else ():
            size = [0 if isinstance(dim, str) else dim for dim in port.dims[1:]]
            given[port.name] = np.zeros((rows, *size), port.dtype.numpy)
        first = next(iter(self.states))
        before = given[first.name].shape[_grows_at(first)]
        given[self.ids.name] = ids
        if self.mask is not None:
            given[self.mask.name] = np.ones((rows, before + count), self.mask.dtype.numpy)
        if self.positions is not None:
            places = np.arange(before, before + count, dtype=self.positions.dtype.numpy)
            given[self.positions.name] = np.broadcast_to(places, ids.shape).copy()
        return study.graph.run(given)

    def following(self, answer: Mapping[str, Array]) -> dict[str, Array]:
        """Return the past after an execution."""
        return {own.name: answer[result.name] for own, result in self.states.items()}


def decide_decoder(study: Study, max_batch: int) -> Configuration | None:
    """Configure a decoder, and set the study's contents and ids; None for other graphs."""
    decoder = _find(study)
    if decoder is None or not _continues(study, decoder):
        return None
    ids = decoder.ids

    def works(count: int, token: int = 0) -> bool:
        return decoder.run(study, np.full((1, count), token, ids.dtype.numpy)) is not None

    vocabulary = decoder.logits.dims[2]
    most_id = int(vocabulary) - 1 if isinstance(vocabulary, int) else 0
    if most_id and works(1, most_id + 1):
        most_id = 0  # the table is larger than the vocabulary of the logits
    total = _MOST_TOKENS
    if not works(total):
        total = last_true(1, total, works)
    tokens = min(_MOST_REQUEST, total // 4)
    if tokens < 1:
        return None
    rows = max(1, max_batch)
    found = Configuration(rows, keeps_states=True)
    found.inputs.append(Tensor(ids.name, ids.dtype, (-1,), ragged=True))
    found.outputs.append(Tensor(decoder.logits.name, decoder.logits.dtype, (-1, _size(vocabulary))))
    why = "Decoder: two executions in sequence answer like one execution of all tokens."
    found.add(f"axes.{ids.name}", "tokens", why)
    found.add(f"axes.{decoder.logits.name}", "tokens", why)
    for own, result in decoder.states.items():
        found.add(f"state.{own.name}", result.name, why)
    if decoder.mask is not None:
        found.add(f"mask.{decoder.mask.name}", f"{PAST} + tokens", why)
    if decoder.positions is not None:
        found.add(f"positions.{decoder.positions.name}", "tokens", why)
    limit = f"The graph executes {total} tokens: the earlier tokens and those of the request"
    limit += ". Memory is planned for the limits."
    found.add("limit.tokens", str(tokens), limit)
    found.add(f"limit.{PAST}", str(total - tokens), limit)
    bound = "Bounds the memory for answers."
    found.add("limit.total.tokens", str(max(tokens, rows)), bound)
    if most_id:
        found.add(f"range.{ids.name}", f"0..{most_id}", "The vocabulary of the logits.")
        study.ids[ids.name] = most_id
    study.contents[ids.name] = Content.VALUES
    study.rows = Rows(evidence=why)
    return found


def _find(study: Study) -> _Decoder | None:
    """Return the ports of a decoder by their names, types and dims; None for other graphs."""
    graph = study.graph
    states: dict[Port, Port] = {}
    rest: list[Port] = []
    stems = {_stem(port.name): port for port in graph.outputs}
    for port in graph.inputs:
        partner = stems.get(_stem(port.name))
        if "past" in port.name.lower() and partner is not None and _grows(port):
            states[port] = partner
        else:
            rest.append(port)
    others = [port for port in graph.outputs if port not in states.values()]
    ids = [port for port in rest if port.name in _IDS and len(port.dims) == 2]
    masks = [port for port in rest if study.contents[port.name] is Content.MASK]
    positions = [port for port in rest if study.contents[port.name] is Content.POSITIONS]
    known = {port.name for port in (*ids, *masks, *positions)}
    logits = [port for port in others if port.dtype in _FLOATS and len(port.dims) == 3]
    if not states or len(set(states.values())) < len(states) or len(rest) != len(known):
        return None
    if len(ids) != 1 or len(masks) > 1 or len(positions) > 1 or not logits:
        return None
    mask, position = next(iter(masks), None), next(iter(positions), None)
    return _Decoder(ids[0], states, logits[0], mask, position)


def _continues(study: Study, decoder: _Decoder) -> bool:
    """Return whether two executions in sequence answer like one execution of all tokens."""
    name = decoder.logits.name
    text = np.random.default_rng(0).integers(0, study.integers, (2, 5))
    text = text.astype(decoder.ids.dtype.numpy)
    whole = decoder.run(study, text)
    first = decoder.run(study, text[:, :3])
    if whole is None or first is None:
        return False
    second = decoder.run(study, text[:, 3:], decoder.following(first))
    if second is None or whole[name].shape[:2] != text.shape:
        return False
    largest = np.abs(whole[name]).max()
    both = np.concatenate([first[name], second[name]], axis=1)
    return bool(np.abs(both - whole[name]).max() <= _TOLERANCE * max(largest, 1e-6))


def _grows(port: Port) -> bool:
    free = sum(isinstance(dim, str) for dim in port.dims[1:])
    return port.dtype in _FLOATS and len(port.dims) > 2 and free == 1


def _grows_at(port: Port) -> int:
    """Return the dim of a state that grows."""
    return next(at for at, dim in enumerate(port.dims) if at and isinstance(dim, str))


def _size(dim: int | str) -> int:
    return dim if isinstance(dim, int) else -1


def _stem(name: str) -> str:
    """Return a name in lower case without `_WORDS`."""
    return "".join(re.findall(r"[a-z0-9]+", _WORDS.sub("", name.lower())))
