"""fmctl get: lists, and what changes in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fmclient.cli.exits import NOT_FOUND, fail
from fmclient.cli.options import OutputOption, ServerOption, TimeoutOption, WatchOption, connect
from fmclient.cli.output import Column, Output, Table, print_data, say, to_data

if TYPE_CHECKING:
    from fmproto.v1.job_pb2 import JobEvent
    from fmproto.v1.scheduler_pb2 import Job, JobChange, Node

# The service has no stream of nodes or queues: -w asks again, and prints what differs.
POLL_S = 2.0

app = typer.Typer(no_args_is_help=True, help="List jobs, nodes, GPUs, queues or events.")
NamesArgument = Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="Only these.")]
JobsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="JOB...", help="Only these: ids, or names, then all jobs of that name.")
]


@app.command("job", hidden=True)
@app.command("jobs")
def jobs(
    ctx: typer.Context,
    names: JobsArgument = None,
    live: Annotated[bool, typer.Option("--live", help="Leave out jobs that have ended.")] = False,
    output: OutputOption = Output.TABLE,
    watch: WatchOption = False,
    server: ServerOption = None,
    timeout_s: TimeoutOption = None,
) -> None:
    """Jobs with state, size, nodes and place in the queue; -o wide says why they wait."""
    from fmclient.cli.jobs import COLUMNS, row, without_pids
    from fmclient.states import has_ended

    printer = _Printer(output, COLUMNS, lambda job: row(job, _now_ms()), lambda job: str(job.spec.id), same=without_pids)
    with connect(ctx, server, timeout_s) as client:
        found = client.list(live_only=live)
        shown = [job for job in found if _named(job, names)]
        _require_jobs(names, found)
        printer.first(shown)
        for change in client.watch() if watch else ():
            if change.deleted:
                printer.gone(change.job)
            elif _named(change.job, names) and (printer.knows(change.job) or not (live and has_ended(change.job))):
                printer.changed(change.job)


@app.command("node", hidden=True)
@app.command("nodes")
def nodes(
    ctx: typer.Context,
    names: NamesArgument = None,
    output: OutputOption = Output.TABLE,
    watch: WatchOption = False,
    server: ServerOption = None,
    timeout_s: TimeoutOption = None,
) -> None:
    """Nodes with state, GPUs in all and free, and what is wrong with them."""
    from fmclient.cli.nodes import NODE_COLUMNS, node_row

    printer = _Printer(output, NODE_COLUMNS, node_row, lambda node: str(node.name))
    with connect(ctx, server, timeout_s) as client:
        _poll(printer, lambda: _nodes(client.nodes().nodes, names), watch)


@app.command("gpu", hidden=True)
@app.command("gpus")
def gpus(
    ctx: typer.Context,
    names: NamesArgument = None,
    output: OutputOption = Output.TABLE,
    watch: WatchOption = False,
    server: ServerOption = None,
    timeout_s: TimeoutOption = None,
) -> None:
    """Every GPU with its holder or fault; NAME is a node."""
    from fmclient.cli.nodes import GPU_COLUMNS, gpu_row, gpu_views

    printer = _Printer(
        output, GPU_COLUMNS, lambda pair: gpu_row(*pair), lambda pair: f"{pair[0].name}/{pair[1].gpu.index}", _gpu_data
    )
    with connect(ctx, server, timeout_s) as client:
        _poll(printer, lambda: [(n, v) for n in _nodes(client.nodes().nodes, names) for v in gpu_views(n)], watch)


@app.command("queue", hidden=True)
@app.command("queues")
def queues(
    ctx: typer.Context,
    names: NamesArgument = None,
    output: OutputOption = Output.TABLE,
    watch: WatchOption = False,
    server: ServerOption = None,
    timeout_s: TimeoutOption = None,
) -> None:
    """Queues with live jobs: what runs in each, what waits, and who is next; -o wide says why that one waits."""
    from fmclient.cli.queues import COLUMNS, Queue, data, queues_of, row

    printer = _Printer(output, COLUMNS, lambda queue: row(queue, _now_ms()), lambda queue: str(queue.name), data)
    seen: set[str] = set()

    def load() -> list[Queue]:
        found = queues_of(client.list(live_only=True), also=seen)
        seen.update(queue.name for queue in found)  # so that -w tells when the last job of a queue has ended
        if names:
            _require(names, seen, "queue")
        return [queue for queue in found if not names or queue.name in names]

    with connect(ctx, server, timeout_s) as client:
        _poll(printer, load, watch)


@app.command("event", hidden=True)
@app.command("events")
def events(
    ctx: typer.Context,
    names: JobsArgument = None,
    output: OutputOption = Output.TABLE,
    watch: WatchOption = False,
    server: ServerOption = None,
    timeout_s: TimeoutOption = None,
) -> None:
    """What happened to jobs, oldest first; -o wide gives the time in UTC too."""
    columns = (
        Column("AGE", right=True, age=True),
        Column("TIME", wide=True),
        Column("JOB"),
        Column("ATTEMPT", right=True),
        Column("STATE"),
        Column("REASON"),
    )
    printer = _Printer(output, columns, lambda pair: _event_row(*pair), lambda pair: str(pair[0]), _event_data)
    with connect(ctx, server, timeout_s) as client:
        every = client.list()
        _require_jobs(names, every)
        found = [job for job in every if _named(job, names)]
        pairs = [(job.spec.id, event) for job in found for event in job.status.events]
        printer.first(sorted(pairs, key=lambda pair: pair[1].at_ms))
        if watch:
            shown = {job.spec.id: _last_event_ms(job) for job in found}
            for change in client.watch():
                for pair in _new_events(change, shown) if _named(change.job, names) else ():
                    printer.more(pair)


class _Printer:
    """One list in the asked form, and what is added to it later: items that say something new in that form.

    same  what of an item counts as a change, in the forms for programs
    """

    def __init__(
        self,
        output: Output,
        columns: Sequence[Column],
        row: Callable[[Any], tuple[str, ...]],
        name: Callable[[Any], str],
        data: Callable[[Any], dict[str, Any]] = to_data,
        same: Callable[[Any], Any] = lambda item: item,
    ) -> None:
        self._output, self._row, self._name, self._data, self._same = output, row, name, data, same
        self._table = Table(columns, wide=output is Output.WIDE)
        self._known: dict[str, object] = {}

    def first(self, items: Sequence[Any]) -> None:
        self._known = {self._name(item): self._key(item) for item in items}
        if self._output is Output.NAME:
            for item in items:
                say(self._name(item))
        elif self._output in (Output.JSON, Output.YAML):
            print_data({"items": [self._data(item) for item in items]}, self._output)
        else:
            self._table.print([self._row(item) for item in items])

    def knows(self, item: Any) -> bool:
        return self._name(item) in self._known

    def changed(self, item: Any) -> None:
        """Prints it, unless it was printed like this before."""
        name, key = self._name(item), self._key(item)
        if self._known.get(name) != key:
            self._known[name] = key
            self.more(item)

    def gone(self, item: Any) -> None:
        """Tells of the end of an item that was printed."""
        if self._known.pop(self._name(item), None) is None:
            return
        if self._output in (Output.JSON, Output.YAML):
            print_data(self._data(item) | {"deleted": True}, self._output, line=True)
        elif self._output is not Output.NAME:
            say(f"{self._name(item)}  deleted")

    def more(self, item: Any) -> None:
        if self._output is Output.NAME:
            say(self._name(item))
        elif self._output in (Output.JSON, Output.YAML):
            print_data(self._data(item), self._output, line=True)
        else:
            self._table.print([self._row(item)])

    def _key(self, item: Any) -> object:
        if self._output is Output.NAME:
            return self._name(item)
        if self._output in (Output.JSON, Output.YAML):
            return self._same(item)
        return self._table.key(self._row(item))


def _poll(printer: _Printer, load: Callable[[], list[Any]], watch: bool) -> None:
    printer.first(load())
    while watch:  # until Ctrl-C
        time.sleep(POLL_S)
        for item in load():
            printer.changed(item)


def _nodes(found: Iterable[Node], names: list[str] | None) -> list[Node]:
    listed = sorted(found, key=lambda node: node.name)
    if not names:
        return listed
    _require(names, {node.name for node in listed}, "node")
    return [node for node in listed if node.name in names]


def _require(names: list[str], present: set[str], noun: str) -> None:
    from fmclient.cli.human import missing

    for name in names:
        if name not in present:
            raise fail(f"fmctl: {missing(noun, name, present)}", NOT_FOUND)


def _require_jobs(names: list[str] | None, jobs: Sequence[Job]) -> None:
    from fmclient.cli.human import missing

    ids = {job.spec.id for job in jobs}
    for name in names or ():
        if name not in ids and all(job.spec.name != name for job in jobs):
            raise fail(f"fmctl: {missing('job', name, ids)}", NOT_FOUND)


def _named(job: Job, names: list[str] | None) -> bool:
    return not names or job.spec.id in names or job.spec.name in names


def _last_event_ms(job: Job) -> int:
    return max((event.at_ms for event in job.status.events), default=0)


def _new_events(change: JobChange, shown: dict[str, int]) -> Iterator[tuple[str, JobEvent]]:
    job = change.job
    after_ms = shown.get(job.spec.id, 0)
    shown[job.spec.id] = max(after_ms, _last_event_ms(job))
    for event in job.status.events:
        if event.at_ms > after_ms:
            yield job.spec.id, event


def _event_row(job: str, event: JobEvent) -> tuple[str, ...]:
    from fmclient.cli.human import age, moment
    from fmclient.states import words

    attempt = str(event.attempt) if event.attempt else "-"
    return age(event.at_ms, _now_ms()), moment(event.at_ms), job, attempt, words(event.state), event.reason or "-"


def _event_data(pair: tuple[str, JobEvent]) -> dict[str, Any]:
    return {"job": pair[0], **to_data(pair[1])}


def _gpu_data(pair: tuple[Node, Any]) -> dict[str, Any]:
    node, view = pair
    return {"node": node.name, "state": view.state, "job": view.job, "reason": view.reason, **to_data(view.gpu)}


def _now_ms() -> int:
    return int(time.time() * 1000)
