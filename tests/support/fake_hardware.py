"""Machines for the fake NVML (fake_nvml.c), by name: what each has, and the description file that makes the library say so."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# nvml.h: nvmlIntNvLinkDeviceType_t, nvmlGpuTopologyLevel_t.
TO_GPU, TO_SWITCH = 0, 2
PIX, PXB, PHB, NODE, SYS = 10, 20, 30, 40, 50


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU model. `nvlink_version` as NVML numbers it (NVML_NVLINK_VERSION_*)."""

    name: str
    memory_mib: int
    capability: int
    cores: int
    power_w: int
    pcie_gen: int
    ports: int
    nvlink_version: int


V100 = Card("Tesla V100-SXM2-32GB", 32510, 70, 5120, 300, 3, 6, 2)
A100 = Card("NVIDIA A100-SXM4-40GB", 40960, 80, 6912, 400, 4, 12, 4)
H100 = Card("NVIDIA H100 80GB HBM3", 81559, 90, 16896, 700, 5, 18, 6)
H100_NVL = Card("NVIDIA H100 NVL", 95830, 90, 16896, 400, 5, 12, 6)
GB200 = Card("NVIDIA GB200", 189471, 100, 19456, 1200, 5, 18, 7)


@dataclass(frozen=True, slots=True)
class Profile:
    """`number`: NVML_GPU_INSTANCE_PROFILE_*."""

    number: int
    id: int
    name: str
    slices: int
    instances_max: int
    multiprocessors: int
    memory_mib: int
    size: int
    starts: tuple[int, ...]


SEVEN = (0, 1, 2, 3, 4, 5, 6)

# As `nvidia-smi mig -lgip` and `-lgipp` list them on these cards; the SMs, counts and placements are NVIDIA's (MIG User Guide,
# "Supported MIG Profiles"), the memory is what the driver reports.
MIG_A100_40GB = (
    Profile(0, 19, "1g.5gb", 1, 7, 14, 4864, 1, SEVEN),
    Profile(7, 20, "1g.5gb+me", 1, 1, 14, 4864, 1, SEVEN),
    Profile(9, 15, "1g.10gb", 1, 4, 14, 9984, 2, (0, 2, 4, 6)),
    Profile(1, 14, "2g.10gb", 2, 3, 28, 9984, 2, (0, 2, 4)),
    Profile(2, 9, "3g.20gb", 3, 2, 42, 20096, 4, (0, 4)),
    Profile(3, 5, "4g.20gb", 4, 1, 56, 20096, 4, (0,)),
    Profile(4, 0, "7g.40gb", 7, 1, 98, 40320, 8, (0,)),
)
MIG_H100_80GB = (
    Profile(0, 19, "1g.10gb", 1, 7, 16, 9984, 1, SEVEN),
    Profile(7, 20, "1g.10gb+me", 1, 1, 16, 9984, 1, SEVEN),
    Profile(9, 15, "1g.20gb", 1, 4, 26, 20096, 2, (0, 2, 4, 6)),
    Profile(1, 14, "2g.20gb", 2, 3, 32, 20096, 2, (0, 2, 4)),
    Profile(2, 9, "3g.40gb", 3, 2, 60, 40448, 4, (0, 4)),
    Profile(3, 5, "4g.40gb", 4, 1, 64, 40448, 4, (0,)),
    Profile(4, 0, "7g.80gb", 7, 1, 132, 81152, 8, (0,)),
)

# DGX-1V: how many links join each two of its GPUs, as in NVIDIA's white paper WP-08437 (hybrid cube mesh, six links a GPU).
CUBE_MESH = (
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)


def address(bus: int, domain: int = 0) -> str:
    return f"{domain:08X}:{bus:02X}:00.0"


@dataclass
class Machine:
    """`lines`: the description. Write it with `put`; what is added or taken away holds from NVML's next call on."""

    path: Path
    card: Card
    addresses: tuple[str, ...]
    lines: list[str] = field(default_factory=list)

    def uuid(self, gpu: int) -> str:
        return f"GPU-{gpu:08x}-aaaa-bbbb-cccc-{gpu:012x}"

    def put(self) -> Machine:
        """As one step, so that no call sees half of it."""
        fresh = self.path.with_name(f"{self.path.name}.new")
        fresh.write_text("\n".join(self.lines) + "\n")
        os.replace(fresh, self.path)
        return self

    def add(self, *lines: str) -> None:
        self.lines += lines
        self.put()

    def drop(self, *lines: str) -> None:
        for line in lines:
            self.lines.remove(line)
        self.put()

    def figures(self, gpu: int, **figures: int) -> None:
        self.lines += [f"set {gpu} {key} {value}" for key, value in figures.items()]

    def link(self, gpu: int, link: int, kind: int, remote: str) -> None:
        self.lines.append(f"link {gpu} {link} {kind} {remote} {self.card.nvlink_version}")

    def switched(self, switches: Sequence[str]) -> None:
        """All ports of all GPUs into the switches, in turn."""
        for gpu in range(len(self.addresses)):
            for link in range(self.card.ports):
                self.link(gpu, link, TO_SWITCH, switches[link % len(switches)])

    def joined(self, counts: Sequence[Sequence[int]]) -> None:
        """GPUs to GPUs, by how many links join each two."""
        used = [0] * len(counts)
        for a, row in enumerate(counts):
            for b, count in enumerate(row):
                for _ in range(count if a < b else 0):
                    self.link(a, used[a], TO_GPU, self.addresses[b])
                    self.link(b, used[b], TO_GPU, self.addresses[a])
                    used[a] += 1
                    used[b] += 1

    def paths(self, level: Iterable[tuple[int, int, int]]) -> None:
        for a, b, value in level:
            self.lines += [f"path {a} {b} {value}", f"p2p {a} {b} 0"]

    def mig(self, gpu: int, profiles: Sequence[Profile], instances: Sequence[tuple[str, int, int]]) -> None:
        """`instances`: (profile name, GPU instance, first memory slice), each with one compute instance."""
        self.figures(gpu, mig=1, mig_max=7)
        for profile in profiles:
            starts = ",".join(map(str, profile.starts))
            self.lines.append(
                f"profile {gpu} {profile.number} {profile.id} {profile.slices} {profile.instances_max} "
                f"{profile.multiprocessors} {profile.memory_mib} {profile.size} {starts} {profile.name}"
            )
        by_name = {profile.name: profile for profile in profiles}
        for place, (name, gpu_instance, start) in enumerate(instances):
            profile = by_name[name]
            self.lines.append(
                f"instance {gpu} {place} MIG-{gpu}-{place} {gpu_instance} 0 {start} {profile.size} {profile.id} {name}"
            )


def machine(path: Path, card: Card, addresses: Sequence[str], numa: Sequence[int], driver: str) -> Machine:
    """GPUs that are well and idle, without NVLinks and paths."""
    made = Machine(path, card, tuple(addresses), [f"driver {driver}"])
    for gpu, where in enumerate(addresses):
        made.lines += [
            f"gpu {gpu} {made.uuid(gpu)} {where} {card.memory_mib} {card.name}",
            f"links {gpu} {card.ports}",
        ]
        made.figures(
            gpu, minor=gpu, capability=card.capability, cores=card.cores, numa=numa[gpu], ecc=1,
            power_limit_mw=card.power_w * 1000, power_default_mw=card.power_w * 1000, power_max_mw=card.power_w * 1000,
            pcie_gen=card.pcie_gen, pcie_width=16, temperature=30 + gpu, slowdown=90, power_mw=60_000 + gpu,
            throttle=1, memory_used=0, memory_reserved=500 << 20, ecc_corrected=0, ecc_uncorrected=0,
            ecc_corrected_aggregate=0, ecc_uncorrected_aggregate=0,
        )  # fmt: skip
    return made


def levels(groups: Sequence[tuple[int, Sequence[Sequence[int]]]], count: int) -> list[tuple[int, int, int]]:
    """Each two GPUs at the first of `groups` (level, sets of GPUs) in which they lie together, else SYS."""
    found = []
    for a in range(count):
        for b in range(a + 1, count):
            near = [level for level, sets in groups if any(a in members and b in members for members in sets)]
            found.append((a, b, near[0] if near else SYS))
    return found


COUPLES = ((0, 1), (2, 3), (4, 5), (6, 7))
SOCKETS = ((0, 1, 2, 3), (4, 5, 6, 7))


def dgx_1v(path: Path) -> Machine:
    addresses = [address(bus) for bus in (0x06, 0x07, 0x0A, 0x0B, 0x85, 0x86, 0x89, 0x8A)]
    made = machine(path, V100, addresses, (0, 0, 0, 0, 1, 1, 1, 1), "418.226.00")
    made.joined(CUBE_MESH)
    made.paths(levels(((PIX, COUPLES), (PHB, SOCKETS)), 8))
    for gpu in range(8):
        made.figures(gpu, retired_single=0, retired_double=0, retired_pending=0, memory_temperature=33)
    return made.put()


def dgx_a100(path: Path) -> Machine:
    addresses = [address(bus) for bus in (0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD)]
    made = machine(path, A100, addresses, (3, 3, 1, 1, 7, 7, 5, 5), "535.161.08")
    made.switched([address(bus) for bus in (0xC4, 0xC5, 0xC6, 0xC7, 0xC8, 0xC9)])
    made.paths(levels(((PXB, COUPLES),), 8))
    for gpu in range(8):
        made.figures(gpu, mig=0, remapped_correctable=0, remapped_uncorrectable=0, remap_pending=0, remap_failed=0)
    return made.put()


def hgx_h100(path: Path) -> Machine:
    """A box of NVSwitches: its fabric is complete, and has no cluster."""
    addresses = [address(bus) for bus in (0x18, 0x2A, 0x3A, 0x5D, 0x9A, 0xAB, 0xBA, 0xDB)]
    made = machine(path, H100, addresses, (0, 0, 0, 0, 1, 1, 1, 1), "550.90.07")
    made.switched([address(bus) for bus in (0x05, 0x06, 0x07, 0x08)])
    made.paths(levels(((NODE, SOCKETS),), 8))
    for gpu in range(8):
        made.figures(gpu, mig=0, memory_temperature=40 + gpu, link_count=18, remapped_correctable=0)
        made.lines.append(f"fabric {gpu} 00000000-0000-0000-0000-000000000000 0 3 0 0 0")
    return made.put()


def h100_nvl(path: Path) -> Machine:
    """Two pairs, each joined by bridges."""
    made = machine(path, H100_NVL, [address(bus) for bus in (0x21, 0x22, 0xA1, 0xA2)], (0, 0, 1, 1), "550.54.15")
    twelve = ((0, 12, 0, 0), (12, 0, 0, 0), (0, 0, 0, 12), (0, 0, 12, 0))
    made.joined(twelve)
    made.paths(levels(((PHB, ((0, 1), (2, 3))),), 4))
    return made.put()


CLUSTER = "7f3a9c10-2b4d-4e6f-8a1b-0c2d4e6f8a1b"
# "Full bandwidth, nothing wrong": each field of NVML_GPU_FABRIC_HEALTH_MASK_* that says FALSE.
HEALTHY = 0b10_10_10_10


def nvl72_tray(path: Path) -> Machine:
    """Four GB200 of a rack; the switches are in other trays, and their addresses are nobody's here."""
    addresses = [address(1, domain) for domain in (0x08, 0x09, 0x18, 0x19)]
    made = machine(path, GB200, addresses, (0, 0, 1, 1), "580.95.05")
    made.switched(["-"])
    made.paths(levels(((NODE, ((0, 1), (2, 3))),), 4))
    for gpu in range(4):
        made.figures(gpu, link_count=18, mig=0)
        made.lines.append(f"fabric {gpu} {CLUSTER} 2 3 0 {HEALTHY} 1")
    return made.put()


def mig_box(path: Path, card: Card, profiles: Sequence[Profile]) -> Machine:
    """Two GPUs on switches, the first one cut into 3g, 2g, 1g and 1g."""
    made = machine(path, card, [address(0x10), address(0x11)], (0, 0), "550.90.07")
    made.switched([address(0x05), address(0x06)])
    made.paths([(0, 1, NODE)])
    by_slices = {(profile.slices, profile.size): profile.name for profile in reversed(profiles)}
    three, two, one = by_slices[3, 4], by_slices[2, 2], by_slices[1, 1]
    made.mig(0, profiles, ((three, 2, 4), (two, 3, 0), (one, 9, 2), (one, 10, 3)))
    made.figures(1, mig=0)
    return made.put()
