"""What tests of code that uses ge_runtime need, and ge_runtime's own tests use."""

from ge_runtime.testing.clock import ManualClock

__all__ = ["ManualClock"]
