"""What readers of dumps find: the parts of a node, the parts of a fabric, and what they set aside. Frozen values; what a file does not
say is empty, zero or None. fmsched.topology.imported makes a Cluster file of them.

A reader is a function `read(text, file) -> NodeFound | FabricFound`: pure, whole files only, raising ReaderError where nothing of the file
can be used. One file a kind; kinds.py lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fmproto.dumptext import Problem


@dataclass(frozen=True, slots=True)
class MigFound:
    profile: str  # "1g.10gb", "1g.10gb+me", "1c.3g.71gb"
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class GpuFound:
    """One GPU slot. `fault` is why it cannot be used ("GPU is lost"); its figures are then what was still readable."""

    index: int
    name: str = ""  # as NVML prints it
    uuid: str = ""
    pci: str = ""
    memory_mib: float = 0.0
    mig_enabled: bool | None = None
    mig: tuple[MigFound, ...] = ()
    fault: str = ""
    nvlinks_active: int | None = None
    nvlinks_down: tuple[int, ...] = ()  # numbers of links that the file names as inactive
    nvlink_gbytes_per_s: float = 0.0  # of all active links, both directions together
    numa: int = -1
    cpus: str = ""  # affinity, "0-31,64-95"
    vendor: str = "nvidia"
    facts: Mapping[str, str] = field(
        default_factory=dict
    )  # anything else worth keeping, by the file's own names: ecc, power, fabric


@dataclass(frozen=True, slots=True)
class NvlinkFound:
    """Between GPUs a and b (a < b): `links` NVLinks, or the bandwidth itself, GB/s both directions together; 0: not said."""

    a: int
    b: int
    links: int = 0
    gbytes_per_s: float = 0.0
    to_all: bool = False  # by NVSwitch: `links` is what each GPU has towards every other


@dataclass(frozen=True, slots=True)
class PortFound:
    """One adapter port. Rates in Gb/s; `near` are GPU indices."""

    hca: str
    port: int = 1
    state: str = ""  # "Active", "Down", "Initializing"; empty: not said
    physical_state: str = ""
    rate_gbps: float = 0.0
    link_layer: str = ""  # "InfiniBand" | "Ethernet"
    port_guid: str = ""
    node_guid: str = ""
    hca_type: str = ""
    firmware: str = ""
    lid: int = 0
    numa: int = -1
    near: tuple[int, ...] = ()
    pci: str = ""


@dataclass(frozen=True, slots=True)
class NodeFound:
    """One node as far as one file tells. `paths[(a, b)]`: "PIX", "SYS", ... between GPUs or from a GPU to an adapter's name."""

    kind: str
    file: str
    name: str = ""  # the host's, where the file has it
    gpus: tuple[GpuFound, ...] = ()
    nvlinks: tuple[NvlinkFound, ...] = ()
    ports: tuple[PortFound, ...] = ()
    paths: Mapping[tuple[str, str], str] = field(default_factory=dict)
    cpus: int = 0
    memory_gb: float = 0.0
    driver: str = ""
    complete: bool = True  # False: the file ends early, or says of more than it shows
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class SwitchFound:
    """`id` is unique in the file (a GUID, or a name); `name` is for people."""

    id: str
    name: str = ""
    level: int | None = None  # where the file says it
    chassis: str = ""  # of a director switch, or the box it sits in
    ports: int = 0


@dataclass(frozen=True, slots=True)
class HostFound:
    """A node on the fabric. `guids`: adapter name (or "") → node GUID."""

    id: str
    name: str = ""
    guids: tuple[tuple[str, str], ...] = ()
    nvlink_domain: str = ""
    named: bool = True  # False: the name is made up, the file has none


@dataclass(frozen=True, slots=True)
class CableFound:
    """One cable (or `count` of them) between two ends, by id: a switch's or a host's. `hca`: the adapter on the host's side."""

    a: str
    b: str
    gbps: float = 0.0  # 0: the file does not say
    count: int = 1
    down: bool = False
    hca: str = ""
    hca_port: int = 0


@dataclass(frozen=True, slots=True)
class FabricFound:
    kind: str
    file: str
    switches: tuple[SwitchFound, ...] = ()
    hosts: tuple[HostFound, ...] = ()
    cables: tuple[CableFound, ...] = ()
    complete: bool = True
    problems: tuple[Problem, ...] = ()


Found = NodeFound | FabricFound
