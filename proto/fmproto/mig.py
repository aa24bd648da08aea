"""MIG: how a GPU can be cut into GPU instances, by catalogue key, and what still fits beside the instances that there are.

Pure geometry over the table mig.toml, with its sources. A driver may offer less (an older one lacks profiles) or more; what NVML says
of a live GPU goes before this.

An instance takes memory slices that lie side by side, from one of its profile's starts, and a number of compute slices out of the GPU's
7 (A30 and RTX PRO: 4). One GPU has one optical flow engine, so at most one instance has the media extension ("+me").
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

_NAME = re.compile(
    r"(?:MIG )?(?:([0-9]{1,2})c\.)?([0-9]{1,2})g\.([0-9]{1,4})gb((?:[+-][a-z]{1,8}(?:\.[a-z]{1,8}){0,2}){0,3})",
)
_ATTRIBUTE = re.compile(r"[+-][a-z.]+")


class GeometryError(ValueError):
    """Instances that cannot be on one GPU of this kind together: an unknown profile or start, or two that overlap."""


@dataclass(frozen=True, slots=True)
class ProfileName:
    """What a profile's name says: "1c.3g.71gb", "1g.10gb+me"."""

    compute_slices: int  # of the GPU instance
    memory_gb: int
    attributes: tuple[str, ...] = ()  # with their sign: "+me", "+me.all", "-me", "+gfx"
    compute_instance_slices: int = 0  # of the compute instance inside, where it is only a part of the GPU instance; else 0

    @property
    def gpu_instance(self) -> str:
        """The name of the GPU instance's profile: "3g.71gb"."""
        return f"{self.compute_slices}g.{self.memory_gb}gb{''.join(self.attributes)}"


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One way to cut out a GPU instance. Zero and None stand for "not known" where it is said."""

    name: str
    memory_gb: int  # as the name says, rounded by the maker
    compute_slices: int
    memory_slices: int  # how many it takes, side by side
    starts: tuple[int, ...]  # memory slices where it may begin, ascending
    instances_max: int  # most at once on one GPU
    id: int | None = None  # as `nvidia-smi mig -cgi` takes it; None: not known
    multiprocessors: int = 0  # 0: not known
    memory_gib: float = 0.0  # as `nvidia-smi mig -lgip` prints it; 0: not known
    media_extension: bool = False  # takes the GPU's only optical flow engine
    media_engines: int = 0  # decoders and encoders taken, where profiles share them out; else 0
    aliases: tuple[str, ...] = ()  # other names of the same cut


@dataclass(frozen=True, slots=True)
class Geometry:
    """How one kind of GPU is cut."""

    kind: str
    keys: tuple[str, ...]  # catalogue keys of the GPUs that are cut so
    compute_slices: int
    memory_slices: int
    profiles: tuple[MigProfile, ...]
    source: str
    how_known: str
    media_engines: int = 0  # 0: they set no limit

    def named(self, name: str) -> MigProfile | None:
        """The profile of that name or alias; a leading "MIG " does not matter."""
        plain = name.removeprefix("MIG ")
        return next((profile for profile in self.profiles if plain == profile.name or plain in profile.aliases), None)


def parse_profile(name: str) -> ProfileName | None:
    """The parts of a profile's name, with or without "MIG " before it; None where it is no profile's name.

    "1c.3g.71gb": a compute instance with one of the three compute slices of a "3g.71gb" GPU instance.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    part, whole, memory_gb = int(match[1] or 0), int(match[2]), int(match[3])
    if not whole or not memory_gb or part > whole or (match[1] and not part):
        return None
    return ProfileName(whole, memory_gb, tuple(_ATTRIBUTE.findall(match[4])), part)


def geometry(key: str) -> Geometry | None:
    """How the GPUs of a catalogue key are cut; None: they have no MIG, or it is not known how they are cut."""
    return _by_key().get(key)


def profiles(key: str) -> tuple[MigProfile, ...]:
    """The profiles of a catalogue key, small ones first; empty: no MIG, or not known."""
    known = geometry(key)
    return known.profiles if known is not None else ()


def possible(key: str, existing: Sequence[tuple[str, int]] = ()) -> Mapping[str, tuple[int, ...]]:
    """Where one more instance of each profile can start beside the `existing` ones, each a profile name and its start.

    All profiles of the GPU are in the answer; those that do not fit have no starts. Empty for a key without geometry.
    Raises GeometryError where `existing` cannot be on such a GPU.
    """
    known = geometry(key)
    if known is None:
        return {}
    taken = _Taken(known, existing)
    return {profile.name: taken.starts(profile) for profile in known.profiles}


def free_counts(key: str, existing: Sequence[tuple[str, int]] = ()) -> Mapping[str, int]:
    """How many more instances fit, for each profile alone: what `nvidia-smi mig -lgip` prints as free.

    Empty for a key without geometry. Raises GeometryError where `existing` cannot be on such a GPU.
    """
    known = geometry(key)
    if known is None:
        return {}
    return {profile.name: _count(known, profile, existing) for profile in known.profiles}


def set_fault(key: str, names: Sequence[str]) -> str:
    """Why instances of these names cannot be on one GPU of a catalogue key together, wherever they start; empty: they can.

    Compute instances ("1c.3g.71gb") share GPU instances as long as its compute slices suffice. Nothing is said of a key without geometry.
    """
    known = geometry(key)
    if known is None:
        return ""
    found: list[MigProfile] = []
    parts: dict[str, list[int]] = {}
    for name in names:
        parsed = parse_profile(name)
        profile = known.named(parsed.gpu_instance) if parsed is not None else None
        profile = known.named(name) if profile is None else profile
        if profile is None:
            return f"found {name[:64]!r}; allowed on {key}: {', '.join(each.name for each in known.profiles)}"
        if parsed is not None and parsed.compute_instance_slices:
            parts.setdefault(profile.name, []).append(parsed.compute_instance_slices)
        else:
            found.append(profile)
    for name, slices in parts.items():
        shared = next(profile for profile in known.profiles if profile.name == name)
        found += [shared] * _instances_for(slices, shared.compute_slices)
    limit = known.compute_slices
    if sum(profile.compute_slices for profile in found) <= limit and _fit(_Taken(known, ()), tuple(found)):
        return ""
    counts = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    return f"found {counts}; allowed: instances that fit on one {key} together ({limit} compute slices, {known.memory_slices} of memory)"


def _instances_for(slices: Sequence[int], each: int) -> int:
    """GPU instances of `each` compute slices that hold compute instances of these slices. First fit by falling size is exact here: up
    to 3 slices always, and of the bigger profiles one instance at most fits on a GPU, so that only one or more than one matters.
    """
    left: list[int] = []
    for size in sorted(slices, reverse=True):
        place = next((i for i, room in enumerate(left) if room >= size), None)
        if place is None:
            left.append(each - size)
        else:
            left[place] -= size
    return len(left)


def _fit(taken: _Taken, todo: tuple[MigProfile, ...]) -> bool:
    """Tries every start. Small: compute slices bound `todo` to as many instances as the GPU has slices."""
    if not todo:
        return True
    for start in taken.starts(todo[0]):
        after = taken.copy()
        after.add(todo[0], start)
        if _fit(after, todo[1:]):
            return True
    return False


class _Taken:
    """What the instances on one GPU take. `existing` is checked while it is taken up, so it never has more than fit on a GPU."""

    def __init__(self, known: Geometry, existing: Sequence[tuple[str, int]]) -> None:
        self.geometry = known
        self.memory: set[int] = set()
        self.compute = 0
        self.media_engines = 0
        self.media_extension = False
        self.instances: dict[str, int] = {}
        for name, start in existing:
            profile = known.named(name)
            if profile is None:
                raise GeometryError(f"{known.kind} has no profile {name[:64]!r}")
            if start not in self.starts(profile):
                raise GeometryError(f"{known.kind}: no {profile.name} can be at {start} beside the others")
            self.add(profile, start)

    def starts(self, profile: MigProfile) -> tuple[int, ...]:
        """Where one more can begin."""
        if (
            self.instances.get(profile.name, 0) >= profile.instances_max
            or self.compute + profile.compute_slices > self.geometry.compute_slices
            or (profile.media_extension and self.media_extension)
            or (profile.media_engines and self.media_engines + profile.media_engines > self.geometry.media_engines)
        ):
            return ()
        return tuple(
            start for start in profile.starts if self.memory.isdisjoint(range(start, start + profile.memory_slices))
        )

    def copy(self) -> _Taken:
        other = _Taken(self.geometry, ())
        other.memory, other.instances = set(self.memory), dict(self.instances)
        other.compute, other.media_engines, other.media_extension = self.compute, self.media_engines, self.media_extension
        return other

    def add(self, profile: MigProfile, start: int) -> None:
        self.memory.update(range(start, start + profile.memory_slices))
        self.compute += profile.compute_slices
        self.media_engines += profile.media_engines
        self.media_extension = self.media_extension or profile.media_extension
        self.instances[profile.name] = self.instances.get(profile.name, 0) + 1


def _count(known: Geometry, profile: MigProfile, existing: Sequence[tuple[str, int]]) -> int:
    # All have one size, so the leftmost start each time gives the most.
    taken = _Taken(known, existing)
    count = 0
    while starts := taken.starts(profile):  # ends: each round takes memory slices away
        taken.add(profile, starts[0])
        count += 1
    return count


@cache
def geometries() -> tuple[Geometry, ...]:
    """The whole table, in the order of the file."""
    text = resources.files("fmproto").joinpath("mig.toml").read_text(encoding="utf-8")
    return tuple(_geometry(row) for row in tomllib.loads(text)["geometry"])


@cache
def _by_key() -> Mapping[str, Geometry]:
    return {key: known for known in geometries() for key in known.keys}


def _geometry(row: Mapping[str, Any]) -> Geometry:
    cuts = tuple(_profile(cut) for cut in row["profiles"])
    return Geometry(**{**row, "keys": tuple(row["keys"]), "profiles": cuts})


def _profile(row: Mapping[str, Any]) -> MigProfile:
    name = parse_profile(row["name"])
    assert name is not None, row["name"]
    lists = {"starts": tuple(row["starts"]), "aliases": tuple(row.get("aliases", ()))}
    return MigProfile(**{**row, **lists, "memory_gb": name.memory_gb})
