"""Gauges for Prometheus, read from the scheduler when they are scraped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client import start_http_server
from prometheus_client.core import REGISTRY, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fmsched.loop import Scheduler


class SchedulerCollector(Collector):
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def collect(self) -> Iterable[Metric]:
        mirror = self._scheduler.mirror
        jobs = GaugeMetricFamily("fmsched_jobs", "Jobs by state", labels=["state"])
        for state, count in Counter(str(status.state) for status in list(mirror.statuses.values())).items():
            jobs.add_metric([state], count)
        yield jobs
        yield GaugeMetricFamily("fmsched_leader", "1 while this scheduler leads", value=self._scheduler.ledger is not None)
        held = sum(len(decision.placement.ranks) for decision in list(mirror.decisions.values()))
        yield GaugeMetricFamily("fmsched_gpus_held", "GPUs held by decisions", value=held)
        gpus = sum(len(inventory.gpus) for inventory in list(mirror.inventories.values()))
        yield GaugeMetricFamily("fmsched_gpus", "GPUs in the inventory", value=gpus)
        gaps = [decision.placement.objective.gap for decision in list(mirror.decisions.values())]
        yield GaugeMetricFamily(
            "fmsched_gap_max", "Largest gap to the proven bound among held placements", value=max(gaps, default=0)
        )
        solve_s = [decision.solve_s for decision in list(mirror.decisions.values())]
        yield GaugeMetricFamily(
            "fmsched_solve_seconds_max", "Longest solve among held placements, seconds", value=max(solve_s, default=0)
        )
        yield GaugeMetricFamily(
            "fmsched_store_full", "1 while the state store refuses writes", value=self._scheduler.store_state == "full"
        )


def serve(scheduler: Scheduler, listen: str) -> None:
    """Serves /metrics on "host:port" from a thread. Raises OSError where the address cannot be had."""
    host, _, port = listen.rpartition(":")
    REGISTRY.register(SchedulerCollector(scheduler))
    start_http_server(int(port), addr=host)
