import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_runtime.scheduling.dispatch import Dispatcher, LeastRows


@pytest.fixture
def two_lanes():
    dispatcher = Dispatcher(["left", "right"], "test")
    yield dispatcher
    dispatcher.close()


def test_the_executor_with_the_fewest_rows_is_chosen():
    choice = LeastRows(3)
    assert [choice.take(rows) for rows in (8, 4, 2, 1, 1, 1)] == [0, 1, 2, 2, 2, 1]


def test_idle_executors_take_turns():
    choice = LeastRows(2)
    taken = []
    for _ in range(4):
        taken.append(choice.take(3))
        choice.give_back(taken[-1], 3)
    assert taken == [0, 1, 0, 1]


def test_a_lost_executor_is_chosen_only_if_all_are_lost():
    choice = LeastRows(3)
    assert [choice.take(9, lost={0, 2}) for _ in range(2)] == [1, 1]
    assert choice.take(9, lost={0, 1, 2}) == 0


@given(st.integers(1, 4), st.lists(st.integers(1, 64), max_size=40))
def test_rows_are_spread_within_one_execution_of_even(executors, executions):
    choice = LeastRows(executors)
    for rows in executions:
        choice.take(rows)
    assert sum(choice.outstanding) == sum(executions)
    assert max(choice.outstanding) - min(choice.outstanding) <= max(executions, default=0)


def test_one_executor_works_on_the_callers_thread():
    dispatcher, seen = Dispatcher(["only"], "test"), []

    def task(executor, tell):
        tell((executor, threading.current_thread()))

    dispatcher.run_all([(1, task)] * 2, seen.append)
    assert seen == [("only", threading.current_thread())] * 2


def test_two_executors_work_at_the_same_time(two_lanes):
    together = threading.Barrier(2, timeout=30)
    executors = []

    def task(executor, tell):
        together.wait()
        executors.append(executor)

    two_lanes.run_all([(4, task), (4, task)], pytest.fail)
    assert sorted(executors) == ["left", "right"]


def test_each_executor_may_have_its_tasks_in_another_order(two_lanes):
    ran = {"left": [], "right": []}
    tasks = [
        (1, lambda executor, tell, number=number: ran[executor].append(number))
        for number in range(6)
    ]
    two_lanes.run_all(tasks, pytest.fail, lambda places: list(reversed(places)))
    assert ran == {"left": [4, 2, 0], "right": [5, 3, 1]}


def test_one_executor_may_have_its_tasks_in_another_order():
    ran = []
    tasks = [(1, lambda executor, tell, number=number: ran.append(number)) for number in range(3)]
    Dispatcher(["only"], "test").run_all(tasks, pytest.fail, lambda places: [1, 2, 0])
    assert ran == [1, 2, 0]


def test_messages_of_tasks_are_received_on_the_callers_thread(two_lanes):
    heard, threads = threading.Event(), []

    def tells(executor, tell):
        tell("ended")

    def waits(executor, tell):
        assert heard.wait(timeout=30)

    def hear(news):
        threads.append((news, threading.current_thread()))
        heard.set()

    two_lanes.run_all([(1, waits), (1, tells)], hear)
    assert threads == [("ended", threading.current_thread())]


def test_an_exception_in_a_task_affects_no_other_task(two_lanes):
    done = []

    def fail(executor, tell):
        raise ValueError("mine")

    def do(executor, tell):
        done.append(executor)

    with pytest.raises(ValueError, match="mine"):
        two_lanes.run_all([(1, fail), (1, do), (1, do)], pytest.fail)
    two_lanes.run_all([(1, do), (1, do)], pytest.fail)
    assert len(done) == 4
    assert two_lanes.outstanding == (0, 0)
