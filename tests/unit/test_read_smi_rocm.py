"""`rocm-smi --showtopo`, which the reader of `nvidia-smi topo -m` takes as well."""

from __future__ import annotations

import pytest

from fmproto.dumptext import ReaderError
from fmsched.topology.readers import smi_topo
from fmsched.topology.readers.found import NodeFound


def read(text: str) -> NodeFound:
    return smi_topo.read(text, "dump.txt")


def links(found: NodeFound) -> dict[tuple[int, int], int]:
    return {(pair.a, pair.b): pair.links for pair in found.nvlinks}


def whys(found: NodeFound) -> str:
    return "\n".join(map(str, found.problems))


ROCM = """============================ ROCm System Management Interface ============================
================================= Hops between two GPUs ==================================
       GPU0         GPU1         GPU2
GPU0   0            1            2
GPU1   1            0            2
GPU2   2            2            0
=============================== Link Type between two GPUs ===============================
       GPU0         GPU1         GPU2
GPU0   0            XGMI         PCIE
GPU1   XGMI         0            PCIE
GPU2   PCIE         PCIE         0
======================================= Numa Nodes =======================================
GPU[0]\t\t: (Topology) Numa Node: 0
GPU[0]\t\t: (Topology) Numa Affinity: 0
GPU[1]\t\t: (Topology) Numa Node: 0
GPU[2]\t\t: (Topology) Numa Node: 1
================================== End of ROCm SMI Log ===================================
"""


def test_rocm_smi() -> None:
    found = read(ROCM)
    assert found.complete and [(gpu.index, gpu.numa, gpu.vendor) for gpu in found.gpus] == [
        (0, 0, "amd"),
        (1, 0, "amd"),
        (2, 1, "amd"),
    ]
    assert links(found) == {(0, 1): 0}  # how many, rocm-smi does not say
    assert found.paths == {("GPU0", "GPU1"): "XGMI", ("GPU0", "GPU2"): "PCIE", ("GPU1", "GPU2"): "PCIE"}
    cut = read(ROCM.replace("GPU1   XGMI         0            PCIE\n", "").replace("XGMI         PCIE", "XGMI         ERR"))
    assert not cut.complete and "is none of XGMI, PCIE, 0" in whys(cut)
    with pytest.raises(ReaderError, match="has no rows"):
        read("=============================== Link Type between two GPUs ===============================\n")
