"""fm-scheduler: reads its configuration, connects the parts, runs until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import structlog
import typer

from fmproto import keys
from fmproto.etcd import Etcd, Tls
from fmproto.kv import KV, Conflict, StoreFull, StoreUnavailable
from fmproto.tls import client_tls, server_tls
from fmproto.v1 import hardware_pb2 as hw
from fmsched.config import Config, ConfigError, load
from fmsched.discovery import Discovery
from fmsched.lifecycle.liveness import LivenessLimits
from fmsched.lifecycle.step import Limits
from fmsched.loop import LoopConfig, Scheduler
from fmsched.maintenance import keep_store
from fmsched.model.placement import Budget
from fmsched.service.holds import Holds
from fmsched.service.server import SchedulerService, start_server
from fmsched.solver import ThreadSolver
from fmsched.store.codec import fabric_message
from fmsched.store.election import Election, Leadership
from fmsched.topology.clusterfile import ClusterFile, parse

log = structlog.get_logger("fmsched")

LEAD_RETRY_S = 1.0
SILENCE_TOLD_S = 5.0
# Plans and submits that may wait for a solve; the next is refused.
SOLVES_WAITING_MAX = 64
# A drained server lets calls in progress end for so long.
SERVER_GRACE_S = 1.0


def loop_config(config: Config) -> LoopConfig:
    t = config.timeouts
    return LoopConfig(
        limits=Limits(prepare_s=t.prepare_s, start_s=t.start_s),
        liveness=LivenessLimits(
            unreachable_s=t.unreachable_after_s, node_lost_s=t.node_lost_after_s, mass_lost_s=t.mass_lost_after_s
        ),
        budget=Budget(deterministic_s=config.solve_deterministic_s),
        power=config.power_budgets,
        prices=config.prices,
    )


def connect(config: Config) -> Etcd:
    """Inside the event loop that uses it. Raises ConfigError where a file it names cannot be read."""
    etcd = config.etcd
    password = ""
    if etcd.password_file:
        try:
            password = Path(etcd.password_file).read_text().strip()
        except OSError as error:
            raise ConfigError(f"etcd.password_file: {etcd.password_file}: {error.strerror}") from error
    tls = None
    if etcd.ca:
        tls = Tls(Path(etcd.ca), Path(etcd.cert) if etcd.cert else None, Path(etcd.key) if etcd.key else None)
    return Etcd(
        etcd.endpoints, tls=tls, user=etcd.user or None, password=password or None, request_timeout_s=etcd.request_timeout_s
    )


def read_fabric(path: str) -> ClusterFile | None:
    """The Cluster file's content, None for no path. Raises ConfigError."""
    if not path:
        return None
    try:
        parsed = parse(Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"fabric: {path}: {error.strerror}") from error
    if isinstance(parsed, ClusterFile):
        return parsed
    first = parsed[0]
    raise ConfigError(f"fabric: {path}:{first.line}: {first.path}: {first.message}")


class Process:
    """One fm-scheduler: follows, serves, and leads when it is its turn."""

    def __init__(self, config: Config, kv: KV) -> None:
        self._config = config
        self._kv = kv
        self._cluster = read_fabric(config.fabric_source.file)
        self._solver = ThreadSolver()
        self._service_solver = ThreadSolver(waiting_max=SOLVES_WAITING_MAX)
        self.scheduler = Scheduler(kv, self._solver, loop_config(config), _wall_ms)
        advertise = config.advertise or config.listen
        self._election = Election(kv, config.named(), advertise, config.etcd.election_ttl_s)

    async def run(self, stop: asyncio.Event, announce: Callable[[int], None]) -> None:
        """Until `stop`; `announce` is told the port once it serves."""
        holds = Holds(self.scheduler)
        tls, agents = self._config.tls, self._config.tls.agents
        agents_tls = client_tls(agents.ca, agents.cert, agents.key)
        service = SchedulerService(self.scheduler, holds, self._leader, self._service_solver, agents_tls)
        server, port = await start_server(service, self._config.listen, server_tls(tls.cert, tls.key, tls.client_ca))
        if self._config.metrics_listen:
            from fmsched import metrics

            metrics.serve(self.scheduler, self._config.metrics_listen)
        announce(port)
        tasks = [
            asyncio.create_task(self.scheduler.follow(keys.ROOT), name="follow"),
            asyncio.create_task(self._lead_for_ever(), name="lead"),
            asyncio.create_task(holds.watch(), name="holds"),
            asyncio.create_task(self._tell_of_silence(), name="silence"),
            asyncio.create_task(stop.wait(), name="stop"),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a bug crashes the process, and systemd starts it again
        finally:
            await server.stop(SERVER_GRACE_S)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with contextlib.suppress(StoreUnavailable, StoreFull):
                await self._election.resign()
            self._solver.close()
            self._service_solver.close()
            await self._kv.close()

    async def _tell_of_silence(self) -> None:
        """A store that has never answered looks like nothing at all in the log otherwise."""
        while True:
            await asyncio.sleep(SILENCE_TOLD_S)
            if not self.scheduler.mirror.synced:
                log.warning("the store does not answer", endpoints=list(self._config.etcd.endpoints))

    async def _leader(self) -> str | None:
        try:
            return await self._election.leader()
        except StoreUnavailable:
            return None

    async def _lead_for_ever(self) -> None:
        while True:
            try:
                leadership = await self._election.campaign()
                work = asyncio.create_task(self._lead(leadership))
                lost = asyncio.create_task(leadership.lost.wait())
                try:
                    await asyncio.wait((work, lost), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    lost.cancel()
                    if not work.done():
                        work.cancel()
                    await asyncio.gather(work, return_exceptions=True)
                if not work.cancelled():
                    error = work.exception()
                    if error is not None:
                        raise error
                log.warning("deposed", term=leadership.term)
            except* (StoreUnavailable, StoreFull) as group:
                log.warning("cannot lead", error=str(group.exceptions[0]))
                await asyncio.sleep(LEAD_RETRY_S)

    async def _lead(self, leadership: Leadership) -> None:
        """Returns when the leadership is over by the store's word."""
        async with asyncio.TaskGroup() as tasks:
            beside = [
                tasks.create_task(keep_store(self._kv, self._config.etcd.quota_bytes)),
                tasks.create_task(self._publish_fabric()),
            ]
            await self.scheduler.lead(leadership)
            for task in beside:
                task.cancel()

    async def _publish_fabric(self) -> None:
        source = self._config.fabric_source
        if source.discover:
            mirror = self.scheduler.mirror
            await Discovery(source.discover, source.period_s, source.timeout_s, mirror, self._put_fabric).run()
        if self._cluster is None:
            return
        message = fabric_message(self._cluster.fabric, Path(source.file).name)
        while True:
            ledger = self.scheduler.ledger
            if ledger is not None and self.scheduler.mirror.synced:
                if self.scheduler.mirror.fabric == message:
                    return
                with contextlib.suppress(StoreUnavailable, StoreFull):
                    await ledger.put_fabric(message)
            await asyncio.sleep(0.2)

    async def _put_fabric(self, fabric: hw.Fabric) -> None:
        """Guarded by the leadership. Raises StoreUnavailable before it has begun, and once it is over."""
        ledger = self.scheduler.ledger
        if ledger is None or isinstance(await ledger.put_fabric(fabric), Conflict):
            raise StoreUnavailable("the fabric is the leader's to write")


def _wall_ms() -> int:
    return int(time.time() * 1000)


async def _run(config: Config) -> None:
    kv = connect(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await Process(config, kv).run(stop, lambda port: log.info("serving", listen=config.listen, port=port))


def configure_log() -> None:
    """One JSON object a line on stderr."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def command(
    config: Annotated[str | None, typer.Option(help="TOML file; the flags go over it.")] = None,
    listen: Annotated[str | None, typer.Option(help="host:port of the gRPC service.")] = None,
    advertise: Annotated[str | None, typer.Option(help="host:port that clients reach it by.")] = None,
    etcd: Annotated[str | None, typer.Option(help="etcd endpoints, host:port with commas.")] = None,
    fabric: Annotated[str | None, typer.Option(help="Cluster file whose fabric is published.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of this replica.")] = None,
) -> None:
    """Place gangs on a cluster of mixed GPUs, commit them to etcd, and follow them to their end."""
    flags = {
        "listen": listen,
        "advertise": advertise,
        "fabric": fabric,
        "name": name,
        "etcd.endpoints": etcd.split(",") if etcd else None,
    }
    try:
        settings = load(config, {key: value for key, value in flags.items() if value is not None})
        configure_log()
        asyncio.run(_run(settings))
    except (ConfigError, OSError, ValueError) as error:
        typer.echo(f"fm-scheduler: {error}", err=True)
        raise typer.Exit(2) from error


if __name__ == "__main__":
    app()
