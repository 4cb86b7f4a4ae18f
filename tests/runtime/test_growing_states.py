"""States of sequences that grow: past keys and values of decoders, in blocks of planned memory."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto
from onnxruntime import InferenceSession
from runtime.support.axis_graphs import saved
from runtime.support.decoders import (
    TINY,
    Expected,
    cross_config,
    decoder_config,
    of,
    recogniser,
    recogniser_config,
    request,
)
from runtime.support.parsing import assert_fault

from ge_runtime import Runtime
from ge_runtime.engines.growing_states import GrowingState, pool_bytes
from ge_runtime.errors import BlocksTaken, ConfigFault, EngineFault, RequestFault
from ge_runtime.scheduling.state_blocks import BlockPool, SequenceState
from ge_runtime.scheduling.state_group import StateGroup
from ge_runtime.specs import PAST, DType, TensorSpec
from model_factory.decoder_graph import DecoderSizes, decoder_model


@pytest.fixture(scope="module")
def graph():
    return decoder_model()


@pytest.fixture(scope="module")
def expected(graph):
    return Expected(graph)


@pytest.fixture(scope="module")
def runtime(graph, tmp_path_factory):
    folder = tmp_path_factory.mktemp("decoder")
    # At most 4 rows with 15 tokens before a request, or 2 with 30.
    config = decoder_config({"limit.total.past": "60"})
    runtime = Runtime.open(saved(graph, folder), config, instance_name="decoder_0")
    yield runtime
    runtime.close()


def close_all(runtime):
    for sequence in range(1, 9):
        runtime.end_sequence(sequence)
    assert runtime.gauges()["state_blocks_used"] == 0
    # NaN, so that memory that is read without being written becomes visible.
    for buffer in runtime._parts.executors[0].group._buffers:
        buffer.fill(255)


# Batches of (sequence, tokens): sequences join and leave, with one or several tokens.
batches = st.lists(
    st.dictionaries(st.integers(1, 4), st.sampled_from([1, 1, 1, 3]), min_size=1, max_size=4),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(batches, st.integers(0, 99))
def test_answers_do_not_depend_on_the_sequences_that_join_and_leave(
    runtime, expected, batches, seed
):
    rng, texts, answers = np.random.default_rng(seed), {}, {}
    for batch in batches:
        ids = {
            own: rng.integers(0, TINY.vocabulary, count).tolist() for own, count in batch.items()
        }
        callers = [of(own, starts=own not in texts) for own in batch]
        for own in batch:
            texts[own] = texts.get(own, []) + ids[own]
        found = runtime.infer([request(ids[own]) for own in batch], callers)
        for own, answer in zip(batch, found, strict=True):
            answers.setdefault(own, []).append(answer["logits"][0])
    for own, text in texts.items():
        found = np.concatenate(answers[own])
        np.testing.assert_allclose(found, expected.logits(text), atol=1e-5)
    close_all(runtime)


def test_the_states_of_an_unchanged_group_are_not_copied(runtime, expected, monkeypatch):
    copied = []
    gather = StateGroup._gather
    monkeypatch.setattr(
        StateGroup, "_gather", lambda *given: (copied.append(given), gather(*given))
    )
    runtime.infer([request([1, 2]), request([3])], [of(1, starts=True), of(2, starts=True)])
    runtime.infer([request([4]), request([5])], [of(1), of(2)])
    assert len(copied) == 1
    for _ in range(10):
        # In another order; the group's order stays.
        first, second = runtime.infer([request([5]), request([4])], [of(2), of(1)])
    assert len(copied) == 1
    np.testing.assert_allclose(
        second["logits"][0, 0], expected.logits([1, 2] + 11 * [4])[-1], atol=1e-5
    )
    np.testing.assert_allclose(
        first["logits"][0, 0], expected.logits([3] + 11 * [5])[-1], atol=1e-5
    )
    # A sequence that starts is executed beside the group, and joins with its next request.
    runtime.infer([request([6])], [of(3, starts=True)])
    runtime.infer([request([5]), request([4])], [of(2), of(1)])
    assert len(copied) == 1
    runtime.infer([request([5]), request([4]), request([7])], [of(2), of(1), of(3)])
    assert len(copied) == 2
    close_all(runtime)


def test_decoding_allocates_no_memory_for_states(tmp_path):
    sizes = DecoderSizes(heads=8, width=128, positions=300)
    config = decoder_config({"limit.past": "256"}, sizes=sizes)
    runtime = Runtime.open(saved(decoder_model(sizes), tmp_path), config, instance_name="decoder_0")
    callers = [of(own, starts=True) for own in range(4)]
    runtime.infer([request([1] * 8)] * 4, callers)
    callers = [of(own) for own in range(1, 4)]
    for _ in range(24):
        runtime.infer([request([1] * 8)] * 3, callers)
    tracemalloc.start()
    for _ in range(5):
        runtime.infer([request([1])] * 3, callers)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    gauges = runtime.gauges()
    runtime.close()
    assert gauges["allocations_after_freeze"] == 0
    one_sequence = 2 * 2 * 200 * 128 * 4
    assert peak < one_sequence / 4


@pytest.mark.parametrize("policy", ["refuse", "evict"])
def test_full_blocks_refuse_a_request_or_end_the_idle_sequence(graph, tmp_path, policy):
    config = decoder_config({"state_blocks": "3", "state_full": policy, "limit.past": "40"})
    runtime = Runtime.open(saved(graph, tmp_path), config, instance_name="decoder_0")
    for own in (1, 2, 3):
        runtime.infer([request([1] * 8)], [of(own, starts=True)])
    (answer,) = runtime.infer([request([1])], [of(4, starts=True)])
    gauges = runtime.gauges()
    if policy == "refuse":
        assert isinstance(answer, BlocksTaken)
        assert str(answer) == (
            "blocks of growing states: found 3 of 3 in use, expected 1 free blocks for 1 elements "
            "along 'past'. 'state_blocks' sets their number"
        )
        (later,) = runtime.infer([request([1])], [of(4)])  # it does not start from nothing
        assert isinstance(later, RequestFault)
        runtime.infer([request([1])], [of(1, ends=True)])
        (answer,) = runtime.infer([request([1])], [of(4, starts=True)])
    assert "logits" in answer
    assert (gauges["state_blocks"], gauges["state_blocks_used"]) == (3, 3)
    (first,) = runtime.infer([request([1])], [of(1)])
    assert isinstance(first, RequestFault)
    (third,) = runtime.infer([request([1])], [of(3)])
    assert "logits" in third
    # Two sequences of a batch need a block each, and one is free: neither is ended for the other.
    close_all(runtime)
    for starts in (True, False):
        runtime.infer([request([1] * 8)] * 2, [of(own, starts=starts) for own in (1, 2)])
    first, second = runtime.infer([request([1])] * 2, [of(1), of(2)])
    assert "logits" in first
    assert isinstance(second, BlocksTaken)
    assert "logits" in runtime.infer([request([1])], [of(1)])[0]
    runtime.close()


def test_an_idle_sequence_returns_its_blocks(graph, tmp_path):
    class Clock:
        seconds = 0.0

        def now(self):
            return self.seconds

    config = decoder_config()
    config["sequence_batching"]["max_sequence_idle_microseconds"] = "5000000"
    clock = Clock()
    runtime = Runtime.open(saved(graph, tmp_path), config, instance_name="decoder_0", clock=clock)
    for own in (1, 2):
        runtime.infer([request([1])], [of(own, starts=True)])
    clock.seconds = 9.0
    runtime.infer([request([1])], [of(2)])
    assert runtime.gauges()["state_blocks_used"] == 2
    clock.seconds = 11.0
    runtime.infer([request([1])], [of(2)])
    assert runtime.gauges()["state_blocks_used"] == 1
    assert isinstance(runtime.infer([request([1])], [of(1)])[0], RequestFault)
    clock.seconds = 30.0  # a sequence with a request is not idle
    assert "logits" in runtime.infer([request([1])], [of(2)])[0]
    clock.seconds = 41.0
    assert runtime.gauges()["state_blocks_used"] == 0  # without another request
    runtime.close()


def test_a_failed_execution_leaves_the_states_unchanged(runtime, expected, monkeypatch):
    callers = [of(1, starts=True), of(2, starts=True), of(3, starts=True)]
    runtime.infer([request([1, 2]), request([3]), request([6])], callers)
    runtime.infer([request([7])] * 3, [of(1), of(2), of(3)])
    (executor,) = runtime._parts.executors
    run = executor.engine.run

    def fail(inputs, outputs):
        run(inputs, outputs)
        raise EngineFault("broken")

    monkeypatch.setattr(executor.engine, "run", fail)
    # Rows move before the execution, and a single one fails as well.
    for batch in ([3, 2], [3]):
        for answer in runtime.infer([request([9])] * len(batch), list(map(of, batch))):
            assert isinstance(answer, EngineFault)
    monkeypatch.undo()
    texts = {1: [1, 2, 7, 4], 2: [3, 7, 4], 3: [6, 7, 4]}
    answers = runtime.infer([request([4])] * 3, list(map(of, texts)))
    for text, answer in zip(texts.values(), answers, strict=True):
        np.testing.assert_allclose(answer["logits"][0], expected.logits(text)[-1:], atol=1e-5)
    close_all(runtime)


def test_a_sequence_cannot_grow_beyond_its_limit(graph, tmp_path):
    config = decoder_config({"limit.past": "10", "histogram": "sizes.json"})
    runtime = Runtime.open(saved(graph, tmp_path), config, instance_name="decoder_0")
    # After a start that was refused, a sequence does not continue.
    for refused in runtime.infer([request([1] * 9)], [of(1, starts=True)]):
        assert isinstance(refused, RequestFault)
    assert isinstance(runtime.infer([request([1])], [of(1)])[0], RequestFault)
    runtime.infer([request([1] * 8)], [of(1, starts=True)])
    runtime.infer([request([1] * 8)], [of(1)])
    (refused,) = runtime.infer([request([1])], [of(1)])
    assert str(refused) == (
        "states of the sequence: found 16 elements along 'past', expected at most 10 before a "
        "request (limit.past)"
    )
    runtime.close()


def test_reproducible_answers_are_equal_to_the_bit(graph, tmp_path):
    config = decoder_config(
        {
            "reproducible": "true",
            "gears.batch": "4",
            "gears.past": "8, 40",
            "gears.tokens": "1, 2, 3",
            "limit.tokens": "3",
            "load_check": "on",
        }
    )
    runtime = Runtime.open(saved(graph, tmp_path), config, instance_name="decoder_0")
    (check,) = [line for line in runtime.report if "load check" in line]
    assert "nor do the states of sequences; equal to the bit" in check
    texts = {1: [1, 2, 3], 2: [4, 5, 6], 3: [7, 8]}

    def play(groups):
        found = {own: [] for own in texts}
        for group in groups:
            callers = [of(own, starts=True) for own in group]
            answers = runtime.infer([request(texts[own]) for own in group], callers)
            for step in range(12):
                for own, answer in zip(group, answers, strict=True):
                    found[own].append(answer["logits"].tobytes())
                token = request([step])
                answers = runtime.infer([token] * len(group), [of(own) for own in group])
        return found

    assert play([[1], [2], [3]]) == play([[3, 1, 2]])
    runtime.close()


def test_the_load_check_covers_growing_states(graph, tmp_path):
    config = decoder_config({"load_check": "on", "limit.past": "16", "limit.tokens": "2"})
    # The graph ignores its mask: padding of the past changes its answers.
    unmasked = ModelProto.FromString(graph.SerializeToString())
    (both,) = [node for node in unmasked.graph.node if node.op_type == "And"]
    both.input[0] = both.input[1]
    version_dir = saved(unmasked, tmp_path)
    with pytest.raises(ConfigFault, match="expected a graph that uses its mask"):
        Runtime.open(version_dir, config, instance_name="decoder_0")


JOINS = [[1], [1, 2], [2, 1], [1, 2, 3], [3], [2, 3], [1, 2, 3], [1, 2, 3]]
"""Sequences of each request batch."""


def test_a_decoder_that_attends_to_an_encoder_keeps_its_past(opened):
    model = decoder_model(DecoderSizes(cross=True))
    runtime, expected = opened(model, cross_config()), Expected(model)
    rng = np.random.default_rng(0)
    states = {own: rng.standard_normal((1, 2 * own, TINY.width), np.float32) for own in (1, 2, 3)}
    texts = {own: [] for own in states}
    for batch in JOINS:
        callers = [of(own, starts=not texts[own]) for own in batch]
        for own in batch:
            texts[own] += [own, len(texts[own])]
        requests = [{**request(texts[own][-2:]), "encoder_states": states[own]} for own in batch]
        for own, answer in zip(batch, runtime.infer(requests, callers), strict=True):
            frames = states[own].shape[1]
            logits = expected.logits(
                texts[own], encoder_states=states[own], encoder_mask=np.ones((1, frames), np.int64)
            )
            np.testing.assert_allclose(answer["logits"][0], logits[-2:], atol=1e-5)


def test_a_recogniser_keeps_caches_of_fixed_and_of_growing_size(opened):
    model = recogniser()
    runtime, rng = opened(model, recogniser_config()), np.random.default_rng(0)
    assert "nor do the states of sequences" in "".join(runtime.report)
    session = InferenceSession(model.SerializeToString())
    caches = {}
    for at, batch in enumerate(JOINS):
        chunks = {own: rng.standard_normal((1, 4 + at % 2 * 8, 4), np.float32) for own in batch}
        requests = [{"features": chunks[own]} for own in batch]
        callers = [of(own, starts=own not in caches) for own in batch]
        for own, answer in zip(batch, runtime.infer(requests, callers), strict=True):
            empty = np.zeros((1, 1, 4), np.float32), np.zeros((0, 1, 4), np.float32)
            last, memory = caches.get(own, empty)
            total = len(memory) + chunks[own].shape[1] // 4
            feeds = {"features": chunks[own], "last": last, "memory": memory}
            feeds["valid"] = np.ones((1, total), np.float32)
            scores, *caches[own] = session.run(["scores", "next_last", "next_memory"], feeds)
            np.testing.assert_allclose(answer["scores"], scores, atol=1e-5)


@pytest.mark.parametrize(
    ("parameters", "more", "fault"),
    [
        ({"state_growth": "words"}, {}, "'words'"),
        ({"state_growth": "tokens +"}, {}, "parameter 'state_growth'"),
        ({"state_blocks": "2"}, {}, "expected at least 3, for one sequence (limit.past)"),
        ({"mask.attention_mask": "tokens + past"}, {}, "'past + ' and the growth of the states"),
        ({"padding.tokens": "neutral"}, {}, "padding would become part of the states"),
        ({"devices": "cpu, cpu"}, {}, "expected one cpu"),
        ({"min.past": "1"}, {}, "parameter 'min.past'"),
        ({}, {"batch": 0}, "growing states have rows"),
    ],
)
def test_faults_of_the_configuration(parameters, more, fault):
    assert_fault(decoder_config(parameters, **more), fault)


def test_blocks_are_written_once():
    spec = TensorSpec("past", DType.FP32, (2, PAST))
    states = [GrowingState(spec, spec)]
    memory = np.zeros(pool_bytes(states, 3), np.uint8)
    pool, state = BlockPool(states, 3, memory), SequenceState({})
    row = np.arange(2 * 40, dtype=np.float32).reshape(40, 2)
    for written, size in ((0, 5), (5, 16), (16, 33)):
        pool.reserve(state, size)
        state.size = size
        pool.save(state, [np.where(np.arange(40)[:, None] < written, -1, row)])
    found = np.zeros((33, 2), np.float32)
    pool.load(state, [found])
    np.testing.assert_array_equal(found, row[:33])
