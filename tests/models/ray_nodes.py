"""Start a Ray cluster of several nodes on this machine; a line on standard input adds a node, its end ends the cluster.

Each node is printed as the process id of its raylet, whose children are the node's workers.
"""

import json
import os
import sys
from typing import Any


def main() -> None:
    from ray.cluster_utils import Cluster

    # Without the processes that tests do not need, a node takes half the time.
    options: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_log_monitor": False}
    config = {"prestart_worker_first_driver": False} | json.loads(os.environ["RAY_TEST_CONFIG"])
    head = options | {"include_dashboard": False, "no_monitor": True, "_system_config": config}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.head_node, *(cluster.add_node(**options) for _ in range(int(sys.argv[1]) - 1))]
    tell({"address": cluster.address, "raylets": [raylet_of(node) for node in nodes]})
    for _ in sys.stdin:
        tell({"raylets": [raylet_of(cluster.add_node(**options))]})
    cluster.shutdown()


def raylet_of(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def tell(facts: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
