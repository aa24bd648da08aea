"""Writes a node of the model as an NCCL topology file: cpu, pci, gpu, nvlink (AMD: xgmi), nic and net elements.

Elements, attributes and PCI classes: src/graph/xml.cc, xml.h and topo.cc of NVIDIA/nccl (which fills attributes that a file leaves out
from /sys and NVML when it starts), for AMD also tools/topo_expl/models of ROCm/rccl (version 2, gcn, xgmi).

The model knows no PCI addresses and no NUMA nodes. Addresses are made up: before NCCL itself can use the file (it looks devices up by
address), they must be replaced; simulators and this project's own reader (readers/nccl_topo.py) take it as it stands. All GPUs hang from
one cpu element, and adapters near the same GPUs from one PCI switch with them, so that `near` and the links read back as they were.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.sax.saxutils import quoteattr

from fmproto import gpus
from fmsched.model.hardware import GpuSpec, HcaSpec, Node, NodeShape
from fmsched.topology.readers.nccl_devices import ids_of

# Of one NVLink 2, 3 or 4, both directions together: what a GPU that the catalogue lacks is taken to have.
LINK_GBYTES_PER_S = 50.0
NVSWITCH_BUSID = "ffff:fe:00.0"
_NVSWITCH_CLASS = "0x068000"
_BRIDGE_CLASS = "0x060400"
_NIC_CLASS = "0x020700"
_NVIDIA_CLASS, _AMD_CLASS = "0x030200", "0x120000"
# As NCCL writes a link whose speed /sys does not tell.
_LINK_UNKNOWN = {"link_speed": "", "link_width": "0"}
_BUS_COUNT = 255  # of a PCI domain, bus 0 left out


def write(node: Node) -> str:
    """The XML text. Link counts are bandwidth over that of one link (catalogue; LINK_GBYTES_PER_S where it has none), rounded.

    GPUs get links to an NVSwitch where they reach more others, or other nodes, than their own links could; else to each other. Sets of
    near GPUs that overlap without one holding the other fit no tree of switches: such an adapter goes to the smallest switch that has all
    of its GPUs (or to the cpu), and a comment says so.
    """
    shape = node.shape
    amd = any(_is_amd(gpu) for gpu in shape.gpus)
    system = _Xml("system", {"version": "2" if amd else "1", "name": node.name})
    cpu = system.add("cpu", {"numaid": "0", **_affinity(shape)})
    system.notes.append("PCI addresses are made up, and so is the single cpu: the source tells neither.")
    switches, strays = _switches(shape.hcas)
    _Writer(shape).fill(cpu, system, switches, strays)
    return "\n".join(system.lines()) + "\n"


@dataclass(slots=True)
class _Xml:
    tag: str
    attributes: dict[str, str]
    children: list[_Xml] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, tag: str, attributes: dict[str, str]) -> _Xml:
        self.children.append(_Xml(tag, attributes))
        return self.children[-1]

    def lines(self, indent: int = 0) -> list[str]:
        """Its lines; as deep as sets of near GPUs nest, which is at most the number of adapters."""
        space = " " * indent
        head = f"{space}<{self.tag}" + "".join(f" {name}={quoteattr(value)}" for name, value in self.attributes.items())
        notes = [f"<!-- {note} -->" for note in self.notes]
        if not self.children:
            return [*notes, f"{head}/>"]
        below = [line for child in self.children for line in child.lines(indent + 2)]
        return [*notes, f"{head}>", *below, f"{space}</{self.tag}>"]


@dataclass(slots=True)
class _Switch:
    """A PCI switch for a set of GPUs. `below` are switches of smaller sets within it."""

    gpus: frozenset[int]
    hcas: list[HcaSpec] = field(default_factory=list)
    below: list[_Switch] = field(default_factory=list)


def _switches(hcas: tuple[HcaSpec, ...]) -> tuple[list[_Switch], list[HcaSpec]]:
    """The outermost switches, and the adapters whose set of near GPUs fits no tree of them."""
    known: dict[frozenset[int], _Switch] = {}
    strays: list[HcaSpec] = []
    for hca in hcas:
        near = frozenset(hca.near)
        if near in known:
            known[near].hcas.append(hca)
        elif near and any(near & other and not near <= other and not other <= near for other in known):
            strays.append(hca)
        elif near:
            known[near] = _Switch(near, [hca])
    outer: list[_Switch] = []
    for switch in sorted(known.values(), key=lambda switch: (-len(switch.gpus), min(switch.gpus))):
        over = [other for other in known.values() if switch.gpus < other.gpus]
        (min(over, key=lambda other: len(other.gpus)).below if over else outer).append(switch)
    return outer, strays


class _Writer:
    """Puts the devices of one shape in place and numbers them."""

    def __init__(self, shape: NodeShape) -> None:
        self.shape = shape
        self.counts = _link_counts(shape)
        self.switched = _is_switched(shape, self.counts)
        self.buses = len(shape.gpus)  # the first ones are the GPUs' own
        self.bridges = 0
        self.nets = 0

    def fill(self, cpu: _Xml, system: _Xml, switches: list[_Switch], strays: list[HcaSpec]) -> None:
        behind = frozenset[int]().union(*(switch.gpus for switch in switches))
        for switch in switches:
            self._switch(cpu, switch)
        for index in range(len(self.shape.gpus)):
            if index not in behind:
                self._gpu(cpu, index)
        for hca in strays:
            names = ", ".join(str(index) for index in hca.near)
            system.notes.append(
                f"The GPUs near {_note(hca.name)} ({names}) fit no tree of switches; it hangs from the cpu."
            )
        self._nics(cpu, strays)
        far = [hca for hca in self.shape.hcas if not hca.near]
        if far:
            self._nics(system.add("cpu", {"numaid": "1", **_affinity(self.shape)}), far)

    def _switch(self, above: _Xml, switch: _Switch) -> None:
        bus, device = divmod(self.bridges + 1, 32)
        self.bridges += 1
        element = above.add("pci", {"busid": f"ffff:{bus:02x}:{device:02x}.0", "class": _BRIDGE_CLASS, **_LINK_UNKNOWN})
        inner = frozenset[int]().union(*(below.gpus for below in switch.below))
        for below in switch.below:
            self._switch(element, below)
        for index in sorted(switch.gpus - inner):
            if index < len(self.shape.gpus):
                self._gpu(element, index)
        self._nics(element, switch.hcas)

    def _gpu(self, above: _Xml, index: int) -> None:
        spec = self.shape.gpus[index]
        facts = _facts(spec)
        vendor, device = ids_of(spec.model)
        identity = {"vendor": vendor, "device": device} if vendor else {}
        pci = above.add("pci", {"busid": _busid(index), "class": _class(spec), **identity, **_LINK_UNKNOWN})
        gpu = pci.add("gpu", {"dev": str(index), **_capability(facts), "rank": str(index)})
        tag = "xgmi" if _is_amd(spec) else "nvlink"
        if self.switched:
            links = max(self.counts[index], default=0)
            if links:
                gpu.add(tag, {"target": NVSWITCH_BUSID, "count": str(links), "tclass": _NVSWITCH_CLASS})
            return
        for other, links in enumerate(self.counts[index]):
            if links:
                target = {"target": _busid(other), "count": str(links), "tclass": _class(self.shape.gpus[other])}
                gpu.add(tag, target)

    def _nics(self, above: _Xml, hcas: list[HcaSpec]) -> None:
        """A PCI device for each adapter, with a net for each of its ports."""
        nics: dict[str, _Xml] = {}
        for hca in hcas:
            if hca.name not in nics:
                pci = above.add("pci", {"busid": _busid(self.buses), "class": _NIC_CLASS, **_LINK_UNKNOWN})
                self.buses += 1
                nics[hca.name] = pci.add("nic", {})
            net = {"name": hca.name, "dev": str(self.nets), "speed": f"{hca.rate_gbps * 1000:.0f}", "port": str(hca.port)}
            nics[hca.name].add("net", net)
            self.nets += 1


def _facts(spec: GpuSpec) -> gpus.GpuFacts | None:
    return gpus.by_key(spec.model) or gpus.lookup(spec.model)


def _busid(number: int) -> str:
    domain, bus = divmod(number, _BUS_COUNT)
    return f"{domain:04x}:{bus + 1:02x}:00.0"


def _is_amd(spec: GpuSpec) -> bool:
    facts = _facts(spec)
    return (facts is not None and facts.compute_capability.startswith("gfx")) or spec.model.upper().startswith("AMD ")


def _class(spec: GpuSpec) -> str:
    return _AMD_CLASS if _is_amd(spec) else _NVIDIA_CLASS


def _capability(facts: gpus.GpuFacts | None) -> dict[str, str]:
    """sm: compute capability × 10; for AMD the number of compute units, and its architecture as gcn."""
    text = facts.compute_capability if facts is not None else ""
    if facts is not None and text.startswith("gfx"):
        return {"sm": str(facts.multiprocessors), "gcn": text}
    major, _, minor = text.partition(".")
    return {"sm": f"{int(major) * 10 + int(minor)}"} if major.isdigit() and minor.isdigit() else {}


def _link_counts(shape: NodeShape) -> list[list[int]]:
    per_link = [_gbytes_per_link(spec) for spec in shape.gpus]
    return [
        [0 if i == j else _rounded(cell / min(per_link[i], per_link[j])) for j, cell in enumerate(row)]
        for i, row in enumerate(shape.nvlink)
    ]


def _rounded(links: float) -> int:
    return max(1, round(links)) if links > 0 else 0


def _gbytes_per_link(spec: GpuSpec) -> float:
    facts = _facts(spec)
    if facts is None or not facts.nvlink_links or not facts.nvlink_gbytes_per_s:
        return LINK_GBYTES_PER_S
    return facts.nvlink_gbytes_per_s / facts.nvlink_links


def _is_switched(shape: NodeShape, counts: list[list[int]]) -> bool:
    """Whether the links go to NVSwitches: they reach other nodes, or add up to more than a GPU has; and one switch can say them all."""
    if not any(any(row) for row in counts):
        return False
    most = [max(row) for row in counts]
    one_switch = all(
        counts[i][j] == min(most[i], most[j]) for i in range(len(counts)) for j in range(len(counts)) if i != j
    )
    ports = [facts.nvlink_links if (facts := _facts(spec)) is not None else 0 for spec in shape.gpus]
    beyond = any(0 < have < sum(row) for have, row in zip(ports, counts, strict=True))
    return one_switch and (beyond or shape.domain_nvlink_gbytes_per_s > 0)


def _affinity(shape: NodeShape) -> dict[str, str]:
    """All CPUs: the model does not know which are near what. Words of 32 bits in hex, the highest first, as the kernel prints masks."""
    if shape.cpus <= 0:
        return {}
    words = [0xFFFFFFFF] * (shape.cpus // 32)
    if shape.cpus % 32:
        words.insert(0, (1 << shape.cpus % 32) - 1)
    return {"affinity": ",".join(f"{word:08x}" for word in words)}


def _note(text: str) -> str:
    """As a comment may hold it: no end of comment inside."""
    return text.replace("-", "_").replace(">", "_")[:80]
