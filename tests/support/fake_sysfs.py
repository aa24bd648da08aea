"""A /sys of another machine, built on disk: adapters, PCI devices, AMD GPUs. Same files and links as the kernel makes, made-up values."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path


class FakeSysfs:
    """`root` stands for /sys."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str | int) -> Path:
        """A file below the root, with the newline that the kernel ends it by."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n", encoding="utf-8")
        return file

    def link(self, path: str, target: Path) -> None:
        """Relative, as the kernel's are."""
        link = self.root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(target, link.parent))

    def pci(self, way: Sequence[str], files: Mapping[str, str | int] | None = None) -> Path:
        """A PCI function at the end of `way` ("pci0000:10", "0000:10:01.0", ...), and each bridge on it; linked below bus/pci/devices."""
        device = self.root.joinpath("devices", *way)
        device.mkdir(parents=True, exist_ok=True)
        for name, text in (files or {}).items():
            (device / name).write_text(f"{text}\n", encoding="utf-8")
        for depth in range(2, len(way) + 1):
            entry = self.root / "bus/pci/devices" / way[depth - 1]
            if not entry.is_symlink():
                self.link(f"bus/pci/devices/{way[depth - 1]}", self.root.joinpath("devices", *way[:depth]))
        return device

    def adapter(self, hca: str, device: Path | None = None, files: Mapping[str, str | int] | None = None) -> Path:
        """An adapter below class/infiniband; `files` by their path in it ("ports/1/state")."""
        folder = (device or self.root / "devices/virtual") / "infiniband" / hca
        folder.mkdir(parents=True)
        self.link(f"class/infiniband/{hca}", folder)
        if device is not None:
            (folder / "device").symlink_to(os.path.relpath(device, folder))
        for name, text in (files or {}).items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n", encoding="utf-8")
        return folder

    def netdev(self, name: str, device: Path | None = None, dev_port: int = 0, bond: str = "") -> None:
        """A network interface of a device, enslaved to `bond` (made where it is not there yet)."""
        folder = (device or self.root / "devices/virtual") / "net" / name
        folder.mkdir(parents=True)
        (folder / "dev_port").write_text(f"{dev_port}\n", encoding="ascii")
        self.link(f"class/net/{name}", folder)
        if bond:
            master = self.root / "devices/virtual/net" / bond
            if not master.exists():
                (master / "bonding").mkdir(parents=True)
                self.link(f"class/net/{bond}", master)
            (folder / "master").symlink_to(os.path.relpath(master, folder))

    def amd_gpu(self, node: int, way: Sequence[str], properties: Mapping[str, int], files: Mapping[str, str | int]) -> None:
        """A GPU: its PCI function, class/drm/cardN/device, and a node of the KFD topology with 192 GiB in one memory bank."""
        device = self.pci(way, {"vendor": "0x1002", **{name: text for name, text in files.items() if "/" not in name}})
        for name, text in files.items():
            if "/" in name:
                self.write(f"{device.relative_to(self.root)}/{name}", text)
        card = device / f"drm/card{node}"
        card.mkdir(parents=True)
        (card / "device").symlink_to(os.path.relpath(device, card))
        self.link(f"class/drm/card{node}", card)
        bus, _, rest = way[-1].partition(":")[2].partition(":")
        slot, _, function = rest.partition(".")
        location = int(bus, 16) << 8 | int(slot, 16) << 3 | int(function)
        where = f"class/kfd/kfd/topology/nodes/{node}"
        told = {"location_id": location, "domain": 0, "vendor_id": 0x1002, "drm_render_minor": 127 + node, **properties}
        self.write(f"{where}/properties", "\n".join(f"{name} {value}" for name, value in told.items()))
        self.write(f"{where}/gpu_id", 4_000 + node)
        self.write(
            f"{where}/mem_banks/0/properties",
            f"heap_type 1\nsize_in_bytes {192 << 30}\nflags 0\nwidth 8192\nmem_clk_max 1300",
        )

    def io_link(
        self, node: int, number: int, to: int, kind: int = 11, weight: int = 15, max_bandwidth: int = 64_000
    ) -> None:
        """A link of a KFD node; type 11 is xGMI, 2 is PCIe."""
        text = f"type {kind}\nversion_major 0\nversion_minor 0\nnode_from {node}\nnode_to {to}\nweight {weight}\n"
        text += f"min_latency 0\nmax_latency 0\nmin_bandwidth 0\nmax_bandwidth {max_bandwidth}\nrecommended_transfer_size 0\nflags 1"
        self.write(f"class/kfd/kfd/topology/nodes/{node}/io_links/{number}/properties", text)
