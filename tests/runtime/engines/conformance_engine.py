"""The conformance suite of engines: see `ge_runtime.engines.base`.

A suite to inherit from, with a fixture `opened` that gives a function: graph, threads -> engine.
"""

import numpy as np
import pytest
from runtime.support.graphs import ENCODER, NONZERO, PIXELS, TABLE, copy_of, encode, sums

from ge_runtime.engines.base import GraphTensor, Signature
from ge_runtime.errors import EngineFault
from ge_runtime.memory.lifetimes import pack
from ge_runtime.specs import DType

TYPES = [DType.BOOL, DType.INT8, DType.UINT64, DType.FP16, DType.FP64]


def token_batch(rows, tokens, seed=0):
    """Ids and a mask that leaves at least one token of each row."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, len(TABLE), (rows, tokens))
    lengths = rng.integers(1, tokens + 1, rows)
    mask = (np.arange(tokens) < lengths[:, None]).astype(np.int64)
    expected = encode([row[:length] for row, length in zip(ids, lengths, strict=True)])
    return {"input_ids": ids, "attention_mask": mask}, expected


class EngineConformance:
    def test_signature_has_names_types_and_dims(self, opened):
        assert opened(ENCODER).signature == Signature(
            inputs=(
                GraphTensor("input_ids", DType.INT64, (None, None)),
                GraphTensor("attention_mask", DType.INT64, (None, None)),
            ),
            outputs=(GraphTensor("embedding", DType.FP32, (None, 4)),),
        )

    @pytest.mark.parametrize(("rows", "tokens"), [(1, 1), (8, 32)])
    def test_results_are_written_where_they_are_planned(self, opened, rows, tokens):
        inputs, expected = token_batch(rows, tokens)
        arena = np.full((rows + 2, 4), np.nan, np.float32)
        planned = arena[1:-1]
        results = opened(ENCODER).run(inputs, {"embedding": planned})
        assert results["embedding"] is planned
        np.testing.assert_allclose(planned, expected, rtol=1e-5)
        assert np.isnan(arena[[0, -1]]).all()

    def test_engine_allocates_what_is_not_planned(self, opened):
        inputs, expected = token_batch(3, 5)
        results = opened(ENCODER).run(inputs, {"embedding": None})
        np.testing.assert_allclose(results["embedding"], expected, rtol=1e-5)

    def test_planned_and_allocated_outputs_mix_in_any_order(self, opened):
        image = np.random.default_rng(0).random((2, 1, 4, 6), dtype=np.float32)
        mask = np.ones((2, 4, 6), np.float32)
        planned = np.empty_like(image)
        outputs = {"inverted": planned, "sums": None}
        results = opened(PIXELS).run({"image": image, "mask": mask}, outputs)
        assert results["inverted"] is planned
        np.testing.assert_allclose(planned, 1 - image, rtol=1e-6)
        np.testing.assert_allclose(results["sums"], sums(image, mask), rtol=1e-5)

    def test_outputs_that_are_not_wanted_are_not_returned(self, opened):
        inputs = {
            "image": np.ones((1, 1, 2, 2), np.float32),
            "mask": np.ones((1, 2, 2), np.float32),
        }
        assert opened(PIXELS).run(inputs, {"sums": None}).keys() == {"sums"}

    def test_inputs_may_come_in_any_order_and_are_only_read(self, opened):
        inputs, expected = token_batch(4, 9)
        before = {name: array.copy() for name, array in inputs.items()}
        turned = dict(reversed(inputs.items()))
        results = opened(ENCODER).run(turned, {"embedding": None})
        np.testing.assert_allclose(results["embedding"], expected, rtol=1e-5)
        for name, array in before.items():
            np.testing.assert_array_equal(inputs[name], array)

    @pytest.mark.parametrize("dtype", TYPES)
    def test_elements_of_every_type_pass_unchanged(self, opened, dtype):
        x = np.array([[0, 1, 100], [1, 0, 7]]).astype(dtype.numpy)
        y = np.empty_like(x)
        engine = opened(copy_of(dtype.numpy))
        assert engine.signature.inputs == (GraphTensor("x", dtype, (None, 3)),)
        assert engine.signature.outputs == (GraphTensor("y", dtype, (None, 3)),)
        engine.run({"x": x}, {"y": y})
        np.testing.assert_array_equal(x, y)

    def test_a_size_that_depends_on_data_is_returned(self, opened):
        x = np.array([0, 3, 0, 5], np.float32)
        engine = opened(NONZERO)
        assert engine.signature.outputs == (GraphTensor("where", DType.INT64, (1, None)),)
        assert engine.run({"x": x}, {"where": None})["where"].tolist() == [[1, 3]]

    @pytest.mark.parametrize("shape", [(1, 4), (3, 5)])
    def test_planned_output_of_another_shape_is_a_fault(self, opened, shape):
        inputs, _ = token_batch(3, 5)
        with pytest.raises(EngineFault):
            opened(ENCODER).run(inputs, {"embedding": np.empty(shape, np.float32)})

    def test_failing_graph_is_a_fault_and_the_engine_stays_usable(self, opened):
        engine = opened(ENCODER)
        inputs, expected = token_batch(2, 3)
        poison = {**inputs, "input_ids": np.full((2, 3), len(TABLE))}
        with pytest.raises(EngineFault) as raised:
            engine.run(poison, {"embedding": None})
        assert raised.value.__cause__ is not None
        results = engine.run(inputs, {"embedding": None})
        np.testing.assert_allclose(results["embedding"], expected, rtol=1e-5)

    def test_weights_are_counted(self, opened):
        # A graph may have a few more axes.
        assert 0 <= opened(ENCODER).weights_bytes() - TABLE.nbytes < 64
        assert opened(copy_of(np.float32)).weights_bytes() == 0

    def test_intermediates_are_reported(self, opened, rows=8, tokens=32):
        shapes = dict.fromkeys(("input_ids", "attention_mask"), (rows, tokens))
        found = opened(ENCODER).intermediates(shapes)
        assert found.unsized == 0
        # The embeddings, before and after the mask, are live at the same time.
        embeddings = rows * tokens * 4 * 4
        assert max(lifetime.nbytes for lifetime in found.lifetimes) == embeddings
        assert pack(found.lifetimes, 1).lower_bound >= 2 * embeddings

    def test_closing_twice_is_harmless(self, opened):
        engine = opened(copy_of(np.float32))
        engine.close()
        engine.close()
