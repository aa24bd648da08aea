"""`fmctl topo import`: dumps of tools, merged into one Cluster file."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from fmproto.dumptext import BYTES_MAX, Problem, Problems, ReaderError, decode
from fmproto.fields import NAME_ALLOWED, NAME_MAX
from fmsched.offline.errors import OfflineError
from fmsched.topology.clustertext import write, write_json
from fmsched.topology.imported import Choices, to_cluster
from fmsched.topology.readers.found import FabricFound, Found
from fmsched.topology.readers.ib_names import HostGuids, apply_host_guids, read_host_guids
from fmsched.topology.readers.kinds import KINDS, reader

FILES_MAX = 20_000  # dumps of every node of a large cluster
RATE_MAX_GBPS = 100_000.0
GZIP_MAGIC = b"\x1f\x8b"
GZIP_MEMBERS_MAX = 1000  # archives that were joined to one file
_NAME = re.compile(rf"[a-z0-9]([a-z0-9-]{{0,{NAME_MAX - 2}}}[a-z0-9])?")

Dump = tuple[str, str, bytes]  # kind, file, content


@dataclass
class _Read:
    found: list[Found] = field(default_factory=list)
    refused: list[Problem] = field(default_factory=list)


def run(
    dumps: Sequence[Dump],
    form: str,
    node: str = "",
    type: str = "",  # noqa: A002
    guids: tuple[str, bytes] | None = None,
    cluster_name: str = "",
    gbps: float = 0.0,
) -> tuple[str, tuple[str, ...]]:
    """(the Cluster file's text, its problems a line each). `form`: yaml or json; `guids`: (file, content) of a map of host GUIDs;
    `gbps`: the rate of cables whose file has none.

    Raises OfflineError where no file can be read, or where an option cannot be meant.
    """
    if unknown := sorted({kind for kind, _, _ in dumps} - set(KINDS)):
        raise OfflineError([f"--kind: found {unknown[0]!r}; allowed: {', '.join(KINDS)}"])
    if len(dumps) > FILES_MAX:
        raise OfflineError([f"found {len(dumps):,} files; allowed: at most {FILES_MAX:,}"])
    if cluster_name and not _NAME.fullmatch(cluster_name):
        raise OfflineError([f"--name: found {cluster_name!r}; allowed: {NAME_ALLOWED}"])
    if not 0 <= gbps <= RATE_MAX_GBPS:
        raise OfflineError([f"--gbps: found {gbps:g}; allowed: a number of Gb/s from 0 to {RATE_MAX_GBPS:g}"])
    read = _read_all(dumps, _host_guids(guids))
    if not read.found:
        raise OfflineError(map(str, read.refused))
    stems = {file: stem_of(file) for _, file, _ in dumps}
    try:
        cluster = to_cluster(read.found, stems, Choices(cluster_name, node, type, gbps))
    except ValueError as error:
        raise OfflineError([f"--type: {error}"]) from error
    cluster = replace(cluster, problems=(*read.refused, *cluster.problems))
    # That nothing was set aside is said too.
    text = write_json(cluster) if form == "json" else write(cluster) + ("" if cluster.problems else "problems: []\n")
    return text, tuple(map(str, cluster.problems))


def _read_all(dumps: Sequence[Dump], guids: HostGuids | None) -> _Read:
    """A file that is refused is told, and hides no other."""
    read = _Read()
    told = False
    for kind, file, content in dumps:
        try:
            found = reader(kind)(decode(plain(content, file), Problems(file)), file)
        except ReaderError as error:
            read.refused.append(error.problem)
            continue
        if guids is not None and isinstance(found, FabricFound):
            # What is wrong with the map is told once, however many files it names hosts of.
            found = apply_host_guids(found, replace(guids, problems=() if told else guids.problems))
            told = True
        read.found.append(found)
    return read


def _host_guids(guids: tuple[str, bytes] | None) -> HostGuids | None:
    if guids is None:
        return None
    file, content = guids
    try:
        return read_host_guids(decode(plain(content, file), Problems(file)), file)
    except ReaderError as error:
        raise OfflineError([str(error)]) from error


def plain(content: bytes, file: str) -> bytes:
    """Without gzip's compression, which its first bytes tell. What is left of a cut archive is kept. Raises ReaderError where it is
    none, or grows beyond BYTES_MAX."""
    if not content.startswith(GZIP_MAGIC):
        return content
    problems = Problems(file)
    parts: list[bytes] = []
    size = 0
    rest = content
    for _ in range(GZIP_MEMBERS_MAX):
        if not rest.startswith(GZIP_MAGIC):
            break
        unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        try:
            parts.append(unpacker.decompress(rest, BYTES_MAX + 1 - size))
        except zlib.error as error:
            raise problems.refuse(f"begins as a gzip archive, but cannot be unpacked: {error}") from error
        size += len(parts[-1])
        if size > BYTES_MAX or unpacker.unconsumed_tail:
            raise problems.refuse(f"unpacks to more than {BYTES_MAX:,} bytes; allowed: at most that")
        rest = unpacker.unused_data
    return b"".join(parts)


def stem_of(file: str) -> str:
    """What comes before the first dot of a file's name: "n1" of "dumps/n1.ibstat.txt.gz"; empty for standard input."""
    return PurePath(file).name.partition(".")[0] if not file.startswith("<") else ""
