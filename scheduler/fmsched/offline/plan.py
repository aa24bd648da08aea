"""`fmctl plan --cluster FILE`: one decision against a Cluster file, nothing committed, no service running."""

from __future__ import annotations

import time
from typing import Any

from fmsched.manifest import Manifest, request
from fmsched.manifest import parse as parse_manifest
from fmsched.model.placement import Budget
from fmsched.offline.errors import refuse
from fmsched.place.choices import options
from fmsched.place.forecast import forecast
from fmsched.place.report import plan_json
from fmsched.place.solve import solve
from fmsched.topology.clusterfile import ClusterFile, to_snapshot
from fmsched.topology.clusterfile import parse as parse_cluster


def run(manifest: bytes, where: str, cluster: bytes, cluster_where: str, explain: bool = True) -> dict[str, Any]:
    """The plan as one object (docs/cluster-file.md says where its cluster comes from; fmctl plan -o json prints it).

    `explain` off: a refusal names what is short, without searching for a minimal reason. Raises OfflineError with every fault
    of the manifest, or else of the cluster.
    """
    job = parse_manifest(manifest)
    if not isinstance(job, Manifest):
        raise refuse(where, job)
    described = parse_cluster(cluster)
    if not isinstance(described, ClusterFile):
        raise refuse(cluster_where, described)
    snapshot = to_snapshot(described)
    asked = request(job, job.name)
    budget = Budget() if explain else Budget(explain_solves_max=0)
    start_s = time.perf_counter()
    verdict = solve(snapshot, asked, budget)
    taken_s = time.perf_counter() - start_s
    nodes = snapshot.topology.nodes
    gpus = sum(len(node.shape.gpus) for node in nodes)
    predicted = forecast(asked, snapshot.topology, verdict)
    return plan_json(asked, verdict, taken_s, len(nodes), gpus, predicted, options(snapshot, asked, budget, verdict))
