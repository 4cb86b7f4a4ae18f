"""How long is too long. All in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The ends of all waits between clients and the device service."""

    start_s: float = 60.0
    """Until a service that is being started listens."""
    hung_s: float = 60.0
    """Without a sign of life: then it is killed. Opening a large model may stop it for a while."""
    probe_s: float = 5.0
    """Between two looks whether it lives."""
    run_s: float = 300.0
    """One execution. After that the device hangs, and the service with it: it ends itself."""
    grace_s: float = 10.0
    """How long a service without clients waits for the next one."""
    retry_s: float = 0.1
    """Before the first attempt to have it back; twice as long after each that fails."""
    most_retry_s: float = 10.0
