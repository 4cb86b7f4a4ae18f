"""Workspace pools: bytes shared by models that do not need them at the same time.

`pool` gives leases in turn, decided by `arbiter`, and has the one pool of each device in this
process.
"""

from ge_runtime.workspace.lease import Held, Lease, PoolStats
from ge_runtime.workspace.pool import PROCESS_POOLS, Membership, PoolRegistry, WorkspacePool

__all__ = [
    "PROCESS_POOLS",
    "Held",
    "Lease",
    "Membership",
    "PoolRegistry",
    "PoolStats",
    "WorkspacePool",
]
