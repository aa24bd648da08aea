"""`nvidia-smi -q` as people quote it, and what a virtual machine hides: made-up outputs of the same shape."""

from __future__ import annotations

import pytest

from fmproto.dumptext import ReaderError
from fmsched.topology.readers.smi_query import read

LOG = """==============NVSMI LOG==============

Driver Version                      : 415.99

Attached GPUs                       : 2
GPU 00000000:01:00.0
    Product Name                    : Quadro M9900
    GPU UUID                        : GPU-11111111-2222-3333-4444-555555555555
    FB Memory Usage
        Total                       : 4040 MiB
    Processes                       : None
GPU 00000000:02:00.0
    Product Name                    : Quadro M9900
    GPU UUID                        : GPU-11111111-2222-3333-4444-666666666666
    PCI
        GPU Link Info
            PCIe Generation
                Host Max            : Unknown Error
    FB Memory Usage
        Total                       : 4040 MiB
    Processes                       : None
"""


def _marked(mark: str, end: str = "") -> str:
    return "".join(f"{mark}{line}{end}\n" for line in LOG.splitlines())


@pytest.mark.parametrize("mark", ["> ", ">", "% ", "# ", "// ", "> > ", "n07: "])
def test_a_mark_before_each_line_changes_nothing(mark: str) -> None:
    assert read(_marked(mark), "t").gpus == read(LOG, "t").gpus


def test_backslashes_that_keep_a_lines_end_are_no_part_of_a_value() -> None:
    assert [gpu.uuid for gpu in read(_marked("", " \\"), "t").gpus] == [gpu.uuid for gpu in read(LOG, "t").gpus]


def test_the_output_of_two_hosts_is_refused() -> None:
    with pytest.raises(ReaderError, match="2 hosts"):
        read(_marked("n07: ") + _marked("n08: "), "t")


def test_a_host_link_that_cannot_be_read_is_told_and_is_no_fault_of_the_gpu() -> None:
    found = read(LOG, "t")
    assert [gpu.fault for gpu in found.gpus] == ["", ""]
    assert any("host_max" in problem.what for problem in found.problems)


def test_a_uuid_that_the_file_ends_in_is_set_aside() -> None:
    found = read(LOG[: LOG.index("-666666666666")], "t")
    assert [gpu.uuid[-12:] for gpu in found.gpus] == ["555555555555", ""]
    assert any("ends within the UUID" in problem.why for problem in found.problems)
