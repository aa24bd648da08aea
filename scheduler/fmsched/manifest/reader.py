"""From YAML text to a Manifest, or to every fault in the text. parse() is the entry; it never raises."""

from __future__ import annotations

from dataclasses import dataclass

from fmproto import hostlist
from fmproto.fields import Faults, Fields, TooManyFaultsError
from fmproto.yamltext import Fault, Items, Limits, load
from fmsched.manifest.extras import (
    DEGREE_MAX,
    read_checkpoint,
    read_degrees,
    read_duration,
    read_model,
    read_priority,
    read_template,
)
from fmsched.manifest.groups import read_groups, read_reach, read_requirements, read_tolerations
from fmsched.manifest.job import (
    DEFAULT_GRACE_PERIOD_S,
    DEFAULT_MAX_RESTARTS,
    LAUNCHERS,
    POLICIES,
    Manifest,
    Parallelism,
)
from fmsched.manifest.parallel import Wants, expand, problem
from fmsched.model.job import GroupKind, ResourceGroup

API_VERSION = "ai.example.com/v1alpha1"
KIND = "FoundationModelTrainingJob"
LIMITS = Limits(bytes_max=1 << 20, depth_max=32, values_max=10_000)

REPLICAS_MAX = DEGREE_MAX
GPUS_MAX = 1_000_000  # of one job
SPARES_MAX = 10_000
RESTARTS_MAX = 1_000


def parse(source: str | bytes) -> Manifest | tuple[Fault, ...]:
    """The manifest in a text (YAML or JSON, UTF-8), or every fault in it, by line, at most FAULTS_MAX. Never raises."""
    tree = load(source, LIMITS)
    if isinstance(tree, tuple):
        return tree
    faults = Faults()
    try:
        manifest = _read(Fields(tree, "", faults))
    except TooManyFaultsError:
        return faults.sorted()
    return manifest if manifest is not None and not faults else faults.sorted()


def _read(top: Fields) -> Manifest | None:
    version = top.choice("apiVersion", (API_VERSION,), required=True)
    kind = top.choice("kind", (KIND,), required=True)
    if (top.has("apiVersion") and not version) or (top.has("kind") and not kind):
        return None  # another kind of document: its fields are not ours to judge
    metadata = top.table("metadata", "{name}", required=True)
    spec = top.table("spec", required=True)
    name = ""
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    if metadata is not None:
        name = metadata.name("name", required=True)
        labels = metadata.texts_by_name("labels", "a mapping of names to strings")
        annotations = metadata.texts_by_name("annotations", "a mapping of names to strings")
        metadata.finish()
    manifest = _read_spec(spec, name, labels, annotations) if spec is not None else None
    top.finish()
    return manifest


def _read_spec(
    spec: Fields, name: str, labels: tuple[tuple[str, str], ...], annotations: tuple[tuple[str, str], ...]
) -> Manifest:
    shape = _read_shape(spec)
    priority_class, priority = read_priority(spec)
    model, sizes = read_model(spec)
    allow, deny = _read_nodes(spec)
    manifest = Manifest(
        name=name,
        replicas=shape.replicas,
        groups=shape.groups,
        template=read_template(spec),
        launcher=spec.choice("launcher", LAUNCHERS, default="none"),
        model=model,
        priority_class=priority_class,
        priority=priority,
        tenant=spec.name("tenant"),
        queue=spec.name("queue"),
        grace_period_s=read_duration(spec, "gracePeriod", default=DEFAULT_GRACE_PERIOD_S),
        max_runtime_s=read_duration(spec, "maxRuntime"),
        max_restarts=spec.whole("maxRestarts", 0, RESTARTS_MAX, default=DEFAULT_MAX_RESTARTS),
        checkpoint_strategy=spec.text("checkpointStrategy", "a word such as s3-async"),
        checkpoint=read_checkpoint(spec),
        parallelism=shape.parallelism,
        sizes=sizes,
        min_replicas=_read_elastic(spec, shape.written_replicas),
        policy=spec.choice("policy", POLICIES),
        spares=spec.whole("spares", 0, SPARES_MAX),
        allowed_nodes=allow,
        denied_nodes=deny,
        labels=labels,
        annotations=annotations,
    )
    spec.finish()
    return manifest


@dataclass(frozen=True, slots=True)
class _Shape:
    replicas: int
    groups: tuple[ResourceGroup, ...]
    parallelism: Parallelism | None
    written_replicas: int  # replicaCount, or the data degree: what elastic.minReplicas is compared with


def _read_shape(spec: Fields) -> _Shape:
    """Groups and replicas, as listed or as `parallelism` makes them; and that the sums agree."""
    tolerated = read_tolerations(spec)
    counted = spec.has("replicaCount")
    written = spec.whole("replicaCount", 1, REPLICAS_MAX, default=1)
    listed = read_groups(spec, tolerated)
    fields = spec.table("parallelism", "{tensor, pipeline, data, expert, context}")
    if fields is None:
        allowed = "a list of {name, type, gpusPerGroup, ...}, or parallelism"
        spec.raw("resourceGroups", allowed, required=True)
        _check_total(spec, "resourceGroups", written, listed)
        return _Shape(written, listed, None, written)
    degrees = read_degrees(fields)
    if not fields.has("data") and counted:
        degrees = Parallelism(degrees.tensor, degrees.pipeline, written, degrees.expert, degrees.context)
    wants = read_requirements(fields)
    reach = read_reach(fields)
    fields.finish()
    if message := problem(degrees):
        spec.faults.add(fields.line, spec.at("parallelism"), message)
    elif counted and written != degrees.data:
        line = spec.line_of("replicaCount")
        message = f"found {written}, and parallelism.data {degrees.data}; allowed: the same, or one of them"
        spec.faults.add(line, spec.at("replicaCount"), message)
    elif spec.has("resourceGroups"):
        _check_against(spec, fields, degrees, written, listed)
    else:
        wanted = Wants(
            wants.preferred,
            tolerated,
            wants.min_memory_gb,
            wants.min_nvlink_gbytes_per_s,
            reach,
            wants.min_nvlink_links,
            wants.min_nvlink_aggregate_gbytes_per_s,
        )
        replicas, groups = expand(degrees, wanted)
        _check_total(spec, "parallelism", replicas, groups)
        return _Shape(replicas, groups, degrees, degrees.data)
    return _Shape(written, listed, degrees, degrees.data)


def _check_against(
    spec: Fields, fields: Fields, degrees: Parallelism, replicas: int, groups: tuple[ResourceGroup, ...]
) -> None:
    """Given beside resourceGroups, parallelism describes them, so both must ask for as many GPUs."""
    for name in ("gpuRequirements", "interNodeConnectivity"):
        if fields.has(name):
            spec.faults.add(
                fields.line_of(name), fields.at(name), "found beside resourceGroups; allowed: in each of the groups"
            )
    listed = replicas * sum(group.gpus for group in groups if group.kind is not GroupKind.AUXILIARY)
    if not spec.faults and degrees.gpus != listed:
        message = (
            f"found tensor × context × pipeline × data = {degrees.gpus} GPUs, and {listed} in resourceGroups without"
            " Auxiliary ones; allowed: the same sum, or one of the two fields"
        )
        spec.faults.add(fields.line, spec.at("parallelism"), message)
    _check_total(spec, "resourceGroups", replicas, groups)


def _check_total(spec: Fields, field: str, replicas: int, groups: tuple[ResourceGroup, ...]) -> None:
    total = replicas * sum(group.gpus for group in groups)
    if total > GPUS_MAX:
        spec.faults.add(spec.line_of(field), spec.at(field), f"found {total} GPUs in all; allowed: at most {GPUS_MAX}")


def _read_nodes(spec: Fields) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The node lists (allow, deny), as ranges."""
    fields = spec.table("nodes", "{allow, deny}")
    if fields is None:
        return (), ()
    allowed = "nodes or ranges of them, such as n[001-064], in a list"
    allow, deny = (fields.strings(name, allowed, single=True) for name in ("allow", "deny"))
    for name, texts in (("allow", allow), ("deny", deny)):
        for text in texts:
            try:
                hostlist.expand(text)
            except ValueError as error:
                fields.faults.add(fields.line_of(name), fields.at(name), str(error))
    if isinstance(tree := fields.raw("allow"), Items) and not tree.items:
        fields.faults.add(fields.line_of("allow"), fields.at("allow"), f"found an empty list; allowed: {allowed}")
    fields.finish()
    return allow, deny


def _read_elastic(spec: Fields, replicas: int) -> int:
    fields = spec.table("elastic", "{minReplicas}")
    if fields is None:
        return 0
    least = fields.whole("minReplicas", 1, REPLICAS_MAX, default=1, required=True)
    fields.finish()
    if least > replicas:
        message = f"found {least}, more than the {replicas} replicas asked for; allowed: from 1 to {replicas}"
        fields.faults.add(fields.line_of("minReplicas"), fields.at("minReplicas"), message)
    return least
