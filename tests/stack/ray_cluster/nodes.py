"""A process of its own with a Ray cluster of two nodes: what a test says by lines, it does.

Each line of its input is JSON: the name of a command below, and its arguments. The answer is a line
of JSON behind a mark, since Ray prints, too. At the end of the input the cluster ends.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import ray
from ray import serve
from ray.cluster_utils import Cluster

MARK = "answer: "


class Nodes:
    """A head, which has all but a card, and another node, which has nothing but one."""

    def __init__(self) -> None:
        common = {"node_ip_address": "127.0.0.1", "object_store_memory": 80_000_000, "num_gpus": 0}
        head = {"num_cpus": 8, "resources": {"NPU": 1}, "include_dashboard": False, **common}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._other = self._cluster.add_node(num_cpus=0, resources={"NPU": 1}, **common)
        ray.init(self._cluster.address, log_to_driver=False)

    def address(self) -> str:
        return self._cluster.address

    def other(self) -> str:
        """The name of the other node."""
        return self._other.node_id

    def kill_other(self) -> None:
        self._cluster.remove_node(self._other, allow_graceful=False)

    def running(self, model: str) -> int:
        """Return the number of replicas of a model that accept requests."""
        found = serve.status().applications["default"].deployments[model]
        return found.replica_states.get("RUNNING", 0)

    def deploy(self, arguments: dict[str, Any]) -> None:
        """Deploy the application again; returns when all of it runs."""
        from reference_server.ray import Arguments, app

        serve.run(app(Arguments(**arguments)))

    def close(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()


def main() -> None:
    nodes = Nodes()
    print(f"{MARK}null", flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        command: Callable[..., object] = getattr(nodes, name)
        print(f"{MARK}{json.dumps(command(*arguments))}", flush=True)
    nodes.close()


if __name__ == "__main__":
    main()
