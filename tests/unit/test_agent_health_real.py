"""Health of a whole node: the real pynvml over a fake library, a kernel log, adapters by a fake ibstat, judged and put into messages."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fmagent.__main__ import make_devices
from fmagent.config import AgentConfig
from fmagent.devices import real
from fmagent.devices.health_messages import FINDINGS_MAX, health_of
from fmagent.devices.health_record import HealthRecord
from fmagent.devices.ibstat import IbstatReader
from fmagent.devices.kernel_log import KernelLog
from fmagent.devices.presence import Presence
from fmagent.devices.real import RealDevices, needed_mounts, nvlink_rates
from fmagent.health.findings import Finding, Kind, State
from fmagent.health.rules import LostRules, NvlinkRules, Rules
from fmproto.v1 import hardware_pb2 as pb
from tests.support import fake_nvml

OK, DEGRADED, DRAINING, FAILED = (
    pb.HEALTH_STATE_OK, pb.HEALTH_STATE_DEGRADED, pb.HEALTH_STATE_DRAINING, pb.HEALTH_STATE_FAILED,
)  # fmt: skip
PORT = "CA 'mlx5_0'\n    CA type: MT4129\n    Port 1:\n        State: Active\n        Physical state: LinkUp\n        Rate: 200\n"


class Machine:
    """What the node has, written to the files that its tools read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "log"
        self.ibstat = root / "ibstat"
        self.log.touch()
        self.ibstat.touch()
        self.opened: list[RealDevices] = []
        self.has()

    def has(self, *more: str, slots: tuple[int, ...] = (0, 1)) -> None:
        (self.root / "machine").write_text("\n".join([*fake_nvml.hgx(slots), *more]))

    def logs(self, line: str) -> None:
        with self.log.open("a") as file:
            file.write(f"[   12.345678] NVRM: Xid ({line}\n")

    def agent(self, rules: Rules | None = None) -> RealDevices:
        """As one more start of the agent would have it."""
        devices = RealDevices(
            "n1",
            10.0,
            "",
            Presence(self.root / "gpus.pb"),
            IbstatReader(command=("cat", str(self.ibstat))),
            rules=rules or Rules(nvlink=NvlinkRules(down_for_s=0.0)),
            record=HealthRecord(self.root / "health.json"),
            kernel_log=KernelLog(self.log),
        )
        self.opened.append(devices)
        return devices


@pytest.fixture
async def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Machine]:
    monkeypatch.setenv("FAKE_NVML", str(tmp_path / "machine"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_nvml.library_folder()))
    made = Machine(tmp_path)
    yield made
    for devices in made.opened:
        await devices.close()


def states(health: pb.Health) -> dict[str, tuple[int, str]]:
    return {each.device: (each.state, each.reason) for each in (*health.gpus, *health.hca_ports)}


async def test_a_node_that_is_well(machine: Machine) -> None:
    machine.ibstat.write_text(PORT)
    inventory, health = await machine.agent().observe()
    assert [gpu.uuid for gpu in inventory.gpus] == ["GPU-0000", "GPU-0001"]
    assert states(health) == {"GPU-0000": (OK, ""), "GPU-0001": (OK, ""), "mlx5_0/1": (OK, "")}
    assert not any(each.findings for each in (*health.gpus, *health.hca_ports))


async def test_an_xid_of_the_kernel_log_stands_over_a_restart_of_the_agent(machine: Machine) -> None:
    first = machine.agent()
    await first.observe()
    machine.logs("PCI:0000:01:00): 119, pid=9, name=python3, Timeout after 6s")
    _, health = await first.observe()
    assert states(health)["GPU-0001"] == (FAILED, "Xid 119 (GSP_RPC_TIMEOUT)")
    assert states(health)["GPU-0000"] == (OK, "")
    (finding,) = health.gpus[1].findings
    assert finding.evidence == "the kernel log: pid=9, name=python3, Timeout after 6s"
    assert finding.action == "reset the GPU"
    await first.close()
    _, again = await machine.agent().observe()
    assert again == health


async def test_a_gpu_that_is_lost_after_its_xid_and_comes_back_is_well(machine: Machine) -> None:
    devices = machine.agent()
    await devices.observe()
    machine.has("error 1 15")
    machine.logs("PCI:0000:01:00): 79, GPU has fallen off the bus.")
    _, health = await devices.observe()
    assert {each.concern for each in health.gpus[1].findings} == {"xid", "lost"}
    machine.has(slots=(0,))
    _, health = await devices.observe()
    assert states(health)["GPU-0001"][0] == FAILED
    assert {each.concern for each in health.gpus[1].findings} == {"xid", "lost"}
    machine.has()
    _, health = await devices.observe()
    assert "xid" not in {each.concern for each in health.gpus[1].findings}


async def test_an_xid_of_a_gpu_that_was_never_listed_is_told_under_its_address(machine: Machine) -> None:
    devices = machine.agent()
    await devices.observe()
    machine.logs("PCI:0000:9b:00): 79, GPU has fallen off the bus.")
    inventory, health = await devices.observe()
    assert len(inventory.gpus) == 2
    assert states(health)["0000:9b:00"][0] == FAILED


async def test_links_that_are_down_degrade_and_weigh_less(machine: Machine) -> None:
    devices = machine.agent()
    machine.has("linkdown 1 16", "linkdown 1 17")
    inventory, health = await devices.observe()
    assert states(health)["GPU-0001"] == (DEGRADED, "2 of 18 NVLinks down: 800 of 900 GB/s left")
    assert [round(pair.gbytes_per_s) for pair in inventory.nvlinks] == [800]


async def test_a_slow_port_and_one_that_goes_down(machine: Machine) -> None:
    devices = machine.agent()
    machine.ibstat.write_text(PORT)
    await devices.observe()
    machine.ibstat.write_text(PORT.replace("Active", "Down"))
    _, health = await devices.observe()
    assert states(health)["mlx5_0/1"] == (FAILED, "port is Down/LinkUp")


async def test_an_nvml_that_cannot_start_fails_what_is_known(machine: Machine) -> None:
    devices = machine.agent()
    await devices.observe()
    await devices.close()
    machine.has("init 9")
    _, health = await machine.agent().observe()
    assert states(health) == dict.fromkeys(("GPU-0000", "GPU-0001"), (FAILED, "NVML_ERROR_DRIVER_NOT_LOADED"))


async def test_the_agent_is_put_together_from_its_configuration(machine: Machine, tmp_path: Path) -> None:
    class Lines:
        def __init__(self) -> None:
            self.said: list[str] = []

        def info(self, event: str, **values: object) -> None:
            self.said.append(event)

        warning = info

    rules = tmp_path / "health.toml"
    rules.write_text("[lost]\nenabled = false\n")
    (tmp_path / "health.json").write_text("{")
    config = AgentConfig(
        node="n1",
        state_dir=str(tmp_path),
        health_rules=str(rules),
        kernel_log=str(tmp_path / "none"),
        ibstat=("cat", str(machine.ibstat)),
    )
    log = Lines()
    devices = make_devices(config, log)
    assert isinstance(devices, RealDevices)
    machine.opened.append(devices)
    machine.ibstat.write_text(PORT)
    await devices.observe()
    machine.has("error 1 15")
    _, health = await devices.observe()
    assert states(health) == {"GPU-0000": (OK, ""), "GPU-0001": (OK, ""), "mlx5_0/1": (OK, "")}, "the rules were read"
    assert [line.split(" cannot")[0] for line in log.said] == ["the kernel log", "the record of health"]


async def test_what_flaps_costs_the_inventory_no_writes(machine: Machine) -> None:
    """Each change of the inventory is a write, and a new topology."""
    devices = machine.agent()
    machine.ibstat.write_text(PORT)
    seen = []
    for look in range(14):
        machine.has(*([] if look % 2 else ["linkdown 1 17"]))
        machine.ibstat.write_text(PORT if look % 2 else PORT.replace("Active", "Down"))
        inventory, health = await devices.observe()
        seen.append((inventory.SerializeToString(deterministic=True), health.SerializeToString(deterministic=True)))
    assert len(set(seen[6:])) == 1
    assert [round(pair.gbytes_per_s) for pair in inventory.nvlinks] == [850]
    assert [port.active for port in inventory.gpus[1].nvlink_ports].count(False) == 1
    assert states(health)["GPU-0001"] == (DEGRADED, "1 of 18 NVLinks down: 850 of 900 GB/s left")
    assert states(health)["mlx5_0/1"][1].startswith("unstable")


async def test_links_of_a_gpu_that_is_lost_and_back_return_with_it(machine: Machine) -> None:
    devices = machine.agent(Rules(lost=LostRules(clear_s=0.0), nvlink=NvlinkRules(clear_s=0.0, down_for_s=0.0)))
    for more, rates in (((), [900]), (("error 1 15",), []), (("linkdown 1 3",), [850]), ((), [900])):
        machine.has(*more)
        inventory, _ = await devices.observe()
        assert [round(pair.gbytes_per_s) for pair in inventory.nvlinks] == rates


async def test_a_second_link_that_heals_is_given_back_while_the_first_stays_down(machine: Machine) -> None:
    devices = machine.agent(Rules(nvlink=NvlinkRules(clear_s=0.0, down_for_s=0.0)))
    for more, rates in (
        ((), [900]),
        (("linkdown 1 3",), [850]),
        (("linkdown 1 3", "linkdown 1 4"), [800]),
        (("linkdown 1 3",), [850]),
    ):
        machine.has(*more)
        inventory, _ = await devices.observe()
        assert [round(pair.gbytes_per_s) for pair in inventory.nvlinks] == rates


@pytest.mark.parametrize(
    "line",
    ["linkdown 1 16", "error 1 15", "error 1 999", "fail 1 nvmlDeviceGetEccMode 999", "fail -1 nvmlDeviceGetCount 999"],
)
async def test_a_fault_that_comes_and_goes_costs_the_inventory_a_handful_of_writes(machine: Machine, line: str) -> None:
    """By the rules as they are, under which a link that flaps at every look is never down for long enough to be a finding."""
    devices = machine.agent(Rules())
    seen = []
    for look in range(20):
        machine.has("set 1 ecc 1", "path 0 1 50", *([line] if look % 2 else []))
        inventory, _ = await devices.observe()
        seen.append(inventory.SerializeToString(deterministic=True))
    assert sum(a != b for a, b in pairwise(seen)) <= 5
    assert len(set(seen[8:])) == 1


async def test_a_host_that_hangs_holds_up_no_look(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = machine.agent()
    before, _ = await devices.observe()
    let_go = threading.Event()
    monkeypatch.setattr(real, "look_at_host", let_go.wait)
    monkeypatch.setattr(devices._host_looker, "_timeout_s", 0.2)
    began_s = time.monotonic()
    machine.has("error 1 15")
    after, health = await devices.observe()
    await devices.observe()
    assert time.monotonic() - began_s < 10
    assert (after.host, states(health)["GPU-0001"][0]) == (before.host, FAILED)
    let_go.set()


async def test_a_disk_that_hangs_holds_up_no_look(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = machine.agent()
    await devices.observe()
    let_go = threading.Event()
    monkeypatch.setattr(HealthRecord, "save", lambda *_: let_go.wait())
    monkeypatch.setattr(devices._disk_looker, "_timeout_s", 0.2)
    machine.has("error 1 15")
    late_s = 0.0

    async def beats() -> None:
        nonlocal late_s
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(0.02)
            late_s = max(late_s, time.monotonic() - began_s)

    beating = asyncio.create_task(beats())
    for _ in range(2):
        _, health = await devices.observe()
        assert states(health)["GPU-0001"][0] == FAILED
    beating.cancel()
    assert late_s < 1.0
    let_go.set()


async def test_each_change_of_a_device_is_a_line_of_the_log(machine: Machine) -> None:
    devices = machine.agent()
    with capture_logs() as lines:
        await devices.observe()
        machine.logs("PCI:0000:01:00): 119, pid=9, name=python3, Timeout after 6s")
        await devices.observe()
        await devices.observe()
    said = [(line["device"], line["state"], line["reason"]) for line in lines if line["event"] == "health"]
    assert [line for line in said if line[0].startswith("GPU")] == [("GPU-0001", "failed", "Xid 119 (GSP_RPC_TIMEOUT)")]


# --- messages


def finding(state: State, reason: str = "r", kind: Kind = Kind.GPU, device: str = "g", since_s: float = 0.0) -> Finding:
    return Finding(kind, device, "c", state, reason, "e", "a", since_s)


def test_a_device_is_as_bad_as_its_worst_finding() -> None:
    found = (finding(State.DEGRADED, "hot"), finding(State.FAILED, "lost"), finding(State.DRAINING, "old"))
    health = health_of("n1", ["g", "h"], [], found)
    assert [(each.device, each.state, each.reason) for each in health.gpus] == [("g", FAILED, "lost"), ("h", OK, "")]
    assert [each.reason for each in health.gpus[0].findings] == ["lost", "old", "hot"]
    assert (health.gpus[0].findings[0].evidence, health.gpus[0].findings[0].action) == ("e", "a")


def test_a_finding_that_joins_an_equal_one_does_not_change_the_reason() -> None:
    first = finding(State.DEGRADED, "z was first", since_s=1.0)
    both = health_of("n1", ["g"], [], (finding(State.DEGRADED, "a came later", since_s=2.0), first))
    assert both.gpus[0].reason == "z was first"


def test_disks_and_host_are_told_of_when_they_are_unwell() -> None:
    found = (finding(State.DRAINING, kind=Kind.HOST, device="memory"), finding(State.DEGRADED, kind=Kind.DISK, device="/"))
    health = health_of("n1", [], ["mlx5_0/1"], found)
    assert [each.device for each in health.host] == ["memory"]
    assert [(each.device, each.state) for each in health.disks] == [("/", DEGRADED)]
    assert [(each.device, each.state) for each in health.hca_ports] == [("mlx5_0/1", OK)]


def test_a_device_tells_of_so_many_findings() -> None:
    health = health_of("n1", [], [], tuple(finding(State.DEGRADED, str(n)) for n in range(100)))
    assert len(health.gpus[0].findings) == FINDINGS_MAX


@pytest.mark.parametrize(
    ("mounts", "paths", "needed"),
    [
        (("/", "/data"), ("/data/agent", "/tmp"), {"/", "/data"}),
        (("/", "/data", "/data2"), ("/data2/x",), {"/data2"}),
        (("/boot",), ("/data",), set()),
        ((), ("/",), set()),
    ],
)
def test_mounts_that_runs_need(mounts: tuple[str, ...], paths: tuple[str, ...], needed: set[str]) -> None:
    assert needed_mounts(mounts, paths) == needed


def test_rates_are_the_catalogues() -> None:
    gpus = [pb.Gpu(uuid="a", model="H100-SXM5-80GB"), pb.Gpu(uuid="b", model=""), pb.Gpu(uuid="c", model="no such")]
    assert nvlink_rates(gpus) == {"a": 900.0}
