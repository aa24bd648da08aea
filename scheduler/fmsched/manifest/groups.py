"""Reading resourceGroups, gpuRequirements, interNodeConnectivity and tolerations."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fmproto.fields import Fields
from fmproto.yamltext import Items, Scalar, Table, Tree
from fmsched.model.job import GroupKind, Reach, ResourceGroup

GROUPS_MAX = 256
GPUS_PER_GROUP_MAX = 100_000
MEMORY_GB_MAX = 100_000.0
NVLINK_GBYTES_PER_S_MAX = 100_000.0
NVLINK_AGGREGATE_MAX = 1e9
NVLINK_LINKS_MAX = 1_000
APART = ("node", "leaf", "pod")
LINK_GBPS_MAX = 100_000.0
HOPS_MAX = 64

_FAMILY = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")
FAMILY_ALLOWED = 'GPU types such as H100, "h100|a100", or a list of them'


@dataclass(frozen=True, slots=True)
class Requirements:
    """gpuRequirements: what each GPU must be."""

    preferred: tuple[str, ...] = ()
    min_memory_gb: float = 0.0
    min_nvlink_gbytes_per_s: float = 0.0
    min_nvlink_links: int = 0
    min_nvlink_aggregate_gbytes_per_s: float = 0.0


def read_groups(spec: Fields, tolerated: tuple[str, ...]) -> tuple[ResourceGroup, ...]:
    """The groups of spec.resourceGroups, in order; empty where the field is absent."""
    allowed = "a list of {name, type, gpusPerGroup, ...}"
    rows = spec.items("resourceGroups", allowed)
    line, path = spec.line_of("resourceGroups"), spec.at("resourceGroups")
    if spec.has("resourceGroups") and not 1 <= len(rows) <= GROUPS_MAX and isinstance(spec.raw("resourceGroups"), Items):
        spec.faults.add(line, path, f"found {len(rows)} groups; allowed: from 1 to {GROUPS_MAX}")
        return ()
    groups: list[ResourceGroup] = []
    first_line: dict[str, int] = {}
    for row_path, tree in rows:
        fields = Fields(tree, row_path, spec.faults)
        group = _read_group(fields, tolerated)
        if group.name in first_line:
            first = first_line[group.name]
            line = fields.line_of("name")
            fields.faults.add(
                line, fields.at("name"), f"found {group.name!r} again, first in line {first}; allowed: a name once"
            )
        elif group.name:
            first_line[group.name] = fields.line_of("name")
        groups.append(group)
    return tuple(groups)


def _read_group(fields: Fields, tolerated: tuple[str, ...]) -> ResourceGroup:
    name = fields.name("name", required=True)
    kind = fields.choice("type", tuple(GroupKind), required=True)
    gpus = fields.whole("gpusPerGroup", 1, GPUS_PER_GROUP_MAX, default=1, required=True)
    wants = read_requirements(fields)
    reach = read_reach(fields)
    apart = fields.choice("antiAffinity", APART)
    fields.finish()
    return ResourceGroup(
        name=name,
        kind=GroupKind(kind) if kind else GroupKind.AUXILIARY,
        gpus=gpus,
        preferred=wants.preferred,
        tolerated=tolerated,
        min_memory_gb=wants.min_memory_gb,
        min_nvlink_gbytes_per_s=wants.min_nvlink_gbytes_per_s,
        reach=reach,
        min_nvlink_links=wants.min_nvlink_links,
        min_nvlink_aggregate_gbytes_per_s=wants.min_nvlink_aggregate_gbytes_per_s,
        apart=apart,
    )


def read_requirements(outer: Fields) -> Requirements:
    fields = outer.table("gpuRequirements")
    if fields is None:
        return Requirements()
    wants = Requirements(
        preferred=_read_families(fields, "acceleratorType"),
        min_memory_gb=fields.number("minMemoryGB", "GB (decimal, nominal)", MEMORY_GB_MAX),
        min_nvlink_gbytes_per_s=fields.number(
            "minNVLinkBandwidthGbpsPerPair", "GB/s (both directions together)", NVLINK_GBYTES_PER_S_MAX
        ),
        min_nvlink_links=fields.whole("minNVLinksPerGPU", 0, NVLINK_LINKS_MAX),
        min_nvlink_aggregate_gbytes_per_s=fields.number(
            "minNVLinkBandwidthGbpsAggregate", "GB/s (both directions together)", NVLINK_AGGREGATE_MAX
        ),
    )
    fields.finish()
    return wants


def read_reach(outer: Fields) -> Reach | None:
    fields = outer.table("interNodeConnectivity")
    if fields is None:
        return None
    hops = fields.whole("maxHopCount", 0, HOPS_MAX, default=-1)
    gbps = fields.number("minInfiniBandBandwidthGbps", "Gb/s (of a port)", LINK_GBPS_MAX)
    reserve = fields.number("reserveBandwidthGbps", "Gb/s (on every link crossed)", LINK_GBPS_MAX)
    fields.finish()
    return Reach(max_hops=hops if hops >= 0 else None, min_link_gbps=gbps, reserve_gbps=reserve)


def _read_families(fields: Fields, name: str) -> tuple[str, ...]:
    families: dict[str, None] = {}
    for text in fields.strings(name, FAMILY_ALLOWED, single=True):
        parts = families_of(text)
        if parts is None:
            tree = fields.raw(name)
            assert tree is not None
            fields.faults.add(tree.line, fields.at(name), f"found {text[:60]!r}; allowed: {FAMILY_ALLOWED}")
            return ()
        families.update(dict.fromkeys(parts))
    return tuple(families)


def families_of(text: str) -> tuple[str, ...] | None:
    """`H100|a100` as lower-case words; None where one is no word."""
    parts = tuple(part.strip().lower() for part in text.split("|"))
    return parts if all(_FAMILY.fullmatch(part) for part in parts) else None


TOLERATION_KEY = "gpu-type"
TOLERATION_OPERATORS = ("Equal", "In")


def read_tolerations(spec: Fields) -> tuple[str, ...]:
    """GPU families that tolerations add, each once."""
    families: dict[str, None] = {}
    for path, tree in spec.items("tolerations", 'a list of {key: "gpu-type", operator: "Equal", value: "h100|a100"}'):
        if not isinstance(tree, Table):
            spec.wrong(tree, path, 'a mapping such as {key: "gpu-type", operator: "Equal", value: "h100|a100"}')
            continue
        fields = Fields(tree, path, spec.faults)
        fields.choice("key", (TOLERATION_KEY,), required=True)
        fields.choice("operator", TOLERATION_OPERATORS, default="Equal")
        families.update(dict.fromkeys(_read_value(fields)))
        fields.finish()
    return tuple(families)


def _read_value(fields: Fields) -> tuple[str, ...]:
    allowed = 'GPU types such as "h100|a100"'
    tree: Tree | None = fields.raw("value", allowed, required=True)
    if tree is None:
        return ()
    parts = families_of(tree.text) if isinstance(tree, Scalar) else None
    if parts is None:
        fields.wrong(tree, fields.at("value"), allowed)
        return ()
    return parts
