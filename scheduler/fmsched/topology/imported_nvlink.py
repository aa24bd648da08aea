"""NVLink bandwidth between the GPUs of a node, from what dumps say: links of pairs, links of each GPU, links that are down. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from fmproto import gpus as catalogue
from fmproto.nodetypes import GBYTES_PER_S_MAX
from fmsched.topology.imported_gpus import Gpus
from fmsched.topology.imported_names import Notes
from fmsched.topology.readers.found import GpuFound, NodeFound

# GB/s of one link, both directions together, where no file names the model: that of NVLink 2, 3 and 4. NVLink 1 has 40, NVLink 5 has 100.
LINK_GBYTES_PER_S = 50.0
DIFFERS = 0.15  # of the larger: what one tool rounds and another does not is less

_NO_CLUSTER = "00000000-0000-0000-0000-000000000000"  # of one box of NVSwitches, and in no multi-node fabric

Matrix = tuple[tuple[float, ...], ...]


def merge_nvlink(founds: Sequence[NodeFound], gpus: Gpus, notes: Notes) -> Matrix:
    """GB/s between every two GPUs, both directions together. A link that is inactive lowers it: no pair has more than what is still
    active on either GPU."""
    count = len(gpus.slots)
    matrix = [[0.0] * count for _ in range(count)]
    said_in: dict[tuple[int, int], str] = {}
    guessed = False
    for found, place in zip(founds, gpus.places, strict=True):
        for a, b, links, gbytes in _pairs(found, place, count):
            rates = [_link_rate(gpus.slots[i]) for i in (a, b)]
            known = [rate for rate in rates if rate > 0]
            guessed |= not gbytes and not known and links > 0
            value = min(gbytes or links * min(known, default=LINK_GBYTES_PER_S), GBYTES_PER_S_MAX)
            before = matrix[a][b]
            if (a, b) not in said_in:
                matrix[a][b] = matrix[b][a] = value
                said_in[a, b] = found.file
            elif abs(before - value) > DIFFERS * max(before, value):
                notes.add(
                    found.file,
                    f"NVLink between GPU {a} and GPU {b}: {value:g} GB/s",
                    f"{said_in[a, b]} gives {before:g}; that stands",
                )
    _by_fabric(matrix, said_in, gpus)
    if guessed:
        why = f"no file names the GPUs' model: {LINK_GBYTES_PER_S:g} GB/s is taken for each NVLink"
        notes.add(founds[0].file, "NVLink", why)
    _cap(matrix, founds, gpus, notes)
    if not any(map(any, matrix)) and not said_in and count > 1 and any(gpu.nvlinks_active for gpu in gpus.slots.values()):
        why = "counts are there, but not which GPUs they join, so no bandwidth between GPUs: add nvidia-smi topo -m of the node"
        notes.add(founds[0].file, "NVLinks", why)
    return tuple(map(tuple, matrix))


def _joined(gpu: GpuFound) -> bool:
    """Whether the driver says that the GPU is in the NVSwitch fabric: it then reaches every other that is, with all its links."""
    facts = gpu.facts
    return facts.get("fabric_state") == "Completed" and facts.get("fabric_status", "Success") == "Success" and not gpu.fault


def _by_fabric(matrix: list[list[float]], said_in: Mapping[tuple[int, int], str], gpus: Gpus) -> None:
    """Pairs that no file tells of, between GPUs in the node's NVSwitch fabric (nvidia-smi -q says who is)."""
    rates = {
        index: facts.nvlink_gbytes_per_s for index, gpu in gpus.slots.items() if _joined(gpu) and (facts := _facts(gpu))
    }
    for (a, rate_a), (b, rate_b) in combinations(sorted(rates.items()), 2):
        if (a, b) not in said_in and _clique(gpus.slots[a]) == _clique(gpus.slots[b]):
            matrix[a][b] = matrix[b][a] = min(rate_a, rate_b)


def _clique(gpu: GpuFound) -> str:
    """ "CLUSTER_UUID.CLIQUE", as agents name a multi-node NVLink domain; empty for one box."""
    cluster = gpu.facts.get("fabric_cluster_uuid", "")
    return f"{cluster}.{gpu.facts.get('fabric_clique', '0')}"[:200] if cluster not in ("", "N/A", _NO_CLUSTER) else ""


def nvlink_domain(gpus: Gpus, file: str, notes: Notes) -> tuple[str, float]:
    """(the node's multi-node NVLink domain, GB/s between GPUs of two of its nodes by the catalogue). A node whose GPUs lie in several
    has none."""
    inside = [gpu for _, gpu in sorted(gpus.slots.items()) if _joined(gpu) and _clique(gpu)]
    names = sorted({_clique(gpu) for gpu in inside})
    if len(names) > 1:
        notes.add(
            file,
            f"NVLink domains {', '.join(names)[:200]}",
            "the node's GPUs lie in several; a Cluster file has one a node: none is taken",
        )
    if len(names) != 1:
        return "", 0.0
    return names[0], min((facts.nvlink_gbytes_per_s for gpu in inside if (facts := _facts(gpu))), default=0.0)


def _facts(gpu: GpuFound) -> catalogue.GpuFacts | None:
    return catalogue.lookup(gpu.name, gpu.memory_mib)


def _pairs(found: NodeFound, place: Mapping[int, int], count: int) -> list[tuple[int, int, int, float]]:
    """(a, b, links, GB/s) by the indices here, a < b. `to_all` with a == b stands for all pairs of that GPU."""
    pairs: list[tuple[int, int, int, float]] = []
    for link in found.nvlinks:
        if link.a not in place:
            continue
        others = [place[link.b]] if link.b in place and link.b != link.a else []
        if link.a == link.b and link.to_all:
            others = [other for other in range(count) if other != place[link.a]]
        a = place[link.a]
        pairs += [(min(a, b), max(a, b), max(0, link.links), max(0.0, link.gbytes_per_s)) for b in others if a != b]
    return pairs


def _link_rate(gpu: GpuFound) -> float:
    """GB/s of one link of a GPU, both directions together; 0 where neither the catalogue nor the file tells."""
    facts = _facts(gpu)
    if facts and facts.nvlink_link_gbytes_per_s:
        return facts.nvlink_link_gbytes_per_s
    if gpu.nvlinks_active and gpu.nvlink_gbytes_per_s:
        return gpu.nvlink_gbytes_per_s / gpu.nvlinks_active
    return 0.0


def _cap(matrix: list[list[float]], founds: Sequence[NodeFound], gpus: Gpus, notes: Notes) -> None:
    for index, gpu in sorted(gpus.slots.items()):
        facts = _facts(gpu)
        active = gpu.nvlinks_active
        if active is None and gpu.nvlinks_down and facts and facts.nvlink_links:
            active = max(0, facts.nvlink_links - len(gpu.nvlinks_down))
        if active is None:
            continue
        most = active * (_link_rate(gpu) or LINK_GBYTES_PER_S)
        lowered = max(matrix[index], default=0.0) > most
        for other in range(len(matrix)):
            matrix[index][other] = matrix[other][index] = min(matrix[index][other], most)
        # A card may have no bridge; elsewhere every GPU has its links.
        dead = active == 0 and facts is not None and facts.nvlink_links > 0 and not facts.nvlink_by_bridge
        if gpu.nvlinks_down or lowered or dead:
            down = (
                f"link {', '.join(map(str, gpu.nvlinks_down[:18]))} inactive"
                if gpu.nvlinks_down
                else f"{active} NVLinks active"
            )
            notes.add(founds[0].file, f"GPU {index}: {down}", f"no pair of it has more than {most:g} GB/s")
