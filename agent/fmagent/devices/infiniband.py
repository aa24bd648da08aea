"""The node's adapters: `ibstat` and /sys/class/infiniband put together by adapter and port, with what sysfs knows of their place. Either
source is enough. Counters come from sysfs, or from `perfquery` where sysfs has none."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fmagent.devices import adapters, ethtool, sysfs, tool
from fmagent.devices.ibstat import IbstatReader, is_bond, lid_of
from fmagent.devices.killed import Killed
from fmagent.devices.looker import Hung, Looker
from fmagent.health.readings import PortReading
from fmproto.v1 import hardware_pb2 as pb

TIMEOUT_S = 10.0  # a firmware that does not answer holds a counter's file up for a minute
PORTS_MAX = 1_024  # of a node, virtual functions included
PORTS_OF_ADAPTER_MAX = 64
GIDS_MAX = 1_024
COUNTERS_MAX = 256
# perfquery asks the port itself by a management datagram and waits for 3 x 1 s where it does not answer.
PERFQUERY_TIMEOUT_S = 5.0  # for all ports of one look together
PERFQUERY_PORTS_MAX = 16

# linux/Documentation/ABI/stable/sysfs-class-infiniband, in ibstat's words (infiniband-diags, ibstat.c).
_STATES = {1: "Down", 2: "Initializing", 3: "Armed", 4: "Active", 5: "Active"}
_PHYSICAL = {
    1: "Sleep",
    2: "Polling",
    3: "Disabled",
    4: "PortConfigurationTraining",
    5: "LinkUp",
    6: "LinkErrorRecovery",
    7: "PhyTest",
}
_RATE = re.compile(r"\d{1,7}(?:\.\d{1,6})?")
_GUID = re.compile(r"[0-9a-fA-F]{16}")
# ::ffff:a.b.c.d as sysfs writes a GID.
_IPV4_GID = re.compile(r"0000:0000:0000:0000:0000:ffff:[0-9a-fA-F]{4}:[0-9a-fA-F]{4}")
_PERF_LINE = re.compile(r"([A-Za-z][A-Za-z0-9]{0,63}):\.{0,64}(\d{1,20})")

# perfquery's names of the port counters (libibmad, fields.c) and sysfs' names of the same (linux/drivers/infiniband/core/sysfs.c).
_PERF_NAMES = {
    "SymbolErrorCounter": "symbol_error",
    "LinkErrorRecoveryCounter": "link_error_recovery",
    "LinkDownedCounter": "link_downed",
    "PortRcvErrors": "port_rcv_errors",
    "PortRcvRemotePhysicalErrors": "port_rcv_remote_physical_errors",
    "PortRcvSwitchRelayErrors": "port_rcv_switch_relay_errors",
    "PortXmitDiscards": "port_xmit_discards",
    "PortXmitConstraintErrors": "port_xmit_constraint_errors",
    "PortRcvConstraintErrors": "port_rcv_constraint_errors",
    "LocalLinkIntegrityErrors": "local_link_integrity_errors",
    "ExcessiveBufferOverrunErrors": "excessive_buffer_overrun_errors",
    "VL15Dropped": "VL15_dropped",
    "PortXmitData": "port_xmit_data",
    "PortRcvData": "port_rcv_data",
    "PortXmitPkts": "port_xmit_packets",
    "PortRcvPkts": "port_rcv_packets",
    "PortXmitWait": "port_xmit_wait",
    "PortUnicastXmitPkts": "unicast_xmit_packets",
    "PortUnicastRcvPkts": "unicast_rcv_packets",
    "PortMulticastXmitPkts": "multicast_xmit_packets",
    "PortMulticastRcvPkts": "multicast_rcv_packets",
}


@dataclass(frozen=True, slots=True)
class PortsFound:
    """One look at the adapters. `error`: something of it hung; `ports` is then what could still be read, and what the error is about must
    not be used. No port and no error: there is no adapter."""

    ports: tuple[pb.HcaPort, ...] = ()
    readings: tuple[PortReading, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class InSysfs:
    """What sysfs says: ports in natural order, and the counters of each ("mlx5_0/1" → name → value)."""

    ports: tuple[pb.HcaPort, ...] = ()
    counters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class InfinibandReader:
    """`perfquery` is the tool for counters that sysfs lacks; empty: it is not asked."""

    def __init__(
        self,
        ibstat: IbstatReader | None = None,
        sys: Path = sysfs.SYS,
        perfquery: Sequence[str] = ("perfquery",),
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._ibstat = ibstat or IbstatReader(timeout_s, sys=sys)
        self._sys = sys
        self._perfquery = tuple(perfquery)
        # A tree on disk names interfaces of another machine.
        self._fastest: Callable[[str], float] = ethtool.max_gbps if sys == sysfs.SYS else lambda _: 0.0
        self._looker: Looker[InSysfs] = Looker(f"{sys}/class/infiniband", timeout_s)
        self.killed = Killed()

    async def read(self, gpus: Sequence[pb.Gpu] = ()) -> PortsFound:
        """All ports, the GPUs near each of them filled in. Never raises; what fails is in what it returns."""
        (seen, hung), said = await asyncio.gather(self._see(), self._ibstat.read())
        errors = [error for error in (hung, said.error) if error]
        ports = merge(seen.ports, said.ports)
        counters = {name: dict(values) for name, values in seen.counters.items()}
        await self._query(ports, counters)
        place_near(ports, gpus, self._sys)
        return PortsFound(ports, tuple(reading_of(port, counters) for port in ports), "; ".join(errors))

    async def _see(self) -> tuple[InSysfs, str]:
        try:
            return await self._looker.look(lambda: read_sysfs(self._sys, self._fastest)), ""
        except (Hung, OSError) as error:
            return InSysfs(), str(error)

    async def _query(self, ports: Sequence[pb.HcaPort], counters: dict[str, dict[str, int]]) -> None:
        """Counters of InfiniBand ports that sysfs has none of. A port that does not answer has none."""
        without = [
            port
            for port in ports
            if not counters.get(device_of(port)) and port.link_layer == "InfiniBand" and port.state == "Active"
        ]
        clock = asyncio.get_running_loop().time
        end_s = clock() + PERFQUERY_TIMEOUT_S
        for port in without[:PERFQUERY_PORTS_MAX] if self._perfquery else ():
            where = ("-C", port.hca, "-P", str(port.port))
            found: dict[str, int] = {}
            for options in (("-x",), ()):  # extended: 64 bits; error counters are in it only where the port has them so
                left_s = end_s - clock()
                if left_s <= 0:
                    return
                said = await tool.run((*self._perfquery, *options, *where), left_s, self.killed, "perfquery")
                if said.error or said.absent:
                    return
                found = {**parse_perfquery(said.output), **found}
                if "symbol_error" in found:
                    break
            counters[device_of(port)] = found


def device_of(port: pb.HcaPort) -> str:
    """The name of a port in health readings: "mlx5_0/1"."""
    return f"{port.hca}/{port.port}"


def reading_of(port: pb.HcaPort, counters: Mapping[str, Mapping[str, int]]) -> PortReading:
    return PortReading(
        device=device_of(port),
        state=port.state,
        physical_state=port.physical_state,
        link_layer=port.link_layer,
        rate_gbps=port.rate_gbps,
        rate_max_gbps=port.rate_max_gbps,
        counters=counters.get(device_of(port), {}),
    )


def merge(seen: Sequence[pb.HcaPort], said: Sequence[pb.HcaPort]) -> tuple[pb.HcaPort, ...]:
    """Ports of sysfs, then those that only ibstat has, by name; a field that sysfs leaves empty is ibstat's."""
    merged: dict[tuple[str, int], pb.HcaPort] = {}
    for port in seen:
        merged[port.hca, port.port] = copy = pb.HcaPort()
        copy.CopyFrom(port)
    for port in said:
        known = merged.get((port.hca, port.port))
        if known is None:
            merged[port.hca, port.port] = copy = pb.HcaPort()
            copy.CopyFrom(port)
            continue
        for name in (
            "state",
            "physical_state",
            "link_layer",
            "port_guid",
            "node_guid",
            "firmware",
            "pci_address",
            "hca_type",
        ):
            if not getattr(known, name):
                setattr(known, name, getattr(port, name))
        known.rate_gbps = known.rate_gbps or port.rate_gbps
        known.rate_max_gbps = known.rate_max_gbps or port.rate_max_gbps
        known.lid = known.lid or port.lid
        known.virtual_function = known.virtual_function or port.virtual_function
    return tuple(merged[key] for key in sorted(merged, key=lambda key: (sysfs.natural(key[0]), key[1])))


def read_sysfs(sys: Path = sysfs.SYS, fastest: Callable[[str], float] = lambda _: 0.0) -> InSysfs:
    """Every port below class/infiniband. `fastest`: Gb/s that a network interface can do, 0 where unknown. May hang where a driver does."""
    ports: list[pb.HcaPort] = []
    counters: dict[str, Mapping[str, int]] = {}
    root = sys / "class/infiniband"
    found = sysfs.names(root)
    functions = _functions(root, found)
    for hca in found:
        folder = root / hca
        if sysfs.text(folder / "node_type", 64).partition(":")[0].strip() in {"2", "3"}:
            continue  # a switch or a router that runs this system
        numbers = [
            int(name) for name in sysfs.names(folder / "ports") if name.isascii() and name.isdecimal() and len(name) < 6
        ]
        for number in numbers[:PORTS_OF_ADAPTER_MAX]:
            if len(ports) >= PORTS_MAX:
                return InSysfs(tuple(ports), counters)
            port = _port(sys, folder, number, functions.get(hca, 1), fastest)
            ports.append(port)
            counters[device_of(port)] = read_counters(folder / "ports" / str(number))
    return InSysfs(tuple(ports), counters)


def _functions(root: Path, hcas: Sequence[str]) -> dict[str, int]:
    """adapter → PCI functions of its card that are adapters too, itself included, virtual ones not."""
    cards: dict[str, list[str]] = {}
    for hca in hcas:
        device = root / hca / "device"
        address = sysfs.pci_address(device)
        if address and not (device / "physfn").exists():
            cards.setdefault(address.rpartition(".")[0], []).append(hca)
    return {hca: len(card) for card in cards.values() for hca in card}


def _port(sys: Path, folder: Path, number: int, functions: int, fastest: Callable[[str], float]) -> pb.HcaPort:
    where = folder / "ports" / str(number)
    device = folder / "device"
    hca_type = sysfs.text(folder / "hca_type", 256)
    state = _word(sysfs.text(where / "state", 64), _STATES)
    rate = _RATE.match(sysfs.text(where / "rate", 64))
    rate_gbps = float(rate[0]) if rate else 0.0
    layer = sysfs.text(where / "link_layer", 64)
    netdev = _netdev(sys, folder, number)
    bond = is_bond(folder.name) or _is_bond(sys, netdev)
    numa = sysfs.number(device / "numa_node")
    running_gbps = rate_gbps if state == "Active" else 0.0  # a port that is down shows a stale rate, or the least there is
    legs = functions if not bond else max(2, functions)  # a LAG joins the ports of one card into one adapter
    # What the card's own driver names is better than any table; it knows of Ethernet only.
    rate_max_gbps = fastest(netdev) if layer == "Ethernet" and netdev and not bond else 0.0
    if not rate_max_gbps:
        rate_max_gbps = adapters.rate_max_gbps(hca_type, sysfs.text(folder / "board_id", 256), legs, running_gbps)
    return pb.HcaPort(
        hca=folder.name,
        port=number,
        state=state,
        physical_state=_word(sysfs.text(where / "phys_state", 64), _PHYSICAL),
        rate_gbps=rate_gbps,
        link_layer=layer,
        port_guid=_guid(sysfs.text(where / "gids/0", 256).replace(":", "")[16:]),
        node_guid=_guid(sysfs.text(folder / "node_guid", 256).removeprefix("0x").replace(":", "")),
        firmware=sysfs.text(folder / "fw_ver", 256),
        pci_address=sysfs.pci_address(device),
        numa_node=-1 if numa is None else min(numa, 2**31 - 1),
        rate_max_gbps=rate_max_gbps,
        lid=lid_of(max(0, sysfs.number(where / "lid") or 0)),
        netdev=netdev,
        roce_gid_index=_roce_gid_index(where) if layer == "Ethernet" else -1,
        hca_type=hca_type,
        virtual_function=(device / "physfn").exists() or adapters.is_virtual(hca_type),
        bond=bond,
    )


def _word(text: str, words: Mapping[int, str]) -> str:
    """ "4: ACTIVE" in ibstat's words; what the table lacks stays as it is."""
    number, _, word = text.partition(":")
    return words.get(int(number), word.strip()) if number.isascii() and number.isdecimal() and len(number) < 4 else text


def _guid(digits: str) -> str:
    return f"0x{digits.lower()}" if _GUID.fullmatch(digits) and digits.strip("0") else ""


def _netdev(sys: Path, folder: Path, number: int) -> str:
    """The network interface of a port: as its first GID says (RoCE, and then the bond's own), else the device's one with that number."""
    named = sysfs.text(folder / "ports" / str(number) / "gid_attrs/ndevs/0", 256)
    if named:
        return named
    found = sysfs.names(folder / "device/net")
    for name in found:
        interface = sys / "class/net" / name
        # dev_port counts from 0; IPoIB of old drivers keeps the port in dev_id.
        numbers = [sysfs.number(interface / "dev_port") or 0, sysfs.number(interface / "dev_id") or 0]
        if max(numbers) == number - 1:
            return name
    return ""


def _is_bond(sys: Path, netdev: str) -> bool:
    if not netdev or "/" in netdev:
        return False
    interface = sys / "class/net" / netdev
    return (interface / "bonding").is_dir() or (interface / "master/bonding").is_dir()


def _roce_gid_index(where: Path) -> int:
    """The lowest GID that is RoCE v2 over IPv4, as NCCL chooses (ncclIbGetGidIndex in NCCL's net_ib); -1: none."""
    for name in sysfs.names(where / "gids")[:GIDS_MAX]:
        if not (name.isascii() and name.isdecimal() and len(name) < 6):
            continue
        over_ipv4 = _IPV4_GID.fullmatch(sysfs.text(where / "gids" / name, 64))
        if over_ipv4 and sysfs.text(where / "gid_attrs/types" / name, 64) == "RoCE v2":
            return int(name)
    return -1


def read_counters(where: Path) -> dict[str, int]:
    """Counters of a port by name: `counters` (InfiniBand's own) and `hw_counters` (the driver's)."""
    found: dict[str, int] = {}
    for folder in ("hw_counters", "counters"):
        for name in sysfs.names(where / folder)[:COUNTERS_MAX]:
            value = sysfs.number(where / folder / name)
            if value is not None and value >= 0 and name != "lifespan":  # which is how long the driver keeps them, ms
                found[name] = value
    return found


def parse_perfquery(text: str) -> dict[str, int]:
    """Counters that `perfquery` prints, "SymbolErrorCounter:..............0", by their sysfs names; others are left out."""
    found: dict[str, int] = {}
    for line in text.splitlines()[:COUNTERS_MAX]:
        match = _PERF_LINE.fullmatch(line.strip()[:256])
        if match and match[1] in _PERF_NAMES:
            found.setdefault(_PERF_NAMES[match[1]], int(match[2]))
    return found


def near_gpus(way: tuple[str, ...], numa_node: int, gpus: Sequence[tuple[int, tuple[str, ...], int]]) -> tuple[int, ...]:
    """Indices of the GPUs that are near an adapter. `way` is its place in the PCI tree (sysfs.pci_parts), `gpus` are (index, way, NUMA
    node): those behind the closest PCIe switch that the adapter shares with any, else those of its NUMA node. Pure."""
    by_switch = sysfs.nearest(way, [(index, other) for index, other, _ in gpus])
    if by_switch or numa_node < 0:
        return by_switch
    return tuple(sorted(index for index, _, numa in gpus if numa == numa_node))


def place_near(ports: Sequence[pb.HcaPort], gpus: Sequence[pb.Gpu], sys: Path = sysfs.SYS) -> None:
    """Fills in near_gpus of each port, by the addresses of both in sysfs. Looks at links only: nothing of a driver can hang."""
    placed = [(gpu.index, sysfs.pci_parts(gpu.pci_address, sys), gpu.numa_node) for gpu in gpus]
    for port in ports:
        way = sysfs.pci_parts(port.pci_address, sys)
        port.ClearField("near_gpus")
        port.near_gpus.extend(near_gpus(way, port.numa_node, placed))
