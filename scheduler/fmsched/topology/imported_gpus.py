"""The GPUs of one node out of several dumps of it: which are the same, what each file adds, what contradicts. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fmproto import gpus as catalogue
from fmproto.described import GPU_UUID
from fmproto.mig import set_fault
from fmproto.nodetypes import GPUS_MAX, MIG_PROFILE, GpuType, gpu_type
from fmsched.topology.imported_names import Notes
from fmsched.topology.readers.found import GpuFound, NodeFound

UNKNOWN = "unknown"  # the model of a GPU that no file names; its memory is then 0: not known
UNSEEN = "no file tells of it"  # the fault of a GPU whose number is missing between others

_PCI = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-9a-f])")
_REAL_UUID = re.compile(r"GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
MEMORY_TOLERANCE = 0.03  # drivers report a card a little differently; ECC takes 6 % of some


@dataclass(slots=True)
class Gpus:
    """`slots` by index. `places[file number]`: a file's own number of a GPU → its index here."""

    slots: dict[int, GpuFound] = field(default_factory=dict)
    said_in: dict[int, str] = field(default_factory=dict)  # the file that told of a GPU first
    places: list[dict[int, int]] = field(default_factory=list)


def is_real_uuid(uuid: str) -> bool:
    """Not redacted: one that tells GPUs apart."""
    return bool(_REAL_UUID.fullmatch(uuid)) and len(set(uuid[4:].replace("-", ""))) > 2


def pci_key(pci: str) -> tuple[int, ...]:
    """(domain, bus, device, function), however wide it is written; () where it is no address."""
    match = _PCI.fullmatch(pci.strip().lower())
    return (int(match[1] or "0", 16), *(int(part, 16) for part in match.groups()[1:])) if match else ()


def merge_gpus(founds: Sequence[NodeFound], notes: Notes) -> Gpus:
    """GPUs matched by UUID, else PCI address, else index. What two files say differently is told; the first one stands."""
    merged = Gpus()
    for found in founds:
        place: dict[int, int] = {}
        merged.places.append(place)
        before = dict(merged.slots)
        for gpu in found.gpus:
            if not 0 <= gpu.index < GPUS_MAX or gpu.index in place:
                notes.add(
                    found.file, f"GPU {gpu.index}", f"a second one of that number, or beyond {GPUS_MAX - 1}: set aside"
                )
                continue
            index = _same(gpu, before, set(place.values()))
            if index is None:
                index = _new(gpu, merged, found.file, notes)
            else:
                if index != gpu.index:
                    notes.add(
                        found.file,
                        f"GPU {gpu.index}",
                        f"by its UUID or PCI address it is GPU {index} of {merged.said_in[index]}",
                    )
                merged.slots[index] = _joined(merged.slots[index], gpu, merged.said_in[index], found.file, notes)
            if index is not None:
                place[gpu.index] = index
    _fill_holes(merged, founds, notes)
    return merged


def _same(gpu: GpuFound, known: Mapping[int, GpuFound], matched: set[int]) -> int | None:
    """Of those that earlier files told of, the same GPU."""
    open_ = {index: other for index, other in known.items() if index not in matched}
    if is_real_uuid(gpu.uuid):
        for index, other in open_.items():
            if other.uuid.lower() == gpu.uuid.lower():
                return index
    if key := pci_key(gpu.pci):
        for index, other in open_.items():
            if pci_key(other.pci) == key and not _other_uuid(gpu, other):
                return index
    other_gpu = open_.get(gpu.index)
    if other_gpu is None or _other_uuid(gpu, other_gpu):
        return None
    # A file that has no UUID may number GPUs in another order; then the addresses tell.
    both = pci_key(gpu.pci), pci_key(other_gpu.pci)
    return None if all(both) and both[0] != both[1] and not is_real_uuid(gpu.uuid) else gpu.index


def _other_uuid(one: GpuFound, other: GpuFound) -> bool:
    return is_real_uuid(one.uuid) and is_real_uuid(other.uuid) and one.uuid.lower() != other.uuid.lower()


def _new(gpu: GpuFound, merged: Gpus, file: str, notes: Notes) -> int | None:
    """The index of a GPU that no earlier file has; None where its place is another GPU's."""
    index = gpu.index
    if index in merged.slots:
        if merged.said_in[index] != file:
            other = merged.slots[index]
            why = f"{merged.said_in[index]} has another GPU of that number ({other.uuid or other.pci}): set aside"
            notes.add(file, f"GPU {index} {gpu.uuid or gpu.pci}", why)
            return None
        index = max(merged.slots) + 1
        if index >= GPUS_MAX:
            return None
        notes.add(file, f"GPU {gpu.index} {gpu.uuid or gpu.pci}", f"its number is another GPU's; taken as GPU {index}")
    merged.slots[index] = replace(gpu, index=index)
    merged.said_in[index] = file
    return index


def _joined(one: GpuFound, other: GpuFound, first: str, file: str, notes: Notes) -> GpuFound:
    what = f"GPU {one.index}"
    if one.name and other.name and _model(one) != _model(other):
        notes.add(file, f"{what}: {other.name}", f"{first} says {one.name}; that stands")
    if one.memory_mib and other.memory_mib and abs(one.memory_mib / other.memory_mib - 1) > MEMORY_TOLERANCE:
        notes.add(file, f"{what}: {other.memory_mib:g} MiB", f"{first} says {one.memory_mib:g} MiB; that stands")
    if one.mig_enabled is not None and other.mig_enabled is not None and one.mig_enabled != other.mig_enabled:
        notes.add(file, f"{what}: MIG is {'on' if other.mig_enabled else 'off'}", f"{first} says the opposite; that stands")
    if one.nvlinks_active is not None and other.nvlinks_active is not None and one.nvlinks_active != other.nvlinks_active:
        notes.add(file, f"{what}: {other.nvlinks_active} NVLinks active", f"{first} says {one.nvlinks_active}; that stands")
    return replace(
        one,
        name=one.name or other.name,
        uuid=one.uuid if is_real_uuid(one.uuid) or not other.uuid else other.uuid,
        pci=one.pci or other.pci,
        memory_mib=one.memory_mib or other.memory_mib,
        mig_enabled=other.mig_enabled if one.mig_enabled is None else one.mig_enabled,
        mig=one.mig or other.mig,
        fault=one.fault or other.fault,
        nvlinks_active=other.nvlinks_active if one.nvlinks_active is None else one.nvlinks_active,
        nvlinks_down=one.nvlinks_down or (other.nvlinks_down if one.nvlinks_active is None else ()),
        nvlink_gbytes_per_s=one.nvlink_gbytes_per_s or other.nvlink_gbytes_per_s,
        numa=one.numa if one.numa >= 0 else other.numa,
        cpus=one.cpus or other.cpus,
        facts={**other.facts, **one.facts},
    )


def _model(gpu: GpuFound) -> str:
    """What two spellings of one model share: "NVIDIA A100-SXM4-80GB" and "A100-SXM4-80GB"."""
    facts = catalogue.lookup(gpu.name, 0)
    return facts.key.lower().removeprefix("nvidia ") if facts else gpu.name.lower()


def _fill_holes(merged: Gpus, founds: Sequence[NodeFound], notes: Notes) -> None:
    """Indices count from 0 without a gap: a number that no file tells of is a GPU like its neighbours, that cannot be used."""
    missing = [index for index in range(max(merged.slots, default=-1) + 1) if index not in merged.slots]
    if not missing:
        return
    like = next((gpu for gpu in merged.slots.values() if gpu.name), GpuFound(0))
    for index in missing:
        merged.slots[index] = GpuFound(index, like.name, memory_mib=like.memory_mib, fault=UNSEEN)
    listed = ", ".join(map(str, missing))
    notes.add(founds[0].file, f"GPU {listed}", f"{UNSEEN}, though later numbers are there; kept, as what cannot be used")


def type_of(gpu: GpuFound, file: str, notes: Notes) -> GpuType:
    """What a Cluster file says of it. Nominal memory is the catalogue's, else the reported size rounded up to whole GiB."""
    name = " ".join("".join(c if c.isprintable() else " " for c in gpu.name).split())[:200]
    facts = catalogue.lookup(name, gpu.memory_mib)
    memory_gb = min(facts.memory_gb, 1_000_000.0) if facts else 0.0
    mig: tuple[str, ...] | None = None
    if gpu.mig_enabled or (gpu.mig and gpu.mig_enabled is None):
        mig = tuple(each.profile for each in gpu.mig if MIG_PROFILE.fullmatch(each.profile))
        for odd in (each.profile for each in gpu.mig if not MIG_PROFILE.fullmatch(each.profile)):
            notes.add(
                file, f"GPU {gpu.index}: MIG {odd}", "no profile; allowed: such as 1g.10gb. The instance is set aside"
            )
    unknown = f"AMD {UNKNOWN}" if gpu.vendor == "amd" else UNKNOWN
    card = gpu_type(name if facts else unknown, memory_gb, mig=mig)
    if mig and (fault := set_fault(card.model, mig)):
        notes.add(file, f"GPU {gpu.index}: MIG", f"{fault}. Its instances are set aside")
        return replace(card, mig=())
    return card


def uuid_allowed(uuid: str) -> bool:
    return bool(GPU_UUID.fullmatch(uuid))
