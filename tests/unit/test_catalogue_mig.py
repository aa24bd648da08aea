"""MIG geometry: the table against what nvidia-smi prints, what fits beside what against brute force, names of profiles."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from fmproto.gpus import catalogue, lookup
from fmproto.mig import (
    Geometry,
    GeometryError,
    MigProfile,
    ProfileName,
    free_counts,
    geometries,
    geometry,
    parse_profile,
    possible,
    profiles,
    set_fault,
)
from tests.support.shared_data import shared

# `nvidia-smi mig -lgip`, first line of a profile: name, id, free, total, GiB, SMs.
LGIP = re.compile(r"MIG (\S+) +([0-9]+) +([0-9]+)/([0-9]+) +([0-9.]+) +(?:No|Yes) +([0-9]+) ")
# `-lgipp`: id, starts, size.  `-lgi`: name, id, instance, start, size.
LGIPP = re.compile(r"Profile ID +([0-9]+) Placements? *: *\{([0-9,]+)\}:([0-9]+)")
LGI = re.compile(r"MIG (\S+) +([0-9]+) +([0-9]+) +([0-9]+):([0-9]+) ")
KINDS = {
    "A100-40GB": "A100-SXM4-40GB",
    "A100-80GB": "A100-SXM4-80GB",
    "A30-24GB": "A30",
    "H100-80GB (SXM, 132 SM)": "H100-SXM5-80GB",
    "H100-NVL-94GB": "H100-NVL-94GB",
    "H100-96GB/GH200-96GB/H20": "GH200-96GB",
    "H200-141GB": "H200-SXM-141GB",
    "GH200-144GB-HBM3e": "GH200-144GB",
    "B200-180GB": "B200-SXM-180GB",
    "GB200-186GB": "GB200-186GB",
    "B300-269GB usable": "B300-SXM-288GB",
    "GB300-278GB usable": "GB300-288GB",
    "RTX-PRO-6000-96GB": "RTX-PRO-6000-Blackwell-Server",
}


def known(key: str) -> Geometry:
    found = geometry(key)
    assert found is not None, key
    return found


def profile_of(key: str, name: str) -> MigProfile:
    found = known(key).named(name)
    assert found is not None, (key, name)
    return found


def allowed(key: str, instances: Sequence[tuple[str, int]]) -> bool:
    """Whether these can be on one GPU together: every rule by itself, without regard to order."""
    cut = [(profile_of(key, name), start) for name, start in instances]
    slices = [slice_ for profile, start in cut for slice_ in range(start, start + profile.memory_slices)]
    counts = Counter(profile.name for profile, _ in cut)
    whole = known(key)
    return (
        all(start in profile.starts for profile, start in cut)
        and len(slices) == len(set(slices))
        and all(0 <= slice_ < whole.memory_slices for slice_ in slices)
        and sum(profile.compute_slices for profile, _ in cut) <= whole.compute_slices
        and sum(profile.media_extension for profile, _ in cut) <= 1
        and (not whole.media_engines or sum(profile.media_engines for profile, _ in cut) <= whole.media_engines)
        and all(counts[profile.name] <= profile.instances_max for profile, _ in cut)
    )


def brute_possible(key: str, instances: Sequence[tuple[str, int]]) -> dict[str, tuple[int, ...]]:
    return {
        profile.name: tuple(start for start in profile.starts if allowed(key, [*instances, (profile.name, start)]))
        for profile in profiles(key)
    }


def brute_count(key: str, instances: Sequence[tuple[str, int]], profile: MigProfile) -> int:
    """The most that fit, over all sets of starts."""
    return max(
        count
        for count in range(len(profile.starts) + 1)
        for starts in combinations(profile.starts, count)
        if allowed(key, [*instances, *((profile.name, start) for start in starts)])
    )


@st.composite
def cut_gpus(draw: st.DrawFn) -> tuple[str, list[tuple[str, int]]]:
    """A GPU and instances on it, any that brute force allows, in any order."""
    key = draw(st.sampled_from([key for kind in geometries() for key in kind.keys[:1]]))
    places = [(profile.name, start) for profile in profiles(key) for start in profile.starts]
    instances: list[tuple[str, int]] = []
    for place in draw(st.lists(st.sampled_from(places), max_size=9)):
        if allowed(key, [*instances, place]):
            instances.append(place)
    return key, instances


# ---- what fits -------------------------------------------------------------------------------------------------------


@given(cut_gpus())
def test_what_fits_agrees_with_brute_force(gpu: tuple[str, list[tuple[str, int]]]) -> None:
    key, instances = gpu
    assert possible(key, instances) == brute_possible(key, instances)
    assert free_counts(key, instances) == {profile.name: brute_count(key, instances, profile) for profile in profiles(key)}


@given(cut_gpus(), st.data())
def test_cutting_on_never_lets_two_overlap(gpu: tuple[str, list[tuple[str, int]]], data: st.DataObject) -> None:
    key, instances = gpu
    while places := [(name, start) for name, starts in possible(key, instances).items() for start in starts]:
        instances = [*instances, data.draw(st.sampled_from(places))]
        assert allowed(key, instances)
    assert all(not count for count in free_counts(key, instances).values())


@given(cut_gpus(), st.sampled_from(sorted({p.name for kind in geometries() for p in kind.profiles})), st.integers(-2, 13))
def test_instances_that_cannot_be_are_refused(gpu: tuple[str, list[tuple[str, int]]], name: str, start: int) -> None:
    key, instances = gpu
    more = [*instances, (name, start)]
    if known(key).named(name) is not None and allowed(key, more):
        assert set(possible(key, more)) == {profile.name for profile in profiles(key)}
    else:
        with pytest.raises(GeometryError):
            possible(key, more)
        with pytest.raises(GeometryError):
            free_counts(key, more)


def test_all_ways_to_cut_an_a30() -> None:
    """Every set of placements: those that can be reached one by one are those that brute force allows."""
    places = [(profile.name, start) for profile in profiles("A30") for start in profile.starts]
    right = {frozenset(some) for count in range(5) for some in combinations(places, count) if allowed("A30", some)}
    reached, edge = {frozenset[tuple[str, int]]()}, [frozenset[tuple[str, int]]()]
    while edge:
        instances = edge.pop()
        for name, starts in possible("A30", sorted(instances)).items():
            for start in starts:
                more = instances | {(name, start)}
                if more not in reached:
                    reached.add(more)
                    edge.append(more)
    assert reached == right and len(right) > 40


@pytest.mark.parametrize(
    ("key", "existing", "name", "starts"),
    [
        ("H100-SXM5-80GB", [("3g.40gb", 0)], "4g.40gb", ()),  # 4g begins at 0 alone
        ("H100-SXM5-80GB", [("3g.40gb", 4)], "4g.40gb", (0,)),
        ("H100-SXM5-80GB", [("3g.40gb", 0), ("3g.40gb", 4)], "1g.10gb", ()),  # a compute slice is left, but no memory
        ("H100-SXM5-80GB", [("4g.40gb", 0)], "2g.20gb", (4,)),
        ("H100-SXM5-80GB", [("1g.10gb", 6)], "1g.20gb", (0, 2, 4)),
        ("H100-SXM5-80GB", [("1g.10gb", 6)], "7g.80gb", ()),
        ("H100-SXM5-80GB", [("1g.10gb+me", 0)], "1g.10gb+me", ()),  # one optical flow engine
        ("A30", [("1g.6gb+me", 0)], "2g.12gb+me", ()),
        ("A30", [("1g.6gb+me", 0)], "2g.12gb", (2,)),
        ("GB200-186GB", [("3g.95gb", 0)], "3g.93gb", (4,)),  # another name of the same cut
        ("RTX-PRO-6000-Blackwell-Server", [("1g.24gb+me.all", 0)], "1g.24gb", ()),  # has all decoders
        ("RTX-PRO-6000-Blackwell-Server", [("1g.24gb+me.all", 0)], "1g.24gb-me", (3, 6, 9)),
        ("RTX-PRO-6000-Blackwell-Server", [("1g.24gb", 3)], "2g.48gb", (6,)),
    ],
)
def test_what_fits_beside(key: str, existing: list[tuple[str, int]], name: str, starts: tuple[int, ...]) -> None:
    assert possible(key, existing)[name] == starts


@pytest.mark.parametrize(
    "existing",
    [
        [("9g.99gb", 0)],
        [("1g.10gb", 7)],
        [("1g.10gb", 3), ("1g.10gb", 3)],
        [("3g.40gb", 0), ("1g.10gb", 2)],
        [("1c.3g.40gb", 0)],  # a compute instance is no GPU instance
        [("x" * 10**6, 0)],
    ],
)
def test_refusals_name_the_kind(existing: list[tuple[str, int]]) -> None:
    with pytest.raises(GeometryError, match="H100-80GB") as refused:
        possible("H100-SXM5-80GB", existing)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("key", ["T4", "MI300X", "Unknown X1", ""])
def test_no_geometry(key: str) -> None:
    assert (profiles(key), possible(key, [("1g.5gb", 0)]), free_counts(key), geometry(key)) == ((), {}, {}, None)


# ---- the table -------------------------------------------------------------------------------------------------------


def test_geometry_and_catalogue_agree() -> None:
    assert {key for kind in geometries() for key in kind.keys} == {
        k for k, facts in catalogue().items() if facts.mig_instances_max
    }
    for kind in geometries():
        for key in kind.keys:
            assert max(profile.instances_max for profile in kind.profiles) == catalogue()[key].mig_instances_max, key
            assert all(profile.multiprocessors <= catalogue()[key].multiprocessors for profile in kind.profiles), key
            assert all(profile.memory_gb <= catalogue()[key].memory_gb + 3 for profile in kind.profiles), key


def test_every_profile_is_whole() -> None:
    for kind in geometries():
        assert kind.source and kind.how_known
        names = [name for profile in kind.profiles for name in (profile.name, *profile.aliases)]
        assert len(names) == len(set(names)), kind.kind
        ids = [profile.id for profile in kind.profiles if profile.id is not None]
        assert len(ids) == len(set(ids)), kind.kind
        for profile in kind.profiles:
            name = parse_profile(profile.name)
            assert name == ProfileName(profile.compute_slices, profile.memory_gb, name.attributes if name else ()), profile
            assert profile.starts == tuple(sorted(profile.starts)) and profile.starts[0] == 0, profile
            assert profile.starts[-1] + profile.memory_slices <= kind.memory_slices, profile
            # As many as the table says fit into an empty GPU, and no more.
            assert free_counts(kind.keys[0])[profile.name] == profile.instances_max, profile
            assert abs(profile.memory_gib - profile.memory_gb) <= 1 or not profile.memory_gib, profile


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parsed", "gpu_instance"),
    [
        ("1g.10gb", ProfileName(1, 10), "1g.10gb"),
        ("1g.10gb+me", ProfileName(1, 10, ("+me",)), "1g.10gb+me"),
        ("1c.3g.71gb", ProfileName(3, 71, (), 1), "3g.71gb"),
        ("2c.7g.141gb+me", ProfileName(7, 141, ("+me",), 2), "7g.141gb+me"),
        ("MIG 4g.96gb+gfx", ProfileName(4, 96, ("+gfx",)), "4g.96gb+gfx"),
        ("1g.24gb+me.all", ProfileName(1, 24, ("+me.all",)), "1g.24gb+me.all"),
        ("1g.24gb-me", ProfileName(1, 24, ("-me",)), "1g.24gb-me"),
        ("1g.24gb+gfx-me", ProfileName(1, 24, ("+gfx", "-me")), "1g.24gb+gfx-me"),
    ],
)
def test_profile_names(name: str, parsed: ProfileName, gpu_instance: str) -> None:
    assert parse_profile(name) == parsed
    assert parsed.gpu_instance == gpu_instance


@pytest.mark.parametrize(
    "name",
    [
        *["", "1g", "1g.gb", "0g.5gb", "1g.0gb", "4c.3g.20gb", "0c.3g.20gb", "MIG MIG 1g.5gb", "1g.5gb.me"],
        *["1g.5gb+", "1g.5gb+ME", "1g.5gb ", "1g.5gb\n", "\u0661g.5gb"],
        *["1" * 10**6, "1g.5gb" + "+me" * 10**5, "1g.5gb+" + "a." * 10**5],
    ],
    ids=lambda name: name[:12],
)
def test_what_is_no_profile_name(name: str) -> None:
    assert parse_profile(name) is None


@given(st.text() | st.from_regex(r"([0-9]c\.)?[0-9]g\.[0-9]{1,3}gb([+-][a-z.]{1,6})?", fullmatch=True))
def test_parse_never_raises_and_a_gpu_instance_reads_back(name: str) -> None:
    parsed = parse_profile(name)
    if parsed is not None:
        again = parse_profile(parsed.gpu_instance)
        assert again == ProfileName(parsed.compute_slices, parsed.memory_gb, parsed.attributes)


# ---- the collection --------------------------------------------------------------------------------------------------


def test_every_row_of_the_collection_is_in_the_table() -> None:
    with shared("facts").joinpath("mig_profiles.tsv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t"))
    assert len(rows) == 91 and {row["#gpu"] for row in rows} == set(KINDS)
    for row in rows:
        profile = profile_of(KINDS[row["#gpu"]], row["profile"])
        assert profile.compute_slices == int(row["compute_slices"]) and profile.instances_max == int(
            row["max_instances"]
        ), row
        if row["gpu_instance_profile_id"]:
            assert profile.id == int(row["gpu_instance_profile_id"]), row
        if row["sm_count"]:
            assert profile.multiprocessors == int(row["sm_count"]), row
        if row["memory_gib"]:
            assert profile.memory_gib == float(row["memory_gib"]), row
        if row["placements_start_set:size"]:
            starts = "{" + ",".join(map(str, profile.starts)) + "}"
            assert f"{starts}:{profile.memory_slices}" == row["placements_start_set:size"] and row["memory_slices"], row


@pytest.mark.parametrize(
    ("file", "key", "existing"),
    [
        ("mig-lgip-a100-40gb-empty.txt", "A100-SXM4-40GB", []),
        ("mig-lgip-a100-40gb-after-4g.txt", "A100-SXM4-40GB", [("4g.20gb", 0)]),
        ("mig-lgip-h100-80gb.txt", "H100-SXM5-80GB", []),
        ("mig-lgip-a30.txt", "A30", []),
    ],
)
def test_free_counts_are_those_that_nvidia_smi_prints(file: str, key: str, existing: list[tuple[str, int]]) -> None:
    rows = LGIP.findall((shared("nvsmi") / file).read_text(encoding="utf-8"))
    assert {name: int(free) for name, _, free, *_ in rows} == free_counts(key, existing)
    for name, number, _, total, gib, sms in rows:
        profile = profile_of(key, name)
        assert (profile.id, profile.instances_max) == (int(number), int(total)), name
        assert (profile.memory_gib, profile.multiprocessors) == (float(gib), int(sms)), name


def test_placements_are_those_that_nvidia_smi_prints() -> None:
    rows = LGIPP.findall((shared("nvsmi") / "mig-lgipp-a30.txt").read_text(encoding="utf-8"))
    printed = {int(number): (tuple(map(int, starts.split(","))), int(size)) for number, starts, size in rows}
    assert printed == {profile.id: (profile.starts, profile.memory_slices) for profile in profiles("A30")}


def test_instances_that_nvidia_smi_lists_fill_the_gpu() -> None:
    rows = LGI.findall((shared("nvsmi") / "mig-lgi-h100-7x1g.txt").read_text(encoding="utf-8"))
    existing = [(name, int(start)) for name, _, _, start, _ in rows]
    assert len(existing) == 7
    for name, number, _, _, size in rows:
        profile = profile_of("H100-SXM5-80GB", name)
        assert (profile.id, profile.memory_slices) == (int(number), int(size))
    assert not any(possible("H100-SXM5-80GB", existing).values())


def test_every_mig_device_that_nvidia_smi_lists_has_a_known_profile() -> None:
    seen = 0
    for path in sorted(shared("nvsmi").glob("L-*.txt")):
        key = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            if gpu := re.match(r"GPU [0-9]+: ([^(]+)", line):
                facts = lookup(gpu[1].strip())
                assert facts is not None and not facts.guessed
                key = facts.key
            elif device := re.match(r" +MIG (\S+) +Device", line):
                name = parse_profile(device[1])
                assert name is not None and known(key).named(name.gpu_instance), line
                seen += 1
    assert seen == 7


def configurations(path: Path) -> Iterator[dict[str, int]]:
    """The contents of every "mig-devices" in a file, those in texts that lie in it too (a ConfigMap)."""

    def of(value: Any) -> Iterator[dict[str, int]]:
        if isinstance(value, dict):
            if value.get("mig-devices"):
                yield value["mig-devices"]
            for inner in value.values():
                yield from of(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from of(inner)
        elif isinstance(value, str) and "mig-devices" in value:
            yield from of(YAML(typ="safe", pure=True).load(value))

    for document in YAML(typ="safe", pure=True).load_all(path.read_text(encoding="utf-8")):
        yield from of(document)


def can_be_cut(kind: Geometry, devices: dict[str, int]) -> bool:
    """Whether all of `devices` fit on one GPU; big ones first, as nvidia-smi is given them."""
    todo = sorted(
        (profile for n, count in devices.items() for _ in range(count) if (profile := kind.named(n))),
        key=lambda p: -p.memory_slices,
    )
    return len(todo) == sum(devices.values()) and fits(kind.keys[0], [], todo)


def fits(key: str, placed: list[tuple[str, int]], todo: list[MigProfile]) -> bool:
    if not todo:
        return True
    return any(fits(key, [*placed, (todo[0].name, start)], todo[1:]) for start in possible(key, placed)[todo[0].name])


def test_every_configuration_of_mig_parted_can_be_cut() -> None:
    count = Counter[str]()
    for path in sorted(shared("nvsmi").glob("mig-*.yaml")):
        for devices in configurations(path):
            count[path.name] += 1
            assert any(can_be_cut(kind, devices) for kind in geometries()), (path.name, devices)
    assert len(count) == 3 and sum(count.values()) > 150


@settings(deadline=None)
@given(st.sampled_from(sorted(KINDS.values())), st.data())
def test_a_set_of_names_is_refused_exactly_when_no_starts_exist(key: str, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from([profile.name for profile in profiles(key)]), max_size=5))
    kind = geometry(key)
    assert kind is not None
    assert (set_fault(key, names) == "") == can_be_cut(kind, Counter(names))


@pytest.mark.parametrize(
    ("names", "fits_together"),
    [
        (["7g.80gb"], True),
        (["1g.10gb"] * 7, True),
        (["1g.10gb"] * 8, False),
        (["3g.40gb", "3g.40gb", "1g.10gb"], False),  # no memory slice is left, though a compute slice is
        (["1c.3g.40gb"] * 6, True),  # three in each of two GPU instances
        (["1c.3g.40gb"] * 7, False),
        (["2c.3g.40gb"] * 3, False),  # two do not fit into three slices
        (["1c.7g.80gb"] * 7, True),
        (["4c.7g.80gb"] * 2, False),
        (["1g.10gb+me", "1g.10gb+me"], False),
        (["1g.5gb"], False),
        (["1g.10gb"] * 64, False),
    ],
)
def test_sets_of_instances_on_an_h100(names: list[str], fits_together: bool) -> None:
    assert (set_fault("H100-SXM5-80GB", names) == "") == fits_together
    assert set_fault("no such key", names) == ""
