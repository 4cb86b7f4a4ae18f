"""Tests of pickling functions and classes of a model's files, on any thread or process."""

import gc
import threading

import pytest
from server.backends.kit import instance, model_file, replying, said

OWN = (
    "import multiprocessing, pickle, threading",
    "from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor",
    "class Point:",
    "    def __init__(self, x): self.x = x",
    "def square(point): return Point(point.x ** 2)",
)
#: What pickles a function, its argument and its result, as an expression.
WAYS = {
    "pool_map": "pool.map(square, [Point(3)])[0]",
    "pool_that_renews": "[pool.apply(square, (Point(3),)) for _ in range(3)][-1]",
    "process_executor": "pool.submit(square, Point(3)).result()",
    "thread_executor": "pickle.loads(pool.submit(pickle.dumps, square(Point(3))).result())",
}
POOLS = {
    "pool_map": "multiprocessing.get_context('fork').Pool(1)",
    "pool_that_renews": "multiprocessing.get_context('fork').Pool(1, maxtasksperchild=1)",
    "process_executor": "ProcessPoolExecutor(1, multiprocessing.get_context('fork'))",
    "thread_executor": "ThreadPoolExecutor(1)",
}


@pytest.mark.parametrize("way", WAYS)
def test_objects_of_a_models_classes_are_pickled(reply_of, way):
    lines = (
        "def reply():",
        f"    with {POOLS[way]} as pool:",
        f"        point = {WAYS[way]}",
        "    return f'{point.x} {type(point) is Point} {type(point).__module__}'",
    )
    assert reply_of(*OWN, *lines) == "9 True 1.model"


@pytest.mark.brute_force
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_new_process_imports_the_models_files(reply_of, method):
    lines = (
        "import helper",
        "def reply():",
        f"    with multiprocessing.get_context('{method}').Pool(1) as pool:",
        "        point = pool.map(square, [Point(3)])[0]",
        "        return f'{point.x} {type(point) is Point} {pool.map(helper.twice, [4])}'",
    )
    files = {"1/helper.py": "def twice(x): return 2 * x"}
    assert reply_of(*OWN, *lines, files=files) == "9 True [8]"


def test_threads_know_the_classes_of_their_own_model(tmp_path, open_file):
    opened = []
    for name in "ab":
        source = replying(
            *OWN,
            f"class Named: name = {name!r}",
            "executor = ThreadPoolExecutor(1)",
            "def reply():",
            "    wire = executor.submit(pickle.dumps, Named()).result()",
            "    return executor.submit(pickle.loads, wire).result().name",
        )
        opened.append(open_file(model_file(tmp_path, source, name=name)))
    assert [said(one) for one in (*opened, *opened)] == ["a", "b", "a", "b"]


def test_a_thread_of_a_thread_belongs_to_the_model(reply_of):
    lines = (
        "def reply():",
        "    numbers = []",
        "    pickling = lambda: numbers.append(pickle.loads(pickle.dumps(Point(3))).x)",
        "    def inner(): threading.Thread.start(threads.pop())",
        "    threads = [threading.Thread(target=pickling)]",
        "    last = threads[0]",
        "    first = threading.Thread(target=inner)",
        "    first.start(); first.join(); last.join()",
        "    return str(numbers)",
    )
    assert reply_of(*OWN, *lines) == "[3]"


def test_a_running_thread_does_not_keep_a_closed_models_modules(tmp_path):
    source = """
        import threading

        class TritonPythonModel:
            def initialize(self, args):
                self.thread = threading.Thread(target=threading.Event.wait, args=(DONE,))
                self.thread.start()

        DONE = threading.Event()
    """
    opened = instance(model_file(tmp_path, source))
    opened.open()
    thread, done = opened._model.thread, opened._modules.loaded("1.model").DONE
    opened.close()
    gc.collect()
    try:
        assert thread._model_modules() is None
    finally:
        done.set()
        thread.join()


def test_other_threads_have_no_owner(tmp_path, open_file):
    open_file(model_file(tmp_path, replying("def reply(): return ''")))
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    assert not hasattr(thread, "_model_modules")
