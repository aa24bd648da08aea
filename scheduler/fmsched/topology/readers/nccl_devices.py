"""What GPUs of some PCI ids call themselves: an NCCL topology names none, but gives the ids of the device.

Sources: pci.ids (https://pci-ids.ucw.cz, vendors 10de and 1002) for the ids; the names are those that NVML and rocm-smi print. Ids that
several products share (66a1: MI50 and MI60) are left out.
"""

from __future__ import annotations

from functools import cache

from fmproto.gpus import lookup

_NAMES = {
    ("10de", "1db1"): "Tesla V100-SXM2-16GB",
    ("10de", "1db4"): "Tesla V100-PCIE-16GB",
    ("10de", "1db5"): "Tesla V100-SXM2-32GB",
    ("10de", "1db6"): "Tesla V100-PCIE-32GB",
    ("10de", "1db8"): "Tesla V100-SXM3-32GB",
    ("10de", "1eb8"): "Tesla T4",
    ("10de", "20b0"): "NVIDIA A100-SXM4-40GB",
    ("10de", "20b2"): "NVIDIA A100-SXM4-80GB",
    ("10de", "20b5"): "NVIDIA A100 80GB PCIe",
    ("10de", "20b7"): "NVIDIA A30",
    ("10de", "20f1"): "NVIDIA A100-PCIE-40GB",
    ("10de", "2235"): "NVIDIA A40",
    ("10de", "2236"): "NVIDIA A10",
    ("10de", "2237"): "NVIDIA A10G",
    ("10de", "2321"): "NVIDIA H100 NVL",
    ("10de", "2324"): "NVIDIA H800",
    ("10de", "2330"): "NVIDIA H100 80GB HBM3",
    ("10de", "2331"): "NVIDIA H100 PCIe",
    ("10de", "2335"): "NVIDIA H200",
    ("10de", "2684"): "NVIDIA GeForce RTX 4090",
    ("10de", "26b5"): "NVIDIA L40",
    ("10de", "26b9"): "NVIDIA L40S",
    ("10de", "26ba"): "NVIDIA L20",
    ("10de", "2901"): "NVIDIA B200",
    ("10de", "2941"): "NVIDIA GB200",
    ("1002", "738c"): "AMD Instinct MI100",
    ("1002", "740f"): "AMD Instinct MI210",
    ("1002", "74a1"): "AMD Instinct MI300X",
}


def name_of(vendor: str, device: str) -> str:
    """The name of a GPU with these PCI ids ("0x10de", "0x2330"); empty where the ids are unknown or not given."""
    return _NAMES.get((vendor.lower().removeprefix("0x"), device.lower().removeprefix("0x")), "")


@cache
def ids_of(model: str) -> tuple[str, str]:
    """The PCI ids of a GPU, by its name or its catalogue key, as a topology writes them; ("", "") where they are not known."""
    for (vendor, device), name in _NAMES.items():
        facts = lookup(name)
        if model == name or (facts is not None and not facts.guessed and facts.key == model):
            return f"0x{vendor}", f"0x{device}"
    return "", ""
