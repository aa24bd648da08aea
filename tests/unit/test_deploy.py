"""What deploy/ gives an operator: units that systemd takes as they are, and samples that are valid, complete, and tell the defaults."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ruamel.yaml import YAML

from fmagent import config as agent
from fmsched import config as scheduler
from fmsched.config import Timeouts
from tests.support.etcd import EtcdServer, Member, Version, free_port, make_certificates, require_etcd

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNITS = ("fm-scheduler.service", "fm-agent.service")
# Of the agent's sample: free words, not keys of ours.
FREE = "labels."


def directives(unit: str) -> dict[str, str]:
    lines = (DEPLOY / unit).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_takes_the_unit(unit: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is missing: the unit's keys are not checked")
    # The command of the unit is not installed where tests run, and verify asks for it; nor is there a user fmsched.
    text = re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", (DEPLOY / unit).read_text())
    copy = tmp_path / unit
    copy.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", str(copy)], capture_output=True, text=True, timeout=60
    )
    complaints = [line for line in done.stderr.splitlines() if unit in line]
    assert (done.returncode, complaints) == (0, [])


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_names_what_the_installation_makes(unit: str) -> None:
    found = directives(unit)
    name = unit.removesuffix(".service")
    assert found["ExecStart"] == f"/opt/fmsched/bin/{name} --config /etc/fmsched/{name.removeprefix('fm-')}.toml"
    assert found["StartLimitIntervalSec"] == "0"
    assert (DEPLOY / found["ExecStart"].split("/")[-1]).exists()
    page = found["Documentation"].removeprefix("file:///opt/fmsched/src/")
    assert (ROOT / page).exists()
    install = (ROOT / "docs/operate.md").read_text()
    assert "/opt/fmsched/src" in install
    assert f"deploy/{unit}" in install


def test_ranks_survive_the_agent_and_inherit_no_sandbox() -> None:
    found = directives("fm-agent.service")
    wanted = {
        "Type": "notify", "KillMode": "process", "TimeoutStartSec": "infinity", "LimitMEMLOCK": "infinity",
        "TasksMax": "infinity", "User": "root",
    }  # fmt: skip
    assert {name: found.get(name) for name in wanted} == wanted
    assert [name for name in found if re.match("Private|Protect|Restrict|NoNew|SystemCall|Capability|Memory", name)] == []


def sample(name: str) -> dict[str, tuple[Any, str]]:
    """Every key of a sample with its value and its line; commented ones count."""
    found: dict[str, tuple[Any, str]] = {}
    table = ""
    for line in (DEPLOY / name).read_text().splitlines():
        text = re.sub(r"^# ?(?=[a-z_]+ = )", "", line)
        if header := re.match(r"\[(\S+)\]", text):
            table = f"{header[1]}."
        elif re.match(r"[a-z_]+ = ", text):
            key, value = next(iter(tomllib.loads(text).items()))
            assert table + key not in found
            found[table + key] = (value, line)
    return {key: said for key, said in found.items() if not key.startswith(FREE)}


def fields(struct: msgspec.Struct, table: str = "") -> dict[str, Any]:
    """Dotted key → default."""
    found: dict[str, Any] = {}
    for key in struct.__struct_fields__:
        value = getattr(struct, key)
        if isinstance(value, msgspec.Struct):
            found |= fields(value, f"{table}{key}.")
        elif f"{key}." != FREE:
            found[table + key] = list(value) if isinstance(value, tuple) else value
    return found


@pytest.mark.parametrize(
    ("name", "defaults"),
    [("scheduler.toml", scheduler.Config()), ("agent.toml", agent.AgentConfig(node="node0001"))],
    ids=["scheduler", "agent"],
)
def test_a_sample_has_every_key_with_its_default(name: str, defaults: msgspec.Struct) -> None:
    said, known = sample(name), fields(defaults)
    assert set(said) == set(known)
    unsaid = [line for key, (value, line) in said.items() if value != known[key] and "default" not in line]
    assert unsaid == []


def test_the_samples_are_valid_and_agree_on_the_fence() -> None:
    of_scheduler = scheduler.load(str(DEPLOY / "scheduler.toml"), {})
    of_agent = agent.load(agent.arguments_of(["--config", str(DEPLOY / "agent.toml")]))
    assert of_scheduler.timeouts == Timeouts()
    assert of_scheduler.timeouts.agent_fence_after_s == of_agent.fence_after_s
    assert of_scheduler.timeouts.agent_fence_grace_s == of_agent.fence_grace_s


def test_the_sample_of_etcd_has_the_quota_that_the_scheduler_watches() -> None:
    found = YAML(typ="safe").load((DEPLOY / "etcd.conf.yml").read_text())
    assert found["quota-backend-bytes"] == scheduler.load(str(DEPLOY / "scheduler.toml"), {}).etcd.quota_bytes
    assert found["auto-compaction-retention"] == "1h"
    assert found["client-transport-security"]["client-cert-auth"] is True


@pytest.mark.parametrize("version", ["3.4", "3.5"])
def test_etcd_starts_with_its_sample(version: Version, tmp_path: Path) -> None:
    binary = require_etcd(version)
    client, cert, key = make_certificates(tmp_path / "pki")
    config = YAML(typ="safe").load((DEPLOY / "etcd.conf.yml").read_text())
    client_port, peer_port = free_port(), free_port()
    for name, value in config.items():
        if isinstance(value, str) and "://" in value:
            text = value.split(",")[0].replace("10.0.0.1", "127.0.0.1")
            config[name] = text.replace(":2379", f":{client_port}").replace(":2380", f":{peer_port}")
    for table in ("client-transport-security", "peer-transport-security"):
        config[table] |= {"cert-file": str(cert), "key-file": str(key), "trusted-ca-file": str(client.ca)}
    config["data-dir"] = str(tmp_path / "data")
    path = tmp_path / "etcd.conf.yml"
    YAML(typ="safe").dump(config, path)
    log = tmp_path / "etcd.log"
    member = Member([str(binary), "--config-file", str(path)], f"127.0.0.1:{client_port}", tmp_path / "data", log)
    server = EtcdServer(version, [member], client)
    try:
        member.start()
        server.wait_ready()
        assert server.metric("etcd_server_quota_backend_bytes") == config["quota-backend-bytes"]
        assert "unknown" not in log.read_text().lower()
    finally:
        server.stop()
