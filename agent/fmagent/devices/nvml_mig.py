"""MIG as NVML tells it: the mode, the instances that there are, and the profiles with their possible placements. Runs in the reader
process. Without root a driver hides placements and profiles' placements; names and ids are told all the same.
"""

from __future__ import annotations

import math
import re
from typing import Any

import pynvml

from fmagent.devices.nvml_call import Answer, Ask

# "NVIDIA A100-SXM4-40GB MIG 1g.5gb": how a MIG device calls itself, with the instance's part of it last ("1c.3g.20gb").
_PROFILE_OF_NAME = re.compile(r"MIG ([0-9][0-9a-z.+-]{0,62})\s*$")

# nvml.h, NVML_GPU_INSTANCE_PROFILE_*: what is added to the name of a profile that a driver before 520 gives none.
_SUFFIX = {
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1: "+me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1: "+me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_4_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_NO_ME: "-me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_NO_ME: "-me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME: "+me.all",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME: "+me.all",
}

# More than any profile has: A100 and H100 have up to 7.
_PLACEMENTS_MAX = 64
_INSTANCES_MAX = 64


def read_mig(ask: Ask, handle: Any, memory_bytes: int) -> Answer | None:
    """None: the GPU has no MIG, or its driver knows of none."""
    mode = ask.may("nvmlDeviceGetMigMode", handle)
    if mode is None:
        return None
    if mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return {"on": False, "instances": [], "profiles": []}
    profiles = read_profiles(ask, handle, memory_bytes)
    return {"on": True, "profiles": profiles, "instances": read_instances(ask, handle, profiles)}


def read_profiles(ask: Ask, handle: Any, memory_bytes: int) -> list[Answer]:
    profiles = []
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = ask.may("nvmlDeviceGetGpuInstanceProfileInfo", handle, number, version=2)
        if info is None:
            info = ask.may("nvmlDeviceGetGpuInstanceProfileInfo", handle, number, version=1)
        if info is None:
            continue
        name = getattr(info, "name", b"")
        name = name.decode("utf-8", errors="replace") if isinstance(name, bytes) else str(name)
        starts, size = read_placements(ask, handle, info.id)
        profiles.append({
            "name": name.removeprefix("MIG ").strip() or built_name(info, number, memory_bytes),
            "id": info.id,
            "slices": info.sliceCount,
            "multiprocessors": info.multiprocessorCount,
            "memory_mib": info.memorySizeMB,
            "instances_max": info.instanceCount,
            "starts": starts,
            "size": size,
        })  # fmt: skip
    return profiles


def built_name(info: Any, number: int, memory_bytes: int) -> str:
    """As nvidia-smi names it: the memory is the card's, in GiB, by the eighths of it that the instance has."""
    memory_gib = info.memorySizeMB / 1024
    if memory_bytes > 0:
        eighths = min(8, math.ceil(info.memorySizeMB * 2**20 / memory_bytes * 8))
        memory_gib = eighths / 8 * math.ceil(memory_bytes / 2**30)
    return f"{info.sliceCount}g.{round(memory_gib)}gb{_SUFFIX.get(number, '')}"


def read_placements(ask: Ask, handle: Any, profile: int) -> tuple[list[int], int]:
    """(first memory slices, memory slices of one instance); nothing where the driver tells nobody but root."""
    count = pynvml.c_uint(_PLACEMENTS_MAX)
    places = (pynvml.c_nvmlGpuInstancePlacement_t * _PLACEMENTS_MAX)()
    if (
        ask.may("nvmlDeviceGetGpuInstancePossiblePlacements", handle, profile, places, pynvml.byref(count)) is None
        or not 0 < count.value <= _PLACEMENTS_MAX
    ):
        return [], 0
    return sorted(place.start for place in places[: count.value]), places[0].size


def read_instances(ask: Ask, handle: Any, profiles: list[Answer]) -> list[Answer]:
    instances = []
    for place in range(min(ask.may("nvmlDeviceGetMaxMigDeviceCount", handle) or 0, _INSTANCES_MAX)):
        mig = ask.may("nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
        uuid = None if mig is None else ask.may("nvmlDeviceGetUUID", mig)
        if uuid is None:  # no instance there, or it went away just now
            continue
        gpu_instance = ask.may("nvmlDeviceGetGpuInstanceId", mig)
        where = placement_of(ask, handle, gpu_instance)
        named = _PROFILE_OF_NAME.search(str(ask.may("nvmlDeviceGetName", mig) or ""))
        profile = next((found["name"] for found in profiles if found["id"] == where["profile_id"]), "")
        instances.append({
            "uuid": uuid,
            "profile": named[1] if named else profile,
            "gpu_instance": gpu_instance,
            "compute_instance": ask.may("nvmlDeviceGetComputeInstanceId", mig),
            "start": where["start"],
            "size": where["size"],
        })  # fmt: skip
    return instances


def placement_of(ask: Ask, handle: Any, gpu_instance: int | None) -> Answer:
    instance = None if gpu_instance is None else ask.may("nvmlDeviceGetGpuInstanceById", handle, gpu_instance)
    info = None if instance is None else ask.may("nvmlGpuInstanceGetInfo", instance)
    if info is None:
        return {"profile_id": None, "start": 0, "size": 0}
    return {"profile_id": info.profileId, "start": info.placement.start, "size": info.placement.size}
