"""How the GPUs of a node reach one another, from what NVML says of each: bandwidth by NVLink, paths by PCIe, the multi-node NVLink domain.
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fmproto.gpus import GpuFacts, lookup
from fmproto.v1 import hardware_pb2 as pb

COMPLETED = "completed"
NOT_SUPPORTED = "not supported"

# nvml.h, nvmlGpuTopologyLevel_t, as `nvidia-smi topo -m` prints it; "X": two GPUs of one board.
PATHS = {0: "X", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}

# nvml.h, nvmlGpuP2PStatus_t.
P2P = {
    0: "ok",
    1: "NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED",
    2: "NVML_P2P_STATUS_GPU_NOT_SUPPORTED",
    3: "NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED",
    4: "NVML_P2P_STATUS_DISABLED_BY_REGKEY",
    5: "NVML_P2P_STATUS_NOT_SUPPORTED",
    6: "NVML_P2P_STATUS_UNKNOWN",
}


def facts_of(gpu: pb.Gpu) -> GpuFacts | None:
    return lookup(gpu.name, gpu.memory_bytes / 2**20) if gpu.name else None


def link_gbytes_per_s(gpu: pb.Gpu) -> float:
    """Of one NVLink, both directions together, by the catalogue; 0: not known."""
    facts = facts_of(gpu)
    if facts is None or not facts.nvlink_links:
        return 0.0
    return facts.nvlink_gbytes_per_s / facts.nvlink_links


def bus_of(address: str) -> str:
    """A PCI address without the domain's width, which NVML writes in two ways."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def nvlink_pairs(gpus: Sequence[pb.Gpu]) -> tuple[pb.NvLinkPair, ...]:
    """GB/s between GPUs that reach one another, both directions together, by the catalogue's figure for one link: a link that is down
    makes the pair slower. `gpus`: those that answered.

    Links that end at a GPU count between the two. Links into NVSwitches: any two GPUs of one fabric (joined by switches that they share)
    talk with all of the weaker one's links; one that has not joined the fabric, as its driver says, uses no switch. A GPU in MIG mode
    has no NVLink.
    """
    fit = [gpu for gpu in gpus if not gpu.mig_enabled]
    by_address = {bus_of(gpu.pci_address): gpu.index for gpu in fit if gpu.pci_address}
    direct: dict[tuple[int, int], int] = {}
    into_switch: dict[int, int] = {}
    switches: dict[int, set[str]] = {}
    for gpu in fit:
        for port in gpu.nvlink_ports:
            there = by_address.get(bus_of(port.remote_pci)) if port.remote_pci else None
            if not port.active:
                continue
            if there is not None:
                direct[gpu.index, there] = direct.get((gpu.index, there), 0) + 1
            elif port.remote != "gpu" and joined(gpu):
                into_switch[gpu.index] = into_switch.get(gpu.index, 0) + 1
                switches.setdefault(gpu.index, set()).add(bus_of(port.remote_pci))
    rate = {gpu.index: link_gbytes_per_s(gpu) for gpu in fit}
    place = {gpu.index: domain_of(gpu) for gpu in fit}
    fabric = switched(switches)
    pairs = []
    for a in sorted(rate):
        for b in sorted(rate):
            if a >= b:
                continue
            gbytes_per_s = min(direct.get((a, b), 0) * rate[a], direct.get((b, a), 0) * rate[b])
            if a in fabric and fabric[a] == fabric.get(b) and place[a] == place[b]:
                gbytes_per_s += min(into_switch[a] * rate[a], into_switch[b] * rate[b])
            if gbytes_per_s > 0:
                pairs.append(pb.NvLinkPair(gpu_a=a, gpu_b=b, gbytes_per_s=gbytes_per_s))
    return tuple(pairs)


def joined(gpu: pb.Gpu) -> bool:
    """False: its driver says that it waits for the fabric manager, or that it was refused: no peer is reached over a switch then."""
    return not gpu.HasField("fabric") or (gpu.fabric.state == COMPLETED and not gpu.fabric.status)


def switched(switches: Mapping[int, set[str]]) -> dict[int, int]:
    """GPU → the lowest GPU that it reaches over shared switches. In a virtual machine the switches' addresses may all read
    alike, or not at all, which says the same."""
    fabric: dict[int, int] = {}
    for start in sorted(switches):
        if start in fabric:
            continue
        reached, queue = {start}, [start]
        while queue:
            here = queue.pop()
            near = {gpu for gpu, ends in switches.items() if gpu not in reached and ends & switches[here]}
            reached |= near
            queue.extend(near)
        fabric |= dict.fromkeys(reached, start)
    return fabric


def domain_of(gpu: pb.Gpu) -> str:
    """ "CLUSTER_UUID.CLIQUE" of a GPU that joined a multi-node fabric; else empty. (One box of NVSwitches has no cluster UUID.)"""
    if not gpu.HasField("fabric") or not joined(gpu) or not gpu.fabric.cluster_uuid:
        return ""
    return f"{gpu.fabric.cluster_uuid}.{gpu.fabric.clique}"


def nvlink_domain(gpus: Sequence[pb.Gpu]) -> tuple[str, float, str]:
    """(the node's domain, GB/s between GPUs of two of its nodes by the catalogue, why it has none). GPUs that did not join do not count;
    a node whose GPUs lie in several has none, since the inventory holds one a node."""
    inside = [gpu for gpu in gpus if domain_of(gpu)]
    names = sorted({domain_of(gpu) for gpu in inside})
    if len(names) > 1:
        return "", 0.0, f"its GPUs lie in several NVLink domains: {', '.join(names)}"
    if not names:
        return "", 0.0, ""
    rates = [facts.nvlink_gbytes_per_s for facts in map(facts_of, inside) if facts is not None]
    return names[0], min(rates, default=0.0), ""


def gpu_paths(pairs: Sequence[Mapping[str, int | None]]) -> tuple[pb.GpuPath, ...]:
    """Of pairs {"a", "b", "level", "p2p"} by NVML's numbers, those of which something is known."""
    found = []
    for pair in sorted(pairs, key=lambda pair: (pair["a"] or 0, pair["b"] or 0)):
        level, p2p = pair["level"], pair["p2p"]
        path = "" if level is None else PATHS.get(level, "")
        status = "" if p2p is None else P2P.get(p2p, P2P[6])
        if path or status:
            found.append(pb.GpuPath(gpu_a=pair["a"] or 0, gpu_b=pair["b"] or 0, path=path, p2p=status))
    return tuple(found)
