"""What all tests share."""

import atexit
import gc
import os
import shutil
import signal
import tempfile

import pytest
from hypothesis import HealthCheck, settings

# Examples are the same in every run and have no time limit, since cores are shared. `make quick`
# uses the profile "quick"; tests that set their own number of examples keep it.
settings.register_profile(
    "tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("quick", settings.get_profile("tests"), max_examples=20)
settings.load_profile("tests")

if "GE_RUNTIME_CACHE" not in os.environ:
    # Of this run alone, its workers and servers among it: what executions cost is timed once for
    # each model, and not in the folder of whoever runs the tests.
    os.environ["GE_RUNTIME_CACHE"] = tempfile.mkdtemp(prefix="ge_runtime_tests_")
    atexit.register(shutil.rmtree, os.environ["GE_RUNTIME_CACHE"], ignore_errors=True)


# A background job of a script starts with SIGINT ignored, which processes inherit. Tests interrupt
# processes that they start: a handler is not inherited, so these get the default action.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_SIGNALS = signal.SIGINT, signal.SIGTERM
_BEFORE = pytest.StashKey()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Where several processes share the tests: which of them gets which."""
    from support.distribution import Distribution

    return Distribution(config, log)


def pytest_collection_modifyitems(config, items):
    """What takes long begins first, where several processes share the tests."""
    if hasattr(config, "workerinput"):
        from support.distribution import in_order

        items[:] = in_order(items)


def pytest_collection_finish(session):
    """Keep what is here now out of collections of garbage.

    Twenty thousand tests are a million objects, and each test that collects would go through them.
    """
    gc.collect()
    gc.freeze()
    session.stash[_BEFORE] = _signals()


def _signals():
    """What the main thread does with the signals that end a process."""
    handlers = [signal.getsignal(number) for number in _SIGNALS]
    return handlers, signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    """Fail a test that leaves these signals handled or blocked.

    Processes that later tests fork would have that too, and could not be ended by a signal.
    """
    yield
    before, left = item.session.stash[_BEFORE], _signals()
    if left != before:
        for number, handler in zip(_SIGNALS, before[0], strict=True):
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before[1])
        pytest.fail(f"signals are left as {left}, expected {before}")


@pytest.fixture(scope="module")
def little_garbage():
    """For modules whose every test collects garbage: what was there before is left out of it.

    Once a process has imported torch, a collection goes through a million objects, for half a
    second.
    """
    gc.collect()
    gc.freeze()
