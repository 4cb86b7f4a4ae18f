"""The bytes that executions need for a moment, shared by those that do not need them at once.

`pool` gives leases in turn, decided by `arbiter`. `registry` has the one pool of each device in
this process.
"""

from ge_runtime.workspace.lease import Lease
from ge_runtime.workspace.pool import WorkspacePool
from ge_runtime.workspace.registry import PROCESS_POOLS, Membership, PoolRegistry
from ge_runtime.workspace.stats import Held, PoolStats

__all__ = [
    "PROCESS_POOLS",
    "Held",
    "Lease",
    "Membership",
    "PoolRegistry",
    "PoolStats",
    "WorkspacePool",
]
