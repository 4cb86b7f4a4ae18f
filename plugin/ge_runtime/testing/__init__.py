"""Helpers for tests of code that uses ge_runtime, and for its own tests."""

from ge_runtime.testing.clock import ManualClock

__all__ = ["ManualClock"]
