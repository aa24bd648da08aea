"""The fabric as it is now: the leader runs `ibnetdiscover` (or whatever is configured) each period and publishes what it finds. A run that
fails, is cut short or finds no fabric changes nothing; a link that is gone from a good one is gone from the map.

The fabric lands in the same key that a Cluster file's would, so placement and clients cannot tell the two apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

import structlog

from fmproto import keys
from fmproto.dumptext import BYTES_MAX, Problem, Problems, ReaderError, decode
from fmproto.etcd_rules import OPERATION_OVERHEAD_BYTES, REQUEST_BYTES_MAX
from fmproto.kv import StoreFull, StoreUnavailable
from fmproto.v1 import hardware_pb2 as hw
from fmsched.model.fabric import Fabric, Link, Switch
from fmsched.store.codec import fabric_message, packed
from fmsched.store.mirror import Mirror
from fmsched.topology.imported_fabric import merge_fabrics
from fmsched.topology.imported_names import Notes, allowed_name
from fmsched.topology.readers.found import FabricFound
from fmsched.topology.readers.ib_names import Owner, name_hosts
from fmsched.topology.readers.ibnetdiscover import read

log = structlog.get_logger(__name__)

# A killed tool that is not stuck in a driver ends within so long, seconds.
END_S = 2.0
# How often agents' inventories are looked at for adapters that have become known since the last run, seconds.
NAMES_S = 1.0
CHUNK_BYTES = 1 << 20
STDERR_BYTES_MAX = 64 << 10
LINES_TOLD = 3
# A run that finds a smaller share of the hosts that the last one found is in doubt.
LOST_SHARE = 0.5
# What one value in the store may have; the guards of the write take the rest.
FABRIC_BYTES_MAX = REQUEST_BYTES_MAX - 16 * OPERATION_OVERHEAD_BYTES - len(keys.FABRIC)


class DiscoveryError(Exception):
    """Why a run found no fabric, in one line."""


@dataclass(frozen=True, slots=True)
class Output:
    stdout: bytes
    stderr: str


class Tool:
    """Runs one command, with a time limit. A child that cannot be killed (it hangs in the driver) keeps the next from starting."""

    def __init__(self, command: Sequence[str], timeout_s: float) -> None:
        self._command = tuple(command)
        self._timeout_s = timeout_s
        self._child: asyncio.subprocess.Process | None = None

    async def run(self) -> Output:
        """Raises DiscoveryError where the command cannot be started, ends with another code than 0, or takes too long."""
        if self._child is not None and self._child.returncode is None:
            raise DiscoveryError(f"process {self._child.pid} of an earlier run was killed and does not end")
        name = self._command[0]
        try:
            # A session of its own: what the command starts is killed with it.
            child = self._child = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise DiscoveryError(f"{name} cannot be started: {error}") from error
        outputs = asyncio.create_task(_read_all(child.stdout, name)), asyncio.create_task(_read_some(child.stderr))
        try:
            async with asyncio.timeout(self._timeout_s):
                stdout, stderr = await asyncio.gather(*outputs)
                code = await child.wait()
        except TimeoutError:
            raise DiscoveryError(f"{name} did not end within {self._timeout_s:g} s") from None
        finally:
            for output in outputs:
                output.cancel()
            await asyncio.gather(*outputs, return_exceptions=True)
            await self._end(child)
        if code != 0:
            why = told(stderr) or told(stdout[-CHUNK_BYTES:].decode("utf-8", errors="replace"))
            raise DiscoveryError(f"{name} ended with {code}: {why or 'it said nothing'}")
        return Output(stdout, stderr)

    async def _end(self, child: asyncio.subprocess.Process) -> None:
        """Kills what is left of the command, also when the leadership ends in the middle of a run."""
        if child.returncode is not None:
            return  # its number may be somebody else's by now
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                # What is still in the pipes keeps them open otherwise.
                await asyncio.gather(_read_some(child.stdout), _read_some(child.stderr), child.wait())


async def _read_all(stream: asyncio.StreamReader | None, name: str) -> bytes:
    """Raises DiscoveryError above BYTES_MAX."""
    assert stream is not None, "the child's output is a pipe"
    kept = bytearray()
    while chunk := await stream.read(CHUNK_BYTES):
        kept += chunk
        if len(kept) > BYTES_MAX:
            raise DiscoveryError(f"{name} printed more than {BYTES_MAX:,} bytes")
    return bytes(kept)


async def _read_some(stream: asyncio.StreamReader | None) -> str:
    """The last STDERR_BYTES_MAX."""
    assert stream is not None, "the child's output is a pipe"
    kept = b""
    while chunk := await stream.read(CHUNK_BYTES):
        kept = (kept + chunk)[-STDERR_BYTES_MAX:]
    return kept.decode("utf-8", errors="replace")


def told(text: str) -> str:
    """The last lines of what a tool said, as one."""
    lines = [" ".join(line.split())[:200] for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-LINES_TOLD:])


def owners_of(inventories: Mapping[str, hw.Inventory]) -> dict[str, Owner]:
    """Whose adapter each GUID is, by the agents' own inventories. One that two nodes claim is nobody's."""
    owners: dict[str, Owner] = {}
    claimed = {"0" * 16}  # virtual functions may have none
    for node, inventory in sorted(inventories.items()):
        for port in inventory.hca_ports:
            for text in (port.node_guid, port.port_guid):
                guid = text.lower().removeprefix("0x").zfill(16)
                if owners.setdefault(guid, Owner(node, port.hca)).host != node:
                    claimed.add(guid)
    return {guid: owner for guid, owner in owners.items() if guid not in claimed}


def with_names(found: FabricFound, owners: Mapping[str, Owner], nodes: Sequence[str]) -> FabricFound:
    """`found` with the hosts of this cluster under their nodes' names: by the GUIDs of their adapters first, by their descriptions second.
    A host that calls itself by the name of a node whose adapters are elsewhere is not that node: it goes by its GUID."""
    sure = {owners[guid].host for host in found.hosts for _, guid in host.guids if guid in owners}
    by_name = {node.lower(): node for node in nodes}
    by_short_name = {node.partition(".")[0].lower(): node for node in nodes}
    if len(by_short_name) < len(nodes):
        by_short_name = {}  # equal short names say nothing
    said: dict[str, Owner] = {}
    for host in found.hosts:
        if not host.named or any(guid in owners for _, guid in host.guids):
            continue
        name = host.name.lower()
        node = by_name.get(name) or by_short_name.get(name.partition(".")[0])
        if node is not None:
            owner = Owner(host.guids[0][1] if node in sure else node)
            said |= {guid: owner for _, guid in host.guids}
    return name_hosts(found, {**said, **owners})


def fabric_of(found: FabricFound) -> Fabric:
    """Switches, and the links of hosts that have a name; in an order that does not depend on the file's. Levels: 0 for switches with
    hosts, else the distance from such a switch. Equal cables between two ends are one link with their count."""
    notes = Notes()
    merged = merge_fabrics([found], 0.0, set(), notes)
    nameless = {allowed_name(host.name, host.id) for host in found.hosts if not host.named}
    counts: dict[tuple[str, str, float, bool, str], int] = {}
    cables = [cable for host in merged.hosts.values() if host.name not in nameless for cable, _ in host.cables]
    for cable in (*cables, *merged.trunks):
        key = (cable.a, cable.b, cable.gbps, cable.down, cable.hca)
        counts[key] = counts.get(key, 0) + cable.count
    switches = (Switch(name, level) for name, level in sorted(merged.level_of.items()))
    links = (Link(a, b, gbps, count, down, hca) for (a, b, gbps, down, hca), count in sorted(counts.items()))
    return Fabric(tuple(switches), tuple(links))


def read_fabric(output: bytes, source: str) -> FabricFound:
    """What the tool found. Raises ReaderError where that is no fabric, or only a part of one."""
    problems = Problems(source)
    found = read(decode(output, problems), source)
    if not found.switches or not found.cables:
        raise problems.refuse("found no switch with a link")
    if not found.complete:
        first = found.problems[0] if found.problems else Problem(source, 0, "the output", "it is not whole")
        raise problems.refuse(f"the fabric is not whole: {first.what}: {first.why}", line=first.line)
    return found


def message_of(found: FabricFound, owners: Mapping[str, Owner], nodes: Sequence[str], source: str) -> hw.Fabric:
    """The message to store. Where it would be larger than the store takes, the links of hosts that are no nodes are left out.
    Raises DiscoveryError where it is too large even then."""
    fabric = fabric_of(with_names(found, owners, nodes))
    message = fabric_message(fabric, source)
    if packed(message).ByteSize() > FABRIC_BYTES_MAX:
        known = {*nodes, *(switch.name for switch in fabric.switches)}
        links = tuple(link for link in fabric.links if link.a in known and link.b in known)
        message = fabric_message(replace(fabric, links=links), source)
    if packed(message).ByteSize() > FABRIC_BYTES_MAX:
        raise DiscoveryError(f"the fabric takes {packed(message).ByteSize():,} bytes; the store takes {FABRIC_BYTES_MAX:,}")
    return message


class Discovery:
    """`put` writes the fabric while this process leads; where it cannot, it raises StoreUnavailable or StoreFull."""

    def __init__(
        self,
        command: Sequence[str],
        period_s: float,
        timeout_s: float,
        mirror: Mirror,
        put: Callable[[hw.Fabric], Awaitable[object]],
    ) -> None:
        self._tool = Tool(command, timeout_s)
        self._source = PurePath(command[0]).name
        self._period_s = period_s
        self._mirror = mirror
        self._put = put
        self._found: FabricFound | None = None  # of the last good run
        self._doubted: FabricFound | None = None  # of a run in doubt: believed when the next one finds the same
        self._digest = b""
        self._owners: dict[str, Owner] = {}
        self._version = -1
        self._unsent = False  # a map that the store has not taken yet
        self.failure = ""  # of the last run; empty: it was good

    async def run(self) -> None:
        """For ever; a new run each period, counted from start to start."""
        clock = asyncio.get_running_loop().time
        while True:
            next_s = clock() + self._period_s
            await self.look()
            while (left_s := next_s - clock()) > 0:
                await asyncio.sleep(min(left_s, NAMES_S))
                if await self._names_changed() or self._unsent:
                    await self._publish()

    async def look(self) -> bool:
        """One run of the tool. True where it found a fabric to publish."""
        try:
            output = await self._tool.run()
            digest, found = await asyncio.to_thread(self._read, output.stdout)
            self._believe(found, self._doubt(found, told(output.stderr)))
            self._digest = digest
        except (DiscoveryError, ReaderError) as error:
            if str(error) != self.failure:  # once, not at each period
                log.warning("the fabric could not be discovered; the map stays as it was", why=str(error))
            self.failure = str(error)
            return False
        if self.failure:
            log.info("the fabric is discovered again")
        self.failure = ""
        await self._names_changed()
        await self._publish()
        return True

    def _read(self, output: bytes) -> tuple[bytes, FabricFound]:
        """(a digest of the output without its date, what it says); nothing is read anew where it is the last good run's."""
        head = 0
        while output.startswith(b"#", head) and (end := output.find(b"\n", head)) >= 0:
            head = end + 1
        digest = hashlib.sha256(memoryview(output)[head:]).digest()
        if digest == self._digest and self._found is not None:
            return digest, self._found
        return digest, read_fabric(output, self._source)

    def _doubt(self, found: FabricFound, complaint: str) -> str:
        """Why this run may not have seen all: a switch that does not answer in time is missing from one run and back in the next, and a
        tool whose own leaf is cut off sees that leaf alone."""
        if complaint:
            return f"{self._source} complained: {complaint}"
        before = len(self._found.hosts) if self._found is not None else self._stored_hosts()
        if len(found.hosts) < before * LOST_SHARE:
            return f"{before - len(found.hosts)} of {before} hosts are gone at once"
        return ""

    def _stored_hosts(self) -> int:
        """How many hosts the map has that an earlier leader discovered."""
        stored = self._mirror.fabric
        if stored.source != self._source:
            return 0
        switches = {switch.name for switch in stored.switches}
        return len({end for link in stored.links for end in (link.a, link.b)} - switches)

    def _believe(self, found: FabricFound, doubt: str) -> None:
        """Raises DiscoveryError where the run is in doubt, until the next one finds the same."""
        plain = replace(found, problems=())
        if doubt and plain not in (self._doubted, self._found and replace(self._found, problems=())):
            self._doubted = plain
            raise DiscoveryError(f"{doubt}; it counts when the next run finds the same")
        self._doubted = None
        self._found = found

    async def _names_changed(self) -> bool:
        if self._version == self._mirror.hardware_version:
            return False
        self._version = self._mirror.hardware_version
        before, self._owners = self._owners, await asyncio.to_thread(owners_of, dict(self._mirror.inventories))
        return before != self._owners

    async def _publish(self) -> None:
        """Writes the map where it differs from the stored one."""
        if self._found is None:
            return
        self._unsent = True
        if not self._mirror.synced:
            return
        nodes = sorted(self._mirror.inventories)
        try:
            message = await asyncio.to_thread(message_of, self._found, self._owners, nodes, self._source)
        except DiscoveryError as error:
            log.error("the fabric cannot be stored; the map stays as it was", why=str(error))
            self._unsent = False  # the next run finds another, perhaps
            return
        if message == self._mirror.fabric:
            self._unsent = False
            return
        with contextlib.suppress(StoreUnavailable, StoreFull):  # tried again soon
            await self._put(message)
            self._unsent = False
            log.info("the fabric changed", switches=len(message.switches), links=len(message.links), source=self._source)
