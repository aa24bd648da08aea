"""The tree of an NCCL topology file as devices with their places: which CPU each hangs from, and by which PCI switches.

The elements, as src/graph/xml.cc of NVIDIA/nccl reads them: system > cpu > pci (nested) > gpu | nic; cpu > nic; nic > net; gpu > nvlink,
c2c (RCCL: xgmi). Each pci above a device is one PCI switch, since NCCL climbs two levels of /sys at a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from fmproto.dumptext import Problems
from fmsched.topology.readers.xmltext import Element

GPUS_MAX = 256  # of one file
NICS_MAX = 512
_MASK_BITS_MAX = 16_384  # CPUs of one node

GPU_CLASSES = ("0x03", "0x1200", "0x1180")  # display controllers; processing accelerators (MI300); signal processing
NIC_CLASS = "0x02"
_BRIDGE_CLASS = "0x06"
# PCI vendors whose class 0x03 devices are GPUs that compute; a board's own console (ASPEED, Matrox) is one of that class too.
_GPU_VENDORS = {"", "0x10de", "0x1002", "0x1d94", "0x0000", "0xffff"}

_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,17})|0[xX][0-9A-Fa-f]{1,16}")

Address = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a device hangs. `switches`: the pci elements above it, the CPU's own first, each by its number in the file."""

    cpu: int  # number of the cpu element
    switches: tuple[int, ...] = ()
    numa: int = -1
    cpus: str = ""


@dataclass(frozen=True, slots=True)
class GpuDevice:
    place: Place
    pci: Element
    gpu: Element | None  # None: a pci element of a GPU's class and no more


@dataclass(frozen=True, slots=True)
class NicDevice:
    place: Place
    pci: Element | None  # None: the nic hangs from the cpu itself, as virtual interfaces do
    nic: Element | None


@dataclass(slots=True)
class Tree:
    gpus: list[GpuDevice] = field(default_factory=list)
    nics: list[NicDevice] = field(default_factory=list)
    classless: list[Element] = field(default_factory=list)  # leaves that do not say what they are
    hosts: int = 1


def tree_of(cpus: list[Element], problems: Problems) -> Tree:
    """The devices of the first host; those of others (a fused file of a multi-node NVLink domain) are set aside."""
    tree, numbers = Tree(), _Numbers()
    hosts = list(dict.fromkeys(name for cpu in cpus if (name := cpu.get("host_hash"))))
    tree.hosts = max(1, len(hosts))
    if len(hosts) > 1:
        problems.add(cpus[0].line, f"{len(hosts)} hosts", "found several hosts in the file; only the first is read")
    for cpu in cpus:
        if hosts and cpu.get("host_hash") not in ("", hosts[0]):
            continue
        numa = whole(cpu, "numaid", problems, low=-1)
        number = numa if numa >= 0 else -1 - numbers.next()
        place = Place(number, (), numa, cpu_list(cpu.get("affinity"), cpu, problems))
        for child in cpu.children:
            if child.tag == "pci":
                _pci(child, place, tree, numbers, problems)
            elif child.tag == "nic":
                _nic(NicDevice(place, None, child), tree, problems)
            else:
                problems.add(child.line, f"<{child.tag}>", "found below cpu; allowed: pci, nic")
    return tree


@dataclass(slots=True)
class _Numbers:
    last: int = 0

    def next(self) -> int:
        self.last += 1
        return self.last


def _pci(pci: Element, place: Place, tree: Tree, numbers: _Numbers, problems: Problems) -> None:
    """A pci element and all below it; recursion is as deep as xmltext lets elements nest."""
    below = Place(place.cpu, (*place.switches, numbers.next()), place.numa, place.cpus)
    kinds = {child.tag for child in pci.children}
    for child in pci.children:
        if child.tag == "pci":
            _pci(child, below, tree, numbers, problems)
        elif child.tag == "gpu":
            _gpu(GpuDevice(place, pci, child), tree, problems)
        elif child.tag == "nic":
            _nic(NicDevice(place, pci, child), tree, problems)
        elif child.tag != "pcilink":  # between two switches of one maker: no path that the tree lacks
            problems.add(child.line, f"<{child.tag}>", "found below pci; allowed: pci, gpu, nic, pcilink")
    if not kinds & {"pci", "gpu", "nic"}:
        _leaf(pci, place, tree, problems)


def _leaf(pci: Element, place: Place, tree: Tree, problems: Problems) -> None:
    kind = pci.get("class").lower()
    if not kind:
        tree.classless.append(pci)
    elif kind.startswith(GPU_CLASSES):
        if pci.get("vendor").lower() in _GPU_VENDORS:
            _gpu(GpuDevice(place, pci, None), tree, problems)
        else:
            problems.add(pci.line, f"pci {pci.get('busid')}", f"its vendor {pci.get('vendor')} makes no GPU that computes")
    elif kind.startswith(NIC_CLASS):
        _nic(NicDevice(place, pci, None), tree, problems)
    elif not kind.startswith(_BRIDGE_CLASS):
        problems.add(pci.line, f"pci {pci.get('busid')}", f"its class {kind} is neither a GPU, an adapter nor a switch")


def _gpu(device: GpuDevice, tree: Tree, problems: Problems) -> None:
    if len(tree.gpus) < GPUS_MAX:
        tree.gpus.append(device)
    else:
        problems.add(device.pci.line, device.pci.get("busid"), f"found more than {GPUS_MAX} GPUs; this one is not read")


def _nic(device: NicDevice, tree: Tree, problems: Problems) -> None:
    if len(tree.nics) < NICS_MAX:
        tree.nics.append(device)
    else:
        problems.add(0, "nic", f"found more than {NICS_MAX} adapters; this one is not read")


def path_of(a: Place, b: Place) -> str:
    """What two devices cross, in NCCL's and nvidia-smi's words: PIX one PCI switch, PXB several, PHB the CPU's own bridge, SYS two CPUs.

    As src/graph/paths.cc of NVIDIA/nccl has it; the file cannot tell PHB from nvidia-smi's NODE (several bridges of one NUMA node).
    """
    if a.cpu != b.cpu:
        return "SYS"
    if a.switches and a.switches == b.switches:
        return "PIX"
    return "PXB" if a.switches and b.switches and a.switches[0] == b.switches[0] else "PHB"


def near(nic: Place, gpus: list[tuple[int, Place]]) -> tuple[int, ...]:
    """Indices of the GPUs below the lowest switch above the adapter that has any; else those of its CPU."""
    same = [(index, place.switches) for index, place in gpus if place.cpu == nic.cpu]
    for depth in range(len(nic.switches), 0, -1):
        found = tuple(sorted(index for index, switches in same if switches[:depth] == nic.switches[:depth]))
        if found:
            return found
    return tuple(sorted(index for index, _ in same))


def whole(element: Element, name: str, problems: Problems, low: int = 0, high: int = 10**9, default: int = -1) -> int:
    """An attribute as a whole number, decimal or 0x…; the default where it is missing, and with a problem where it is none."""
    text = element.get(name)
    if not text:
        return default
    number = int(text, 0) if _WHOLE.fullmatch(text) else low - 1
    if not low <= number <= high:
        problems.add(element.line, f'{element.tag} {name}="{text}"', f"allowed: a whole number from {low} to {high}")
        return default
    return number


def address_of(text: str) -> Address | None:
    """A PCI address as (domain, bus, device, function); None where it is none."""
    head, _, function = text.partition(".")
    parts = head.split(":")
    if len(parts) not in (2, 3) or len(text) > 32:
        return None
    try:
        numbers = [int(part, 16) for part in parts]
        last = int(function, 16) if function else 0
    except ValueError:
        return None
    return (numbers[0] if len(numbers) == 3 else 0, numbers[-2], numbers[-1], last)


def cpu_list(mask: str, cpu: Element, problems: Problems) -> str:
    """ "0-31,64-95" of a mask as the kernel prints it: words of 32 bits in hex, the highest first."""
    if not mask:
        return ""
    words = mask.split(",")
    try:
        # Words but the first have 8 digits each, leading zeros kept.
        number = int("".join(word.strip().zfill(8) for word in words[:_MASK_BITS_MAX]), 16)
    except ValueError:
        number = -1
    offset = whole(cpu, "affinity_offset", problems, high=_MASK_BITS_MAX, default=0)
    if number < 0 or number.bit_length() > _MASK_BITS_MAX:
        problems.add(cpu.line, f'affinity="{mask}"', "allowed: words of 32 bits in hex, with commas between them")
        return ""
    return ",".join(f"{a}-{b}" if a < b else str(a) for a, b in _runs(number, offset))


def _runs(number: int, offset: int) -> Iterator[tuple[int, int]]:
    start = -1
    for bit in range(number.bit_length() + 1):
        if number >> bit & 1:
            start = bit if start < 0 else start
        elif start >= 0:
            yield start + offset, bit - 1 + offset
            start = -1
