"""Story state-03: a watch that is silent, because its server is frozen or because the path drops packets one way.

An expired auth token, the story's other half, is tested in tests/contract/test_etcd_access.py."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fmproto.etcd import Etcd
from fmproto.etcd_watch import SILENT_PERIODS_MAX
from fmproto.kv import Put
from tests.support.etcd import EtcdServer, Version, any_etcd, free_port, start_etcd
from tests.support.following import Following, poll
from tests.support.relay import Relay

PERIOD_S = 0.5
TIMEOUT_S = 2.0
# What the story allows: the deadline after which silence counts, and 2 s.
TOLD_S_MAX = SILENT_PERIODS_MAX * PERIOD_S + 2.0

CUTS_S = [8.0, pytest.param(60.0, marks=pytest.mark.slow)]


def connect(endpoints: list[str]) -> Etcd:
    return Etcd(endpoints, request_timeout_s=TIMEOUT_S, watch_period_s=PERIOD_S)


@pytest.mark.parametrize("version", ["3.4", "3.5"])
@pytest.mark.parametrize("cut_s", CUTS_S)
async def test_a_frozen_server_is_followed_again_when_it_thaws(tmp_path: Path, version: Version, cut_s: float) -> None:
    with start_etcd(tmp_path / "one", version) as server:
        etcd = connect(server.endpoints)
        async with Following(etcd, "/") as seen:
            await seen.until(lambda me: len(me.items) >= 2)
            server.members[0].freeze()
            # Whether it is noticed at all: silent, and no picture that is not true.
            told = len(seen.items)
            await asyncio.sleep(cut_s)
            assert len(seen.items) <= told + 1
            server.members[0].thaw()
            await asyncio.to_thread(server.ctl, "put", "/after", "1")
            await seen.until(lambda me: "/after" in me.picture, within_s=TOLD_S_MAX)
        await etcd.close()

    assert len(seen.resyncs) == 1
    assert [change.key for change in seen.changes] == ["/after"]


@contextmanager
def own_network() -> Iterator[tuple[str, str]]:
    """A network namespace on a cable of its own: its name and the address of its end."""
    if os.geteuid() != 0 or not all(shutil.which(tool) for tool in ("ip", "iptables")):
        pytest.skip("needs root, ip and iptables")
    name = f"fm{free_port()}"
    net = free_port() % 200
    ours, theirs = f"10.213.{net}.1", f"10.213.{net}.2"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"no network namespaces here: {made.stderr.strip()}")
    try:
        _ip("link", "add", name, "type", "veth", "peer", "name", "uplink", "netns", name)
        _ip("addr", "add", f"{ours}/30", "dev", name)
        _ip("link", "set", name, "up")
        _ip("-n", name, "addr", "add", f"{theirs}/30", "dev", "uplink")
        for link in ("uplink", "lo"):
            _ip("-n", name, "link", "set", link, "up")
        yield name, theirs
    finally:
        _ip("netns", "del", name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _answers(namespace: str, how: str) -> None:
    """Appends (-A) or deletes (-D) the rule that drops whatever the namespace sends out; what it receives still comes
    in."""
    rule = ["-o", "uplink", "-j", "DROP"]
    subprocess.run(["ip", "netns", "exec", namespace, "iptables", how, "OUTPUT", *rule], check=True)


@pytest.mark.net
@pytest.mark.parametrize("compacted", [False, True], ids=["resumed", "compacted"])
@pytest.mark.parametrize("cut_s", CUTS_S)
async def test_a_path_that_drops_answers_loses_no_event(tmp_path: Path, cut_s: float, compacted: bool) -> None:
    with own_network() as (namespace, address):
        wrap = ["ip", "netns", "exec", namespace]
        with start_etcd(tmp_path / "one", any_etcd(), host=address, wrap=wrap) as server:
            etcd = connect(server.endpoints)
            async with Following(etcd, "/") as seen:
                start = await etcd.write([], [Put("/kept", b"0"), Put("/deleted", b"0")])
                assert isinstance(start, int)
                await seen.until(lambda me: len(me.picture) == 2)
                _answers(namespace, "-A")
                told = len(seen.items)
                await asyncio.sleep(cut_s)
                await _write_inside(server, wrap, compacted)
                assert len(seen.items) <= told + 1
                _answers(namespace, "-D")
                await seen.until(lambda me: me.picture == {"/kept": b"9"}, within_s=TOLD_S_MAX)
            await etcd.close()
    told_later = [(change.key, change.entry and change.entry.value) for change in seen.changes if change.revision > start]

    assert len(seen.resyncs) == (2 if compacted else 1)
    if not compacted:
        assert told_later == [*(("/kept", b"%d" % number) for number in range(1, 10)), ("/deleted", None)]


async def _write_inside(server: EtcdServer, wrap: list[str], compacted: bool) -> None:
    """As another client on the server's side of the cut would."""
    ctl = [*wrap, *server.ctl_command()]
    environment = {**os.environ, "ETCDCTL_API": "3"}

    def run(*arguments: str) -> str:
        done = subprocess.run([*ctl, *arguments], env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    for number in range(1, 10):
        await asyncio.to_thread(run, "put", "/kept", str(number))
    await asyncio.to_thread(run, "del", "/deleted")
    if compacted:
        revision = (await asyncio.to_thread(run, "get", "/kept", "-w", "fields")).split('"Revision" : ')[1].split()[0]
        await asyncio.to_thread(run, "compact", revision)


FAULTS = 100
FAULT_PERIOD_S = 0.06
# After this many, whatever is made once has been made.
WARM_UP = 10
HELD_MORE_MAX = 2
STREAMS_METRIC = "etcd_debugging_mvcc_watch_stream_total"


def _held() -> dict[str, int]:
    """What this process holds that a leak would show in."""
    return {
        "threads": threading.active_count(),
        "kernel threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "tasks": len(asyncio.all_tasks()),
    }


async def test_a_hundred_faults_leave_nothing_behind(tmp_path: Path) -> None:
    with start_etcd(tmp_path / "one", any_etcd(), fsync=False) as server:
        relay = Relay(server.endpoints[0])
        await relay.start()
        etcd = Etcd([relay.endpoint], request_timeout_s=TIMEOUT_S, watch_period_s=FAULT_PERIOD_S)
        beside = Etcd(server.endpoints)
        async with Following(etcd, "/") as seen:
            await seen.until(lambda me: len(me.items) >= 2)
            for fault in range(FAULTS):
                await _fault(relay, beside, seen, fault)
                if fault == WARM_UP:
                    before = _held()
            await _settles(before)
            streams = await _streams(server)
        await etcd.close()
        await beside.close()
        await relay.stop()

    assert streams == 1
    assert len(seen.resyncs) == 1
    assert [int(change.entry.value) for change in seen.changes if change.entry is not None] == list(range(FAULTS))


async def _fault(relay: Relay, beside: Etcd, seen: Following, number: int) -> None:
    """Every other one is a broken connection, the others a silent one; an event is written meanwhile."""
    opened = relay.accepted
    if number % 2:
        relay.reset()
        await beside.write([], [Put("/n", b"%d" % number)])
    else:
        relay.cut()
        await beside.write([], [Put("/n", b"%d" % number)])
        # The follower gives the silent connection up and tries another.
        await poll(lambda: relay.accepted > opened)
        relay.heal()
    await seen.until(lambda me: me.picture.get("/n") == b"%d" % number)


async def _settles(before: dict[str, int]) -> None:
    """Closing is not instant: until hardly more is held than before."""
    await poll(lambda: all(now <= before[what] + HELD_MORE_MAX for what, now in _held().items()))


async def _streams(server: EtcdServer) -> float:
    """How many watch streams the server has, once it has noticed which are gone."""
    await poll(lambda: server.metric(STREAMS_METRIC) <= 1)
    return server.metric(STREAMS_METRIC)
