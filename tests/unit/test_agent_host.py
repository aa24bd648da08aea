"""The host's facts and state: over trees on disk that stand for other machines, and over this one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

from fmagent.devices import clock as clocks
from fmagent.devices import cpu, disks
from fmagent.devices.clock import Clock, ClockReader, chrony_offset_s, clock_of, kernel_clock, supported
from fmagent.devices.disks import DiskReader, Mount, Space
from fmagent.devices.host import host_facts, host_reading, pcie_generation
from fmproto.v1 import hardware_pb2 as pb
from tests.support.fake_sysfs import FakeSysfs

X86 = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Xeon Made Up 8468\ncpu MHz\t\t: 2100.000\n"
GRACE = "processor\t: 0\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd4f\n"


@pytest.fixture
def tree(tmp_path: Path) -> FakeSysfs:
    return FakeSysfs(tmp_path / "sys")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    (folder / "self").mkdir(parents=True)
    (folder / "pressure").mkdir()
    return folder


def threads(tree: FakeSysfs, sockets: int, cores: int, siblings: int) -> None:
    """Numbered as Linux does: first thread of every core first."""
    total = sockets * cores
    for number in range(total * siblings):
        core = number % total
        topology = f"devices/system/cpu/cpu{number}/topology"
        tree.write(f"{topology}/physical_package_id", core // cores)
        tree.write(f"{topology}/core_id", core % cores)
        tree.write(f"{topology}/core_cpus_list", ",".join(str(core + total * n) for n in range(siblings)))
    tree.write("devices/system/cpu/online", f"0-{total * siblings - 1}")


@pytest.mark.parametrize(
    ("text", "model"),
    [
        (X86, "Xeon Made Up 8468"),
        (GRACE, "ARM Neoverse-V2"),
        ("CPU implementer\t: 0xc0\nCPU part\t: 0xac3\n", "Ampere Ampere-1"),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xfff\n", "ARM part 0xfff"),
        ("CPU implementer\t: 0x7f\nCPU part\t: 0x001\n", "implementer 0x7f part 0x001"),
        ("processor\t: 0\ncpu\t\t: POWER9, altivec supported\nclock\t\t: 3800MHz\n", "POWER9, altivec supported"),
        ("Processor\t: AArch64 Processor rev 0\n", "AArch64 Processor rev 0"),
        ("", ""),
        ("model name\t:\n", ""),
    ],
)
def test_the_processors_name(text: str, model: str) -> None:
    assert cpu.model_of(text) == model


@pytest.mark.parametrize(("sockets", "cores", "siblings"), [(2, 4, 2), (1, 72, 1), (4, 3, 8)])
def test_threads_cores_and_sockets(tree: FakeSysfs, proc: Path, sockets: int, cores: int, siblings: int) -> None:
    threads(tree, sockets, cores, siblings)
    (proc / "cpuinfo").write_text(X86)
    found = cpu.processors(proc, tree.root)
    assert found == cpu.Processors("Xeon Made Up 8468", sockets * cores * siblings, sockets * cores, sockets)


def test_a_thread_that_is_offline_is_not_counted(tree: FakeSysfs, proc: Path) -> None:
    threads(tree, 1, 4, 1)
    shutil.rmtree(tree.root / "devices/system/cpu/cpu3/topology")
    tree.write("devices/system/cpu/online", "0-2")
    assert cpu.processors(proc, tree.root) == cpu.Processors("", 3, 3, 1)


def test_without_sysfs_cpuinfo_tells(tree: FakeSysfs, proc: Path) -> None:
    blocks = [f"processor\t: {n}\nphysical id\t: {n // 4}\ncore id\t\t: {n % 2}\n" for n in range(8)]
    (proc / "cpuinfo").write_text("\n".join(blocks))
    assert cpu.processors(proc, tree.root) == cpu.Processors("", 8, 4, 2)


@pytest.mark.parametrize(("text", "count"), [("0-31,64-95", 64), ("5", 1), ("", 0), ("all", 0), ("3-1", 0), ("0-1,x,4", 3)])
def test_counting_a_list_of_processors(text: str, count: int) -> None:
    assert cpu.count(text) == count


def test_numa_nodes_with_processors_or_memory(tree: FakeSysfs) -> None:
    for number, (cpus, kib) in enumerate([("0-3", 1000), ("4-7", 2000), ("", 500), ("", 0)]):
        tree.write(f"devices/system/node/node{number}/cpulist", cpus)
        tree.write(
            f"devices/system/node/node{number}/meminfo",
            f"Node {number} MemTotal:       {kib} kB\nNode {number} MemFree: 1 kB",
        )
    tree.write("devices/system/node/possible", "0-3")
    assert cpu.numa_nodes(tree.root) == [
        pb.NumaNode(number=0, cpus="0-3", memory_bytes=1_024_000),
        pb.NumaNode(number=1, cpus="4-7", memory_bytes=2_048_000),
        pb.NumaNode(number=2, memory_bytes=512_000),
    ]
    assert host_facts(tree.root, tree.root, DiskReader()).numa_nodes == 2


def test_pcie_by_the_slots_and_not_by_a_card_that_could_more(tree: FakeSysfs) -> None:
    assert pcie_generation(tree.root) == 0
    card = ("pci0000:00", "0000:00:01.0", "0000:01:00.0")
    tree.pci(card, {"max_link_speed": "32.0 GT/s PCIe", "class": "0x030200"})
    assert pcie_generation(tree.root) == 5
    tree.pci(card[:2], {"max_link_speed": "16.0 GT/s PCIe", "class": "0x060400"})
    tree.pci(("pci0000:00", "0000:00:02.0"), {"max_link_speed": "8 GT/s", "class": "0x060400"})
    tree.pci(("pci0000:00", "0000:00:03.0"), {"max_link_speed": "Unknown", "class": "0x060400"})
    tree.pci(("pci0000:00", "0000:00:04.0"), {"max_link_speed": "77 GT/s", "class": "0x060400"})
    assert pcie_generation(tree.root) == 4


MOUNTS = """22 27 0:21 / /proc rw - proc proc rw
27 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw
40 27 259:3 / /local\\040scratch rw shared:1 - xfs /dev/nvme0n1p1 rw
41 27 259:3 /sub /srv/bind rw shared:1 master:2 - xfs /dev/nvme0n1p1 rw
42 27 0:50 / /home rw - nfs4 filer:/home rw
43 27 0:51 / /lustre rw - lustre 10.0.0.1@o2ib:/fs rw
44 27 0:52 / /gpfs rw - gpfs /dev/gpfs0 rw
45 27 7:1 / /snap/core/1 ro - squashfs /dev/loop1 ro
46 27 0:53 / /run rw - tmpfs tmpfs rw
47 27 0:54 /@home /data rw - btrfs /dev/sdb1 rw
48 27 0:55 /@ /data/vols rw - btrfs /dev/sdb1 rw
49 27 0:56 / /tank rw - zfs tank/scratch rw
50 27 0:57 / / rw - overlay overlay rw
51 27 0:58 / /mnt/s3 rw - fuse.s3fs s3fs rw
broken line
52 27 - -
"""


def test_local_disks_once_each() -> None:
    assert disks.mounts(MOUNTS) == (
        Mount("/", "/dev/vda1", "254:1"),
        Mount("/data", "/dev/sdb1", "0:54"),
        Mount("/local scratch", "/dev/nvme0n1p1", "259:3"),
        Mount("/tank", "tank/scratch", "0:56"),
    )
    assert disks.mounts("") == ()


def test_a_container_has_the_disk_that_its_files_lie_on() -> None:
    bound = """1 0 0:9 / / rw - overlay overlay rw
2 1 8:1 /x/hosts /etc/hosts rw - ext4 /dev/sda1 rw
3 1 8:1 /work /long/way/to/work rw - ext4 /dev/sda1 rw
"""
    assert [mount.point for mount in disks.mounts(bound)] == ["/long/way/to/work"]
    assert [mount.point for mount in disks.mounts(bound[: bound.index("3 1")])] == ["/etc/hosts"]
    assert DiskReader(space=lambda _: Space(10, 5, folder=False)).read(["/etc/hosts"]) == ()


def test_a_partition_turns_as_its_disk_does(tree: FakeSysfs) -> None:
    for name, part, turns in (("sda", "sda1", 1), ("nvme0n1", "nvme0n1p1", 0)):
        tree.write(f"devices/pci0000:00/block/{name}/queue/rotational", turns)
        folder = tree.root / f"devices/pci0000:00/block/{name}/{part}"
        folder.mkdir()
        tree.link(f"class/block/{part}", folder)
    tree.link("dev/block/8:1", tree.root / "devices/pci0000:00/block/sda/sda1")
    assert disks.rotational(Mount("/", "/dev/sda1", "8:1"), tree.root)
    assert not disks.rotational(Mount("/", "/dev/nvme0n1p1", "259:1"), tree.root)
    assert not disks.rotational(Mount("/", "tank/scratch", "0:56"), tree.root)


def test_a_disk_that_hangs_hides_no_other_and_is_asked_once() -> None:
    free, asked = threading.Event(), []

    def space(point: str) -> Space:
        asked.append(point)
        if point == "/dead" and not free.wait(30):
            raise OSError("it never came back")
        return Space(100, 40)

    reader = DiskReader(0.2, space)
    begun = time.monotonic()
    dead, alive = reader.read(["/dead", "/alive"])
    assert time.monotonic() - begun < 2
    assert (dead.error, alive) == ("/dead hung: no answer in 0.2 s", disks.DiskReading("/alive", 100, 40))
    dead, alive = reader.read(["/dead", "/alive"])
    assert (dead.error, alive.error) == ("/dead hung: an earlier look at it has not come back", "")
    assert asked == ["/dead", "/alive", "/alive"]
    free.set()
    end_s = time.monotonic() + 10
    while dead.error and time.monotonic() < end_s:
        (dead,) = reader.read(["/dead"])
    assert dead == disks.DiskReading("/dead", 100, 40)


def test_hostile_text_ends_fast(tmp_path: Path) -> None:
    begun = time.monotonic()
    for text in (
        "a " * 500_000,
        "model name" * 100_000,
        ":" * 1_000_000,
        "\0" * 1_000_000,
        "\n" * 1_000_000,
        "1 " * 500_000 + "- x /dev/y",
    ):
        assert cpu.model_of(text) == ""
        assert disks.mounts(text) == ()
        assert cpu.count(text) == 0
        (tmp_path / "meminfo").write_text(text)
        assert host_reading([], tmp_path, now=Clock()).memory_total_bytes == 0
    assert time.monotonic() - begun < 5


def test_a_mount_that_is_gone_says_so(tmp_path: Path) -> None:
    (gone,) = DiskReader().read([str(tmp_path / "gone")])
    assert gone.error == "No such file or directory"


@pytest.mark.parametrize(
    ("state", "status", "offset", "told"),
    [
        (0, 0x2001, -1_500_000, Clock(-0.0015, True)),
        (0, 0x0001, 250, Clock(0.00025, True)),
        (0, 0x2001, 0, Clock(0.0, True)),
        (0, 0x2000, 0, Clock(None, True)),
        (5, 0x2040, 0, Clock(None, False)),
        (5, 0x2041, 3_000_000_000, Clock(3.0, False)),
        (-1, 0, 0, Clock(None, None)),
    ],
)
def test_the_clock_as_the_kernel_tells_it(state: int, status: int, offset: int, told: Clock) -> None:
    assert clock_of(state, status, offset) == told


def test_the_state_of_a_made_up_host(proc: Path, tmp_path: Path) -> None:
    (proc / "meminfo").write_text(
        "MemTotal:        2000 kB\nMemFree:          100 kB\nMemAvailable:    1500 kB\nSwapTotal: 7 kB\n"
    )
    (proc / "pressure/memory").write_text(
        "some avg10=1.00 avg60=9.00 avg300=0 total=1\nfull avg10=0.50 avg60=12.50 avg300=0.10 total=4\n"
    )
    found = host_reading([str(tmp_path)], proc, now=Clock(0.25, True))
    assert (found.clock_offset_s, found.clock_synchronised) == (0.25, True)
    assert (found.memory_total_bytes, found.memory_available_bytes, found.memory_stall_share) == (
        2_048_000,
        1_536_000,
        0.125,
    )
    assert found.disks[0].total_bytes == shutil.disk_usage(tmp_path).total


def test_a_host_that_tells_nothing(tmp_path: Path) -> None:
    facts = host_facts(tmp_path / "proc", tmp_path / "sys", DiskReader())
    assert (facts.cpu_model, facts.memory_bytes, facts.sockets, facts.pcie_gen, len(facts.disks)) == ("", 0, 0, 0, 0)
    state = host_reading([], tmp_path / "proc", now=Clock())
    assert (state.memory_total_bytes, state.memory_stall_share, state.clock_offset_s, state.disks) == (0, None, None, ())


def test_an_old_kernel_counts_what_it_could_give_back(proc: Path) -> None:
    (proc / "meminfo").write_text("MemTotal: 2000 kB\nMemFree: 100 kB\nBuffers: 20 kB\nCached: 300 kB\n")
    assert host_reading([], proc, now=Clock()).memory_available_bytes == 420 * 1024


def test_this_host() -> None:
    facts = host_facts()
    assert facts.cpus == os.cpu_count()
    assert facts.memory_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert facts.kernel == os.uname().release
    if shutil.which("lscpu"):
        told = subprocess.run(
            ["lscpu"], capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"}
        ).stdout
        lines = dict(line.split(":", 1) for line in told.splitlines() if ":" in line)
        rows = {name.strip(): value.strip() for name, value in lines.items()}
        assert facts.sockets == int(rows["Socket(s)"])
        assert facts.cores == int(rows["Core(s) per socket"]) * int(rows["Socket(s)"])
        assert facts.numa_nodes == int(rows.get("NUMA node(s)", facts.numa_nodes))
    state = host_reading([disk.mount for disk in facts.disks])
    assert 0 < state.memory_available_bytes < state.memory_total_bytes == facts.memory_bytes
    for disk in state.disks:
        assert (disk.error, disk.total_bytes) == ("", shutil.disk_usage(disk.mount).total)


TRACKING = "C0000201,192.0.2.1,3,1770000000.5,{offset},-0.000004,0.00001,-12.1,0.001,0.02,0.0011,0.0002,64.3,{leap}\n"


@pytest.mark.parametrize(
    ("text", "offset_s"),
    [
        (TRACKING.format(offset="-0.000125", leap="Normal"), -0.000125),
        (TRACKING.format(offset="2.5", leap="Insert second"), 2.5),
        (TRACKING.format(offset="0.0", leap="Not synchronised"), None),
        (TRACKING.format(offset="nan", leap="Normal"), None),
        ("506 Cannot talk to daemon\n", None),
        ("", None),
    ],
)
def test_the_offset_that_chrony_keeps(text: str, offset_s: float | None) -> None:
    assert chrony_offset_s(text) == offset_s


def test_chrony_is_asked_where_the_kernel_was_told_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "chronyc"
    line = TRACKING.format(offset="0.75", leap="Normal").strip()
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {tmp_path}/asked\necho "{line}"\n')
    script.chmod(0o755)
    reader = ClockReader((str(script),))
    kernel = Clock(None, True)
    monkeypatch.setattr(clocks, "kernel_clock", lambda: kernel)
    assert [reader.read(), reader.read()] == [Clock(0.75, True)] * 2
    assert (tmp_path / "asked").read_text() == "-n -c tracking\n"
    kernel = Clock(0.001, True)
    assert ClockReader(("/nonexistent/chronyc",)).read() == kernel
    kernel = Clock(None, False)
    assert reader.read() == kernel
    kernel = Clock(None, True)
    assert ClockReader(("/nonexistent/chronyc",)).read() == kernel
    monkeypatch.setattr(clocks, "CHRONY_TIMEOUT_S", 0.2)
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    assert ClockReader((str(script),)).read() == kernel


@pytest.mark.skipif(not supported(), reason="struct timex is laid out for 64-bit Linux")
def test_the_clock_of_this_host() -> None:
    told = kernel_clock()
    assert told.synchronised in (True, False, None)
    assert told.offset_s is None or abs(told.offset_s) < 3600
    if shutil.which("adjtimex"):
        said = subprocess.run(["adjtimex", "--print"], capture_output=True, text=True, check=False).stdout
        status = int(re.findall(r"status: (\d+)", said)[0])
        assert told.synchronised == ("return value = 5" not in said and not status & 0x40)
