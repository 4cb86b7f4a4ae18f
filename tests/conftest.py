"""Settings, hooks and fixtures for all tests."""

import atexit
import faulthandler
import gc
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Examples are the same in every run and have no time limit, since cores are shared. `make quick`
# uses the profile "quick"; tests that set their own number of examples keep it.
settings.register_profile(
    "tests",
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("quick", settings.get_profile("tests"), max_examples=10)
settings.load_profile("tests")

if "TESTS_WITHOUT_TORCH" in os.environ:
    # Its import takes 2 s and slows every later test: pytest attaches its log handlers to each of
    # torch's 40 loggers, and a garbage collection visits a million more objects.
    sys.modules["torch"] = None

if "GE_RUNTIME_CACHE" not in os.environ:
    # A cache for this run, its workers and its servers: the cost of executions is measured once
    # for each model, and the user's own cache stays unchanged.
    os.environ["GE_RUNTIME_CACHE"] = tempfile.mkdtemp(prefix="ge_runtime_tests_")
    atexit.register(shutil.rmtree, os.environ["GE_RUNTIME_CACHE"], ignore_errors=True)


# A background job of a script starts with SIGINT ignored, which processes inherit. Tests interrupt
# processes that they start: a handler is not inherited, so these get the default action.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_SIGNALS = signal.SIGINT, signal.SIGTERM
_BEFORE = pytest.StashKey()
#: The process prints all stacks and ends if the tests make no progress for this long, at least
#: `_LEAST_HANG_S`. pytest-xdist reports the test as failed and starts another process.
_HANG_S, _LEAST_HANG_S = 300, 240
_STDERR = pytest.StashKey()
_armed_at = float("-inf")


def pytest_configure(config):
    """Keep the real stderr, which tests replace."""
    config.stash[_STDERR] = os.dup(sys.stderr.fileno())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    """Start the watchdog again, at most once a minute.

    pytest's own option does so for each test, which starts and ends a thread: 0.2 to 3 ms.
    """
    global _armed_at
    if not item.config.getini("faulthandler_timeout"):
        now = time.monotonic()
        if now - _armed_at > _HANG_S - _LEAST_HANG_S:
            stderr = item.config.stash[_STDERR]
            faulthandler.dump_traceback_later(_HANG_S, file=stderr, exit=True)
            _armed_at = now


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Return the scheduler that distributes the tests to several processes."""
    from support.distribution import Distribution

    return Distribution(config, log)


def pytest_collection_modifyitems(config, items):
    """Move the longest tests to the front, if several processes share the tests."""
    if hasattr(config, "workerinput"):
        from support.distribution import in_order

        items[:] = in_order(items)


def pytest_collection_finish(session):
    """Exclude the existing objects from garbage collection, and let torch's loggers propagate.

    Twenty thousand tests are a million objects, and every collection would visit them. For each
    test pytest adds handlers to all loggers that do not propagate: 0.3 ms for torch's 40.
    """
    for name, logger in logging.root.manager.loggerDict.items():
        if name.partition(".")[0] == "torch" and isinstance(logger, logging.Logger):
            logger.propagate = True
    gc.collect()
    gc.freeze()
    session.stash[_BEFORE] = _signals()


def pytest_sessionfinish():
    """Stop the watchdog: with pytest-xdist a process waits for the others after its last test.

    pytest collects garbage five times at its end, and Python once more. Only one of these
    collections visits all objects.
    """
    faulthandler.cancel_dump_traceback_later()
    gc.collect()
    gc.freeze()


def _signals():
    """Return the main thread's handlers and mask of the signals that end a process."""
    handlers = [signal.getsignal(number) for number in _SIGNALS]
    return handlers, signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    """Fail a test that leaves these signals handled or blocked.

    Processes that later tests fork would inherit this, and a signal could not end them.
    """
    yield
    before, left = item.session.stash[_BEFORE], _signals()
    if left != before:
        for number, handler in zip(_SIGNALS, before[0], strict=True):
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before[1])
        pytest.fail(f"the test left the signals as {left}; expected {before}")


@pytest.fixture
def tmp_path(request, tmp_path_factory):
    """A new folder, as pytest's fixture of this name.

    pytest lists all folders and replaces a link to the latest one for each test.
    """
    name = re.sub(r"\W", "_", request.node.name)[:22]  # with it, a socket's path is short enough
    return Path(tempfile.mkdtemp(prefix=f"{name}_", dir=tmp_path_factory.getbasetemp()))


@pytest.fixture(scope="module")
def little_garbage():
    """Exclude earlier objects from garbage collection, for modules whose tests all collect.

    Once a process has imported torch, a collection visits a million objects in half a second.
    """
    gc.collect()
    gc.freeze()
