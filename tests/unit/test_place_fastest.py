"""The step time as a term: where it stands, what it moves, what is proven of it, and that the service knows of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fmproto.v1 import scheduler_pb2 as pb
from fmsched.manifest import Manifest, parse
from fmsched.manifest import request as request_of
from fmsched.model.fabric import Topology
from fmsched.model.job import Request
from fmsched.model.placement import Budget, Placement
from fmsched.model.work import Work
from fmsched.place import fastest
from fmsched.place.check import check
from fmsched.place.forecast import forecast
from fmsched.place.solve import solve
from fmsched.predict import Predicted
from fmsched.service.submit import spec_message
from fmsched.store import codec
from tests.support.clusters import H100 as H100_GPU
from tests.support.clusters import HGX_A100, HGX_H100, boxes, group, request, shape, snapshot, tree

LLAMA = Work("llama-3-70b")
SLOW_PORTS = shape("hgx-h100-slow", [H100_GPU] * 8, 900, gbps=100)


def hall() -> Topology:
    """Two leaves of A100 boxes and two of H100 boxes, four each."""
    leaves = {f"a{i}": boxes(HGX_A100, 4, f"a{i}n") for i in range(2)}
    return tree(leaves | {f"h{i}": boxes(HGX_H100, 4, f"h{i}n") for i in range(2)})


def placed(asked: Request, topology: Topology | None = None, held: dict[str, list[str]] | None = None) -> Placement:
    state = snapshot(topology or hall(), held)
    verdict = solve(state, asked, Budget())
    assert isinstance(verdict, Placement), verdict
    assert check(state, asked, verdict) == ()
    return verdict


def families(placement: Placement) -> set[str]:
    return {node[0] for node in placement.nodes}


def cells(**changes: object) -> Request:
    return replace(request(group("tp", "TP", 8, **changes), replicas=2), work=LLAMA)  # type: ignore[arg-type]


def test_a_job_without_a_model_spares_the_big_gpus_and_one_with_a_model_takes_them() -> None:
    asked = cells()
    without = placed(replace(asked, work=None))
    with_model = placed(asked)
    assert families(without) == {"a"}
    assert families(with_model) == {"h"}
    assert fastest.STEP not in [term.name for term in without.objective.terms]
    first = with_model.objective.terms[0]
    assert first.name == fastest.STEP
    assert with_model.objective.optimal
    assert with_model.objective.gap == 0


def test_the_term_is_the_prediction() -> None:
    verdict = placed(cells())
    predicted = forecast(cells(), hall(), verdict)
    assert isinstance(predicted, Predicted)
    assert verdict.objective.terms[0].value == round(predicted.step_s * 1e6)


def test_a_preference_list_is_a_wish_that_stands_above_the_step_time() -> None:
    asked = cells(preferred=["a100", "h100"])
    verdict = placed(asked)
    assert families(verdict) == {"a"}
    assert [term.name for term in verdict.objective.terms][:2] == ["steps down the preference list", fastest.STEP]
    assert verdict.objective.optimal


def test_fastest_puts_the_step_time_above_the_list() -> None:
    asked = replace(cells(preferred=["a100", "h100"]), policy="fastest")
    verdict = placed(asked)
    assert families(verdict) == {"h"}
    assert [term.name for term in verdict.objective.terms][:2] == [fastest.STEP, "steps down the preference list"]
    assert verdict.objective.terms[1].value == 16
    assert verdict.objective.optimal


def test_faster_ports_are_worth_a_leaf_group_more() -> None:
    topology = tree(
        {
            "slow": boxes(SLOW_PORTS, 4, "s"),
            "fast0": boxes(HGX_H100, 2, "f"),
            "fast1": boxes(HGX_H100, 2, "g"),
        }
    )
    asked = replace(request(group("tp", "TP", 8), replicas=4), work=LLAMA)
    assert families(placed(replace(asked, work=None), topology)) == {"s"}
    verdict = placed(asked, topology)
    assert families(verdict) == {"f", "g"}
    assert verdict.objective.optimal


def test_where_no_class_is_faster_the_terms_decide() -> None:
    """All boxes are alike: the answer is that without a model, step time and proof added."""
    topology = tree({f"l{i}": boxes(HGX_H100, 4, f"n{i}x") for i in range(3)})
    held = {"other": ["n0x0g0", "n1x0g1"]}
    asked = replace(request(group("tp", "TP", 4), replicas=3), work=LLAMA)
    plain, verdict = placed(replace(asked, work=None), topology, held), placed(asked, topology, held)
    assert verdict.ranks == plain.ranks
    assert verdict.objective.terms[1:] == plain.objective.terms
    assert verdict.objective.optimal


def test_a_model_that_is_not_known_changes_nothing() -> None:
    asked = replace(cells(), work=Work("no-such-model"))
    assert placed(asked) == placed(replace(asked, work=None))


MANIFEST = """
apiVersion: ai.example.com/v1alpha1
kind: FoundationModelTrainingJob
metadata: {name: j}
spec:
  policy: fastest
  model: {name: mine, layers: 32, hiddenSize: 4096, globalBatch: 64, microBatch: 2, parameters: 7e9}
  parallelism: {tensor: 8, data: 2}
"""


GROUPS = "  replicaCount: 2\n  resourceGroups: [{name: a, type: TensorParallel, gpusPerGroup: 8}]"


@pytest.mark.parametrize("manifest", [MANIFEST, MANIFEST.replace("  parallelism: {tensor: 8, data: 2}", GROUPS)])
def test_the_service_keeps_what_is_trained(manifest: str) -> None:
    parsed = parse(manifest)
    assert isinstance(parsed, Manifest), parsed
    message = spec_message(parsed, "j.1", manifest, 0, pb.SubmitRequest())
    assert codec.spec_of(message).request == request_of(parsed, "j.1")
    assert codec.spec_of(message).request.work is not None
