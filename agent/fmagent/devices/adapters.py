"""Facts on adapters by what the driver calls them: hca_type ("MT4129": the PCI device id in decimal) and board_id (the PSID). Pure.

Device ids: linux/drivers/net/ethernet/mellanox/mlx5/core/main.c (mlx5_core_pci_table, which also says which are virtual functions) and
pci.ids of vendor 15b3. Rates of the chips: the maker's product briefs (ConnectX-4 and -5: EDR; -6: HDR; -7: NDR; -8: XDR). Boards: the
PSID and part number beside one another as mlxfwmanager prints them, the rate in the part's description.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chip:
    """Gb/s of one port of the fastest board that is common, for boards with one and with two functions; 0: boards differ too much."""

    name: str
    single_gbps: float
    dual_gbps: float = 0.0
    virtual: bool = False


CHIPS = {
    "MT26428": Chip("ConnectX-2", 40, 40),
    "MT4099": Chip("ConnectX-3", 56, 56),
    "MT4100": Chip("ConnectX-3 virtual function", 0, virtual=True),
    "MT4103": Chip("ConnectX-3 Pro", 56, 56),
    "MT4113": Chip("Connect-IB", 56, 56),
    "MT4114": Chip("Connect-IB virtual function", 0, virtual=True),
    "MT4115": Chip("ConnectX-4", 100, 100),
    "MT4116": Chip("ConnectX-4 virtual function", 0, virtual=True),
    "MT4117": Chip("ConnectX-4 Lx", 0),  # 10, 25, 40 or 50 Gb/s
    "MT4118": Chip("ConnectX-4 Lx virtual function", 0, virtual=True),
    "MT4119": Chip("ConnectX-5", 100, 100),
    "MT4120": Chip("ConnectX-5 virtual function", 0, virtual=True),
    "MT4121": Chip("ConnectX-5 Ex", 100, 100),
    "MT4122": Chip("ConnectX-5 Ex virtual function", 0, virtual=True),
    "MT4123": Chip("ConnectX-6", 200, 200),
    "MT4124": Chip("ConnectX-6 virtual function", 0, virtual=True),
    "MT4125": Chip("ConnectX-6 Dx", 100, 100),  # 200 on few boards with one port: seen there by the rate itself
    "MT4126": Chip("ConnectX virtual function", 0, virtual=True),  # of ConnectX-6 Dx and everything later
    "MT4127": Chip("ConnectX-6 Lx", 0),  # 25 or 50 Gb/s
    "MT4129": Chip("ConnectX-7", 400, 200),  # no board has two ports of 400
    "MT4131": Chip("ConnectX-8", 800, 400),
    "MT41682": Chip("BlueField", 100, 100),
    "MT41683": Chip("BlueField virtual function", 0, virtual=True),
    "MT41686": Chip("BlueField-2", 100, 100),  # 25, 100 or 200 Gb/s
    "MT41692": Chip("BlueField-3", 400, 200),
}

# Boards whose rate is not what the chip's other boards have, and the common ones of GPU nodes.
BOARDS_GBPS = {
    "MT_0000000222": 100.0,  # MCX653105A-ECA: ConnectX-6, HDR100 and EDR
    "MT_0000000223": 200.0,  # MCX653105A-HDA
    "MT_0000000834": 200.0,  # MCX755106AS-HEA: ConnectX-7, 2 x 200
    "MT_0000000838": 400.0,  # MCX75310AAS-NEA: ConnectX-7
    "MT_0000000884": 200.0,  # 900-9D3B6-00CV-A: BlueField-3 B3220, 2 x 200
    "MT_0000001070": 400.0,  # BlueField-3 SuperNIC
    "MT_0000001069": 400.0,  # 900-9D3D4-00EN-HA0: BlueField-3 B3140H
}


def rate_max_gbps(hca_type: str, board_id: str = "", functions: int = 1, rate_gbps: float = 0.0) -> float:
    """Gb/s of one port of the adapter when all is well; 0: not known. `functions`: PCI functions of the same card that are adapters.
    Where the port runs faster than the table has it, the table is wrong, and the rate counts."""
    chip = CHIPS.get(hca_type)
    known = BOARDS_GBPS.get(board_id, 0.0)
    if not known and chip is not None:
        known = chip.single_gbps if functions < 2 else chip.dual_gbps
    # A virtual function shows its parent's rate, and a table for the chip says nothing about it.
    return max(known, rate_gbps) if known else 0.0


def is_virtual(hca_type: str) -> bool:
    """By the device id: in a virtual machine a virtual function has no parent that sysfs could show."""
    chip = CHIPS.get(hca_type)
    return chip is not None and chip.virtual
