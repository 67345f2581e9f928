"""Start a Ray cluster of several nodes on this machine, print where it is, and end it when standard input is closed."""

import json
import sys


def main() -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(int(sys.argv[1]) - 1):
        cluster.add_node(num_cpus=1)
    raylets = [node.all_processes["raylet"][0].process.pid for node in cluster.list_all_nodes()]
    sys.stdout.write(json.dumps({"address": cluster.address, "raylets": raylets}) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
