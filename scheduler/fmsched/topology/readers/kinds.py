"""The kinds of dumps that can be imported, and the reader of each. A reader is loaded when it is first used."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from fmsched.topology.readers.found import Found

# What --kind says → the module here whose `read(text, file)` reads it.
READERS: dict[str, str] = {
    "ibstat": "ibstat",
    "nvidia-smi-topo": "smi_topo",
    "nvidia-smi-q": "smi_query",
    "nvidia-smi-list": "smi_list",
    "nvlink-status": "nvlink_status",
    "nccl-topo": "nccl_topo",
    "ibnetdiscover": "ibnetdiscover",
    "slurm-topology": "slurm_topology",
    "topograph": "topograph",
}
KINDS = tuple(READERS)


def reader(kind: str) -> Callable[[str, str], Found]:
    """`read(text, file)` of a kind, which raises ReaderError. Raises KeyError for a kind that is not in KINDS."""
    module = import_module(f"fmsched.topology.readers.{READERS[kind]}")
    read: Callable[[str, str], Found] = module.read
    return read
