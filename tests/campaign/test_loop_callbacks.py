"""The measurement of event loop callbacks: what it reports, by a clock that the test moves."""

import asyncio

import pytest

from benchmarks.attack.loop_callbacks import CALLBACK_S, ITERATION_S, MARK, install


@pytest.fixture
def measured():
    """Return a function that runs callbacks of these CPU times and returns the reported lines."""
    now_s, lines = [0.0], []
    remove = install(lines.append, lambda: now_s[0])

    def spend(seconds: float) -> None:
        now_s[0] += seconds

    def run(*callbacks: float) -> list[str]:
        async def main() -> None:
            for seconds in callbacks:
                asyncio.get_running_loop().call_soon(spend, seconds)
            await asyncio.sleep(0)

        asyncio.run(main())
        return lines

    yield run
    remove()


def test_one_long_callback_is_reported_by_name(measured):
    (line,) = measured(0.001, CALLBACK_S + 0.001, CALLBACK_S - 0.001)
    assert line.startswith(f"{MARK}: 21 ms in <Handle")
    assert "spend" in line


def test_many_callbacks_of_one_iteration_are_reported(measured):
    count = int(ITERATION_S / 0.01) + 1
    assert measured(*[0.01] * (count - 2)) == []
    (line,) = measured(*[0.01] * count)
    assert line == f"{MARK}: 110 ms in all callbacks of one iteration"
