"""Node types: what a class of equal nodes is. Read from a Cluster file's `nodeTypes`, or built in (nodetypes.yaml)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from fmproto import gpus
from fmproto.fields import Faults, Fields, name_hint
from fmproto.mig import set_fault
from fmproto.yamltext import Limits, Scalar, Table, Tree, describe, join, load, shown

GPUS_MAX = 64  # of one node
HCAS_MAX = 64
PORTS_MAX = 8
MIG_MAX = 64  # instances of one GPU
MEMORY_GB_MAX = 1_000_000.0
GBYTES_PER_S_MAX = 100_000.0
GBPS_MAX = 100_000.0
CPUS_MAX = 100_000

TYPE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
HCA_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")
INFINIBAND, ETHERNET = "InfiniBand", "Ethernet"
ACTIVE = "Active"
_STATE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,30}(/[A-Za-z][A-Za-z0-9_]{0,30})?")
# "1g.10gb", "1g.10gb+me", "1g.5gb+me.all", "1c.3g.71gb", "1g.24gb-me"
MIG_PROFILE = re.compile(r"([0-9]{1,2}c\.)?[0-9]{1,2}g\.[0-9]{1,4}gb([+-][a-z0-9.]{1,16}){0,3}")
_PAIR = re.compile(r"([0-9]{1,2})-([0-9]{1,2})")


@dataclass(frozen=True, slots=True)
class GpuType:
    name: str  # as written, or as NVML prints it
    model: str  # catalogue key; empty where the catalogue has none
    family: str  # "h100"
    memory_gb: float  # nominal, decimal
    multiprocessors: int = 0
    compute_capability: str = ""
    mig: tuple[str, ...] | None = None  # MIG is on, with these instances; None: it is off


@dataclass(frozen=True, slots=True)
class HcaType:
    """One adapter port. `near` lists GPU indices; a rate of 0 is not known."""

    name: str
    port: int
    rate_gbps: float
    near: tuple[int, ...] = ()
    link_layer: str = INFINIBAND
    state: str = ACTIVE  # of a port that no node of the type uses: "Down", "Down/Disabled"


@dataclass(frozen=True, slots=True)
class NodeType:
    """nvlink[i][j] is GB/s between GPUs i and j, both directions together; 0 is none."""

    name: str
    gpus: tuple[GpuType, ...] = ()
    nvlink: tuple[tuple[float, ...], ...] = ()
    hcas: tuple[HcaType, ...] = ()
    cpus: int = 0
    memory_gb: float = 0.0
    domain_nvlink_gbytes_per_s: float = 0.0

    @property
    def fabric_ports(self) -> tuple[HcaType, ...]:
        """The ports that `leaf` joins to switches: those of InfiniBand, or all where the type has none."""
        return tuple(hca for hca in self.hcas if hca.link_layer == INFINIBAND) or self.hcas


@cache
def builtin_types() -> Mapping[str, NodeType]:
    """The types of nodetypes.yaml, by name."""
    tree = load(resources.files("fmproto").joinpath("nodetypes.yaml").read_bytes(), Limits())
    assert isinstance(tree, Table), tree
    faults = Faults()
    types: dict[str, NodeType] = {}
    for name, (_, body) in tree.fields.items():
        types[name] = read_node_type(name, body, name, faults, types)
    assert not faults, "; ".join(str(fault) for fault in faults.sorted())
    return types


def read_node_type(name: str, tree: Tree, path: str, faults: Faults, known: Mapping[str, NodeType]) -> NodeType:
    """One node type; what is wrong goes to `faults`. `known` are the types that `base` may name."""
    fields = Fields(tree, path, faults)
    base = _read_base(fields, name, known)
    cards = _read_gpus(fields) if fields.has("gpus") else base.gpus
    fields.raw("gpus", "{model, count} or a list of them", required=not base.gpus)
    kind = replace(
        base,
        gpus=cards,
        cpus=fields.whole("cpus", 0, CPUS_MAX, default=base.cpus),
        memory_gb=fields.number("memoryGB", "GB (decimal)", MEMORY_GB_MAX, default=base.memory_gb),
        domain_nvlink_gbytes_per_s=fields.number(
            "domainNvlink", "GB/s", GBYTES_PER_S_MAX, default=base.domain_nvlink_gbytes_per_s
        ),
    )
    links = fields.raw("nvlink")
    if links is not None:
        kind = replace(kind, nvlink=_read_nvlink(links, fields, len(cards)))
    elif len(base.gpus) != len(cards):
        kind = replace(kind, nvlink=_uniform(len(cards), 0.0))
    adapters = fields.raw("hcas")
    if adapters is not None:
        kind = replace(kind, hcas=_read_hcas(adapters, fields, len(cards)))
    elif len(base.gpus) > len(cards):
        kind = replace(kind, hcas=tuple(replace(hca, near=_within(hca.near, len(cards))) for hca in base.hcas))
    fields.finish()
    return kind


def _read_base(fields: Fields, name: str, known: Mapping[str, NodeType]) -> NodeType:
    base = fields.text("base", "the name of a node type")
    if not base:
        return NodeType(name)
    if base not in known:
        fields.faults.add(fields.line_of("base"), fields.at("base"), f"found {shown(base)}; {name_hint(base, list(known))}")
        return NodeType(name, gpus=(GpuType("", "", "", 0.0),), nvlink=((0.0,),))
    return replace(known[base], name=name)


def _within(indices: tuple[int, ...], count: int) -> tuple[int, ...]:
    return tuple(index for index in indices if index < count)


def _read_gpus(fields: Fields) -> tuple[GpuType, ...]:
    tree = fields.raw("gpus")
    assert tree is not None
    if isinstance(tree, Table):
        cards = _read_cards(Fields(tree, fields.at("gpus"), fields.faults))
    else:
        cards = ()
        for path, item in fields.items("gpus", "{model, count} or a list of them"):
            cards += _read_cards(Fields(item, path, fields.faults))
    if len(cards) > GPUS_MAX:
        fields.faults.add(tree.line, fields.at("gpus"), f"found {len(cards)} GPUs; allowed: at most {GPUS_MAX}")
        return cards[:GPUS_MAX]
    return cards


def _read_cards(fields: Fields) -> tuple[GpuType, ...]:
    name = fields.text("model", "a GPU's catalogue key or its name as NVML prints it", required=True)
    count = fields.whole("count", 1, GPUS_MAX, default=1)
    given_gb = fields.number("memoryGB", "GB (decimal, nominal)", MEMORY_GB_MAX)
    family = fields.text("family", "the word that acceleratorType names, such as h100")
    mig = _read_mig(fields)
    fields.finish()
    card = gpu_type(name, given_gb, family, mig)
    if name and not card.memory_gb and not fields.has("memoryGB"):
        fields.faults.add(fields.line, fields.at("memoryGB"), f"found nothing; allowed: the memory of {shown(name)}, in GB")
    if mig and len(mig) <= MIG_MAX and (fault := set_fault(card.model, mig)):
        fields.faults.add(fields.line_of("mig"), fields.at("mig"), fault)
    return (card,) * count


def gpu_type(name: str, memory_gb: float = 0.0, family: str = "", mig: tuple[str, ...] | None = None) -> GpuType:
    """A GPU that calls itself `name`, with the catalogue's facts. `memory_gb` is nominal; 0: the catalogue's, or not known."""
    facts = gpus.lookup(name, memory_gb * 1024) if name else None
    if facts is None:
        return GpuType(name, "", family.lower(), memory_gb, mig=mig)
    return GpuType(
        name=name,
        model="" if facts.guessed else facts.key,
        family=family.lower() or facts.family,
        memory_gb=memory_gb or facts.memory_gb,
        multiprocessors=facts.multiprocessors,
        compute_capability=facts.compute_capability,
        mig=mig,
    )


def _read_mig(fields: Fields) -> tuple[str, ...] | None:
    allowed = "a list of MIG profiles, such as 1g.10gb"
    if not fields.has("mig"):
        fields.raw("mig")
        return None
    found = []
    for path, item in fields.items("mig", allowed):
        if isinstance(item, Scalar) and MIG_PROFILE.fullmatch(item.text):
            found.append(item.text)
        else:
            fields.faults.add(item.line, path, f"found {describe(item)}; allowed: {allowed}")
    if len(found) > MIG_MAX:
        fields.faults.add(fields.line, fields.at("mig"), f"found {len(found)} instances; allowed: at most {MIG_MAX}")
    return tuple(found)


def _uniform(count: int, gbytes_per_s: float) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(0.0 if i == j else gbytes_per_s for j in range(count)) for i in range(count))


def _read_nvlink(tree: Tree, outer: Fields, count: int) -> tuple[tuple[float, ...], ...]:
    if isinstance(tree, Table):
        fields = Fields(tree, outer.at("nvlink"), outer.faults)
        matrix = _read_matrix(fields, count) if fields.has("matrix") else _read_pairs(fields, count)
        fields.raw("matrix")
        fields.raw("pairs")
        fields.finish()
        return matrix
    return _uniform(count, outer.number("nvlink", "GB/s", GBYTES_PER_S_MAX))


def _read_pairs(fields: Fields, count: int) -> tuple[tuple[float, ...], ...]:
    matrix = [[0.0] * count for _ in range(count)]
    for key, line, text in fields.scalars_by_name("pairs", "a mapping such as {0-1: 600, 2-3: 600}"):
        path = join(fields.at("pairs"), key)
        match = _PAIR.fullmatch(key)
        a, b = (int(match[1]), int(match[2])) if match else (-1, -1)
        value = _gbytes_per_s(text)
        if a == b or not (0 <= a < count and 0 <= b < count):
            fields.faults.add(
                line, path, f"found the pair {shown(key)}; allowed: two different GPUs from 0 to {count - 1}, as 0-1"
            )
        elif value is None:
            fields.faults.add(line, path, f"found {shown(text)}; allowed: a number of GB/s from 0 to {GBYTES_PER_S_MAX:g}")
        elif matrix[a][b] not in (0.0, value):
            fields.faults.add(line, path, f"found {value:g}, and {matrix[a][b]:g} for the same pair before; allowed: once")
        else:
            matrix[a][b] = matrix[b][a] = value
    return tuple(tuple(row) for row in matrix)


def _read_matrix(fields: Fields, count: int) -> tuple[tuple[float, ...], ...]:
    allowed = f"{count} rows of {count} numbers of GB/s, symmetric, 0 from a GPU to itself"
    tree = fields.raw("matrix", allowed)
    assert tree is not None
    rows: list[list[float | None]] = []
    for _, row in fields.items("matrix", allowed):
        cells = getattr(row, "items", [])
        rows.append([_gbytes_per_s(cell.text) if isinstance(cell, Scalar) else None for cell in cells])
    matrix = [[cell for cell in row if cell is not None] for row in rows]
    if len(matrix) != count or any(len(row) != count for row in matrix):
        fields.faults.add(tree.line, fields.at("matrix"), f"found a matrix of another form; allowed: {allowed}")
    elif any(matrix[i][j] != (matrix[j][i] if i != j else 0.0) for i in range(count) for j in range(count)):
        fields.faults.add(tree.line, fields.at("matrix"), f"found a matrix that is not symmetric; allowed: {allowed}")
    else:
        return tuple(tuple(row) for row in matrix)
    return _uniform(count, 0.0)


def _gbytes_per_s(text: str) -> float | None:
    value = Scalar(0, text).value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= GBYTES_PER_S_MAX:
        return None
    return float(value)


def _read_hcas(tree: Tree, outer: Fields, gpu_count: int) -> tuple[HcaType, ...]:
    if isinstance(tree, Table):
        return _read_counted_hcas(Fields(tree, outer.at("hcas"), outer.faults), gpu_count)
    hcas: list[HcaType] = []
    for path, item in outer.items("hcas", "{count, rateGbps} or a list of {name, rateGbps, near}"):
        fields = Fields(item, path, outer.faults)
        hca = HcaType(
            name=fields.text("name", "an adapter's name, such as mlx5_0", required=True, pattern=HCA_NAME),
            port=fields.whole("port", 1, PORTS_MAX, default=1),
            rate_gbps=fields.number("rateGbps", "Gb/s", GBPS_MAX, required=True),
            near=_read_near(fields, gpu_count),
            link_layer=fields.choice("linkLayer", (INFINIBAND, ETHERNET), default=INFINIBAND),
            state=fields.text("state", "a port's state, such as Down or Down/Disabled", pattern=_STATE) or ACTIVE,
        )
        fields.finish()
        if any((hca.name, hca.port) == (other.name, other.port) for other in hcas):
            outer.faults.add(item.line, path, f"port {hca.port} of {hca.name} is given twice; allowed: once")
        hcas.append(hca)
    if len(hcas) > HCAS_MAX:
        outer.faults.add(tree.line, outer.at("hcas"), f"found {len(hcas)} ports; allowed: at most {HCAS_MAX}")
    return tuple(hcas[:HCAS_MAX])


def _read_near(fields: Fields, gpu_count: int) -> tuple[int, ...]:
    allowed = f"a list of GPU numbers from 0 to {gpu_count - 1}" if gpu_count else "nothing: the type has no GPU"
    near = []
    for path, item in fields.items("near", allowed):
        value = item.value if isinstance(item, Scalar) else None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < gpu_count or value in near:
            fields.faults.add(item.line, path, f"found {describe(item)}; allowed: {allowed}, each once")
        else:
            near.append(value)
    return tuple(near)


def _read_counted_hcas(fields: Fields, gpu_count: int) -> tuple[HcaType, ...]:
    """Ports mlx5_0 and up; GPUs are shared out to them in order, as PCIe switches do in boxes with as many of both."""
    count = fields.whole("count", 0, HCAS_MAX, required=True)
    rate = fields.number("rateGbps", "Gb/s", GBPS_MAX, required=True)
    fields.finish()
    hcas = []
    for i in range(count):
        near = tuple(range(i * gpu_count // count, (i + 1) * gpu_count // count))
        if not near and gpu_count:
            near = (i * gpu_count // count,)
        hcas.append(HcaType(f"mlx5_{i}", 1, rate, near))
    return tuple(hcas)
