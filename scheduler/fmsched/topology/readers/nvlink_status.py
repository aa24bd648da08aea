"""`nvidia-smi nvlink --status` (-s): the NVLinks of each GPU, active or not, with their speed.

    GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-...)
             Link 0: 26.562 GB/s
             Link 1: <inactive>

The speed is one link's in ONE direction: 12 links of an A100 print 25 GB/s each, and its datasheet counts 600 GB/s, both directions
together (NVIDIA A100 datasheet; 12 x 25 x 2). Drivers may print the signalling rate, which lies some 3 to 6 % above what datasheets
count (V100 25.781 for 25, H100 26.562 for 25, B200 53.125 for 50 GB/s): figures here are the file's own, doubled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from fmproto.dumptext import Problems
from fmsched.topology.readers.found import GpuFound, NodeFound
from fmsched.topology.readers.smi_text import (
    FAULTS,
    GPUS_MAX,
    GpuLine,
    HandleError,
    elided,
    ends_in_name,
    gpu_line,
    handle_error,
    lost_index,
    refusal,
    text_lines,
    without_shared_uuids,
)

KIND = "nvlink-status"
WANTED = "lines `GPU 0: NAME (UUID: GPU-...)` with `Link 0: 25 GB/s` below, of `nvidia-smi nvlink --status`"
LINKS_MAX = 64  # of one GPU; NVML_NVLINK_MAX_LINKS is 18
DIRECTIONS = 2  # nvidia-smi prints one

_LINK = re.compile(r"Link\s{0,4}(\d{1,4})\s{0,4}:\s{0,8}(.{0,120})")
_SPEED = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)\s{0,4}([GM])B(?:/s|ps|/sec)(?![A-Za-z])")
_DOWN = re.compile(r"<?\s?(?:inactive|down|disabled|off|no link|not connected)\s?>?$", re.IGNORECASE)
_UP = re.compile(r"<?\s?(?:active|up|enabled)\s?>?$", re.IGNORECASE)
# Lines of the other sub-commands: -c (capabilities), -e and -ec (errors), -R (remote ends), -gt (throughput), -i alone.
_OTHER_COMMAND = re.compile(
    r"Link\s\d{1,4}(?:,\s|\s?:\s{0,8}(?:Replay|Recovery|CRC|Data|Rx|Tx|Raw|Remote|Unit|ECC|FLIT|Symbol|Effective|Received|Transmitted|BER|Malformed)\b)",
    re.IGNORECASE,
)
# "Link Width" of `nvidia-smi -q` and "Link layer: InfiniBand" of ibstat, which a log may hold as well, are none.
_CUT_LINK = re.compile(r"Link(?:\s{1,4}\d{1,4})?\s{0,4}:?")
_ALL_DOWN = re.compile(r"all links are inactive", re.IGNORECASE)
_NO_NVLINK = re.compile(r"does not have or support nvlink", re.IGNORECASE)
_MIG_MODE = re.compile(r"not supported for devices in mig mode", re.IGNORECASE)
FACT = "nvlink status"  # under which a GPU's facts keep what nvidia-smi says in words


@dataclass
class _Block:
    """One GPU's lines while they are read. `speeds` by link: GB/s in one direction, 0 for a link that is down, None where it is active
    but its speed is not said."""

    line: int
    gpu: GpuLine
    speeds: dict[int, float | None] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)  # links whose state is not understood
    verdict: str = ""
    fault: str = ""
    mig: bool = False
    none_active: bool = False

    @property
    def says_something(self) -> bool:
        return bool(self.speeds or self.unknown or self.verdict or self.fault)

    @property
    def listed(self) -> set[int]:
        return set(self.speeds) | self.unknown


class _Reading:
    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.blocks: list[_Block] = []
        self.lost: list[tuple[int, int, HandleError]] = []
        self.cut = False
        self.other_command = False

    def line(self, number: int, text: str) -> None:
        if opened := gpu_line(text):
            if len(self.blocks) >= 2 * GPUS_MAX:
                self.problems.add(number, text, f"found more than {2 * GPUS_MAX} GPUs; only the first are kept")
                return
            self.blocks.append(_Block(number, opened, fault=opened.fault))
            if opened.rest:
                self.words(number, opened.rest)
        elif _OTHER_COMMAND.match(text):
            self.other_command = True
        elif match := _LINK.match(text):
            self.link(number, text, int(match[1]), match[2].strip())
        elif error := handle_error(text):
            self.problems.add(number, text, f"a GPU that cannot be used: {error.reason}")
            after = self.blocks[-1].gpu.index + 1 if self.blocks else 0
            self.lost.append((number, after, error))
        elif elided(text):
            self.problems.add(number, text, "lines were left out here")
            self.cut = True
        elif _CUT_LINK.fullmatch(text):
            self.problems.add(number, text, "a link without number or state: the line is cut")
            self.cut = True
        else:
            self.words(number, text)

    def link(self, number: int, text: str, link: int, state: str) -> None:
        if not self.blocks:
            self.problems.add(number, text, "a link before the first GPU: it belongs to none")
            return
        block = self.blocks[-1]
        if link >= LINKS_MAX:
            self.problems.add(number, text, f"found link {link}; allowed: 0 to {LINKS_MAX - 1}")
            return
        speed: float | None
        if match := _SPEED.match(state):
            speed = float(match[1]) / (1.0 if match[2] == "G" else 1000.0)
        elif _DOWN.match(state):
            speed = 0.0
        elif _UP.match(state):
            speed = None
            self.problems.add(
                number, text, "an active link without its speed, such as `25 GB/s`; the GPU's bandwidth is not said"
            )
        else:
            why = "the link's state is neither a speed such as `25 GB/s` nor `<inactive>`"
            self.problems.add(number, text, f"{why}; it counts as neither active nor down")
            if link not in block.speeds:
                block.unknown.add(link)
            return
        if link in block.speeds:
            if block.speeds[link] != speed:
                self.problems.add(
                    number, text, f"link {link} of GPU {block.gpu.index} has another state above; the first stands"
                )
            return
        block.unknown.discard(link)
        block.speeds[link] = speed

    def words(self, number: int, text: str) -> None:
        """A sentence on the GPU above. Anything else (a prompt, another tool's output) says nothing of links and is passed over."""
        if not self.blocks:
            return
        block = self.blocks[-1]
        if _ALL_DOWN.search(text) or _NO_NVLINK.search(text):
            block.verdict, block.none_active = text[:120], True
        elif _MIG_MODE.search(text):
            block.verdict, block.mig = text[:120], True
        elif FAULTS.match(text):
            block.fault = block.fault or text[:120].removeprefix("NVML: ")
            self.problems.add(number, text, f"GPU {block.gpu.index} cannot be used")


def read(text: str, file: str) -> NodeFound:
    """`nvlinks_active`, `nvlinks_down` (the numbers that the file names as inactive, or as 0 GB/s) and `nvlink_gbytes_per_s` (GB/s, both
    directions together, 0 where an active link's speed is not said) of each GPU. `nvlinks_active` is 0 where the tool says in words that
    all links are inactive or that there are none, None where it says nothing; its words stand in `facts["nvlink status"]`. `complete` is
    False where a GPU lists fewer links than its equals, or nothing at all. One GPU alone is complete: `-i` asks for one.
    Raises ReaderError where no GPU has a line on its links."""
    problems = Problems(file)
    lines = text_lines(text, problems)
    reading = _Reading(problems)
    for number, line in lines:
        reading.line(number, line)
    if reading.blocks and ends_in_name(text, lines[-1][0] == reading.blocks[-1].line, reading.blocks[-1].gpu):
        reading.blocks[-1].gpu = replace(reading.blocks[-1].gpu, name="", cut=True)
    blocks = _first_of_each(reading)
    if not any(block.says_something for block in blocks.values()):
        if reading.other_command:
            raise problems.refuse(f"this is another report of `nvidia-smi nvlink`, without --status; expected {WANTED}")
        raise problems.refuse(refusal(lines, KIND, WANTED))
    short = _short(blocks, problems)
    gpus = {index: _found(block, problems) for index, block in blocks.items()}
    for _, expected, error in reading.lost[:GPUS_MAX]:
        index = lost_index(error, expected, gpus)
        gpus[index] = GpuFound(index, pci=error.pci, fault=error.reason)
    gpus = without_shared_uuids(gpus, problems)
    stopped = bool(reading.lost) and reading.lost[-1][0] > max(block.line for block in blocks.values())
    return NodeFound(
        KIND,
        file,
        gpus=tuple(gpus[index] for index in sorted(gpus)),
        complete=not (short or reading.cut or stopped),
        problems=problems.found(),
    )


def _first_of_each(reading: _Reading) -> dict[int, _Block]:
    """By index, the first block that says something: a log may hold `nvidia-smi -L` or another report before."""
    blocks: dict[int, _Block] = {}
    for block in reading.blocks:
        seen = blocks.get(block.gpu.index)
        if seen is None or (block.says_something and not seen.says_something):
            blocks[block.gpu.index] = block
        elif block.says_something and (block.speeds, block.verdict) != (seen.speeds, seen.verdict):
            why = f"GPU {block.gpu.index} stands above with other links; the first stands"
            reading.problems.add(block.line, f"GPU {block.gpu.index}: {block.gpu.name}", why)
    return blocks


def _short(blocks: dict[int, _Block], problems: Problems) -> bool:
    """Whether a GPU lists fewer links than it has: nvidia-smi names every link, the inactive ones too."""
    most: dict[str, int] = {}
    for block in blocks.values():
        most[block.gpu.name] = (
            max(most.get(block.gpu.name, 0), *block.listed, -1) if block.listed else most.get(block.gpu.name, 0)
        )
    short = False
    for index, block in sorted(blocks.items()):
        what = f"GPU {index}: {block.gpu.name}"
        if block.listed:
            missing = set(range(most[block.gpu.name] + 1)) - block.listed
            if missing:
                named = ", ".join(map(str, sorted(missing)[:8]))
                problems.add(block.line, what, f"link {named} not listed: the file is cut, or lines are missing")
                short = True
        elif not block.verdict and not block.fault:
            problems.add(block.line, what, "nothing is said of its links: the file is cut, or lines are missing")
            short = True
    return short


def _found(block: _Block, problems: Problems) -> GpuFound:
    gpu = block.gpu
    if gpu.cut or gpu.masked:
        problems.add(block.line, f"GPU {gpu.index}: {gpu.name}", "the name or the UUID is cut, or no UUID; it is set aside")
    active = [speed for speed in block.speeds.values() if speed is None or speed > 0]
    said = [speed for speed in active if speed is not None]
    known = bool(block.speeds) or block.none_active
    return GpuFound(
        gpu.index,
        gpu.name,
        gpu.uuid,
        mig_enabled=True if block.mig else None,
        fault=block.fault,
        nvlinks_active=len(active) if known else None,
        nvlinks_down=tuple(sorted(link for link, speed in block.speeds.items() if speed == 0)),
        nvlink_gbytes_per_s=round(DIRECTIONS * sum(said), 3) if len(said) == len(active) else 0.0,
        facts={FACT: block.verdict} if block.verdict else {},
    )
