from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from ge_runtime.counts import Counts, SharedCounts


def execution(rows=1, gear="4x8", **amounts):
    return Counts(
        launches=1, launch_rows=Counter({rows: 1}), gear_hits=Counter({gear: 1}), **amounts
    )


def test_counts_add_up():
    metrics = SharedCounts()
    metrics.add(execution(3, useful_elements=30, executed_elements=40, launch_seconds=0.5))
    metrics.add(execution(3, "8x8", useful_elements=10, executed_elements=40, launch_seconds=0.25))
    counts = metrics.snapshot()
    assert counts.launches == 2
    assert counts.launch_seconds == 0.75
    assert counts.launch_rows == {3: 2}
    assert counts.gear_hits == {"4x8": 1, "8x8": 1}
    assert (counts.useful_elements, counts.executed_elements) == (40, 80)


def test_since_returns_the_difference_to_a_snapshot():
    metrics = SharedCounts()
    metrics.add(execution(1, copied_bytes=5))
    earlier = metrics.snapshot()
    metrics.add(execution(2, copied_bytes=7))
    assert metrics.snapshot().since(earlier) == execution(2, copied_bytes=7)


def test_no_count_is_lost_between_threads():
    metrics = SharedCounts()

    def count(_):
        for _ in range(500):
            metrics.add(execution(rows=2))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(4)))
    assert metrics.snapshot().launches == 2000
    assert metrics.snapshot().launch_rows == {2: 2000}
