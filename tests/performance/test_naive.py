"""The plain approach gives right answers, and its allocator the trouble it is known for."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the plain approach is written with torch")
naive = pytest.importorskip("benchmarks.naive")


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
def test_every_row_gets_its_own_answer_whatever_it_is_padded_to(pad_to, length):
    engine = Sums()
    plain = naive.Naive(engine, pad_to, naive.BumpAllocator(1 << 20))
    for _ in range(2):  # the second time over memory that is full of the first
        answers = plain.infer(ROWS)
        assert [answer.shape for answer in answers] == [(1, naive.WIDTH)] * 3
        assert [answer[0, 0] for answer in answers] == [6, 14, 2]
    assert engine.shapes == [(3, length)] * 2


def test_bump_allocator_starts_over_only_when_all_is_free():
    allocator = naive.BumpAllocator(256)
    first = allocator.allocate((128,), torch.uint8)
    allocator.allocate((128,), torch.uint8)
    allocator.free()
    with pytest.raises(naive.OutOfMemory):
        allocator.allocate((1,), torch.uint8)
    allocator.free()
    assert allocator.allocate((2, 16), torch.float32).data_ptr() == first.data_ptr()
    assert allocator.high_water == 256


def test_overlapping_batches_use_up_a_bump_allocator():
    assert naive.batches_until_exhausted(1024, [64] * 1000, in_flight=1) is None
    assert naive.batches_until_exhausted(1024, [64] * 1000, in_flight=2) == 16
