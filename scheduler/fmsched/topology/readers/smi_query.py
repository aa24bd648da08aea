"""Reads what `nvidia-smi -q` prints, whole or of some sections (`-d`), as text or as XML (`-q -x`), told apart by its content.

Sources: nvidia-smi(1), "GPU ATTRIBUTES"; nvsmi_device_v4 to v13.dtd of the drivers; nvmlErrorString of nvml.h for the texts of errors;
outputs of drivers 270 to 595. A GPU whose every field fails still has its place among the others: its `fault` says why.
"""

from __future__ import annotations

import re
from dataclasses import replace

from fmproto.dumptext import Problems, shown
from fmsched.topology.readers import smi_query_text, smi_query_xml
from fmsched.topology.readers.found import GpuFound, NodeFound
from fmsched.topology.readers.smi_query_fields import GPUS_MAX, gpu_of
from fmsched.topology.readers.xmltext import CHARACTERS_MAX

KIND = "nvidia-smi-q"

# "Unable to determine the device handle for GPU 0000:08:00.0: Unknown Error"; also GPU0000:08:00.0 and GPU0: 0000:08:00.0.
_NO_HANDLE = re.compile(
    r"Unable to (?:determine|detect) the device handle for GPU ?(?:\d{1,3}: ?)?"
    r"(?P<pci>[0-9A-Fa-f]{1,8}:[0-9A-Fa-f]{1,2}:[0-9A-Fa-f]{1,2}(?:\.[0-9A-Fa-f])?): ?(?P<why>.{1,200})",
    re.IGNORECASE,
)
_WARNING = re.compile(r"WARNING: infoROM is corrupted at gpu (?P<pci>[0-9A-Fa-f:.]{5,20})", re.IGNORECASE)
_FAILED = re.compile(
    r"Failed to initialize NVML|NVIDIA-SMI has failed|No devices were found|Unable to (?:determine|detect) the device handle"
    r"|NVML: |couldn't communicate with the NVIDIA driver|command not found",
    re.IGNORECASE,
)
_XML = re.compile(r"<(?:nvidia_smi_log|gpu\s+id\s*=)")
# What other files are, by what only they hold. In this order.
_OTHERS = (
    (re.compile(r"^[ \t]{0,16}<graphs\b", re.M), "an NCCL graph file (NCCL_GRAPH_FILE)"),
    (re.compile(r"^[ \t]{0,16}<system\b", re.M), "an NCCL topology (kind nccl-topo)"),
    (re.compile(r"^\| NVIDIA-SMI \d", re.M), "the table of a plain `nvidia-smi`"),
    (re.compile(r"^\| {1,8}\d{1,3} {1,8}(?:NVIDIA|Tesla|A\d|MIG)\b", re.M), "a table of nvidia-smi"),
    (re.compile(r"^\| {1,32}GPU\b", re.M), "a table of nvidia-smi"),
    (re.compile(r"^[ \t]{0,16}Link \d{1,3}: (?:\d|<inactive>|N/A)", re.M), "`nvidia-smi nvlink -s` (kind nvlink-status)"),
    (re.compile(r"NVLink information|support NVLink|NVLink queries", re.I), "`nvidia-smi nvlink -s` (kind nvlink-status)"),
    (re.compile(r"^GPU \d{1,3}: .{1,200}\(UUID: ", re.M), "`nvidia-smi -L` (kind nvidia-smi-list)"),
    (re.compile(r"^[ \t]{0,16}GPU0[ \t]{1,32}\S", re.M), "`nvidia-smi topo -m` (kind nvidia-smi-topo)"),
    (
        re.compile(r"^GPU  ?\d{1,3} Profile ID|GPU instances? (?:ID|found)|^mig-configs:", re.M),
        "settings or output of `nvidia-smi mig`",
    ),
    (
        re.compile(r"^timestamp, (?:name|driver_version)|^(?:index|name|uuid), ", re.M),
        "`nvidia-smi --query-gpu`, one line a GPU",
    ),
    (re.compile(r"\bNVRM: Xid\b"), "a kernel log"),
    (re.compile(r"^CA '", re.M), "`ibstat` (kind ibstat)"),
    (re.compile(r"^(?:vendid|Switch[ \t]{1,8}\d)", re.M), "`ibnetdiscover` (kind ibnetdiscover)"),
    (re.compile(r"^(?:SwitchName|BlockName)=", re.M), "a Slurm topology.conf (kind slurm-topology)"),
)


def read(text: str, file: str) -> NodeFound:
    """The GPUs of one node, in the order of their sections, which is NVML's. Raises ReaderError where the text is of another kind, holds
    no GPU section, or is only the tool's message that it failed.

    Facts of a GPU (all optional): see smi_query_fields.FACTS.
    """
    problems = Problems(file)
    if len(text) > CHARACTERS_MAX:
        problems.add(0, f"{len(text):,} characters", f"only the first {CHARACTERS_MAX:,} are read")
        text = text[:CHARACTERS_MAX]
    dump = (smi_query_xml if _XML.search(text) else smi_query_text).sections_of(text, problems)
    if not dump.sections:
        raise problems.refuse(_why_nothing(text, dump.attached), dump.first)
    gpus = tuple(gpu_of(index, section, problems) for index, section in enumerate(dump.sections))
    gpus = _with_lost(gpus, text, problems)
    short = dump.attached is not None and dump.attached > len(gpus)
    if short:
        problems.add(
            dump.attached_line,
            f"{dump.attached} attached GPUs",
            f"the file shows {len(gpus)} of them, which are numbered from 0 in the order that they come in",
        )
    return NodeFound(
        kind=KIND,
        file=file,
        gpus=gpus,
        driver=dump.driver,
        complete=not short and not dump.cut and dump.named,
        problems=problems.found(),
    )


def _why_nothing(text: str, attached: int | None) -> str:
    head = text[: 1 << 20]  # what another file is shows at its beginning
    other = next((what for pattern, what in _OTHERS if pattern.search(head)), "")
    if other:
        return f"found {other}; allowed: what `nvidia-smi -q` or `nvidia-smi -q -x` prints"
    for line in head.split("\n", 2000)[:2000]:
        if _FAILED.search(line[:400]):
            return f"it holds no GPU section, only what nvidia-smi says when it fails: {shown(line)}"
    if attached == 0:
        return "it says that no GPU is attached"
    return "found no GPU section; allowed: what `nvidia-smi -q` or `nvidia-smi -q -x` prints, whole or in sections"


def _with_lost(gpus: tuple[GpuFound, ...], text: str, problems: Problems) -> tuple[GpuFound, ...]:
    """With the GPUs that the tool only complains of, each at its place: NVML numbers GPUs by bus address."""
    known = {address(gpu.pci) for gpu in gpus}
    lost: list[GpuFound] = []
    if "device handle" not in text and "infoROM" not in text:
        return gpus
    for number, line in enumerate(text.split("\n"), 1):
        found = _NO_HANDLE.search(line[:500])
        if found and address(found["pci"]) not in known and len(lost) < GPUS_MAX:
            known.add(address(found["pci"]))
            why = found["why"].strip()
            problems.add(number, line, "the tool could not reach this GPU")
            lost.append(GpuFound(0, pci=found["pci"], fault=why))
        warning = _WARNING.search(line[:500])
        if warning:
            problems.add(number, line, "the GPU works, but its stored settings cannot be trusted")
    if not lost:
        return gpus
    places = [address(gpu.pci) for gpu in gpus]
    ordered = list(gpus) + lost
    if places == sorted(places):
        ordered.sort(key=lambda gpu: address(gpu.pci))
    return tuple(replace(gpu, index=index) for index, gpu in enumerate(ordered))


def address(pci: str) -> tuple[int, ...]:
    """A PCI address as numbers (domain, bus, device, function): its spellings differ by tool; () where it is none."""
    parts = pci.replace(".", ":").split(":")
    try:
        numbers = [int(part, 16) for part in parts]
    except ValueError:
        return ()
    if "." not in pci:
        numbers.append(0)
    return tuple([0] * (4 - len(numbers)) + numbers)
