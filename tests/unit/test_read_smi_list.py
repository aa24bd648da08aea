"""`nvidia-smi -L`: small lists of every oddity, and all real outputs against a second, naive reading."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fmproto.dumptext import Problems, ReaderError, decode
from fmsched.topology.readers import smi_list
from fmsched.topology.readers.found import MigFound, NodeFound
from tests.support import shared_data

A = "GPU-1d0f3f1a-7b1e-4c3f-9a55-0d2c4b6e8f10"
B = "GPU-2e1a4b2c-8c2f-5d40-ab66-1e3d5c7f9a21"
TWO = f"GPU 0: NVIDIA A100-SXM4-40GB (UUID: {A})\nGPU 1: NVIDIA A100-SXM4-40GB (UUID: {B})\n"
MIG = "MIG-c7c2a1b0-3f4e-5d6c-8b7a-90a1b2c3d4e5"
LOST = "Unable to determine the device handle for GPU 0000:9B:00.0: Unknown Error\n"


def read(text: str) -> NodeFound:
    return smi_list.read(text, "dump.txt")


def whys(found: NodeFound) -> str:
    return "\n".join(map(str, found.problems))


def test_a_list() -> None:
    for text in (
        TWO,
        TWO.replace("\n", "\r\n"),
        "\ufeff$ nvidia-smi -L\n" + TWO + "$ \n",
        TWO.replace("GPU ", "n1: GPU ", 2),
        "# " + TWO,
    ):
        found = read(text)
        assert found.kind == "nvidia-smi-list" and found.complete and not found.problems
        assert [(gpu.index, gpu.name, gpu.uuid) for gpu in found.gpus] == [
            (0, "NVIDIA A100-SXM4-40GB", A),
            (1, "NVIDIA A100-SXM4-40GB", B),
        ]
        assert [(gpu.fault, gpu.mig_enabled, gpu.mig) for gpu in found.gpus] == [("", None, ()), ("", None, ())]


@pytest.mark.parametrize(
    "profile", ["1g.10gb", "1g.10gb+me", "1c.3g.71gb", "7g.278gb", "1g.12gb+gfx", "1g.5gb-me", "4g.24gb+me.all"]
)
@pytest.mark.parametrize(
    "form", ["  MIG {p:<15} Device  0: (UUID: {u})", "MIG {p} Device 0: (UUID: {u})", "\tMIG {p}\tDevice 0:(UUID: {u})"]
)
def test_mig_devices(profile: str, form: str) -> None:
    for uuid in (MIG, f"MIG-{A}/2/0"):
        found = read(TWO + form.format(p=profile, u=uuid) + "\n")
        assert found.complete and not found.problems
        assert found.gpus[1].mig == (MigFound(profile, uuid),) and found.gpus[1].mig_enabled is True
        assert found.gpus[0].mig == () and found.gpus[0].mig_enabled is None


def test_mig_devices_that_cannot_be_used() -> None:
    text = f"  MIG 1g.10gb Device 0: (UUID: {MIG}0)\n" + TWO
    text += f"  MIG ERR! Device 0: (UUID: {MIG}1)\n  MIG Device 1: (UUID: {MIG}2)\n  MIG 1g.5gb Device 2: (UUID: {MIG}3"
    found = read(text)
    assert found.gpus[0].mig == () and found.gpus[1].mig == (MigFound("1g.5gb"),)
    assert not found.complete
    assert len(found.problems) == 4 and "before the first GPU" in whys(found) and "MIG profile of device 1" in whys(found)


@pytest.mark.parametrize(
    ("line", "index", "pci", "reason"),
    [
        ("Unable to determine the device handle for GPU 0000:9B:00.0: Unknown Error", 1, "0000:9B:00.0", "Unknown Error"),
        ("Unable to determine the device handle for GPU0000:9B:00.0: Unknown Error", 1, "0000:9B:00.0", "Unknown Error"),
        ("Unable to determine the device handle for GPU1: 0000:9B:00.0: Unknown Error", 1, "0000:9B:00.0", "Unknown Error"),
        ("Unable to determine the device handle for GPU1: Unknown Error", 1, "", "Unknown Error"),
        ("Unable to determine the device handle for gpu 00000000:9B:00.0: Not Found", 1, "00000000:9B:00.0", "Not Found"),
        (
            "Unable to determine the device handle for GPU 0000:9B:00.0: GPU is lost.  Reboot the system to recover this GPU",
            1,
            "0000:9B:00.0",
            "GPU is lost.  Reboot the system to recover this GPU",
        ),
        ("Unable to determine the device handle for GPU1", 1, "", "no reason given"),
    ],
)
def test_a_lost_gpu_is_kept_with_its_fault(line: str, index: int, pci: str, reason: str) -> None:
    rest = f"GPU 2: NVIDIA A100-SXM4-40GB (UUID: {B})\n"
    first = TWO.splitlines(keepends=True)[0]
    for text in (first + line + "\n" + rest, line + "\n" + first + rest):
        found = read(text)
        assert found.complete and [gpu.index for gpu in found.gpus] == [0, 1, 2]
        lost = found.gpus[1]
        assert (lost.index, lost.pci, lost.fault) == (index, pci, reason)
        assert not found.gpus[0].fault and not found.gpus[2].fault
        assert reason in whys(found)


def test_the_tool_may_have_stopped_at_a_lost_gpu() -> None:
    found = read(TWO + LOST)
    assert [(gpu.index, gpu.fault) for gpu in found.gpus] == [(0, ""), (1, ""), (2, "Unknown Error")]
    assert not found.complete


def test_several_lost_gpus() -> None:
    found = read(LOST + LOST.replace("9B", "CB") + f"GPU 1: Card (UUID: {A})\nGPU 3: Card (UUID: {B})\n")
    assert [(gpu.index, gpu.pci) for gpu in found.gpus] == [(0, "0000:9B:00.0"), (1, ""), (2, "0000:CB:00.0"), (3, "")]
    assert found.complete


@pytest.mark.parametrize("name", ["ERR!", "Unknown Error", "GPU is lost", "[Unknown Error]", "NVML: GPU requires reset"])
def test_a_name_that_is_an_error(name: str) -> None:
    found = read(TWO + f"GPU 2: {name} (UUID: {name})\n")
    assert (found.gpus[2].name, found.gpus[2].uuid, found.gpus[2].fault) == ("", "", name)
    assert found.gpus[0].uuid == A


def test_a_number_that_is_left_out() -> None:
    found = read(TWO.replace("GPU 1:", "GPU 3:"))
    assert [gpu.index for gpu in found.gpus] == [0, 3] and not found.complete
    assert "GPU 1, 2" in whys(found)


def test_uuids_that_identify_nothing() -> None:
    masked = read(TWO.replace(A, "GPU-xxxx****"))
    assert [gpu.uuid for gpu in masked.gpus] == ["", B] and masked.complete and "is not one" in whys(masked)
    twice = read(TWO.replace(B, A) + "GPU 2: Card\n")
    assert (
        [gpu.uuid for gpu in twice.gpus] == ["", "", ""]
        and "more than one device has" in whys(twice)
        and "no UUID" in whys(twice)
    )
    cut = read(TWO[:-20])
    assert [gpu.uuid for gpu in cut.gpus] == [A, ""] and not cut.complete
    assert [gpu.uuid for gpu in read("GPU 0: Tesla C2050 (S/N: 0323210069321)\n").gpus] == [""]


def test_the_same_list_twice_and_another_host() -> None:
    again = read(TWO + f"  MIG 1g.5gb Device 0: (UUID: {MIG})\n" + TWO + f"  MIG 1g.5gb Device 0: (UUID: {MIG})\n")
    assert again.problems == () and again.gpus[1].mig == (MigFound("1g.5gb", MIG),)
    other = read(TWO + TWO.replace(A, "GPU-other"))
    assert other.gpus[0].uuid == A and "the first stands" in whys(other)


def test_a_log_with_the_links_below() -> None:
    found = read(TWO + "$ nvidia-smi nvlink -s\n" + TWO.replace("\n", "\n\t Link 0: 25 GB/s\n"))
    assert [gpu.uuid for gpu in found.gpus] == [A, B] and found.complete and not found.problems


def test_lines_left_out_by_hand() -> None:
    assert not read(TWO + "[snip]\n").complete
    assert not read(TWO + "...\n").complete


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "nothing but blanks"),
        ("No devices were found\n", "No devices were found"),
        ("Failed to initialize NVML: Driver/library version mismatch\n", "Failed to initialize NVML"),
        (LOST, "GPU 0000:9B:00.0 cannot be opened: Unknown Error"),
        (TWO.replace("\n", "\n\t Link 0: 25 GB/s\n"), "nvlink --status"),
        ("GPU 0: Card (UUID: GPU-1)\nDevice does not have or support Nvlink\n", "nvlink --status"),
        ("\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\n", "topo -m"),
        ("==============NVSMI LOG==============\n", "kind nvidia-smi-q"),
        ("GPU 00000000:19:00.0\n    Product Name : Card\n", "kind nvidia-smi-q"),
        ('<?xml version="1.0" ?>\n', "nvidia-smi -q -x"),
        ("| GPU instances: |\n", "nvidia-smi mig"),
        ("index, name, uuid\n0, Card, GPU-1\n", "--query-gpu"),
        ("GPU 0,1,2,3: NVIDIA H20\n", "found none of it"),
    ],
)
def test_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ReaderError, match=re.escape(reason)):
        read(text)


@pytest.mark.parametrize("path", shared_data.files("nvsmi", "L-*"), ids=lambda path: path.stem)
def test_real_outputs_say_the_same_to_a_naive_reading(path: Path) -> None:
    text = decode(path.read_bytes(), Problems(path.name))
    found = smi_list.read(text, path.name)
    assert found.complete and not found.problems
    blocks = re.split(r"^GPU ", text, flags=re.MULTILINE)[1:]
    assert len(found.gpus) == len(blocks)
    for gpu, block in zip(found.gpus, blocks, strict=True):
        head, *devices = block.strip().splitlines()
        assert f"{gpu.index}: {gpu.name} (UUID: {gpu.uuid})" == head.strip()
        assert [(mig.profile, mig.uuid) for mig in gpu.mig] == [
            (words.split()[1], words.split()[-1].strip(")")) for words in devices
        ]
        assert gpu.mig_enabled == (True if devices else None)


def test_every_real_output_is_walked() -> None:
    walked = {f"nvsmi/{path.name}" for path in shared_data.files("nvsmi", "L-*")}
    assert walked == {name for name, row in shared_data.index().items() if row["what"] == "nvidia-smi -L"}


def test_a_name_that_the_text_ends_in_is_set_aside() -> None:
    found = read("GPU 0: NVIDIA A30 (UUID: GPU-12)\nGPU 1: NVIDIA A")
    assert [gpu.name for gpu in found.gpus] == ["NVIDIA A30", ""]
    assert not found.complete
    assert read("GPU 0: NVIDIA A30\n").gpus[0].name == "NVIDIA A30"
