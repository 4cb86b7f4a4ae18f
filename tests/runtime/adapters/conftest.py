import pytest


@pytest.fixture
def timers(monkeypatch):
    """All created timers; none fires by itself."""
    timers = []

    class Timer:
        def __init__(self, interval, function):
            self.fire, self.cancelled = function, False
            timers.append(self)

        def start(self):
            assert self.daemon

        def cancel(self):
            self.cancelled = True

    monkeypatch.setattr("ge_runtime.adapters.metrics_exporter.Timer", Timer)
    return timers
