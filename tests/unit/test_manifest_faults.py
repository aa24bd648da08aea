"""Broken manifests: one clear message for each fault, with line, path, what was found, what is allowed."""

from __future__ import annotations

import time

import pytest

from fmsched.manifest import Fault, Manifest, parse
from tests.support.manifests import GOOD, spoiled, with_spec

GROUP = "spec.resourceGroups[0]"
NAME_ALLOWED = "lower-case letters, digits and '-', a letter or digit at both ends, at most 63 (DNS-1123)"


def faults(text: str | bytes) -> tuple[Fault, ...]:
    parsed = parse(text)
    assert not isinstance(parsed, Manifest)
    return parsed


def test_the_good_one_is_good() -> None:
    assert isinstance(parse(GOOD), Manifest)
    assert isinstance(parse(GOOD.encode()), Manifest)


# The ten of issue 2: unknown field, wrong unit, negative count, duplicate group, bad toleration, not YAML, empty, 10 MB,
# deep nesting, wrong kind.
TEN = {
    "unknown field": (
        spoiled("gpusPerGroup: 8", "gpusPerGrup: 8"),
        Fault(10, f"{GROUP}.gpusPerGrup", "found an unknown field; nearest known name: gpusPerGroup"),
    ),
    "wrong unit": (
        spoiled("minMemoryGB: 80", "minMemoryGB: 80GiB"),
        Fault(
            12,
            f"{GROUP}.gpuRequirements.minMemoryGB",
            "found '80GiB'; allowed: a number of GB (decimal, nominal) from 0 to 100000, without unit",
        ),
    ),
    "negative count": (
        spoiled("replicaCount: 2", "replicaCount: -2"),
        Fault(6, "spec.replicaCount", "found -2; allowed: a whole number from 1 to 100000"),
    ),
    "duplicate group": (
        spoiled("name: helper", "name: tensor"),
        Fault(18, "spec.resourceGroups[1].name", "found 'tensor' again, first in line 8; allowed: a name once"),
    ),
    "bad toleration": (
        spoiled("operator: Equal", "operator: Equals"),
        Fault(23, "spec.tolerations[0].operator", "found 'Equals'; allowed: Equal, In; nearest known name: Equal"),
    ),
    "not YAML": (
        spoiled("  name: job", "  name: job: other"),
        Fault(4, "metadata", "not YAML: mapping values are not allowed here; a value that contains ': ' needs quotes"),
    ),
    "empty": ("# nothing\n\n", Fault(0, "", "empty: found no fields, only blank lines or comments")),
    "10 MB": ("a: b\n" * 2_000_000, Fault(0, "", "found 10000000 bytes; allowed: at most 1048576")),
    "deep nesting": ("[" * 100_000, Fault(1, ("[0]" * 32)[:60], "nested deeper than 32 levels")),
    "wrong kind": (
        spoiled("kind: FoundationModelTrainingJob", "kind: Job"),
        Fault(2, "kind", "found 'Job'; allowed: FoundationModelTrainingJob"),
    ),
}


@pytest.mark.parametrize("name", TEN)
def test_ten_broken_manifests_give_one_message_each(name: str) -> None:
    text, expected = TEN[name]
    start = time.process_time()
    assert faults(text) == (expected,)
    assert time.process_time() - start < 2.0


TEXT_FAULTS: dict[str, tuple[str | bytes, int | None, str | None]] = {
    "NUL": (
        GOOD.replace("job", "j\x00b"),
        4,
        "found the control character U+0000; allowed: printable text, line ends and tabs",
    ),
    "not UTF-8": (
        GOOD.encode().replace(b"name: job", b"name: j\xf6b"),
        4,
        "found the byte 0xf6, which is not UTF-8; allowed: UTF-8 text",
    ),
    "UTF-16": (GOOD.encode("utf-16"), 1, "found UTF-16 text; allowed: UTF-8"),
    "tab": (GOOD.replace("  replicaCount", "\treplicaCount"), 6, "found a tab in the indentation; allowed: spaces"),
    "surrogate": (GOOD.replace("job", "j\ud800b"), 4, "found half of a surrogate pair; allowed: UTF-8 text"),
    "second document": (GOOD + "---\n" + GOOD, 25, "found a second document after '---'; allowed: one"),
    "tag": (spoiled("name: job", "name: !!python/object:os.system job"), 4, None),
    "unclosed quote": (spoiled("name: job", 'name: "job'), None, None),
    "not a mapping": ("- a\n- b\n", 1, "found a list; allowed: a mapping of fields"),
    "a scalar": ("hello", 1, "found 'hello'; allowed: a mapping of fields"),
}


@pytest.mark.parametrize("name", TEXT_FAULTS)
def test_text_that_cannot_be_read_gives_one_message(name: str) -> None:
    text, line, message = TEXT_FAULTS[name]
    found = faults(text)
    assert len(found) == 1
    assert line is None or found[0].line == line
    assert message is None or found[0].message == message


def test_tags_never_make_objects() -> None:
    (fault,) = faults(spoiled("name: job", "name: !!python/object/apply:os.system [true]"))
    assert fault.path == "metadata.name"
    assert fault.message.startswith("found the tag 'tag:yaml.org,2002:python/object/apply:os.system'")


@pytest.mark.parametrize(
    "text", [GOOD.replace("\n", "\r\n"), "\ufeff" + GOOD, (b"\xef\xbb\xbf" + GOOD.encode()), GOOD.replace("\n", "\r")]
)
def test_line_ends_and_byte_order_marks_do_not_matter(text: str | bytes) -> None:
    assert parse(text) == parse(GOOD)


def test_alias_bombs_are_refused_and_plain_aliases_are_not() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
    (fault,) = faults(bomb)
    assert fault.message == "more than 10000 values, aliases written out"
    wants = "gpuRequirements:\n        minMemoryGB: 80"
    shared = spoiled(wants, "gpuRequirements: &wants\n        minMemoryGB: 80").replace(
        "gpusPerGroup: 1\n", "gpusPerGroup: 1\n      gpuRequirements: *wants\n"
    )
    manifest = parse(shared)
    assert isinstance(manifest, Manifest)
    assert manifest.groups[1].min_memory_gb == 80.0
    (fault,) = faults("a: &a [*a]\n")
    assert fault.message == "found the alias *a, which names no complete value above it"


def test_doubled_keys_are_faults() -> None:
    assert faults(spoiled("  replicaCount: 2", "  replicaCount: 2\n  replicaCount: 3")) == (
        Fault(7, "spec.replicaCount", "given twice, first in line 6; allowed: once"),
    )


ONE_FAULT = {
    "bool is no count": (spoiled("replicaCount: 2", "replicaCount: true"), "spec.replicaCount", "found true"),
    "float is no count": (spoiled("replicaCount: 2", "replicaCount: 2.5"), "spec.replicaCount", "found 2.5"),
    "quoted count": (spoiled("replicaCount: 2", 'replicaCount: "2"'), "spec.replicaCount", "found '2'"),
    "infinite": (spoiled("minMemoryGB: 80", "minMemoryGB: .inf"), f"{GROUP}.gpuRequirements.minMemoryGB", "found '.inf'"),
    "huge number": (spoiled("replicaCount: 2", "replicaCount: " + "9" * 5000), "spec.replicaCount", "found '9999"),
    "upper-case name": (spoiled("name: job", "name: Job_1"), "metadata.name", NAME_ALLOWED),
    "long name": (spoiled("name: job", "name: " + "a" * 64), "metadata.name", NAME_ALLOWED),
    "missing name": (spoiled("  name: job", "  labels: {}"), "metadata.name", "found nothing"),
    "missing spec": (GOOD[: GOOD.index("spec:")], "spec", "found nothing"),
    "missing type": (
        spoiled("      type: TensorParallel\n", ""),
        f"{GROUP}.type",
        "found nothing; allowed: TensorParallel",
    ),
    "unknown type": (spoiled("TensorParallel", "tensorparallel"), f"{GROUP}.type", "nearest known name: TensorParallel"),
    "no groups": (GOOD[: GOOD.index("  resourceGroups")], "spec.resourceGroups", "or parallelism"),
    "empty groups": (
        GOOD[: GOOD.index("  resourceGroups")] + "  resourceGroups: []\n",
        "spec.resourceGroups",
        "found 0 groups",
    ),
    "accelerator": (
        spoiled("acceleratorType: H100", "acceleratorType: H100!"),
        f"{GROUP}.gpuRequirements.acceleratorType",
        "H100!",
    ),
    "toleration value": (
        spoiled("value: h100|a100", "value: h100||a100"),
        "spec.tolerations[0].value",
        "found 'h100||a100'",
    ),
    "toleration key": (spoiled("key: gpu-type", "key: zone"), "spec.tolerations[0].key", "allowed: gpu-type"),
    "toleration scalar": (GOOD[: GOOD.index("    - key")] + "    - h100\n", "spec.tolerations[0]", "found 'h100'"),
    "too many GPUs": (
        spoiled("gpusPerGroup: 8", "gpusPerGroup: 99999").replace("replicaCount: 2", "replicaCount: 99999"),
        "spec.resourceGroups",
        "allowed: at most 1000000",
    ),
    "priority word": (with_spec("priority: hihg"), "spec.priority", "nearest known name: high"),
    "priority number": (with_spec("priority: -1"), "spec.priority", "found -1"),
    "duration without unit": (with_spec("maxRuntime: 30"), "spec.maxRuntime", 'such as "30s", "2h30m" or "7d"'),
    "duration order": (with_spec("maxRuntime: 30m2h"), "spec.maxRuntime", "found '30m2h'"),
    "launcher": (with_spec("launcher: torch-run"), "spec.launcher", "nearest known name: torchrun"),
    "elastic": (with_spec("elastic: {minReplicas: 3}"), "spec.elastic.minReplicas", "found 3, more than the 2 replicas"),
    "command number": (with_spec("template: {command: 7}"), "spec.template.command", "a shell command"),
    "template empty": (with_spec("template: {env: {A: b}}"), "spec.template.command", "what each rank runs"),
    "env name": (with_spec("template: {command: a, env: {1A: b}}"), "spec.template.env", "found the name '1A'"),
    "env null": (
        with_spec("template: {command: a, env: {A: }}"),
        "spec.template.env.A",
        "found nothing; allowed: a string",
    ),
    "env twice": (
        with_spec("template: {command: a, env: [{name: A, value: b}, {name: A, value: c}]}"),
        "spec.template.env[1]",
        "found A again",
    ),
    "NUL in an argument": (with_spec('template: {command: a, args: ["x\\0y"]}'), "spec.template.args", "NUL"),
    "volume": (with_spec("template: {command: a, volumes: [data]}"), "spec.template.volumes", "found 'data'"),
    "signal": (with_spec("checkpoint: {signal: SIGUSR}"), "spec.checkpoint.signal", "nearest known name: SIGUSR"),
    "model sizes": (with_spec("model: {parameters: big}"), "spec.model.parameters", "a number such as 120B"),
    "node list": (with_spec("nodes: {allow: [n1, 'n[3-']}"), "spec.nodes.allow", "n[3-"),
    "empty node list": (with_spec("nodes: {allow: []}"), "spec.nodes.allow", "found an empty list"),
    "node lists": (with_spec("nodes: {alow: [n1]}"), "spec.nodes.alow", "nearest known name: allow"),
    "anti-affinity": (
        spoiled("gpusPerGroup: 8", "gpusPerGroup: 8\n      antiAffinity: leafs"),
        f"{GROUP}.antiAffinity",
        "nearest known name: leaf",
    ),
    "NVLink links": (
        spoiled("minMemoryGB: 80", "minMemoryGB: 80\n        minNVLinksPerGPU: 1.5"),
        f"{GROUP}.gpuRequirements.minNVLinksPerGPU",
        "a whole number",
    ),
    "sum": (with_spec("parallelism: {tensor: 8, data: 3}"), "spec.replicaCount", "found 2, and parallelism.data 3"),
    "other sum": (with_spec("parallelism: {tensor: 4, data: 2}"), "spec.parallelism", "= 8 GPUs, and 16 in resourceGroups"),
    "experts": (
        with_spec("parallelism: {tensor: 8, data: 2, expert: 4}"),
        "spec.parallelism",
        "data is a multiple of expert",
    ),
}


@pytest.mark.parametrize("name", ONE_FAULT)
def test_one_message_for_one_fault(name: str) -> None:
    text, path, part = ONE_FAULT[name]
    found = faults(text)
    assert len(found) == 1, [str(fault) for fault in found]
    assert found[0].line > 0
    assert found[0].path.startswith(path)
    assert part in found[0].message


def test_every_fault_is_told_in_the_order_of_the_lines_and_never_more_than_fifty() -> None:
    text = (
        GOOD.replace("replicaCount: 2", "replicaCount: 0")
        .replace("minMemoryGB: 80", "minMemoryGB: x")
        .replace("h100|a100", "'?'")
    )
    assert [fault.line for fault in faults(text)] == [6, 12, 24]
    many = GOOD + "".join(f"  zz{i}: 1\n" for i in range(500))
    assert len(faults(many)) == 50


def test_parallelism_beside_groups_must_agree_and_is_kept() -> None:
    manifest = parse(with_spec("parallelism: {tensor: 8, data: 2}"))
    assert isinstance(manifest, Manifest)
    assert manifest.parallelism is not None
    assert (manifest.replicas, len(manifest.groups)) == (2, 2)


def test_json_is_accepted_tabs_too() -> None:
    import json

    document = {
        "apiVersion": "ai.example.com/v1alpha1",
        "kind": "FoundationModelTrainingJob",
        "metadata": {"name": "j", "labels": {"face": "\U0001f600"}},
        "spec": {"resourceGroups": [{"name": "g", "type": "Auxiliary", "gpusPerGroup": 1}]},
    }
    manifest = parse(json.dumps(document, indent="\t"))
    assert isinstance(manifest, Manifest)
    assert manifest.labels == (("face", "\U0001f600"),)
