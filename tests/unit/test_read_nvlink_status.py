"""`nvidia-smi nvlink --status`: small reports of every oddity, and all real outputs against a second, naive reading."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fmproto.dumptext import Problems, ReaderError, decode
from fmsched.topology.readers import nvlink_status
from fmsched.topology.readers.found import GpuFound, NodeFound
from tests.support import shared_data


def gpu(index: int, *states: str, name: str = "NVIDIA A100-SXM4-40GB") -> str:
    links = "".join(f"\t Link {link}: {state}\n" for link, state in enumerate(states))
    return f"GPU {index}: {name} (UUID: GPU-{index:08x}-0a1b-2c3d-4e5f-60718293a4b5)\n{links}"


def read(text: str) -> NodeFound:
    return nvlink_status.read(text, "dump.txt")


def only(text: str) -> GpuFound:
    (one,) = read(text).gpus
    return one


def whys(found: NodeFound) -> str:
    return "\n".join(map(str, found.problems))


UP = ["25 GB/s"] * 12


def test_all_links_up() -> None:
    text = gpu(0, *UP) + gpu(1, *UP)
    for form in (
        text,
        text.replace("\n", "\r\n"),
        "$ nvidia-smi nvlink -s\n" + text.replace("\t", "         "),
        text.replace("\t ", ""),
    ):
        found = read(form)
        assert found.kind == "nvlink-status" and found.complete and not found.problems
        assert [(g.index, g.nvlinks_active, g.nvlinks_down, g.nvlink_gbytes_per_s) for g in found.gpus] == [
            (0, 12, (), 600.0),
            (1, 12, (), 600.0),
        ]
        assert (
            found.gpus[1].uuid == "GPU-00000001-0a1b-2c3d-4e5f-60718293a4b5"
            and found.gpus[1].name == "NVIDIA A100-SXM4-40GB"
        )


@pytest.mark.parametrize(
    ("printed", "gbytes_per_s"),
    [
        ("25 GB/s", 50.0),
        ("25.781 GB/s", 51.562),
        ("26.562 GB/s", 53.124),
        ("53.125 GB/s", 106.25),
        ("14.062 GB/s", 28.124),
        ("500 MB/s", 1.0),
    ],
)
def test_both_directions_together(printed: str, gbytes_per_s: float) -> None:
    assert only(gpu(0, printed)).nvlink_gbytes_per_s == gbytes_per_s


@pytest.mark.parametrize("state", ["<inactive>", "inactive", "<inActive>", "Disabled", "<down>", "0.000 GB/s"])
def test_links_that_are_down(state: str) -> None:
    found = only(gpu(0, "25.781 GB/s", state, "25.781 GB/s", state))
    assert (found.nvlinks_active, found.nvlinks_down, found.nvlink_gbytes_per_s) == (2, (1, 3), 103.124)
    assert not found.fault


def test_all_links_listed_as_down() -> None:
    found = only(gpu(0, *["<inactive>"] * 4))
    assert (found.nvlinks_active, found.nvlinks_down, found.nvlink_gbytes_per_s) == (0, (0, 1, 2, 3), 0.0)


@pytest.mark.parametrize(
    ("words", "active"),
    [
        ("NVML: Unable to retrieve NVLink information as all links are inactive", 0),
        ("NVML: Unable to retrieve Nvlink information as all links are inActive", 0),
        ("Device does not have or support Nvlink", 0),
        ("Nvlink queries are not supported for Devices in MIG mode", None),
    ],
)
def test_what_the_tool_says_in_words(words: str, active: int | None) -> None:
    head = gpu(0).rstrip("\n")
    for text in (f"{head}\n{words}\n", f"{head} {words}\n"):
        found = read(text + gpu(1, *UP))
        assert found.complete and not found.problems
        first = found.gpus[0]
        assert (first.nvlinks_active, first.nvlinks_down, first.nvlink_gbytes_per_s) == (active, (), 0.0)
        assert dict(first.facts) == {"nvlink status": words}
        assert first.mig_enabled is (True if "MIG" in words else None)
        assert found.gpus[1].nvlinks_active == 12


def test_an_active_link_without_a_speed_leaves_the_bandwidth_unsaid() -> None:
    found = read(gpu(0, "25 GB/s", "<active>"))
    assert (found.gpus[0].nvlinks_active, found.gpus[0].nvlink_gbytes_per_s) == (2, 0.0)
    assert "without its speed" in whys(found)


def test_a_state_that_is_not_understood_counts_as_neither() -> None:
    found = read(gpu(0, "25 GB/s", "ERR!", "<Unknown Error>", "<inactive>"))
    assert (found.gpus[0].nvlinks_active, found.gpus[0].nvlinks_down) == (1, (3,))
    assert found.complete and len(found.problems) == 2


def test_a_faulty_gpu_hides_no_other() -> None:
    text = gpu(0, *UP) + gpu(1) + "NVML: GPU requires reset\n" + gpu(2, *UP)
    found = read(text)
    assert [(g.index, g.fault, g.nvlinks_active) for g in found.gpus] == [
        (0, "", 12),
        (1, "GPU requires reset", None),
        (2, "", 12),
    ]
    assert found.complete
    lost = read(gpu(0, *UP) + "Unable to determine the device handle for GPU 0000:9B:00.0: GPU is lost.\n" + gpu(2, *UP))
    assert [(g.index, g.fault, g.pci) for g in lost.gpus][1] == (1, "GPU is lost.", "0000:9B:00.0") and lost.complete
    assert not read(gpu(0, *UP) + "Unable to determine the device handle for GPU1: Unknown Error\n").complete


def test_cut_reports() -> None:
    whole = gpu(0, *UP) + gpu(1, *UP)
    cut = read(whole[: whole.rindex("\t Link 9")])
    assert not cut.complete and cut.gpus[1].nvlinks_active == 9 and "not listed" in whys(cut)
    # The last number may go on: a link without its unit is no speed.
    assert read(whole[:-4]).gpus[1].nvlinks_active == 11
    nothing = read(gpu(0, *UP) + gpu(1))
    assert not nothing.complete and nothing.gpus[1].nvlinks_active is None and "nothing is said" in whys(nothing)
    hole = read(gpu(0, *UP).replace("\t Link 4: 25 GB/s\n", ""))
    assert (
        not hole.complete
        and hole.gpus[0].nvlinks_active == 11
        and hole.gpus[0].nvlinks_down == ()
        and "link 4" in whys(hole)
    )
    assert not read(gpu(0, *UP[:2]) + "\t ...\n").complete
    assert not read(gpu(0, *UP) + "\t Link").complete


def test_gpus_of_two_models_have_their_own_numbers_of_links() -> None:
    found = read(gpu(0, *UP) + gpu(1, *UP[:4], name="NVIDIA RTX A6000"))
    assert found.complete and [g.nvlinks_active for g in found.gpus] == [12, 4]


def test_one_gpu_that_was_asked_for_is_complete() -> None:
    found = read(gpu(7, *UP))
    assert found.complete and [g.index for g in found.gpus] == [7]


def test_a_log_with_other_reports() -> None:
    listed = gpu(0) + gpu(1)
    errors = (
        gpu(0)
        + "\t Link 0: Replay Errors: 0\n\t Link 0: Recovery Errors: 0\n"
        + gpu(1)
        + "\t Link 0, P2P is supported: true\n"
    )
    text = listed + "$ nvidia-smi nvlink -s\n" + gpu(0, *UP) + gpu(1, *UP) + errors
    found = read(text)
    assert found.complete and not found.problems and [g.nvlinks_active for g in found.gpus] == [12, 12]
    other = read(text + gpu(0, *UP[:11], "<inactive>"))
    assert other.gpus[0].nvlinks_active == 12 and "the first stands" in whys(other)


def test_lines_that_belong_to_no_gpu() -> None:
    found = read("\t Link 0: 25 GB/s\n" + gpu(0, "25 GB/s") + "\t Link 0: <inactive>\n\t Link 700: 25 GB/s\n")
    assert found.gpus[0].nvlinks_active == 1 and found.gpus[0].nvlinks_down == ()
    assert len(found.problems) == 3


def test_a_uuid_that_is_cut_or_masked() -> None:
    found = read(gpu(0, "25 GB/s").replace("-2c3d", "-****") + gpu(1, "25 GB/s").replace(")", ""))
    assert [g.uuid for g in found.gpus] == ["", ""] and len(found.problems) == 2
    same = read(gpu(0, "25 GB/s") + gpu(0, "25 GB/s").replace("GPU 0", "GPU 1"))
    assert [g.uuid for g in same.gpus] == ["", ""]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "nothing but blanks"),
        ("No devices were found\n", "No devices were found"),
        (gpu(0) + gpu(1), "nvidia-smi -L"),
        (gpu(0) + "\t Link 0: Replay Errors: 0\n", "without --status"),
        (gpu(0) + "\t Link 0, P2P is supported: true\n", "without --status"),
        (gpu(0) + "\t Link 0: Remote Device 00000000:01:00.0: Link 2\n", "without --status"),
        ("\t Link 0: 25 GB/s\n", "found none of it"),
        ("\tGPU0\tGPU1\nGPU0\t X \tNV4\n", "topo -m"),
        ("    Link 0 : x\n==============NVSMI LOG==============\n", "kind nvidia-smi-q"),
    ],
)
def test_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ReaderError, match=re.escape(reason)):
        read(text)


@pytest.mark.parametrize("path", shared_data.files("nvsmi", "nvlink-s-*"), ids=lambda path: path.stem)
def test_real_outputs_say_the_same_to_a_naive_reading(path: Path) -> None:
    text = decode(path.read_bytes(), Problems(path.name))
    found = nvlink_status.read(text, path.name)
    assert found.complete and not found.problems
    blocks = re.split(r"^GPU ", text, flags=re.MULTILINE)[1:]
    assert len(found.gpus) == len(blocks)
    for one, block in zip(found.gpus, blocks, strict=True):
        assert f"{one.index}: {one.name} (UUID: {one.uuid})" == block.splitlines()[0].strip()
        speeds = [float(speed) for speed in re.findall(r"([\d.]+) GB/s", block)]
        assert one.nvlinks_active == len(speeds)
        assert one.nvlink_gbytes_per_s == pytest.approx(2 * sum(speeds))
        assert len(one.nvlinks_down) == block.count("<inactive>")


def test_every_real_output_is_walked() -> None:
    walked = {f"nvsmi/{path.name}" for path in shared_data.files("nvsmi", "nvlink-s-*")}
    assert walked == {name for name, row in shared_data.index().items() if row["what"].startswith("nvidia-smi nvlink")}


def test_other_tools_lines_that_begin_with_link_are_no_cut() -> None:
    text = "GPU 0: NVIDIA H200 (UUID: GPU-12)\n\t Link 0: 26.562 GB/s\n    Link Width\n        Max : 16x\nLink layer: InfiniBand\n"
    found = read(text)
    assert found.complete
    assert not found.problems
    assert not read("GPU 0: NVIDIA H200 (UUID: GPU-12)\n\t Link 0: 26.562 GB/s\n\t Link 1").complete


def test_a_name_that_the_text_ends_in_is_set_aside() -> None:
    found = read("GPU 0: NVIDIA H200 (UUID: GPU-12)\n\t Link 0: 26.562 GB/s\nGPU 1: NVIDIA H2")
    assert [gpu.name for gpu in found.gpus] == ["NVIDIA H200", ""]
    assert not found.complete
