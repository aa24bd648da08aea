"""What the sections of one GPU say, whatever they were written as: text and XML name the same fields, nearly alike. A Section holds them by
path; gpu_of makes a GpuFound of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from fmproto.dumptext import Problems, shown
from fmproto.gpus import lookup
from fmsched.topology.readers.found import GpuFound, MigFound

GPUS_MAX = 256  # of one file
MIG_MAX = 64  # instances of one GPU; real: 7, or 56 compute instances
FIELDS_MAX = 20_000  # of one GPU; real: 300, and 20 a process
MIB_MAX = 1e9
_NOT_KEY = re.compile(r"[^a-z0-9]{1,64}")
_NUMBER = re.compile(r"[-+]?\d{1,15}(?:\.\d{1,9})?")
_UNSAID = {
    "",
    "n/a",
    "[n/a]",
    "none",
    "not supported",
    "[not supported]",
    "unknown",
    "requested functionality has been deprecated",
}

# Texts of nvmlErrorString that mean that the device itself fails, as a field's value; nvidia-smi puts some in brackets.
_FAILING = re.compile(
    r"ERR!|(?:\[?(?:GPU is lost|Unknown Error|(?:GPU )?requires reset|Timeout|GPU access blocked.{0,40})\.?.{0,80}\]?$)",
    re.IGNORECASE,
)
_LOST = re.compile(r"GPU is lost|requires reset", re.IGNORECASE)
# Sections on the slot and the bridge above it: a virtual machine hides these ("Host Max: Unknown Error" on every GPU), and the GPU works.
_OF_THE_HOST = frozenset({"gpu_link_info", "pci_gpu_link_info"})
# Fields that people or programs fill: an error's text there says nothing of the GPU.
FREE_TEXT = {"processes", "accounted_processes", "compute_processes", "supported_clocks"}

DRIVER_KEYS = ("driver_version", "kmd_version")  # of the header; driver 610 renames it

Path = tuple[str, ...]


@dataclass(slots=True)
class Section:
    """One GPU's fields by path of keys (`key_of`), as they were written, in order; the first of a path stands."""

    pci: str
    line: int
    fields: dict[Path, str] = field(default_factory=dict)
    mig: list[Section] = field(default_factory=list)
    mig_max: int = MIG_MAX
    processes: bool = False  # saw the list of processes, which whole output ends with
    by_end: dict[Path, str] = field(default_factory=dict)  # the last one or two keys of a path

    def instance(self, line: int) -> Section:
        """A new MIG device's section, kept unless the GPU's list is full or was given by an earlier section of it."""
        mig = Section(self.pci, line)
        if len(self.mig) < self.mig_max:
            self.mig.append(mig)
        return mig

    def again(self) -> None:
        """The file comes to the same GPU once more: a list of MIG devices that it has is whole."""
        self.mig_max = len(self.mig) or MIG_MAX

    def add(self, path: Path, value: str) -> None:
        if path[0] in FREE_TEXT:
            self.processes = True
            return
        if len(self.fields) >= FIELDS_MAX or path in self.fields:
            return
        self.fields[path] = value
        self.by_end.setdefault(path[-1:], value)
        self.by_end.setdefault(path[-2:], value)

    def get(self, *ends: Path) -> str:
        """The value at the first path that ends so and says something; else "". "N/A" and its kin say nothing."""
        for end in ends:
            value = self.by_end.get(end, "")
            if not unsaid(value) and not _FAILING.match(value):
                return value
        return ""


@dataclass(frozen=True, slots=True)
class Dump:
    """A file's sections. `attached`: how many GPUs it speaks of, None where it does not say. `named`: each section says of which GPU
    it is."""

    sections: tuple[Section, ...]
    driver: str = ""
    attached: int | None = None
    attached_line: int = 0
    cut: bool = False
    named: bool = True
    first: str = "the whole file"  # what stands at its beginning, for a refusal


def key_of(name: str) -> str:
    """ "FB Memory Usage" and "fb_memory_usage" are one key."""
    return _NOT_KEY.sub("_", name.strip().lower()).strip("_")


def unsaid(value: str) -> bool:
    return value.strip().lower() in _UNSAID


def driver_of(value: str) -> str:
    """A driver's version without what newer drivers add to it ("610.1 [Deprecated; use KMD Version instead]"); "" where it has none."""
    word = value.split(" ", 1)[0]
    return word if word[:1].isdigit() else ""


def number(value: str) -> float | None:
    """The number that a value begins with ("81559 MiB", "700.00 W"); None where it begins with none."""
    match = _NUMBER.match(value.strip())
    return float(match[0]) if match else None


def count(value: str) -> int | None:
    found = number(value)
    return int(found) if found is not None else None


# What is kept as a fact → where it stands: text's name, then XML's.
FACTS: dict[str, tuple[Path, ...]] = {
    "serial": (("serial_number",), ("serial",)),
    "architecture": (("product_architecture",),),
    "brand": (("product_brand",),),
    "minor_number": (("minor_number",),),
    "module_id": (("module_id",), ("gpu_module_id",)),
    "vbios": (("vbios_version",),),
    "pci_device_id": (("pci", "device_id"), ("pci", "pci_device_id")),
    "driver_model": (("driver_model", "current"), ("driver_model", "current_dm")),
    "virtualization": (("virtualization_mode",),),
    "persistence": (("persistence_mode",),),
    "compute_mode": (("compute_mode",),),
    "mig_pending": (("mig_mode", "pending"), ("mig_mode", "pending_mig")),
    "ecc_mode": (("ecc_mode", "current"), ("ecc_mode", "current_ecc")),
    "ecc_mode_pending": (("ecc_mode", "pending"), ("ecc_mode", "pending_ecc")),
    "retired_single_bit": (("retired_pages", "single_bit_ecc"), ("multiple_single_bit_retirement", "retired_count")),
    "retired_double_bit": (("retired_pages", "double_bit_ecc"), ("double_bit_retirement", "retired_count")),
    "retired_pending": (
        ("retired_pages", "pending_page_blacklist"),
        ("retired_pages", "pending"),
        ("retired_pages", "pending_retirement"),
        ("retired_pages", "pending_blacklist"),
    ),
    "remap_corrected": (("remapped_rows", "correctable_error"), ("remapped_rows", "remapped_row_corr")),
    "remap_uncorrected": (("remapped_rows", "uncorrectable_error"), ("remapped_rows", "remapped_row_unc")),
    "remap_pending": (("remapped_rows", "pending"), ("remapped_rows", "remapped_row_pending")),
    "remap_failed": (("remapped_rows", "remapping_failure_occurred"), ("remapped_rows", "remapped_row_failure")),
    "channel_repair_pending": (("channel_repair_pending",),),
    "tpc_repair_pending": (("tpc_repair_pending",),),
    "unrepairable_memory": (("unrepairable_memory",),),
    "recovery_action": (("gpu_recovery_action",),),
    "reset_required": (("gpu_reset_status", "reset_required"),),
    "drain_recommended": (("gpu_reset_status", "drain_and_reset_recommended"),),
    "fabric_state": (("fabric", "state"),),
    "fabric_status": (("fabric", "status"),),
    "fabric_clique": (("fabric", "cliqueid"), ("fabric", "clique_id")),
    "fabric_cluster_uuid": (("fabric", "clusteruuid"), ("fabric", "cluster_uuid")),
    "fabric_health": (("health", "summary"),),
    "fabric_bandwidth": (("health", "bandwidth"),),
}
# The same, where the value is a number with a unit: key → paths. The unit stands in the key.
NUMBERS: dict[str, tuple[Path, ...]] = {
    "power_limit_w": (
        ("gpu_power_readings", "current_power_limit"),
        ("gpu_power_readings", "power_limit"),
        ("power_readings", "enforced_power_limit"),
        ("power_readings", "power_limit"),
        ("power_readings", "current_power_limit"),
    ),
    "power_limit_max_w": (("gpu_power_readings", "max_power_limit"), ("power_readings", "max_power_limit")),
    "power_draw_w": (
        ("gpu_power_readings", "average_power_draw"),
        ("gpu_power_readings", "power_draw"),
        ("gpu_power_readings", "instantaneous_power_draw"),
        ("gpu_power_readings", "instant_power_draw"),
        ("power_readings", "power_draw"),
    ),
    "temperature_c": (("temperature", "gpu_current_temp"), ("temperature", "gpu_temp"), ("temperature", "gpu")),
    "pcie_gen_max": (("pcie_generation", "max"), ("pcie_gen", "max_link_gen")),
    "pcie_gen": (("pcie_generation", "current"), ("pcie_gen", "current_link_gen")),
    "pcie_width_max": (("link_width", "max"), ("link_widths", "max_link_width")),
    "pcie_width": (("link_width", "current"), ("link_widths", "current_link_width")),
}
_THROTTLE = ("clocks_event_reasons", "clocks_throttle_reasons")
# How both writings begin the name of a reason in XML.
_REASON = re.compile(r"^clocks_(?:event|throttle)_reason_")
_IDLE = ("idle", "gpu_idle")
# Fabric states in which an NVSwitch system refuses CUDA (error 802, "system not yet initialized").
_FABRIC_UNREADY = {"in progress", "not started"}


def gpu_of(index: int, section: Section, problems: Problems) -> GpuFound:
    """One GPU slot. A field that holds an error is a problem, and the GPU's fault; the others keep what they say."""
    facts = _facts_of(section)
    name = section.get(("product_name",))
    memory_mib = _memory_mib(section)
    mode = section.get(("mig_mode", "current"), ("mig_mode", "current_mig")).strip("* ").lower()
    known = {"enabled": True, "disabled": False}
    pci = section.pci or section.get(("pci", "bus_id"), ("pci", "pci_bus_id"))
    numa = count(section.get(("numa_node",), ("numa_affinity",)))
    return GpuFound(
        index=index,
        name=name,
        uuid=section.get(("gpu_uuid",), ("uuid",)),
        pci=pci,
        memory_mib=memory_mib,
        mig_enabled=known.get(mode),
        mig=tuple(_mig_of(mig, name, memory_mib) for mig in section.mig),
        fault=_fault_of(section, facts, problems),
        numa=numa if numa is not None else -1,
        facts=facts,
    )


def _memory_mib(section: Section) -> float:
    """The whole frame buffer; drivers before 331 call it "Memory Usage". Values are MiB ("MB" in drivers before 340, which meant MiB)."""
    text = section.get(("fb_memory_usage", "total"), ("memory_usage", "total"))
    found = number(text) or 0.0
    if "gib" in text.lower():
        found *= 1024
    return found if 0.0 <= found <= MIB_MAX else 0.0


def _facts_of(section: Section) -> dict[str, str]:
    facts = {key: shown(value) for key, ends in FACTS.items() if (value := section.get(*ends))}
    for key, ends in NUMBERS.items():
        found = number(section.get(*ends))
        if found is not None:
            facts[key] = f"{found:g}"
    for key in ("mig_pending", "ecc_mode_pending"):
        current = (
            section.get(("mig_mode", "current"), ("mig_mode", "current_mig"))
            if key == "mig_pending"
            else facts.get("ecc_mode")
        )
        if facts.get(key) == current:
            facts.pop(key, None)  # kept only where a reset would change something
    for which in ("volatile", "aggregate"):
        for sort, key in (("uncorrectable", f"ecc_uncorrected_{which}"), ("correctable", f"ecc_corrected_{which}")):
            total = _ecc_total(section.fields.items(), which, sort)
            if total is not None:
                facts[key] = str(total)
    reasons = _throttled(section)
    if reasons:
        facts["throttle"] = ",".join(reasons)
    return facts


def _ecc_total(fields: Iterable[tuple[Path, str]], which: str, sort: str) -> int | None:
    """The errors of one sort since the driver came up (volatile) or ever (aggregate); None where no field says a number.

    Since driver 450: SRAM and DRAM, the uncorrectable ones of SRAM in two parts. Before: single and double bit, each with a total.
    """
    bits = "double_bit" if sort == "uncorrectable" else "single_bit"
    total: int | None = None
    for path, value in fields:
        if which not in path[:-1] or path[-2] not in (which, bits):
            continue
        last = path[-1]
        if path[-2] == which and re.fullmatch(rf"[sd]ram_{sort}(?:_\w{{1,20}})?", last) is None:
            continue
        if path[-2] == bits and last != "total":
            continue
        found = count(value)
        if found is not None:
            total = (total or 0) + found
    return total


def _throttled(section: Section) -> list[str]:
    """Names of the clock reasons that are active, in the file's order; being idle is no reason to worry."""
    names = []
    for path, value in section.fields.items():
        if value.strip().lower() == "active" and any(part in _THROTTLE for part in path[:-1]):
            name = _REASON.sub("", path[-1])
            if name not in _IDLE and name not in names:
                names.append(name)
    return names


def _fault_of(section: Section, facts: dict[str, str], problems: Problems) -> str:
    """Why the GPU cannot be used now; "" where the file names nothing of that sort."""
    failing = [
        (path, value.strip())
        for part in (section, *section.mig)
        for path, value in part.fields.items()
        if _FAILING.match(value)
    ]
    for path, value in failing[:3]:
        problems.add(
            section.line, f"GPU {section.pci} {'/'.join(path)}: {value}", "the field holds an error; the others are read"
        )
    if len(failing) > 3:
        problems.add(section.line, f"GPU {section.pci}", f"{len(failing) - 3} more of its fields hold an error")
    worst = next((value for _, value in failing if _LOST.search(value)), "")
    if worst:
        return shown(worst.strip("[]"))
    failing = [(path, value) for path, value in failing if not _OF_THE_HOST.intersection(path)]
    if failing:
        return shown(f"{failing[0][0][-1]}: {failing[0][1]}")
    if "recovery_action" in facts:
        return f"recovery action: {facts['recovery_action']}"
    if facts.get("reset_required", "").lower() == "yes":
        return "reset required"
    if facts.get("drain_recommended", "").lower() == "yes":
        return "drain and reset recommended"
    state, status = facts.get("fabric_state", ""), facts.get("fabric_status", "")
    if state.lower() in _FABRIC_UNREADY:
        return f"NVLink fabric: {state}"
    if state.lower() == "completed" and status and status.lower() != "success":
        return f"NVLink fabric: {state}, {status}"
    return ""


# ---- MIG -------------------------------------------------------------------------------------------------------------

# Multiprocessors → compute slices, as instances of these families have them; and the eighths of the memory that a GPU instance of so
# many compute slices may have (1g comes with one memory slice or two; a slice of an A30 is two eighths). Read from `nvidia-smi mig -lgip`
# and -lgi of these families and NVIDIA's MIG user guide (supported profiles); instances of other families are left without a profile.
_Geometry = tuple[dict[int, int], dict[int, tuple[int, ...]]]
_A100: _Geometry = ({14: 1, 28: 2, 42: 3, 56: 4, 98: 7}, {1: (1, 2), 2: (2,), 3: (4,), 4: (4,), 7: (8,)})
_H100: _Geometry = ({16: 1, 26: 1, 32: 2, 60: 3, 64: 4, 132: 7}, {1: (1, 2), 2: (2,), 3: (4,), 4: (4,), 7: (8,)})
_A30: _Geometry = ({14: 1, 28: 2, 56: 4}, {1: (2,), 2: (4,), 4: (8,)})
_GEOMETRY = {"a100": _A100, "a30": _A30, "h100": _H100, "h200": _H100}
_SLICE_TOLERANCE = 0.15  # of an instance's memory, below or above its share of the nominal


def _mig_of(mig: Section, gpu_name: str, gpu_memory_mib: float) -> MigFound:
    return MigFound(_profile_of(mig, gpu_name, gpu_memory_mib), mig.get(("mig_uuid",), ("uuid",), ("gpu_uuid",)))


def _profile_of(mig: Section, gpu_name: str, gpu_memory_mib: float) -> str:
    """The profile's name ("3g.40gb", "1c.3g.40gb", "1g.10gb+me"), where SMs, memory and engines fit one profile alone; else "".

    nvidia-smi -q prints no profile name. The SMs are those of the compute instance; memory and engines are those of the GPU instance
    around it, which has as many copy engines as compute slices (of seven, some families have eight).
    """
    facts = lookup(gpu_name, gpu_memory_mib) if gpu_name else None
    multiprocessors = count(mig.get(("shared", "multiprocessor_count"), ("multiprocessor_count",)))
    memory_mib = number(mig.get(("shared_fb_memory_usage", "total"), ("fb_memory_usage", "total")))
    if facts is None or facts.family not in _GEOMETRY or multiprocessors is None or not memory_mib or not facts.memory_gb:
        return ""
    slices, eighths = _GEOMETRY[facts.family]
    compute = slices.get(multiprocessors, 0)
    engines = count(mig.get(("copy_engine_count",)))
    whole = compute if engines is None else min(engines, 7)
    if not 0 < compute <= whole or whole not in eighths:
        return ""
    parts = [
        share for share in eighths[whole] if abs(memory_mib / 1024 / (facts.memory_gb * share / 8) - 1) <= _SLICE_TOLERANCE
    ]
    if len(parts) != 1:
        return ""
    # An optical flow engine comes with the whole GPU, or with a "+me" profile.
    media = (count(mig.get(("ofa_count",))) or 0) > 0 and whole != max(eighths)
    some = f"{compute}c." if compute < whole else ""
    return f"{some}{whole}g.{int(facts.memory_gb * parts[0] / 8 + 0.5)}gb{'+me' if media else ''}"
