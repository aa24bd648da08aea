"""The discovered fabric: what a run of the tool changes, and what it must not; whose adapter is whose."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fmproto.kv import StoreUnavailable
from fmproto.v1 import hardware_pb2 as hw
from fmsched import discovery
from fmsched.config import ConfigError, FabricConfig, load
from fmsched.discovery import Discovery, DiscoveryError, Tool, fabric_of, message_of, owners_of, with_names
from fmsched.model.fabric import Link, Switch
from fmsched.store.codec import fabric_of as stored_fabric
from fmsched.store.mirror import Mirror
from fmsched.topology.readers.found import FabricFound
from fmsched.topology.readers.ib_names import Owner
from fmsched.topology.readers.ibnetdiscover import read

GUID = "0c0ffee0000000{}".format


def tree(hosts: dict[str, tuple[str, str]], cables: int = 2) -> str:
    """Two leaves under one spine; `hosts`: last two digits of the GUID → (leaf "1" or "2", description)."""
    leaf, spine = "0a1b2c03000001{:02}".format, "0a1b2c0300000200"
    text = ""
    links: dict[str, list[str]] = {"1": [], "2": []}
    for number, (at, said) in hosts.items():
        port = len(links[at]) + 1
        links[at].append(f'[{port}]\t"H-{GUID(number)}"[1]({GUID(number)}) \t\t# "{said}" lid 1 4xHDR\n')
        text += f'caguid=0x{GUID(number)}\nCa\t1 "H-{GUID(number)}"\t\t# "{said}"\n'
        text += f'[1]({GUID(number)}) \t"S-{leaf(int(at))}"[{port}]\t\t# lid 1 lmc 0 "leaf{at}" lid 2 4xHDR\n\n'
    up = ""
    for at in ("1", "2"):
        text += f'switchguid=0x{leaf(int(at))}\nSwitch\t40 "S-{leaf(int(at))}"\t\t# "leaf{at}" base port 0 lid 2 lmc 0\n'
        text += "".join(links[at])
        for cable in range(cables):
            far = int(at) * 10 + cable
            text += f'[{30 + cable}]\t"S-{spine}"[{far}]\t\t# "spine" lid 3 4xHDR\n'
            up += f'[{far}]\t"S-{leaf(int(at))}"[{30 + cable}]\t\t# "leaf{at}" lid 2 4xHDR\n'
        text += "\n"
    return text + f'switchguid=0x{spine}\nSwitch\t40 "S-{spine}"\t\t# "spine" base port 0 lid 3 lmc 0\n{up}'


HOSTS = {"11": ("1", "n1 mlx5_0"), "12": ("1", "n2 mlx5_0"), "21": ("2", "n3 mlx5_0")}


def inventory(node: str, *guids: str, port_guid: str = "") -> hw.Inventory:
    ports = [hw.HcaPort(hca=f"ib{i}", port=1, node_guid=guid, port_guid=port_guid) for i, guid in enumerate(guids)]
    return hw.Inventory(node=node, hca_ports=ports)


def nodes_of(found: FabricFound) -> dict[str, str]:
    """Host → the name of its switch."""
    names = {switch.id: switch.name for switch in found.switches}
    return {cable.b: names[cable.a] for cable in found.cables if cable.b not in names}


# --- names


def test_owners_are_whoever_has_the_guid() -> None:
    inventories = {
        "n1": inventory("n1", f"0x{GUID('11')}", "0x0", "", port_guid="c0ffee000000019"),
        "n2": inventory("n2", GUID("12").upper(), GUID("77")),
        "n3": inventory("n3", f"0x{GUID('77')}"),
    }
    owners = owners_of(inventories)
    assert owners == {GUID("11"): Owner("n1", "ib0"), GUID("19"): Owner("n1", "ib0"), GUID("12"): Owner("n2", "ib0")}


def test_guids_tell_before_descriptions_do() -> None:
    found = read(
        tree(
            {"11": ("1", "n3 mlx5_0"), "12": ("1", "N2.site mlx5_0"), "21": ("2", "MT4123 ConnectX6"), "22": ("2", "other")}
        ),
        "f",
    )
    owners = {GUID("11"): Owner("n1", "ib0"), GUID("21"): Owner("n3", "ib5")}
    named = with_names(found, owners, ["n1", "n2", "n3"])
    assert nodes_of(named) == {"n1": "leaf1", "n2": "leaf1", "n3": "leaf2", "other": "leaf2"}
    assert {cable.hca for cable in named.cables if cable.b == "n3"} == {"ib5"}


def test_a_stranger_by_a_nodes_name_is_not_that_node() -> None:
    found = read(tree({"11": ("1", "MT4123 ConnectX6"), "21": ("2", "n1 mlx5_0")}), "f")
    named = with_names(found, {GUID("11"): Owner("n1", "ib0")}, ["n1"])
    assert nodes_of(named) == {"n1": "leaf1", GUID("21"): "leaf2"}


def test_short_names_that_are_not_unique_say_nothing() -> None:
    found = read(tree({"11": ("1", "n1 mlx5_0")}), "f")
    assert nodes_of(with_names(found, {}, ["n1.a", "n1.b"])) == {"n1": "leaf1"}
    assert nodes_of(with_names(found, {}, ["n1.a", "n2.b"])) == {"n1.a": "leaf1"}


# --- the fabric


def test_levels_and_parallel_cables() -> None:
    fabric = fabric_of(read(tree({**HOSTS, "22": ("2", "MT4123 ConnectX6")}), "f"))
    assert fabric.switches == (Switch("leaf1", 0), Switch("leaf2", 0), Switch("spine", 1))
    assert set(fabric.links) == {
        Link("leaf1", "spine", 200, 2), Link("leaf2", "spine", 200, 2),
        Link("n1", "leaf1", 200, 1, False, "mlx5_0"), Link("n2", "leaf1", 200, 1, False, "mlx5_0"),
        Link("n3", "leaf2", 200, 1, False, "mlx5_0"),
    }  # fmt: skip


def test_the_order_of_the_output_does_not_matter() -> None:
    one = tree(HOSTS).split("\n\n")
    assert fabric_of(read("\n\n".join(one), "f")) == fabric_of(read("\n\n".join(reversed(one)), "f"))


def test_a_map_too_large_for_the_store_loses_strangers_first(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(tree(HOSTS), "f")
    whole = message_of(found, {}, ["n1"], "s")
    monkeypatch.setattr(discovery, "FABRIC_BYTES_MAX", whole.ByteSize() - 1)
    less = message_of(found, {}, ["n1"], "s")
    assert {link.a for link in less.links} | {link.b for link in less.links} == {"n1", "leaf1", "leaf2", "spine"}
    monkeypatch.setattr(discovery, "FABRIC_BYTES_MAX", 50)
    with pytest.raises(DiscoveryError, match="the store takes 50"):
        message_of(found, {}, ["n1"], "s")


# --- runs


async def until(probe: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not probe():  # noqa: ASYNC110 - what other processes do has no event
            await asyncio.sleep(0.01)


class Rig:
    """A Discovery whose tool prints a file; what it writes comes back in its mirror, as from the store."""

    def __init__(
        self, folder: Path, *, before: str = "", after: str = "", timeout_s: float = 10.0, period_s: float = 60.0
    ) -> None:
        self.output = folder / "output"
        self.mirror = Mirror()
        self.mirror.synced = True
        self.written: list[hw.Fabric] = []
        self.store_is_down = False
        self.refused = 0
        script = f"{before}\ncat {shlex.quote(str(self.output))}\n{after}"
        self.discovery = Discovery(["/bin/sh", "-c", script], period_s, timeout_s, self.mirror, self.put)

    async def put(self, message: hw.Fabric) -> None:
        if self.store_is_down:
            self.refused += 1
            raise StoreUnavailable("down")
        self.written.append(message)
        self.mirror.fabric = message

    async def finds(self, text: str) -> bool:
        self.output.write_text(text)
        return await self.discovery.look()


async def test_only_changes_are_written(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert await rig.finds(tree(HOSTS))
    assert await rig.finds(tree(HOSTS))
    assert len(rig.written) == 1
    assert await rig.finds(tree(HOSTS, cables=1))
    assert [link.count for link in rig.written[1].links if not link.hca] == [1, 1]
    assert await rig.finds(tree(HOSTS))
    assert rig.written[2] == rig.written[0]
    assert stored_fabric(rig.written[0]) == fabric_of(read(tree(HOSTS), "f"))


async def test_what_has_not_changed_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, read_times = Rig(tmp_path), list[str]()
    reader = discovery.read_fabric

    def counting(output: bytes, source: str) -> FabricFound:
        read_times.append(source)
        return reader(output, source)

    monkeypatch.setattr(discovery, "read_fabric", counting)
    for day in ("Mon", "Tue", "Wed"):
        assert await rig.finds(f"#\n# Topology file: generated on {day}\n#\n{tree(HOSTS)}")
    assert len(read_times) == 1
    assert await rig.finds(f"#\n# Topology file: generated on Thu\n#\n{tree(HOSTS, 1)}")
    assert await rig.finds(f"#\n# Topology file: generated on Fri\n#\n{tree(HOSTS)}")
    assert len(read_times) == 3
    assert len(rig.written) == 3


@pytest.mark.parametrize(
    ("before", "after", "text", "why"),
    [
        ("", "echo 'iberror: failed: discover failed' >&2; exit 255", tree(HOSTS, 1), "ended with 255: iberror: failed"),
        ("", "exit 3", "", "ended with 3: it said nothing"),
        ("", "kill -9 $$", tree(HOSTS, 1), "ended with -9"),
        ("", "", "", "printed nothing"),
        ("", "", "<html>not a fabric</html>", "no record of a switch"),
        ("", "", tree(HOSTS, 1)[:-100], "the fabric is not whole"),
        ("", "", tree(HOSTS, 1) + "umad bad status 110; Connection timed out\n", "the fabric is not whole"),
        ("", "", 'Ca\t1 "H-0c0ffee000000011"\t\t# "n1 HCA-1"\n', "no switch with a link"),
    ],
)  # fmt: skip
async def test_a_run_that_fails_changes_nothing(tmp_path: Path, before: str, after: str, text: str, why: str) -> None:
    good, bad = Rig(tmp_path), Rig(tmp_path, before=before, after=after)
    await good.finds(tree(HOSTS))
    bad.mirror.fabric = good.mirror.fabric
    assert not await bad.finds(text)
    assert why in bad.discovery.failure
    assert "\n" not in bad.discovery.failure
    assert bad.written == []


async def test_it_heals_after_a_failure(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert await rig.finds(tree(HOSTS))
    assert not await rig.finds("")
    assert rig.discovery.failure
    assert await rig.finds(tree(HOSTS, 1))
    assert not rig.discovery.failure
    assert len(rig.written) == 2


async def test_a_tool_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    rig = Rig(tmp_path, before=f"sleep 600 & echo $! > {tmp_path}/pid; wait", timeout_s=0.5)
    started_s = time.monotonic()
    assert not await rig.finds(tree(HOSTS))
    assert time.monotonic() - started_s < 10
    assert "did not end within 0.5 s" in rig.discovery.failure
    state = Path(f"/proc/{int((tmp_path / 'pid').read_text())}/stat")
    await until(lambda: not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z")


async def test_ending_the_leadership_ends_the_tool(tmp_path: Path) -> None:
    tool = Tool(["/bin/sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 600"], 600)
    task = asyncio.create_task(tool.run())
    await until(lambda: (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text().strip()))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    state = Path(f"/proc/{int((tmp_path / 'pid').read_text())}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


async def test_a_tool_that_is_not_there() -> None:
    with pytest.raises(DiscoveryError, match="cannot be started"):
        await Tool(["/nowhere/ibnetdiscover"], 1).run()


async def test_endless_output_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "BYTES_MAX", 1 << 20)
    with pytest.raises(DiscoveryError, match="printed more than 1,048,576 bytes"):
        await Tool(["/bin/sh", "-c", "yes"], 30).run()
    said = await Tool(["/bin/sh", "-c", "yes complaint | head -c 9000000 >&2; echo last >&2"], 30).run()
    assert len(said.stderr) <= discovery.STDERR_BYTES_MAX
    assert said.stderr.endswith("last\n")


async def test_a_run_that_complains_counts_when_the_next_finds_the_same(tmp_path: Path) -> None:
    rig = Rig(tmp_path, after=f"cat {tmp_path}/said >&2")
    (tmp_path / "said").touch()
    assert await rig.finds(tree(HOSTS))
    (tmp_path / "said").write_text("ibwarn: [7] _do_madrpc: recv failed: Connection timed out\n")
    assert await rig.finds(tree(HOSTS))  # it complains, and finds what is known
    assert not await rig.finds(tree(HOSTS, 1))
    assert "complained: ibwarn: [7]" in rig.discovery.failure
    assert len(rig.written) == 1
    assert await rig.finds(tree(HOSTS, 1))
    assert len(rig.written) == 2


async def test_most_hosts_gone_at_once_count_when_the_next_run_says_so_too(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    alone = tree({"11": HOSTS["11"]})
    assert await rig.finds(tree(HOSTS))
    assert not await rig.finds(alone)
    assert "2 of 3 hosts are gone at once" in rig.discovery.failure
    assert await rig.finds(tree(HOSTS))
    assert not await rig.finds(alone)
    assert await rig.finds(alone)
    next_leader = Rig(tmp_path)
    next_leader.mirror.fabric = rig.written[0]
    assert not await next_leader.finds(alone)


async def test_names_that_become_known_are_written_before_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "NAMES_S", 0.02)
    rig = Rig(tmp_path)
    rig.output.write_text(tree({"11": ("1", "MT4123 ConnectX6"), "21": ("2", "n3 mlx5_0")}))
    task = asyncio.create_task(rig.discovery.run())
    try:
        await until(lambda: bool(rig.written))
        rig.mirror.inventories["n1"] = inventory("n1", f"0x{GUID('11')}")
        rig.mirror.hardware_version += 1
        await until(lambda: len(rig.written) == 2)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert Link("n1", "leaf1", 200, 1, False, "ib0") in stored_fabric(rig.written[1]).links


async def test_what_the_store_did_not_take_is_written_before_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "NAMES_S", 0.02)
    rig = Rig(tmp_path, before=f"echo x >> {tmp_path}/runs")
    rig.output.write_text(tree(HOSTS))
    rig.store_is_down = True
    task = asyncio.create_task(rig.discovery.run())
    try:
        await until(lambda: rig.refused >= 2)
        rig.store_is_down = False
        await until(lambda: bool(rig.written))
        await asyncio.sleep(0.1)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert len(rig.written) == 1
    assert (tmp_path / "runs").read_text().split() == ["x"]


async def test_runs_follow_each_other(tmp_path: Path) -> None:
    rig = Rig(tmp_path, before=f"echo x >> {tmp_path}/runs", period_s=0.1)
    rig.output.write_text(tree(HOSTS))
    task = asyncio.create_task(rig.discovery.run())
    try:
        await until(lambda: (tmp_path / "runs").exists() and len((tmp_path / "runs").read_text().split()) >= 3)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert len(rig.written) == 1


# --- configuration


def config(folder: Path, text: str) -> str:
    (folder / "scheduler.toml").write_text(text)
    return str(folder / "scheduler.toml")


def test_a_string_is_short_for_the_file(tmp_path: Path) -> None:
    assert load(config(tmp_path, 'fabric = "c.yaml"'), {}).fabric_source == FabricConfig(file="c.yaml")
    assert load(config(tmp_path, '[fabric]\nfile = "c.yaml"'), {}).fabric_source == FabricConfig(file="c.yaml")
    assert load(None, {"fabric": "c.yaml"}).fabric_source == FabricConfig(file="c.yaml")
    assert load(config(tmp_path, '[fabric]\nfile = "c.yaml"'), {"fabric": "d.yaml"}).fabric_source.file == "d.yaml"
    assert load(None, {}).fabric_source.discover == ()
    found = load(config(tmp_path, '[fabric]\ndiscover = ["ibnetdiscover", "-C", "mlx5_0"]\nperiod_s = 5'), {}).fabric_source
    assert found == replace_struct(FabricConfig(), discover=("ibnetdiscover", "-C", "mlx5_0"), period_s=5.0)


def replace_struct(found: FabricConfig, **changes: object) -> FabricConfig:
    return FabricConfig(**{**{key: getattr(found, key) for key in found.__struct_fields__}, **changes})


@pytest.mark.parametrize(
    ("text", "flags", "words"),
    [
        ('[fabric]\nfile = "c.yaml"\ndiscover = ["ibnetdiscover"]', {}, ["fabric.file, fabric.discover", "one of the two"]),
        ('[fabric]\ndiscover = ["ibnetdiscover"]', {"fabric": "c.yaml"}, ["fabric.file, fabric.discover", "'c.yaml'"]),
        ('[fabric]\ndiscover = ["ibnetdiscover"]\nperiod_s = 0', {}, ["fabric.period_s", "found 0", "over 0"]),
        ('[fabric]\ndiscover = ["ibnetdiscover"]\ntimeout_s = -1', {}, ["fabric.timeout_s", "-1"]),
        ('[fabric]\ndiscover = ["ibnetdiscover"]\nperiod_s = nan', {}, ["fabric.period_s", "nan"]),
        ('[fabric]\ndiscover = [""]', {}, ["fabric.discover", "a program"]),
        ('[fabric]\ndiscover = "ibnetdiscover"', {}, ["fabric.discover", "array"]),
        ('[fabric]\ndiscovr = ["ibnetdiscover"]', {}, ["fabric", "discovr"]),
    ],
)  # fmt: skip
def test_faults_of_the_configuration_are_named(
    tmp_path: Path, text: str, flags: dict[str, object], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(config(tmp_path, text), flags)
    assert all(word in str(caught.value) for word in words), str(caught.value)
