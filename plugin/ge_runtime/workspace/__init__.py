"""Workspace pools: memory shared by models that do not need it at the same time.

`arbiter` decides which lease is next, `pool` grants leases and has the pool of each device of this
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
