"""Stories of schedulers that went wrong, acted on the pure core: those kept beside the project, and the project's own variants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fmsched.model.hardware import GpuId
from tests.support.cases import CASES
from tests.support.scenario_runner import Stage, load, play

FOLDER = Path(__file__).resolve().parents[3] / "shared/scenarios/scheduling"
OWN = sorted((CASES / "stories").glob("*.yaml"))

# What each refused job must be told, in the product's words.
TELLS: dict[str, dict[str, list[str]]] = {
    "pl-01": {"J3": ["0 of 2 L40S free", "job J2 holds 1 on n1", "n1/gpu0 is unhealthy"]},
    "to-01": {"B": ["asked 3 × 8 GPUs with a path between them", "16 free fitting GPUs on 2 nodes (in the fabric of L1)"]},
    "to-04": {},
    "ex-01": {"A": ["0 of 8 H100 free", "job H holds 8 on n1"]},
    "ex-04": {"B": ["0 of 8 H100 free", "job A holds 8 on n1", "n2 has A100"]},
}


def shared_story(name: str) -> dict[str, Any]:
    files = list(FOLDER.glob(f"{name}-*.yaml"))
    if not files:
        pytest.skip(f"the collection of stories is absent: {FOLDER}")
    return load(files[0])


def shared_stage(name: str) -> Stage:
    """ex-01's eviction is given: who is stopped for whom is not what is tested here, but what the stopped job is told."""
    story = shared_story(name)
    if name == "ex-01":
        at = next(i for i, event in enumerate(story["events"]) if event.get("submit", {}).get("job") == "H")
        story["events"].insert(at, {"t": story["events"][at]["t"], "stop": "A"})
    return play(story, TELLS[name])


@pytest.mark.parametrize("name", TELLS)
def test_shared_story(name: str) -> None:
    shared_stage(name)


def test_the_healthy_gpu_went_to_the_second_job() -> None:
    story = shared_story("pl-01")
    story["events"] = [event for event in story["events"] if event["t"] <= 30]
    story["right"]["checks"] = [words for words in story["right"]["checks"] if words["at"] <= 30]
    stage = play(story, {})
    assert [rank.gpu_id for rank in stage.running["J2"].ranks] == [GpuId("n1", 1)]


@pytest.mark.parametrize("file", OWN, ids=lambda file: file.stem)
def test_own_story(file: Path) -> None:
    story = load(file)
    play(story, story.get("tells", {}))


def test_there_are_variants_of_every_kind() -> None:
    kinds = [load(file)["kind"] for file in OWN]
    assert all(kinds.count(kind) >= 3 for kind in ("placement", "topology", "explain")), kinds
