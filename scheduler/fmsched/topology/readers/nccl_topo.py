"""Reads an NCCL topology: NCCL_TOPO_FILE as people and clouds write it, NCCL_TOPO_DUMP_FILE as NCCL dumps it, and RCCL's (AMD, xgmi).

Sources: src/graph/xml.cc and xml.h (elements, PCI classes of NVSwitch and CPU), topo.cc (speed in Mb/s, 0 or less: not known; links to
whatever is neither GPU nor CPU go to the NVSwitch) and paths.cc (PIX, PXB, PHB, SYS) of NVIDIA/nccl; tools/topo_expl of ROCm/rccl.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import islice

from fmproto.dumptext import Problems
from fmsched.topology.readers.found import GpuFound, NodeFound, NvlinkFound, PortFound
from fmsched.topology.readers.nccl_devices import name_of
from fmsched.topology.readers.nccl_tree import (
    GPU_CLASSES,
    Address,
    GpuDevice,
    NicDevice,
    Place,
    address_of,
    near,
    path_of,
    tree_of,
    whole,
)
from fmsched.topology.readers.xmltext import Document, Element, read_xml

KIND = "nccl-topo"
VERSIONS = ("1", "2")  # RCCL writes 2
INDEX_MAX = 1_023
LINKS_MAX = 1_024  # of one GPU towards one other end
PORTS_MAX = 1_024
SPEED_MAX_MBPS = 10_000_000  # of one adapter's port, ten times what the fastest has
_CPU_CLASS = "0x068001"  # POWER: NVLink to the processor
_ALLOWED = "allowed: an NCCL topology, <system> with <cpu> in it (NCCL_TOPO_FILE or NCCL_TOPO_DUMP_FILE)"
_OTHER_ROOTS = {
    "graphs": "an NCCL graph file (NCCL_GRAPH_FILE or NCCL_GRAPH_DUMP_FILE): rings and trees that were chosen, not the hardware",
    "nvidia_smi_log": "what `nvidia-smi -q -x` prints (kind nvidia-smi-q)",
}
_AMD_VENDORS = {"0x1002", "0x1d94"}  # the second: Hygon, whose accelerators run AMD's software
_NVIDIA_VENDORS = {"0x10de", "", "0x0000", "0xffff"}
_AMAZON = "0x1d0f"  # its adapters (EFA) call themselves Ethernet and are not
_GUID_MIN = 1 << 32  # smaller ones are numbers that a plugin made up


def read(text: str, file: str) -> NodeFound:
    """The GPUs, NVLinks (or xGMI links) and adapters of one node. Raises ReaderError where the text is no topology, or has neither GPU
    nor adapter in it.

    An adapter that only its pci element tells of has no name: hca is "", and `pci` says which it is. `near` of a port are the GPUs below
    the lowest PCI switch above it that has any, else those of its CPU. GPUs without a number (`dev`) are numbered by bus address, as NVML
    does. Facts of a GPU: sm (compute capability × 10; for AMD its compute units), gcn, gdr, rank, c2c, vendor_id, device_id, class.
    """
    problems = Problems(file)
    document = read_xml(text, problems)
    cpus = _cpus(document, problems)
    tree = tree_of(cpus, problems)
    devices = _numbered(tree.gpus, problems)
    if not devices and not tree.nics:
        raise problems.refuse(_why_nothing(tree.classless), document.roots[0].tag, document.roots[0].line)
    for pci in tree.classless:
        problems.add(pci.line, f"pci {pci.get('busid')}", "found no class, gpu or nic: nothing says what device it is")
    links = _Links(devices, problems)
    gpus = tuple(_gpu_of(index, device, links) for index, device in devices.items())
    places = [(index, device.place) for index, device in devices.items()]
    ports = _ports(tree.nics, places, problems)
    return NodeFound(
        kind=KIND,
        file=file,
        name=document.roots[0].get("name"),
        gpus=gpus,
        nvlinks=links.pairs(),
        ports=tuple(port for port, _ in ports),
        paths=_paths(places, ports),
        complete=not document.cut and tree.hosts == 1 and document.roots[0].tag == "system",
        problems=problems.found(),
    )


def _cpus(document: Document, problems: Problems) -> list[Element]:
    """The cpu elements of the system; also of a piece of a file that lost its first line. Raises ReaderError for other files."""
    roots = document.roots
    if not roots:
        raise problems.refuse(f"found no XML element; {_ALLOWED}")
    systems = [root for root in roots if root.tag == "system"]
    if systems:
        for extra in systems[1:]:
            problems.add(extra.line, "<system>", "found a second one; only the first is read")
        version = systems[0].get("version")
        if version not in VERSIONS:
            problems.add(systems[0].line, f'version="{version}"', f"known: {', '.join(VERSIONS)}; it is read all the same")
        for child in systems[0].children:
            if child.tag != "cpu":
                problems.add(child.line, f"<{child.tag}>", "found below system; allowed: cpu")
        return [child for child in systems[0].children if child.tag == "cpu"]
    cpus = [root for root in roots if root.tag == "cpu"]
    if not cpus:
        root = roots[0]
        found = _OTHER_ROOTS.get(root.tag, f"<{root.tag}> as the outermost element")
        raise problems.refuse(f"found {found}; {_ALLOWED}", f"<{root.tag}>", root.line)
    problems.add(cpus[0].line, "<cpu>", "found no <system> around it; the file is taken for a piece of one")
    return cpus


def _why_nothing(classless: list[Element]) -> str:
    if classless:
        return (
            f"found {len(classless)} PCI devices, and none says what it is; allowed: a class attribute, or gpu, nic and net elements, as "
            "NCCL writes them with NCCL_TOPO_DUMP_FILE"
        )
    return f"found neither a GPU nor an adapter in it; {_ALLOWED}"


def _numbered(gpus: list[GpuDevice], problems: Problems) -> dict[int, GpuDevice]:
    """GPUs by index, in order. Each device once; those without a usable number get the free ones, by bus address."""
    devices: dict[int, GpuDevice] = {}
    rest: list[tuple[Address, GpuDevice]] = []
    seen: set[Address] = set()
    for device in gpus:
        busid = device.pci.get("busid")
        address = address_of(busid)
        if address is None:
            problems.add(device.pci.line, f'pci busid="{busid}"', "allowed: a PCI address, as 0000:0f:00.0")
        elif address in seen:
            problems.add(device.pci.line, f"pci {busid}", "found a GPU of this address before; this one is set aside")
            continue
        else:
            seen.add(address)
        index = whole(device.gpu, "dev", problems, high=INDEX_MAX) if device.gpu is not None else -1
        if index in devices:
            problems.add(device.pci.line, f"gpu dev={index}", "found this number before; it gets another")
        if index < 0 or index in devices:
            rest.append((address or (1 << 32, 0, 0, 0), device))
        else:
            devices[index] = device
    free = (index for index in range(INDEX_MAX + 1 + len(rest)) if index not in devices)
    ordered = (device for _, device in sorted(rest, key=lambda entry: entry[0]))
    return dict(sorted({**devices, **dict(zip(islice(free, len(rest)), ordered, strict=True))}.items()))


def _vendor(device: GpuDevice) -> str:
    """ "nvidia", "amd", or the PCI id of another maker. Files of clouds leave the id out, or put 0x0000 or 0xffff there."""
    gpu, maker = device.gpu, device.pci.get("vendor").lower()
    if maker in _AMD_VENDORS or (
        gpu is not None and (gpu.get("gcn") or any(child.tag == "xgmi" for child in gpu.children))
    ):
        return "amd"
    return "nvidia" if maker in _NVIDIA_VENDORS else maker


def _gpu_of(index: int, device: GpuDevice, links: _Links) -> GpuFound:
    pci, gpu = device.pci, device.gpu
    facts = {"vendor_id": pci.get("vendor"), "device_id": pci.get("device"), "class": pci.get("class")}
    if gpu is not None:
        facts |= {name: gpu.get(name) for name in ("sm", "gcn", "gdr", "rank")}
        c2c = next((child for child in gpu.children if child.tag == "c2c"), None)
        facts["c2c"] = f"{c2c.get('count')} links of {c2c.get('bw')} MB/s" if c2c is not None else ""
    return GpuFound(
        index=index,
        name=name_of(pci.get("vendor"), pci.get("device")),
        pci=pci.get("busid"),
        nvlinks_active=links.active(index),
        numa=device.place.numa,
        cpus=device.place.cpus,
        vendor=_vendor(device),
        facts={name: value for name, value in facts.items() if value},
    )


class _Links:
    """NVLinks and xGMI links: of each GPU to others, and to NVSwitches."""

    def __init__(self, devices: dict[int, GpuDevice], problems: Problems) -> None:
        self.problems = problems
        self.to_gpu: dict[int, Counter[int]] = {}
        self.to_switch: dict[int, int] = {}
        self.to_cpu: dict[int, int] = {}
        self.lines = {index: device.pci.line for index, device in devices.items()}
        self.by_address = {
            address: index for index, device in devices.items() if (address := address_of(device.pci.get("busid")))
        }
        for index, device in devices.items():
            for child in device.gpu.children if device.gpu is not None else ():
                if child.tag in ("nvlink", "xgmi"):
                    self._add(index, child)
                elif child.tag != "c2c":
                    problems.add(child.line, f"<{child.tag}>", "found below gpu; allowed: nvlink, xgmi, c2c")

    def _add(self, index: int, link: Element) -> None:
        count = whole(link, "count", self.problems, low=1, high=LINKS_MAX, default=0)
        if not count:
            if not link.get("count"):
                self.problems.add(link.line, f"<{link.tag}>", "found no count of links")
            return
        target, kind = link.get("target"), link.get("tclass").lower()
        address = address_of(target)
        other = self.by_address.get(address) if address is not None else None
        if other == index:
            self.problems.add(
                link.line, f"{link.tag} target {target}", f"it leads from GPU {index} to itself; it is set aside"
            )
        elif other is not None:
            self.to_gpu.setdefault(index, Counter())[other] += count
        elif kind.startswith(GPU_CLASSES):
            self.problems.add(
                link.line, f"{link.tag} target {target}", "found no GPU of this address; the link is set aside"
            )
        elif kind.startswith(_CPU_CLASS):
            self.to_cpu[index] = self.to_cpu.get(index, 0) + count
        else:
            self.to_switch[index] = self.to_switch.get(index, 0) + count

    def active(self, index: int) -> int | None:
        """All links of a GPU that lead somewhere; None where the file gives it none, which need not mean that it has none."""
        total = sum(self.to_gpu.get(index, Counter()).values()) + self.to_switch.get(index, 0) + self.to_cpu.get(index, 0)
        return total or None

    def pairs(self) -> tuple[NvlinkFound, ...]:
        found: dict[tuple[int, int], NvlinkFound] = {}
        for a in sorted(self.to_gpu):
            for b in sorted(self.to_gpu[a]):
                pair = (min(a, b), max(a, b))
                if pair not in found:
                    found[pair] = NvlinkFound(*pair, links=self._agreed(*pair))
        ends = sorted(self.to_switch)
        if len(set(self.to_switch.values())) > 1:
            most = max(self.to_switch.values())
            for index in ends:
                if self.to_switch[index] < most:
                    text = f"GPU {index} has {self.to_switch[index]} links to NVSwitches"
                    self.problems.add(self.lines[index], text, f"others have {most}; the fewer count between two")
        for i, a in enumerate(ends):
            for b in ends[i + 1 :]:
                direct = found[(a, b)].links if (a, b) in found else 0
                links = min(self.to_switch[a], self.to_switch[b]) + direct
                found[(a, b)] = NvlinkFound(a, b, links=links, to_all=True)
        return tuple(found[pair] for pair in sorted(found))

    def _agreed(self, a: int, b: int) -> int:
        there, back = self.to_gpu.get(a, Counter())[b], self.to_gpu.get(b, Counter())[a]
        if there != back:
            text = f"{there} links from GPU {a} to GPU {b}, {back} back"
            self.problems.add(
                self.lines[a], text, "both ends should name as many; the fewer count, or the end that names any"
            )
        return min(there, back) or max(there, back)


def _ports(nics: list[NicDevice], gpus: list[tuple[int, Place]], problems: Problems) -> list[tuple[PortFound, Place]]:
    ports: list[tuple[PortFound, Place]] = []
    seen: dict[tuple[str, int], int] = defaultdict(int)
    fused: list[tuple[NicDevice, Element]] = []
    for device in nics:
        pci = device.pci.get("busid") if device.pci is not None else ""
        around = near(device.place, gpus)
        if device.nic is None:
            ports.append(
                (PortFound("", numa=device.place.numa, near=around, pci=pci, link_layer=_layer(device, "")), device.place)
            )
            continue
        for net in device.nic.children:
            name = net.get("name")
            if net.tag != "net":
                continue  # gin, rma: other uses of the same adapters
            if "+" in name:
                fused.append((device, net))
                continue
            port = max(1, whole(net, "port", problems, high=255, default=1))
            if not name:
                problems.add(net.line, "<net>", "found no name of the adapter; it is set aside")
            elif seen[(name, port)]:
                problems.add(net.line, f"net {name} port {port}", "found this port before; it is set aside")
            elif len(ports) < PORTS_MAX:
                seen[(name, port)] += 1
                ports.append((_port_of(device, net, name, port, 1, around, problems), device.place))
    for device, net in fused:
        names = [name for name in net.get("name").split("+") if name][:8]
        problems.add(
            net.line,
            f"net {net.get('name')}",
            "NCCL made one of several adapters; each is read with its share of the speed",
        )
        for name in names:
            if not seen[(name, 1)] and len(ports) < PORTS_MAX:
                seen[(name, 1)] += 1
                around = near(device.place, gpus)
                ports.append((_port_of(device, net, name, 1, len(names), around, problems), device.place))
    return ports


def _port_of(
    device: NicDevice, net: Element, name: str, port: int, parts: int, around: tuple[int, ...], problems: Problems
) -> PortFound:
    """`parts`: of how many adapters NCCL gives the speed together. A speed of 0 or less is one that it did not know."""
    speed_mbps = whole(net, "speed", problems, low=-1, default=0)
    if speed_mbps > SPEED_MAX_MBPS:
        why = f"allowed: Mb/s, up to {SPEED_MAX_MBPS}; some plugins write another unit, and the speed is left out"
        problems.add(net.line, f'net {name} speed="{speed_mbps}"', why)
        speed_mbps = 0
    return PortFound(
        hca=name,
        port=port,
        rate_gbps=max(0, speed_mbps) / 1000 / parts,
        link_layer="Ethernet" if _is_socket(device, net) else _layer(device, name),
        node_guid=_guid(net.get("guid")) if parts == 1 else "",
        numa=device.place.numa,
        near=around,
        pci=device.pci.get("busid") if device.pci is not None else "",
    )


def _is_socket(device: NicDevice, net: Element) -> bool:
    """A network interface that NCCL uses by sockets ("eno1", "wlp9s0"; its ports count from 0, where an adapter's count from 1), unless
    it runs over InfiniBand."""
    over_ib = device.pci is not None and device.pci.get("class").lower().startswith("0x0207")
    return net.get("port") == "0" and not over_ib and not net.get("name").startswith("ib")


def _layer(device: NicDevice, name: str) -> str:
    """By the PCI class: 0x0207 is an InfiniBand controller, 0x0200 an Ethernet one, where its vendor is known to mean it."""
    if device.pci is None:
        return "Ethernet" if device.nic is not None else ""  # a socket interface
    kind, vendor = device.pci.get("class").lower(), device.pci.get("vendor").lower()
    if kind.startswith("0x0207"):
        return "InfiniBand"
    return "Ethernet" if kind.startswith("0x0200") and (name.startswith("mlx") or vendor not in ("", _AMAZON)) else ""


def _guid(text: str) -> str:
    """The adapter's GUID as ibstat prints it ("0x946dae0300d6c9c8"); empty where the plugin made up a number.

    NCCL prints the system image GUID (ibv_device_attr.sys_image_guid), which is in network order, as a number of the host: on
    little-endian hosts its bytes come out reversed. An EUI-64 made of a MAC has 03:00 or ff:fe in its middle, and shows which it is.
    """
    try:
        number = int(text[:20], 16) if text[:2].lower() == "0x" else int(text[:20] or "0")
    except ValueError:
        return ""
    if not _GUID_MIN <= number < 1 << 64:
        return ""
    plain = number.to_bytes(8, "big")
    turned = plain[::-1]
    return f"0x{(turned if _is_eui(turned) else plain).hex()}"


def _is_eui(guid: bytes) -> bool:
    return guid[3] == 0x03 or guid[3:5] == b"\xff\xfe"


def _paths(gpus: list[tuple[int, Place]], ports: list[tuple[PortFound, Place]]) -> dict[tuple[str, str], str]:
    """By the PCI tree, between GPUs (the lower number first) and from a GPU to an adapter."""
    paths: dict[tuple[str, str], str] = {}
    for i, (a, place) in enumerate(gpus):
        for b, other in gpus[i + 1 :]:
            paths[(f"GPU{a}", f"GPU{b}")] = path_of(place, other)
        for port, where in ports:
            if port.hca:
                paths[(f"GPU{a}", port.hca)] = path_of(place, where)
    return paths
