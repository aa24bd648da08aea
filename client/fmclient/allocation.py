"""GPUs held for a launcher: taken on entering a block, given back on leaving it, and freed if the holder dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from fmclient import operations, watching
from fmclient.errors import FmschedError, ServiceFailed
from fmclient.manifest import Manifest
from fmclient.operations import Session
from fmclient.placement import Placement, placement_of
from fmclient.resume import Resumable
from fmclient.states import is_running, words
from fmclient.transport import AsyncTransport, Stop, SyncTransport
from fmproto.v1.scheduler_pb2 import Job

HOLD_S = 30.0
# The holder stops counting on the GPUs this part of hold_s after it noticed the loss of the scheduler. Noticing takes up to 15 s
# (keep-alive, fmproto.channel), and 15 s + half of hold_s is within hold_s from 30 s on.
FENCE_SHARE = 0.5
# Giving back is tried for so long on the way out; after that the scheduler's hold_s does it.
RELEASE_S_MAX = 10.0
# A holder whose stream was cancelled ends within milliseconds.
HOLDER_END_S_MAX = 5.0
GIVEN_BACK = "the launcher gave the allocation back"


@dataclass(frozen=True, slots=True)
class Terms:
    """What was asked for. `timeout_s`: how long to wait for the GPUs; None: for ever."""

    manifest: Manifest
    hold_s: float
    timeout_s: float | None
    request_id: str | None
    submitter: str | None

    def __post_init__(self) -> None:
        if self.hold_s <= 0:
            raise ValueError(
                f"hold_s is {self.hold_s:g}: must be above 0, or nothing would free the GPUs of a killed launcher"
            )


class _Held:
    """The part that both kinds share: the newest job, and the placement of the attempt that was waited for."""

    def __init__(self, session: Session, terms: Terms) -> None:
        self._session, self._terms = session, terms
        self._job: Job | None = None
        self._placement: Placement | None = None
        self._fault: FmschedError | None = None
        self._stream: Resumable | None = None

    @property
    def job(self) -> Job:
        """As last heard of."""
        if self._job is None:
            raise RuntimeError("the allocation is empty outside its `with` block")
        return self._job

    @property
    def id(self) -> str:
        return self.job.spec.id

    @property
    def placement(self) -> Placement:
        if self._placement is None:
            raise RuntimeError("the allocation is empty outside its `with` block")
        return self._placement

    @property
    def alive(self) -> bool:
        """False once the GPUs are the caller's no longer, or may not be: `loss` says why. A launcher then stops its ranks."""
        return not self.loss

    @property
    def loss(self) -> str:
        """Why the GPUs are no longer the caller's, or may be somebody else's soon; empty while they are.

        Cancelled, preempted, placed anew after a fault; or the scheduler was out of reach for half of hold_s, so that it may be
        about to free them. With hold_s of 30 s or more that is said before it does, a silent network included.
        """
        job = self._job
        if job is None or self._placement is None:
            return "it was not entered"
        if self._fault is not None:
            return str(self._fault)
        if not is_running(job):
            return f"job {job.spec.id} is {words(job.status.state)}: {job.status.reason or 'no reason given'}"
        if job.status.attempt != self._placement.attempt:
            return (
                f"job {job.spec.id} was placed anew, attempt {job.status.attempt}: {job.status.reason or 'no reason given'}"
            )
        lost_s = self._stream.lost_s if self._stream is not None else None
        if lost_s is not None and time.monotonic() - lost_s > self._terms.hold_s * FENCE_SHARE:
            return f"no scheduler was reached for {time.monotonic() - lost_s:.0f} s; it frees the GPUs after {self._terms.hold_s:g} s"
        return ""

    def _heard(self, job: Job) -> None:
        """The holder's news. A deleted job comes with its id alone."""
        self._job = job

    def _settle(self, job: Job) -> None:
        self._job, self._placement = job, placement_of(job)
        if self._placement is None:
            raise ServiceFailed(f"job {job.spec.id} runs, but the service sent no placement")


class Allocation(_Held):
    """Made by Client.allocate(); used with `with`. Holding goes on in a thread."""

    def __init__(self, transport: SyncTransport, session: Session, terms: Terms) -> None:
        super().__init__(session, terms)
        self._transport = transport
        self._stop = Stop()
        self._thread: threading.Thread | None = None
        self._pid = 0

    def __enter__(self) -> Self:
        """Raises what submit() and wait() raise; whatever is raised, the job is given back."""
        terms, session = self._terms, self._session
        self._pid = os.getpid()
        deadline_s = None if terms.timeout_s is None else time.monotonic() + terms.timeout_s
        submit = operations.submit(session, terms.manifest, terms.request_id, terms.submitter, terms.hold_s)
        self._job = self._transport.run(submit)
        try:
            self._stream = watching.hold_stream(session, self.id)
            self._thread = threading.Thread(
                target=self._hold, args=(self._stream,), name=f"fmclient-hold-{self.id}", daemon=True
            )
            self._thread.start()
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            self._settle(self._transport.run(watching.wait(session, self.id, "running", left_s)))
        except BaseException:
            self._give_back()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._give_back()

    def _hold(self, stream: Resumable) -> None:
        try:
            for heard in self._transport.iterate(watching.hold(stream), self._stop):
                self._heard(heard)
        except FmschedError as error:
            self._fault = error
        except Exception as error:
            self._fault = FmschedError(
                f"holding failed: {error!r}"
            )  # the launcher must not count on GPUs that nobody holds
            raise

    def _give_back(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child leaves the block too; the GPUs are its parent's
        job = self.id
        try:
            # Best effort: a scheduler that cannot be reached frees the GPUs after hold_s by itself.
            with contextlib.suppress(FmschedError):
                self._transport.run(operations.cancel(self._session, job, GIVEN_BACK, RELEASE_S_MAX))
        finally:
            self._stop.ask()
            if self._thread is not None:
                self._thread.join(HOLDER_END_S_MAX)


class AsyncAllocation(_Held):
    """Made by AsyncClient.allocate(); used with `async with`. Holding goes on in a task."""

    def __init__(self, transport: AsyncTransport, session: Session, terms: Terms) -> None:
        super().__init__(session, terms)
        self._transport = transport
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Raises what submit() and wait() raise; whatever is raised, the job is given back."""
        terms, session = self._terms, self._session
        loop = asyncio.get_running_loop()
        deadline_s = None if terms.timeout_s is None else loop.time() + terms.timeout_s
        submit = operations.submit(session, terms.manifest, terms.request_id, terms.submitter, terms.hold_s)
        self._job = await self._transport.run(submit)
        try:
            self._stream = watching.hold_stream(session, self.id)
            self._task = asyncio.create_task(self._hold(self._stream), name=f"fmclient-hold-{self.id}")
            left_s = None if deadline_s is None else max(0.0, deadline_s - loop.time())
            self._settle(await self._transport.run(watching.wait(session, self.id, "running", left_s)))
        except BaseException:
            await self._give_back()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._give_back()

    async def _hold(self, stream: Resumable) -> None:
        try:
            async for heard in self._transport.iterate(watching.hold(stream)):
                self._heard(heard)
        except FmschedError as error:
            self._fault = error
        except Exception as error:
            self._fault = FmschedError(
                f"holding failed: {error!r}"
            )  # the launcher must not count on GPUs that nobody holds
            raise

    async def _give_back(self) -> None:
        try:
            # Best effort: a scheduler that cannot be reached frees the GPUs after hold_s by itself.
            with contextlib.suppress(FmschedError):
                await self._transport.run(operations.cancel(self._session, self.id, GIVEN_BACK, RELEASE_S_MAX))
        finally:
            if self._task is not None:
                self._task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._task
