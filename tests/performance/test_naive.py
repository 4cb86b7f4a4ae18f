"""The padded baseline of `benchmarks.ragged` computes correct results."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the baseline uses torch")
naive = pytest.importorskip("benchmarks.ragged")


class Sums:
    """An engine whose embedding is the sum of a row's ids where the mask is 1."""

    def __init__(self):
        self.shapes = []

    def run(self, inputs, outputs):
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        self.shapes.append(ids.shape)
        outputs["embedding"][...] = (ids * mask).sum(axis=1, keepdims=True)
        return outputs


ROWS = [np.full((1, length), 2) for length in (3, 7, 1)]


@pytest.mark.parametrize(("pad_to", "length"), [(None, 7), (16, 16)])
def test_each_row_gets_its_own_result_with_any_padding(pad_to, length):
    engine = Sums()
    plain = naive.Naive(engine, pad_to, naive.BumpAllocator(1 << 20))
    for _ in range(2):  # the second batch reuses the memory of the first
        answers = plain.infer(ROWS)
        assert [answer.shape for answer in answers] == [(1, naive.WIDTH)] * 3
        assert [answer[0, 0] for answer in answers] == [6, 14, 2]
    assert engine.shapes == [(3, length)] * 2


def test_allocator_restarts_only_when_all_pieces_are_free():
    allocator = naive.BumpAllocator(256)
    first = allocator.allocate((128,), torch.uint8)
    allocator.allocate((128,), torch.uint8)
    allocator.free()
    with pytest.raises(naive.OutOfMemory):
        allocator.allocate((1,), torch.uint8)
    allocator.free()
    assert allocator.allocate((2, 16), torch.float32).data_ptr() == first.data_ptr()
