"""What a text that was given as another kind seems to be, so that a refusal can say it."""

from __future__ import annotations

import re

from fmproto.dumptext import clean

CONF, YAML = "Slurm topology.conf", "Slurm topology.yaml"
LOOKED_AT = 65_536  # characters; tools say at once what they are

# In this order: what is more particular comes first. Every pattern looks at one line, or at a word.
_SIGNS = tuple(
    (re.compile(pattern, re.MULTILINE), what)
    for pattern, what in (
        (r"<nvidia_smi_log|nvsmi_device_v\d", "XML of nvidia-smi -q -x"),
        (r"^[ \t]{0,20}<(?:system version|graphs version|system>)", "topology XML of NCCL or RCCL"),
        (r"^[ \t]{0,20}<(?:\?xml|!DOCTYPE|html|graphml)", "XML or HTML"),
        (r"==NVSMI LOG==", "text of nvidia-smi -q"),
        (r"^\| NVIDIA-SMI |^\|[ \t]{1,9}\d{1,4}[ \t]{1,9}(?:NVIDIA|Tesla|GeForce|Quadro|A\d|ERR!)", "table of nvidia-smi"),
        (r"^[ \t]{0,20}GPU ?\d{1,3}: .{1,200}\(UUID: ", "text of nvidia-smi -L or nvlink --status"),
        (r"^[ \t]{0,20}Link \d{1,3}: ", "text of nvidia-smi nvlink --status"),
        (r"^.{0,40}GPU0[ \t]{0,20}(?:GPU1|CPU Affinity|NIC0|mlx|X\b)|^Legend:", "matrix of nvidia-smi topo -m"),
        (r"NVML: |[Uu]nable to determine the device handle|NVIDIA-SMI has failed", "error of nvidia-smi"),
        (r"^GPU[ \t]{1,9}\d{1,3} Profile ID", "text of nvidia-smi mig"),
        (r"^\|? {0,9}(?:GPU|Compute) {1,9}[Ii]nstance|MIG device|GPU instance profiles|[Nn]o GPU instances", "text of nvidia-smi mig"),
        (r"^Successfully created (?:GPU|compute) instance", "text of nvidia-smi mig"),
        (r"NVRM: Xid", "kernel log with Xid events"),
        (r"^mig-configs:|^version: v1\b", "configuration of mig-parted"),
        (r"Fabric$|^[ \t]{0,20}(?:Retired Pages|Remapped Rows)", "part of nvidia-smi -q"),
        (r"^(?:index|timestamp|name|uuid|driver_version|pci\.bus_id|count)[,\w. ]{0,400},", "CSV of nvidia-smi --query-gpu"),
        (r"^Infiniband device '", "text of ibstatus"),
        (r"^[ \t]{0,20}(?:CA|Router|Switch):? '[^'\n]{1,128}'$", "text of ibstat"),
        (r"^hca_id:", "text of ibv_devinfo"),
        (r"^(?:Ca|Switch)[ \t]{0,9}: 0x", "list of ibhosts or ibswitches"),
        (r"^(?:vendid|switchguid|caguid|sysimgguid)=|^# Topology file: generated", "text of ibnetdiscover"),
        (r"^[ \t]{0,9}(?:Switch|Ca|Hca)[ \t]{1,9}\d{1,4}[ \t]{1,9}\"", "text of ibnetdiscover"),
        (r"^(?:CA|SW)[ \t]{1,9}\d{1,5}[ \t]{1,9}\d{1,4} 0x", "list of a fabric's ports (ibnetdiscover -p)"),
        (r"^\{? ?(?:CA|SW)[ \t]{1,9}Ports:", "list of a fabric's links (ibdiagnet)"),
        (r"iberror:|ibpanic:|ibwarn:", "error of an InfiniBand tool"),
        (r"^(?:Node|Path|Port)Record dump:", "text of saquery"),
        (r"^sminfo: sm lid", "text of sminfo"),
        (r"==\(.{0,60}\)==>", "text of iblinkinfo"),
        (r"^# Port (?:info|counters|extended counters):", "text of smpquery or perfquery"),
        (r"^/sys/class/infiniband/", "listing of /sys/class/infiniband"),
        (r"^apiVersion:[ \t]{0,9}[\"']?kueue\.x-k8s\.io/", "Kubernetes manifest of Kueue (it names no switch)"),
        (r"^apiVersion:[ \t]{0,9}[\"']?kai\.scheduler/", "Kubernetes manifest of the KAI scheduler (it names no switch)"),
        (r"^apiVersion:[ \t]{0,9}[\"']?topology\.volcano\.sh/", "Kubernetes manifest of Volcano (HyperNodes)"),
        (r"^apiVersion:[ \t]{0,9}[\"']?grove\.io/", "Kubernetes manifest of Grove (it names no switch)"),
        (r"^apiVersion:[ \t]{0,9}\S", "Kubernetes manifest"),
        (r"^[ \t]{0,20}(?i:switchname|blockname|blocksizes|aggregatedblock)[ \t]{0,9}=", CONF),
        (r"^(?:switches|capacity_blocks):", "simulation model of Topograph"),
        (r"^(?:- )?topology:[ \t]|^[ \t]{1,8}cluster_default:", YAML),
        (r"\"topology\"[ \t]{0,9}:|\"cluster_default\"[ \t]{0,9}:", YAML),
        (r"^(?i:clustername|nodename|partitionname|slurmctldhost)[ \t]{0,9}=", "Slurm's slurm.conf, or its nodes as scontrol prints them"),
        (r"\"DomainUUID\"[ \t]{0,9}:", "NetQ's list of NVLink nodes"),
        (r"^[ \t]{0,9}VM_hostname ", "list of hosts and their GUIDs"),
        (r"^[A-Za-z0-9._-]{1,128}:[ \t]{1,9}0x[0-9A-Fa-f]{8,16}$", "map of hosts to GUIDs"),
        (r"^[A-Za-z0-9._-]{1,128}:[ \t]{1,9}[0-9A-Fa-f]{8}-[0-9A-Fa-f-]{27}$", "map of hosts to NVLink cluster UUIDs"),
        (r"^\t{2,9}(?:name|err|model|topology|instances):|^package \w{1,40}$|^func ", "source text of Go"),
        (r"ROCm System Management|AMD-SMI", "text of rocm-smi or amd-smi"),
        (r"\A\s{0,99}[\[{]", "JSON"),
    )
)  # fmt: skip


def looks_like(text: str) -> str:
    """In words; empty where nothing is known of such a text."""
    head = clean(text[:LOOKED_AT].replace("\r\n", "\n").replace("\r", "\n"))
    for pattern, what in _SIGNS:
        if pattern.search(head):
            return what
    return ""


def is_blank(text: str) -> bool:
    return not clean(text[:LOOKED_AT]).strip() and not clean(text).strip()
