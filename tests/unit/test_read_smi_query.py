"""What `nvidia-smi -q` and `-q -x` say of the GPUs of a node: made-up pieces with each oddity, then every output of the collection."""

from __future__ import annotations

import gzip
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from fmproto.dumptext import Problems, ReaderError, decode
from fmsched.topology.readers.found import GpuFound, NodeFound
from fmsched.topology.readers.smi_query import address, read
from tests.support.shared_data import files, shared

HEADER = """
==============NVSMI LOG==============

Timestamp                                 : Mon Feb  2 10:11:12 2026
Driver Version                            : 555.42.06
CUDA Version                              : 12.5

Attached GPUs                             : {attached}
"""


def gpu(
    pci: str = "00000000:3A:00.0", name: str = "NVIDIA H100 80GB HBM3", total: str = "81559 MiB", more: str = ""
) -> str:
    return f"""GPU {pci}
    Product Name                          : {name}
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    Serial Number                         : 1650000000001
    GPU UUID                              : GPU-11111111-2222-3333-4444-{pci[9:11] * 6}
    FB Memory Usage
        Total                             : {total}
        Used                              : 5 MiB
    BAR1 Memory Usage
        Total                             : 131072 MiB
{more}    Processes                             : None

"""


def text(*sections: str, attached: int | None = None) -> str:
    return HEADER.format(attached=len(sections) if attached is None else attached) + "".join(sections)


def one(more: str) -> GpuFound:
    """The GPU of a dump with `more` among its fields."""
    return read(text(gpu(more=more)), "q.txt").gpus[0]


def whys(node: NodeFound) -> list[str]:
    return [f"{problem.what}: {problem.why}" for problem in node.problems]


def test_gpus_in_order_with_what_they_say() -> None:
    node = read(text(gpu("00000000:3A:00.0"), gpu("00000001:05:00.0", "NVIDIA L40S", "46068 MiB")), "q.txt")
    assert (node.kind, node.driver, node.complete, node.problems) == ("nvidia-smi-q", "555.42.06", True, ())
    assert [(g.index, g.name, g.pci, g.memory_mib, g.mig_enabled, g.fault) for g in node.gpus] == [
        (0, "NVIDIA H100 80GB HBM3", "00000000:3A:00.0", 81559, False, ""),
        (1, "NVIDIA L40S", "00000001:05:00.0", 46068, False, ""),
    ]
    assert node.gpus[0].uuid == "GPU-11111111-2222-3333-4444-3A3A3A3A3A3A"
    assert node.gpus[0].facts["serial"] == "1650000000001"


def test_facts_of_a_newer_driver() -> None:
    found = one(
        """    Clocks Event Reasons
        Idle                              : Active
        SW Power Cap                      : Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Active
    ECC Mode
        Current                           : Enabled
        Pending                           : Disabled
    ECC Errors
        Volatile
            SRAM Correctable              : 1
            SRAM Uncorrectable Parity     : 2
            SRAM Uncorrectable SEC-DED    : 3
            DRAM Correctable              : 10
            DRAM Uncorrectable            : 4
        Aggregate
            SRAM Uncorrectable Parity     : N/A
            DRAM Uncorrectable            : 40
            SRAM Threshold Exceeded       : No
        Aggregate Uncorrectable SRAM Sources
            SRAM L2                       : 7
    Remapped Rows
        Correctable Error                 : 5
        Uncorrectable Error               : 6
        Pending                           : Yes
        Remapping Failure Occurred        : No
    GPU Power Readings
        Average Power Draw                : 71.27 W
        Current Power Limit               : 650.00 W
        Max Power Limit                   : 700.00 W
    Module Power Readings
        Current Power Limit               : 2500.00 W
    Fabric
        State                             : Completed
        Status                            : Success
        CliqueId                          : 32766
        ClusterUUID                       : 8e6a5a0c-0b0a-4b6c-9d1e-000000000007
        Health
            Summary                       : Healthy
            Bandwidth                     : Full
"""
    )
    expected = {
        "throttle": "sw_power_cap,hw_thermal_slowdown", "ecc_mode": "Enabled", "ecc_mode_pending": "Disabled",
        "ecc_uncorrected_volatile": "9", "ecc_corrected_volatile": "11", "ecc_uncorrected_aggregate": "40", "remap_corrected": "5",
        "remap_uncorrected": "6", "remap_pending": "Yes", "remap_failed": "No", "power_limit_w": "650", "power_limit_max_w": "700",
        "power_draw_w": "71.27", "fabric_state": "Completed", "fabric_status": "Success", "fabric_clique": "32766",
        "fabric_cluster_uuid": "8e6a5a0c-0b0a-4b6c-9d1e-000000000007", "fabric_health": "Healthy", "fabric_bandwidth": "Full",
    }  # fmt: skip
    assert {key: found.facts.get(key) for key in expected} == expected
    assert "ecc_corrected_aggregate" not in found.facts
    assert "mig_pending" not in found.facts
    assert found.fault == ""  # a remap that waits for a reset stops nobody yet; the facts tell


@pytest.mark.parametrize(
    "lines",
    [
        "Driver Version : 610.57 [Deprecated; will be removed. Use KMD Version instead]\nKMD Version : 610.57",
        'DRIVER version : Deprecated, see "KMD version" instead\nKMD version : 610.57',
        "Driver Version : 610.57",
    ],
)
def test_the_driver_s_version_in_new_words(lines: str) -> None:
    node = read(text(gpu()).replace("Driver Version                            : 555.42.06", lines), "q.txt")
    assert node.driver == "610.57"


def test_an_older_driver() -> None:
    """Driver 319: short bus addresses, "Memory Usage" in MB, errors by bits, "Enforced Power Limit"."""
    old = """GPU 0000:0A:00.0
    Product Name                    : Tesla K20m
    GPU UUID                        : GPU-0aaa0aaa-0000-0000-0000-000000000001
    Clocks Throttle Reasons
        Idle                        : Not Active
        HW Slowdown                 : Active
    Memory Usage
        Total                       : 4799 MB
        Used                        : 11 MB
    Ecc Mode
        Current                     : Enabled
        Pending                     : Enabled
    ECC Errors
        Volatile
            Single Bit
                Device Memory       : 3
                Total               : 4
            Double Bit
                Device Memory       : 1
                Register File       : 1
                Total               : 2
    Retired Pages
        Single Bit ECC              : 0
        Double Bit ECC              : 1
        Pending                     : Yes
    Power Readings
        Power Limit                 : 225.00 W
        Enforced Power Limit        : 200.00 W
    Temperature
        Gpu                         : 33 C
    Compute Processes               : None
"""
    found = read(text(old), "old.txt").gpus[0]
    assert (found.name, found.memory_mib, found.pci) == ("Tesla K20m", 4799, "0000:0A:00.0")
    assert {key: found.facts[key] for key in ("ecc_uncorrected_volatile", "ecc_corrected_volatile", "power_limit_w")} == {
        "ecc_uncorrected_volatile": "2", "ecc_corrected_volatile": "4", "power_limit_w": "200",
    }  # fmt: skip
    assert (found.facts["retired_pending"], found.facts["throttle"], found.facts["temperature_c"]) == (
        "Yes",
        "hw_slowdown",
        "33",
    )


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("    Fan Speed                             : ERR!", "fan_speed: ERR!"),
        ("    Fan Speed                             : [Unknown Error]", "fan_speed: [Unknown Error]"),
        ("    Persistence Mode                      : GPU is lost", "GPU is lost"),
        ("    ECC Mode\n        Current                           : [GPU requires reset]", "GPU requires reset"),
        ("    ECC Mode\n        Current                           : [Requires reset]", "Requires reset"),
        ("    GPU Reset Status\n        Reset Required                    : Yes", "reset required"),
        ("    GPU Reset Status\n        Drain and Reset Recommended       : Yes", "drain and reset recommended"),
        ("    GPU Recovery Action                   : Reset", "recovery action: Reset"),
        ("    GPU Recovery Action                   : None", ""),
        ("    Fabric\n        State                             : In Progress", "NVLink fabric: In Progress"),
        (
            "    Fabric\n        State        : Completed\n        Status       : Insufficient Resources",
            "NVLink fabric: Completed, Insufficient Resources",
        ),
        (
            "    Fabric\n        State                             : N/A\n        Status                            : N/A",
            "",
        ),
    ],
)
def test_faults(line: str, fault: str) -> None:
    found = one(line + "\n")
    assert found.fault == fault
    assert (found.name, found.memory_mib) == ("NVIDIA H100 80GB HBM3", 81559)


def test_a_lost_gpu_hides_no_other() -> None:
    lost = gpu("00000000:4B:00.0", name="GPU is lost", total="GPU is lost", more="    ECC Mode : Unknown Error\n")
    node = read(text(gpu(), lost, gpu("00000000:5C:00.0")), "q.txt")
    assert [g.fault for g in node.gpus] == ["", "GPU is lost", ""]
    assert [g.index for g in node.gpus] == [0, 1, 2]
    assert (node.gpus[1].name, node.gpus[1].memory_mib, node.gpus[1].pci) == ("", 0.0, "00000000:4B:00.0")
    assert any("product_name: GPU is lost" in why for why in whys(node))
    assert node.complete


@pytest.mark.parametrize(
    "message",
    [
        "Unable to determine the device handle for GPU 0000:4B:00.0: Unknown Error",
        "Unable to determine the device handle for GPU0000:4B:00.0: GPU is lost.  Reboot the system to recover this GPU",
        "Unable to determine the device handle for GPU1: 0000:4B:00.0: Unknown Error",
        "Unable to determine the device handle for gpu 0000:4b:00.0: Unknown Error",
        "Unable to detect the device handle for GPU0000:4B:00.0: Unknown Error",
    ],
)
def test_a_gpu_that_only_a_message_tells_of_takes_its_place(message: str) -> None:
    node = read(message + "\n" + text(gpu("00000000:3A:00.0"), gpu("00000000:5C:00.0"), attached=3), "q.txt")
    assert [(g.index, address(g.pci)[1], bool(g.fault)) for g in node.gpus] == [
        (0, 0x3A, False),
        (1, 0x4B, True),
        (2, 0x5C, False),
    ]
    assert node.complete


def test_an_error_in_a_process_name_is_no_fault() -> None:
    more = "    Processes\n        Process ID                        : 4\n            Name                          : ERR! Unknown Error\n"
    assert one(more).fault == ""


def test_corrupted_inforom_is_a_problem_and_no_fault() -> None:
    node = read(text(gpu()) + "WARNING: infoROM is corrupted at gpu 0000:3A:00.0\n", "q.txt")
    assert node.gpus[0].fault == ""
    assert any("infoROM" in why for why in whys(node))


def test_fewer_sections_than_attached() -> None:
    node = read(text(gpu(), attached=8), "q.txt")
    assert (len(node.gpus), node.complete) == (1, False)
    assert any(why.startswith("8 attached GPUs: ") for why in whys(node))


def test_cut_inside_a_gpu() -> None:
    whole = text(gpu(), gpu("00000000:5C:00.0"))
    node = read(whole[: whole.index("FB Memory", whole.index("5C:00.0"))], "q.txt")
    assert [(g.memory_mib, g.name) for g in node.gpus] == [(81559, "NVIDIA H100 80GB HBM3"), (0.0, "NVIDIA H100 80GB HBM3")]
    assert not node.complete
    assert any("the file ends inside it" in why for why in whys(node))


def test_an_excerpt_by_section_is_complete() -> None:
    section = (
        "GPU 00000000:{}:00.0\n    Retired Pages\n        Single Bit ECC : {}\n        Pending Page Blacklist : {}\n\n"
    )
    node = read(text(section.format("1A", 60, "No"), section.format("2B", 2, "Yes")), "q.txt")
    assert [(g.facts["retired_single_bit"], g.facts["retired_pending"]) for g in node.gpus] == [("60", "No"), ("2", "Yes")]
    assert node.complete


def test_a_section_without_gpu_line() -> None:
    node = read(
        "    Fabric\n        State       : In Progress\n        Status      : N/A\n        CliqueId    : N/A\n", "q.txt"
    )
    assert (len(node.gpus), node.gpus[0].fault, node.complete) == (1, "NVLink fabric: In Progress", False)
    assert "no GPU line above it" in whys(node)[0]


def test_sections_of_one_gpu_in_two_logs_are_one() -> None:
    power = "GPU 00000000:3A:00.0\n    GPU Power Readings\n        Current Power Limit : 500.00 W\n"
    node = read(text(gpu()) + text(power), "q.txt")
    assert [(g.memory_mib, g.facts["power_limit_w"]) for g in node.gpus] == [(81559, "500")]
    assert any("a second time" in why for why in whys(node))


@pytest.mark.parametrize(
    "change",
    [
        lambda dump: dump.replace("\n", "\r\n"),
        lambda dump: "\ufeff" + dump,
        lambda dump: "admin@node7:~$ nvidia-smi -q\n" + dump + "admin@node7:~$\n",
        lambda dump: dump.replace("Product Name", "\x1b[1mProduct Name\x1b[0m"),
        lambda dump: "".join("   " + line + "\n" for line in dump.split("\n")),
        lambda dump: "".join(line.strip() + "\n" for line in dump.split("\n")),
        lambda dump: dump.replace("    ", "\t"),
    ],
    ids=["crlf", "bom", "prompts", "escapes", "shifted", "indent-lost", "tabs"],
)
def test_the_same_text_in_other_clothes(change: object) -> None:
    dump = text(gpu(), gpu("00000000:5C:00.0", "NVIDIA L40S", "46068 MiB"))
    node = read(change(dump), "q.txt")  # type: ignore[operator]
    assert [(g.name, g.memory_mib, g.uuid[:4]) for g in node.gpus] == [
        ("NVIDIA H100 80GB HBM3", 81559, "GPU-"),
        ("NVIDIA L40S", 46068, "GPU-"),
    ]
    assert node.driver == "555.42.06"


def mig(index: int, multiprocessors: int, total: int, ofa: int, engines: int) -> str:
    return f"""    MIG Device
        Index                             : {index}
        GPU Instance ID                   : {index + 3}
        Compute Instance ID               : 0
        Device Attributes
            Shared
                Multiprocessor count      : {multiprocessors}
                Copy Engine count         : {engines}
                OFA count                 : {ofa}
        ECC Errors
            Volatile
                SRAM Uncorrectable        : 9
        Shared FB Memory Usage
            Total                         : {total} MiB
"""


@pytest.mark.parametrize(
    ("name", "total", "devices", "profiles"),
    [
        ("NVIDIA H100 80GB HBM3", 81559,
         [(60, 40448, 0, 3), (32, 20096, 0, 2), (26, 20096, 0, 1), (16, 9984, 0, 1), (16, 9984, 1, 1)],
         ["3g.40gb", "2g.20gb", "1g.20gb", "1g.10gb", "1g.10gb+me"]),
        ("NVIDIA H100 80GB HBM3", 81559, [(132, 81152, 1, 8), (16, 40448, 0, 3), (18, 9984, 0, 1), (60, 9984, 0, 3)],
         ["7g.80gb", "1c.3g.40gb", "", ""]),
        ("NVIDIA H200", 143771, [(16, 71424, 0, 3), (32, 71424, 0, 3), (64, 71424, 0, 4), (16, 16384, 0, 1)],
         ["1c.3g.71gb", "2c.3g.71gb", "4g.71gb", "1g.18gb"]),
        ("NVIDIA A100-SXM4-40GB", 40960, [(14, 4864, 0, 1), (14, 9984, 0, 1), (14, 9984, 0, 2), (42, 20096, 0, 3), (56, 20096, 0, 4)],
         ["1g.5gb", "1g.10gb", "1c.2g.10gb", "3g.20gb", "4g.20gb"]),
        ("NVIDIA A30", 24576, [(14, 5952, 0, 1), (28, 11968, 1, 2), (56, 24000, 1, 4)], ["1g.6gb", "2g.12gb+me", "4g.24gb"]),
        ("NVIDIA B200", 183359, [(18, 22000, 0, 1)], [""]),
        ("", 81559, [(16, 9984, 0, 1)], [""]),
    ],
)  # fmt: skip
def test_mig_profiles_only_where_certain(
    name: str, total: int, devices: list[tuple[int, int, int, int]], profiles: list[str]
) -> None:
    parts = "".join(mig(i, *device) for i, device in enumerate(devices))
    section = gpu(name=name, total=f"{total} MiB").replace("    Serial", parts + "    Serial")
    found = read(text(section.replace(": Disabled", ": Enabled")), "q.txt").gpus[0]
    assert found.mig_enabled is True
    assert [instance.profile for instance in found.mig] == profiles
    assert (found.memory_mib, found.uuid[:12]) == (total, "GPU-11111111")
    assert "ecc_uncorrected_volatile" not in found.facts  # those of an instance are not the GPU's


def test_a_second_log_adds_no_mig_devices() -> None:
    section = gpu().replace("    Serial", mig(0, 60, 40448, 0, 3) + mig(1, 60, 40448, 0, 3) + "    Serial")
    found = read(text(section) + text(section), "q.txt").gpus
    assert [[instance.profile for instance in g.mig] for g in found] == [["3g.40gb", "3g.40gb"]]


# ---- XML -------------------------------------------------------------------------------------------------------------


def xml_gpu(pci: str, more: str = "", total: str = "183359 MiB") -> str:
    return f"""  <gpu id="{pci}">
    <product_name>NVIDIA B200</product_name>
    <mig_mode><current_mig>Disabled</current_mig><pending_mig>Enabled</pending_mig></mig_mode>
    <mig_devices>
      None
    </mig_devices>
    <uuid>GPU-aaaaaaaa-0000-0000-0000-{pci[9:11] * 6}</uuid>
    <fb_memory_usage><total>{total}</total><used>0 MiB</used></fb_memory_usage>
    {more}
  </gpu>
"""


def xml(*sections: str, attached: int = 0, top: str = '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">') -> str:
    return (
        f'<?xml version="1.0" ?>\n{top}\n<nvidia_smi_log>\n  <driver_version>580.1</driver_version>\n'
        f"  <attached_gpus>{attached or len(sections)}</attached_gpus>\n" + "".join(sections) + "</nvidia_smi_log>\n"
    )


def test_xml() -> None:
    more = """<ecc_errors><volatile><sram_uncorrectable_parity>1</sram_uncorrectable_parity>
      <dram_uncorrectable>5</dram_uncorrectable></volatile></ecc_errors>
    <remapped_rows><remapped_row_pending>Yes</remapped_row_pending><remapped_row_failure>No</remapped_row_failure></remapped_rows>
    <clocks_throttle_reasons><clocks_throttle_reason_gpu_idle>Active</clocks_throttle_reason_gpu_idle>
      <clocks_throttle_reason_sw_power_cap>Active</clocks_throttle_reason_sw_power_cap></clocks_throttle_reasons>
    <power_readings><power_limit>N/A</power_limit><enforced_power_limit>900.00 W</enforced_power_limit></power_readings>
    <fabric><state>Completed</state><status>Success</status><cliqueId>2</cliqueId><clusterUuid>c-1</clusterUuid></fabric>"""
    node = read(xml(xml_gpu("00000000:8F:00.0", more), xml_gpu("00000000:90:00.0")), "q.xml")
    assert (node.driver, node.complete, len(node.gpus), node.problems) == ("580.1", True, 2, ())
    found = node.gpus[0]
    assert (found.name, found.memory_mib, found.mig_enabled, found.uuid[:12]) == (
        "NVIDIA B200",
        183359,
        False,
        "GPU-aaaaaaaa",
    )
    expected = {
        "ecc_uncorrected_volatile": "6", "remap_pending": "Yes", "throttle": "sw_power_cap", "power_limit_w": "900",
        "fabric_clique": "2", "fabric_cluster_uuid": "c-1", "mig_pending": "Enabled",
    }  # fmt: skip
    assert {key: found.facts[key] for key in expected} == expected


def test_xml_mig_devices() -> None:
    device = """<mig_device><index>0</index><gpu_instance_id>1</gpu_instance_id><uuid>MIG-5</uuid>
      <device_attributes><shared><multiprocessor_count>98</multiprocessor_count></shared></device_attributes>
      <fb_memory_usage><total>40320 MiB</total></fb_memory_usage></mig_device>"""
    section = (
        xml_gpu("00000000:06:00.0", total="40960 MiB")
        .replace("None", device)
        .replace("NVIDIA B200", "NVIDIA A100-SXM4-40GB")
    )
    found = read(xml(section), "q.xml").gpus[0]
    assert [(instance.profile, instance.uuid) for instance in found.mig] == [("7g.40gb", "MIG-5")]
    assert (found.memory_mib, found.uuid[:7]) == (40960, "GPU-aaa")


def test_cut_xml_gives_the_gpus_before_the_cut() -> None:
    whole = xml(xml_gpu("00000000:8F:00.0"), xml_gpu("00000000:90:00.0"), xml_gpu("00000000:91:00.0"))
    for at in range(whole.index("</gpu>") + 6, len(whole) - 20, 7):
        node = read(whole[:at], "q.xml")
        done = whole[:at].count("</gpu>")
        assert [g.memory_mib for g in node.gpus][:done] == [183359] * done, at
        assert len(node.gpus) in (done, done + 1)
        assert not node.complete


def test_xml_errors_in_fields() -> None:
    bad = xml_gpu("00000000:90:00.0", "<fan_speed>ERR!</fan_speed>").replace("NVIDIA B200", "Unknown Error")
    node = read(xml(xml_gpu("00000000:8F:00.0"), bad, '<gpu id="00000000:91:00.0">GPU is lost</gpu>'), "q.xml")
    assert [g.fault for g in node.gpus] == ["", "product_name: Unknown Error", "GPU is lost"]
    assert node.gpus[1].memory_mib == 183359


def test_no_entity_is_expanded() -> None:
    lol = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 12))
    top = f'<!DOCTYPE nvidia_smi_log [<!ENTITY l0 "lol"><!ENTITY f SYSTEM "file:///etc/passwd">{lol}]>'
    node = read(
        xml(xml_gpu("00000000:8F:00.0", "<serial>&l11;&f;</serial><brand>a &amp; b &#65;</brand>"), top=top), "q.xml"
    )
    assert node.gpus[0].facts["serial"] == "&l11;&f;"
    assert any("entities" in why for why in whys(node))


def test_xml_that_is_not_well_formed_gives_what_it_can() -> None:
    odd = xml_gpu("00000000:8F:00.0", "<open><b>1</open> < 5 <bad attr=x> </never>")
    node = read(xml(odd, xml_gpu("00000000:90:00.0")), "q.xml")
    assert [g.memory_mib for g in node.gpus] == [183359, 183359]
    assert node.problems


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "no GPU section"),
        ("no such thing", "no GPU section"),
        ("No devices were found\n", "No devices were found"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "NVIDIA-SMI has failed"),
        ("Unable to determine the device handle for GPU 0000:08:00.0: Unknown Error\n", "device handle"),
        (text(attached=0), "no GPU is attached"),
        ("GPU 00000000:01:00.0\nGPU 00000000:02:00.0\n", "no GPU section"),
        ('<system version="1">\n <cpu numaid="0"/></system>', "nccl-topo"),
        ('<graphs version="1"></graphs>', "NCCL graph file"),
        ("GPU 0: NVIDIA A40 (UUID: GPU-1)\n\t Link 0: 25 GB/s\n", "nvlink-status"),
        ("GPU 0: NVIDIA A40 (UUID: GPU-1)\n", "nvidia-smi-list"),
        ("\tGPU0\tGPU1\nGPU0\t X \tNV4\n", "nvidia-smi-topo"),
        ("| NVIDIA-SMI 555.1   Driver Version: 555.1  |\n", "the table"),
        ("<nvidia_smi_log></nvidia_smi_log>", "no GPU section"),
    ],
)
def test_refused_with_the_reason(content: str, why: str) -> None:
    with pytest.raises(ReaderError) as refused:
        read(content, "x")
    assert why in refused.value.problem.why


# ---- the collection ----------------------------------------------------------------------------------------------------

TEXTS = files("nvsmi", "q-*.txt")
XMLS = files("nvsmi", "qx-*.xml")
OTHERS = [
    path
    for folder in ("nvsmi", "topo_m", "ibstat", "ibnetdiscover", "nccl_xml", "slurm_topology")
    for path in files(folder)
    if path not in TEXTS + XMLS
]


def content(path: Path) -> str:
    raw = path.read_bytes()
    return decode(gzip.decompress(raw) if path.suffix == ".gz" else raw, Problems(path.name))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_every_text_agrees_with_itself(path: Path) -> None:
    """Against counts that regular expressions make of the text."""
    dump = content(path)
    node = read(dump, path.name)
    parts = re.split(r"(?m)^GPU (?=\w+:\w+:\w+\.\d)", dump)[1:] or [dump]
    assert len(node.gpus) == len(parts)

    def each(pattern: str) -> list[str]:
        found = [re.search(pattern, part) for part in parts]
        return ["" if match is None or match[1].strip() == "N/A" else match[1].strip() for match in found]

    assert [g.name for g in node.gpus] == each(r"Product Name +: (.*)")
    assert [g.uuid for g in node.gpus] == each(r"GPU UUID +: (.*)")
    assert [g.facts.get("serial", "") for g in node.gpus] == each(r"\n    Serial Number +: (.*)")
    assert [f"{g.memory_mib:g}" for g in node.gpus] == [
        value.removesuffix(" MiB") or "0" for value in each(r"\n    FB Memory Usage\n +Total +: (.*)")
    ]
    assert [g.facts.get("fabric_state", "") for g in node.gpus] == each(r"(?:^|\n)    Fabric\n +State +: (.*)")
    assert [g.facts.get("remap_pending", "") for g in node.gpus] == each(
        r"Remapped Rows\n.*\n(?:.*Error.*\n)+ +Pending +: (.*)"
    )
    assert [g.facts.get("retired_pending", "") for g in node.gpus] == each(r"Pending Page Blacklist +: (.*)")
    assert [g.facts.get("ecc_mode", "") for g in node.gpus] == each(r"ECC Mode\n +Current +: (.*)")
    limits = [
        value.removesuffix(".00 W")
        for value in each(r"\n    GPU Power Readings\n(?:.*Draw.*\n)+ +Current Power Limit +: (.*)")
    ]
    assert [g.facts.get("power_limit_w", "") for g in node.gpus] == limits
    assert [len(g.mig) for g in node.gpus] == [len(re.findall(r"\n    MIG Device\n", part)) for part in parts]
    said = re.search(r"Attached GPUs +: (\d+)", dump)
    assert node.complete == (said is not None and int(said[1]) == len(parts))
    assert node.driver == (re.search(r"Driver Version +: (\S+)", dump) or ["", ""])[1]
    assert [bool(g.fault) for g in node.gpus] == [
        bool(re.search(r"ERR!|is lost|State +: In Progress", part)) for part in parts
    ]


@pytest.mark.parametrize("path", XMLS, ids=lambda path: path.name)
def test_every_xml_agrees_with_itself(path: Path) -> None:
    """Against what the standard library's parser finds at fixed paths."""
    root = ET.fromstring(path.read_bytes())
    node = read(content(path), path.name)
    sections = root.findall("gpu")

    def each(*paths: str) -> list[str]:
        texts = [
            next((text for path in paths if (text := (section.findtext(path) or "").strip())), "") for section in sections
        ]
        return ["" if text in ("N/A", "None") else text for text in texts]

    assert [g.pci for g in node.gpus] == [section.get("id") for section in sections]
    assert [g.name for g in node.gpus] == each("product_name")
    assert [g.uuid for g in node.gpus] == each("uuid")
    assert [f"{g.memory_mib:g}" for g in node.gpus] == [
        value.removesuffix(" MiB") or "0" for value in each("fb_memory_usage/total")
    ]
    assert [g.mig_enabled for g in node.gpus] == [
        {"Enabled": True, "Disabled": False}.get(v) for v in each("mig_mode/current_mig")
    ]
    for key, paths in {
        "fabric_state": ("fabric/state",),
        "fabric_clique": ("fabric/cliqueId",),
        "fabric_cluster_uuid": ("fabric/clusterUuid",),
        "fabric_health": ("fabric/health/summary",),
        "remap_pending": ("remapped_rows/remapped_row_pending",),
        "remap_failed": ("remapped_rows/remapped_row_failure",),
        "retired_pending": ("retired_pages/pending_blacklist",),
        "ecc_mode": ("ecc_mode/current_ecc",),
        "serial": ("serial",),
    }.items():
        assert [g.facts.get(key, "") for g in node.gpus] == each(*paths), key
    watts = each("gpu_power_readings/current_power_limit", "power_readings/enforced_power_limit")
    assert [g.facts.get("power_limit_w", "") for g in node.gpus] == [value.removesuffix(".00 W") for value in watts]
    for key, word in {"ecc_uncorrected_volatile": "uncorrectable", "ecc_corrected_volatile": "_correctable"}.items():
        sums = [
            [int(e.text) for e in section.iterfind("ecc_errors/volatile/*") if word in e.tag and (e.text or "").isdigit()]
            for section in sections
        ]
        assert [g.facts.get(key) for g in node.gpus] == [str(sum(values)) if values else None for values in sums]
    assert node.driver == (root.findtext("driver_version") or "")
    assert node.complete
    assert [g.fault for g in node.gpus] == [""] * len(sections)
    assert node.problems == ()


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_other_file_is_refused(path: Path) -> None:
    with pytest.raises(ReaderError) as refused:
        read(content(path), path.name)
    assert refused.value.problem.file == path.name
    assert "nvidia-smi" in refused.value.problem.why


def test_the_reason_for_other_files_of_the_tool() -> None:
    folder = shared("nvsmi")
    reasons = {}
    for path in sorted(folder.iterdir()):
        if path in OTHERS:
            with pytest.raises(ReaderError) as refused:
                read(content(path), path.name)
            reasons[path.name] = refused.value.problem.why
    expected = {
        "nvlink-s-": "nvlink-status",
        "L-": "nvidia-smi-list",
        "table-": "table",
        "mig-l": "mig",
        "query-": "--query-gpu",
    }
    wrong = {
        name: why
        for name, why in reasons.items()
        for start, word in expected.items()
        if name.startswith(start) and word not in why and "table of" not in why
    }
    assert not wrong
