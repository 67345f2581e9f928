"""Start a Ray cluster whose nodes have caches of their own, as separate machines do.

python -m tests.cluster.separate_nodes NODES FOLDER_OF_CACHES

Prints where the cluster is, and ends it when standard input is closed. Workers see `/proc/self/cwd` as the folder in
which this program was started, and a driver sees it as its own: a path below it is on the driver's "machine" alone.
"""

import json
import sys
from pathlib import Path


def main() -> None:
    from ray.cluster_utils import Cluster

    count, caches = int(sys.argv[1]), Path(sys.argv[2])
    settings = [{"num_cpus": 1, "env_vars": {"SKILLMIX_CACHE": str(caches / f"node{n}")}} for n in range(count)]
    cluster = Cluster(initialize_head=True, head_node_args={**settings[0], "include_dashboard": False})
    for one in settings[1:]:
        cluster.add_node(**one)
    raylets = [node.all_processes["raylet"][0].process.pid for node in cluster.list_all_nodes()]
    sys.stdout.write(json.dumps({"address": cluster.address, "raylets": raylets}) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
