"""The address that a replica's process listens on."""

from __future__ import annotations

from typing import Any

import ray
from ray.serve._private import replica

_ANYWHERE = "[::]:0"
_OPEN = "add_port_to_grpc_server"


def at_the_node_only() -> None:
    """Let Serve open the replica's own port on the node's address only.

    Serve opens this port, for calls between deployments, on all networks, and has no setting for
    it. Call this before the replica has started. A test checks the open ports of a cluster.
    """
    serves: Any = replica
    open_port = getattr(serves, _OPEN)

    def open_at_the_node(server: object, where: str) -> int:
        address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        host = f"[{address}]" if ":" in address else address
        port: int = open_port(server, f"{host}:0" if where == _ANYWHERE else where)
        return port

    setattr(serves, _OPEN, open_at_the_node)
