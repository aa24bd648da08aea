"""Mounted disks: which there are, and how full they are. Network file systems are left out: one that hangs is no fault of the node, and
would hang whoever looks. A disk that hangs is looked at in a thread of its own, under a time limit."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fmagent.devices import sysfs
from fmagent.devices.looker import Hung, Looker
from fmagent.health.readings import DiskReading

TIMEOUT_S = 2.0  # for all disks together
MOUNTS_MAX = 16_384  # lines of mountinfo; a host of containers has some thousands
DISKS_MAX = 128

# File systems whose data lie on other machines, or come from a program. gpfs and others name a source below /dev all the same.
_REMOTE = frozenset(
    (
        "9p", "afs", "autofs", "beegfs", "beegfs_nodev", "ceph", "cifs", "coda", "davfs", "fuse", "gfs2", "glusterfs", "gpfs", "lustre",
        "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "wekafs",
    )
)  # fmt: skip
_READ_ONLY = frozenset(("cramfs", "erofs", "iso9660", "squashfs", "udf"))  # always full, by nature
_WITHOUT_BLOCK_SOURCE = frozenset(("bcachefs", "btrfs", "zfs"))  # local, on several disks: the source may be a pool's name
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    point: str
    device: str  # "/dev/nvme0n1p2", "tank/scratch"
    number: str  # "259:2", the kernel's number of the device


def mounts(mountinfo: str) -> tuple[Mount, ...]:
    """Local disks of /proc/self/mountinfo (man 5 proc), each once, at the mount that shows all of it, else the shortest. Pure."""
    best: dict[str, tuple[tuple[bool, bool, int, str], Mount]] = {}
    for line in mountinfo.splitlines()[:MOUNTS_MAX]:
        head, _, tail = line[:8_192].partition(" - ")
        fields, after = head.split(" "), tail.split(" ")
        if len(fields) < 6 or len(after) < 2:
            continue
        number, root, point = fields[2], _plain(fields[3]), _plain(fields[4])
        kind, device = after[0], _plain(after[1])
        if kind in _REMOTE or kind in _READ_ONLY or kind.startswith("fuse."):
            continue
        if "\ufffd" in point or (not device.startswith("/dev/") and kind not in _WITHOUT_BLOCK_SOURCE):
            continue
        # Subvolumes of one btrfs have numbers of their own and share the space.
        key = device if kind in _WITHOUT_BLOCK_SOURCE else number
        # Containers get single files of /etc by mounts of their own.
        rank = (root != "/", point.startswith("/etc/"), len(point), point)
        if key not in best or rank < best[key][0]:
            best[key] = (rank, Mount(point, device, number))
    found = sorted((mount for _, mount in best.values()), key=lambda mount: mount.point)
    return tuple(found[:DISKS_MAX])


def _plain(field: str) -> str:
    """Blanks are octal in mountinfo."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), field)


def rotational(mount: Mount, sys: Path = sysfs.SYS) -> bool:
    """Whether it turns; a partition has its disk's queue."""
    entry = sys / "dev/block" / mount.number
    if not entry.exists():
        entry = sys / "class/block" / Path(mount.device).name
    for queue in (entry / "queue/rotational", entry / "../queue/rotational"):
        # The way up is that of the link's target.
        value = sysfs.number(Path(os.path.realpath(queue.parent.parent)) / "queue/rotational")
        if value is not None:
            return value == 1
    return False


@dataclass(frozen=True, slots=True)
class Space:
    """Bytes. `folder` False: the mount covers a single file, as containers get them."""

    total: int
    free: int
    folder: bool = True


def space_of(point: str) -> Space:
    """May hang. Raises OSError."""
    told = os.statvfs(point)
    return Space(told.f_blocks * told.f_frsize, told.f_bavail * told.f_frsize, Path(point).is_dir())


class DiskReader:
    """Keeps what hangs apart from what does not."""

    def __init__(self, timeout_s: float = TIMEOUT_S, space: Callable[[str], Space] = space_of) -> None:
        self._timeout_s = timeout_s
        self._space = space
        self._lookers: dict[str, Looker[Space]] = {}
        self._last: dict[str, Space] = {}

    def read(self, points: Sequence[str]) -> tuple[DiskReading, ...]:
        """One reading for each mount point that is a folder, all within the time limit. Of one that does not answer, what was last known
        of it, and why. Never raises."""
        end_s = time.monotonic() + self._timeout_s
        running: dict[str, Future[Space] | str] = {}
        for point in dict.fromkeys(points[:DISKS_MAX]):
            looker = self._lookers.setdefault(point, Looker(point, self._timeout_s))
            try:
                running[point] = looker.start(partial(self._space, point))
            except Hung as hung:
                running[point] = str(hung)
        found = []
        for point, future in running.items():
            error = future if isinstance(future, str) else ""
            if not isinstance(future, str):
                error = self._wait(point, future, end_s)
            last = self._last.get(point, Space(0, 0))
            if last.folder:
                found.append(DiskReading(point, last.total, last.free, error))
        return tuple(found)

    def _wait(self, point: str, future: Future[Space], end_s: float) -> str:
        try:
            self._last[point] = self._lookers[point].wait(future, max(0.0, end_s - time.monotonic()))
        except Hung as error:
            return str(error)
        except OSError as error:
            return error.strerror or str(error)
        return ""
