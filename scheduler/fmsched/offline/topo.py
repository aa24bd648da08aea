"""`fmctl topo generate`: a made-up cluster as a Cluster file."""

from __future__ import annotations

import random

from fmsched.offline.errors import OfflineError
from fmsched.topology.generate import Plan
from fmsched.topology.generate import generate as generate_text


def generate(pods: int, leaves: int, nodes_per_leaf: int, type: str, busy: float, seed: int) -> str:  # noqa: A002
    """The text: `leaves` are those of each pod, `busy` is a share from 0 to 1. Raises OfflineError for figures that cannot be."""
    try:
        plan = Plan(pods, leaves, nodes_per_leaf, type, busy)
    except ValueError as error:
        raise OfflineError([str(error)]) from error
    return generate_text(plan, random.Random(seed))  # noqa: S311  # a reproducible cluster, not a secret
