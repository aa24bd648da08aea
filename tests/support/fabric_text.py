"""Made-up `ibnetdiscover` output of a three-level fat tree, as large as it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FatTree:
    """`pods` of `leaves` switches with `hosts` each; `spines` a pod, joined to every leaf of it; `cores` joined to every spine."""

    pods: int
    leaves: int
    hosts: int
    spines: int
    cores: int
    rate: str = "4xNDR"

    @property
    def host_count(self) -> int:
        return self.pods * self.leaves * self.hosts


@dataclass(frozen=True, slots=True)
class _Box:
    guid: str
    text: str  # its node description
    is_switch: bool


def ibnetdiscover_text(tree: FatTree) -> str:
    """The whole output: each cable is printed by both of its ends, as the tool does."""
    boxes: dict[str, _Box] = {}
    cables: dict[str, list[tuple[int, str, int]]] = {}

    def add(key: str, number: int, *, is_switch: bool) -> None:
        boxes[key] = _Box(f"{'b8' if is_switch else 'a0'}{number:014x}", key if is_switch else f"{key} mlx5_0", is_switch)
        cables[key] = []

    def join(a: str, b: str) -> None:
        ports = [1 + len(cables[end]) for end in (a, b)]
        cables[a].append((ports[0], b, ports[1]))
        cables[b].append((ports[1], a, ports[0]))

    for number, (key, is_switch) in enumerate(_names(tree), 1):
        add(key, number, is_switch=is_switch)
    for a, b in _cables(tree):
        join(a, b)
    lines = ["#", "# Topology file: generated on Mon Jan  5 10:00:00 2026", "#", ""]
    for key, box in boxes.items():
        lines += _record(box, cables[key], boxes, tree.rate)
    return "\n".join(lines) + "\n"


def _names(tree: FatTree) -> Iterator[tuple[str, bool]]:
    yield from ((f"core{c:02}", True) for c in range(tree.cores))
    for pod in range(tree.pods):
        yield from ((f"p{pod:02}-spine{s:02}", True) for s in range(tree.spines))
        for leaf in range(tree.leaves):
            yield f"p{pod:02}-leaf{leaf:02}", True
            yield from ((f"p{pod:02}-l{leaf:02}-n{host:02}", False) for host in range(tree.hosts))


def _cables(tree: FatTree) -> Iterator[tuple[str, str]]:
    for pod in range(tree.pods):
        for spine in range(tree.spines):
            yield from ((f"p{pod:02}-spine{spine:02}", f"core{c:02}") for c in range(tree.cores))
        for leaf in range(tree.leaves):
            yield from ((f"p{pod:02}-leaf{leaf:02}", f"p{pod:02}-spine{s:02}") for s in range(tree.spines))
            yield from ((f"p{pod:02}-leaf{leaf:02}", f"p{pod:02}-l{leaf:02}-n{host:02}") for host in range(tree.hosts))


def _record(box: _Box, cables: list[tuple[int, str, int]], boxes: dict[str, _Box], rate: str) -> Iterator[str]:
    kind, ports = ("Switch", max(64, len(cables))) if box.is_switch else ("Ca", 1)
    own = f"{'S' if box.is_switch else 'H'}-{box.guid}"
    yield from ("vendid=0x2c9", "devid=0xd2f2", f"sysimgguid=0x{box.guid}")
    yield f"{'switch' if box.is_switch else 'ca'}guid=0x{box.guid}" + (f"({box.guid})" if box.is_switch else "")
    tail = "base port 0 lid 1 lmc 0" if box.is_switch else ""
    yield f'{kind}\t{ports} "{own}"\t\t# "{box.text}"' + (f" {tail}" if tail else "")
    for port, other, other_port in cables:
        far = boxes[other]
        name = f"{'S' if far.is_switch else 'H'}-{far.guid}"
        here = f"[{port}]" if box.is_switch else f"[{port}]({box.guid}) "
        there = f"[{other_port}]" + ("" if far.is_switch else f"({far.guid}) ")
        yield f'{here}\t"{name}"{there}\t\t# "{far.text}" lid 1 {rate}'
    yield ""
