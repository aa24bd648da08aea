"""fm-agent: puts the parts together and runs them. SIGTERM and SIGINT end the agent and leave every rank running: the next agent
adopts them. To stop ranks, drain the node or cancel the job."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fmagent.config import AgentConfig, ConfigError, advertised, arguments_of, load
from fmproto import __version__
from fmproto.tls import server_tls

if TYPE_CHECKING:
    from fmagent.devices.port import Devices
    from fmagent.health.rules import Rules
    from fmagent.register import Log
    from fmproto.etcd import Etcd

# For streams under way when the agent ends, seconds.
SERVER_GRACE_S = 0.2
EXIT_FAILED = 1
EXIT_USAGE = 2
# A rules file with every key explained is a hundredth of it.
RULES_BYTES_MAX = 1024 * 1024


def main(argv: Sequence[str] | None = None) -> int:
    arguments = arguments_of(sys.argv[1:] if argv is None else argv)
    if arguments.version:
        print(f"fm-agent {__version__}")
        return 0
    try:
        config = load(arguments)
        if arguments.forgive:
            return forgive(config, arguments.forgive)
        return asyncio.run(run(config))
    except ConfigError as error:
        print(f"fm-agent: {error}", file=sys.stderr)
        return EXIT_USAGE


def make_log(level: str) -> Log:
    import structlog

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
    log: Log = structlog.get_logger()
    return log


def make_devices(config: AgentConfig, log: Log) -> Devices:
    """Raises ValueError and OSError for a description that cannot be used."""
    if config.hardware:
        from fmagent.devices.described import DescribedDevices

        return DescribedDevices(Path(config.hardware), config.node)
    from fmagent.devices.health_record import NAME, HealthRecord
    from fmagent.devices.ibstat import IbstatReader
    from fmagent.devices.kernel_log import KernelLog
    from fmagent.devices.presence import Presence
    from fmagent.devices.real import RealDevices

    rules = health_rules(config)
    presence = Presence(Path(config.state_dir) / "gpus.pb")
    if presence.fault:
        log.warning("the record of known GPUs cannot be read and begins anew", node=config.node, error=presence.fault)
    record = HealthRecord(Path(config.state_dir) / NAME)
    kernel_log = KernelLog(Path(config.kernel_log) if config.kernel_log else None)
    if kernel_log.fault:
        log.info("the kernel log cannot be read; Xids come from NVML alone", node=config.node, error=kernel_log.fault)
    devices = RealDevices(
        config.node,
        config.nvml_timeout_s,
        config.socket_interface,
        presence,
        IbstatReader(command=config.ibstat),
        rules=rules,
        record=record,
        kernel_log=kernel_log,
        state_dir=config.state_dir,
    )
    if record.fault:
        log.warning("the record of health cannot be read and begins anew", node=config.node, error=record.fault)
    return devices


def health_rules(config: AgentConfig) -> Rules:
    """Raises RulesError, a ValueError."""
    from fmagent.health.rules import Rules, RulesError, parse
    from fmagent.runner.files import read_regular

    if not config.health_rules:
        return Rules()
    try:
        content = read_regular(config.health_rules, RULES_BYTES_MAX, follow=True)
    except OSError as error:
        found = error.strerror or str(error)
        raise RulesError(
            f"health_rules: {config.health_rules}: found {found}; allowed: a TOML file like health.toml"
        ) from error
    return parse(content.decode("utf-8", errors="replace"), config.health_rules)


def forgive(config: AgentConfig, device: str) -> int:
    """An operator's word that a GPU was reset, or replaced. Raises ConfigError where the agent runs."""
    from fmagent.devices.health_record import NAME, HealthRecord
    from fmagent.health.judge import forgiven
    from fmagent.runner.lock import hold_state_dir

    with contextlib.ExitStack() as stack:
        with setting_up():
            stack.enter_context(hold_state_dir(Path(config.state_dir)))
        record = HealthRecord(Path(config.state_dir) / NAME)
        past, count = forgiven(record.load(), device)
        if record.fault or not record.save(past):
            raise ConfigError(record.fault or f"{config.state_dir}/{NAME} cannot be written")
    print(f"{device}: {count} finding{'' if count == 1 else 's'} of Xids forgotten")
    return 0 if count else EXIT_FAILED


def make_store(config: AgentConfig) -> Etcd:
    from fmproto.etcd import Etcd, Tls

    etcd = config.etcd
    tls = None
    if etcd.ca:
        tls = Tls(Path(etcd.ca), Path(etcd.cert) if etcd.cert else None, Path(etcd.key) if etcd.key else None)
    options: dict[str, Any] = {}
    if etcd.user:
        options = {"user": etcd.user, "password": Path(etcd.password_file).read_text(encoding="utf-8").strip()}
    return Etcd(etcd.endpoints, tls=tls, **options)


@contextlib.contextmanager
def setting_up() -> Iterator[None]:
    """What cannot be used before anything runs is the configuration's fault. Later, the same error is a bug, and shows itself whole."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from error


async def run(config: AgentConfig) -> int:
    """Until a signal. Raises ConfigError where the state directory, the description or the address cannot be used."""
    from fmagent import systemd
    from fmagent.devices.host import interfaces, network_of
    from fmagent.identity import session_of
    from fmagent.logs import AgentServicer, serve
    from fmagent.loop import AgentLoop, AgentSettings
    from fmagent.runner.lock import hold_state_dir
    from fmagent.runner.process import ProcessLimits, ProcessRunner

    state_dir = Path(config.state_dir)
    log = make_log(config.log_level)
    limits = ProcessLimits(
        port_first=config.port_first,
        port_last=config.port_last,
        fence_after_s=config.fence_after_s,
        fence_grace_s=config.fence_grace_s,
        start_limit_s=config.start_limit_s,
        log_retention_s=config.log_retention_s,
        log_runs_max=config.log_runs_max,
        disk_free_min_bytes=config.disk_free_min_mb * 1024 * 1024,
    )
    with contextlib.ExitStack() as stack:
        with setting_up():
            stack.enter_context(hold_state_dir(state_dir))
            session = session_of(state_dir)
            devices = make_devices(config, log)
            runner = ProcessRunner(state_dir, config.node, limits)
            kv = make_store(config)
            tls = server_tls(config.tls.cert, config.tls.key, config.tls.client_ca)
            served = await serve(AgentServicer(runner, config.node, session), config.listen, tls)
        route = config.address or network_of(interfaces(), config.socket_interface).address
        settings = AgentSettings(
            node=config.node,
            session=session,
            agent_address=config.advertise or advertised(config.listen, route, served.port),
            address=config.address,
            socket_interface=config.socket_interface,
            version=__version__,
            labels=tuple(config.labels.items()),
            period_s=config.period_s,
            fence_after_s=config.fence_after_s,
            fence_grace_s=config.fence_grace_s,
        )
        agent = AgentLoop(kv, devices, runner, settings, log)
        work = asyncio.create_task(agent.run())
        announce = asyncio.create_task(tell_systemd(agent, served, log, settings.node))
        try:
            await ended_by_signal(work)
        finally:
            systemd.notify("STOPPING=1")
            for task in (work, announce):
                task.cancel()
            await asyncio.gather(work, announce, return_exceptions=True)
            await served.stop(SERVER_GRACE_S)
            await kv.close()
            await devices.close()
            await runner.close()
    return 0


async def ended_by_signal(work: asyncio.Task[None]) -> None:
    """Returns at SIGTERM or SIGINT; raises what `work` ended with."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    waiter = asyncio.create_task(told.wait())
    await asyncio.wait({work, waiter}, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    if work.done():
        work.result()


async def tell_systemd(agent: Any, served: Any, log: Log, node: str) -> None:
    from fmagent import systemd

    await agent.ready.wait()
    await served.ready()
    systemd.notify("READY=1")
    log.info("ready", node=node, port=served.port)
    period_s = systemd.watchdog_s()
    steps = -1
    while period_s > 0:  # ends with the agent
        if agent.steps != steps:
            steps = agent.steps
            systemd.notify("WATCHDOG=1")
        await asyncio.sleep(period_s)


if __name__ == "__main__":
    sys.exit(main())
