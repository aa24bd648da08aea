"""The layout of etcd: who writes what. DESIGN: one writer per key.

| key                        | writer    | value                                                        |
|----------------------------|-----------|--------------------------------------------------------------|
| nodes/NODE/inventory       | agent     | Inventory; when it changes                                   |
| nodes/NODE/health          | agent     | Health; when it changes                                      |
| nodes/NODE/alive           | agent     | Alive; leased                                                |
| nodes/NODE/runs/JOB        | agent     | RunReport; there from before the first process until the node is seen free |
| intents/NODE               | scheduler | NodeIntent: drained                                          |
| fabric/map                 | scheduler | Fabric                                                       |
| jobs/JOB/spec, /status     | scheduler | JobSpec, JobStatus                                           |
| jobs/JOB/wanted            | scheduler | Wanted; its deletion is the order to cancel                  |
| decisions/JOB              | scheduler | Decision: the commit point                                   |
| assignments/NODE/JOB       | scheduler | Assignment, derived from the decision                        |
| ledger                     | scheduler | rewritten by every new decision: its revision guards the next one |
| sequence                   | scheduler | the number of the newest job: ids are never given twice      |
| echo                       | scheduler | rewritten by the leader every few seconds; silence only counts while it comes back |
| election/                  | scheduler | one leased key per candidate; the oldest leads               |
"""

from __future__ import annotations

ROOT = "/fmsched/v1/"

NODES = ROOT + "nodes/"
INTENTS = ROOT + "intents/"
FABRIC = ROOT + "fabric/map"
JOBS = ROOT + "jobs/"
DECISIONS = ROOT + "decisions/"
ASSIGNMENTS = ROOT + "assignments/"
LEDGER = ROOT + "ledger"
ECHO = ROOT + "echo"
SEQUENCE = ROOT + "sequence"
ELECTION = ROOT + "election/"


def inventory(node: str) -> str:
    return f"{NODES}{node}/inventory"


def health(node: str) -> str:
    return f"{NODES}{node}/health"


def alive(node: str) -> str:
    return f"{NODES}{node}/alive"


def run(node: str, job: str) -> str:
    return f"{NODES}{node}/runs/{job}"


def intent(node: str) -> str:
    return f"{INTENTS}{node}"


def job_spec(job: str) -> str:
    return f"{JOBS}{job}/spec"


def job_status(job: str) -> str:
    return f"{JOBS}{job}/status"


def job_wanted(job: str) -> str:
    return f"{JOBS}{job}/wanted"


def decision(job: str) -> str:
    return f"{DECISIONS}{job}"


def assignment(node: str, job: str) -> str:
    return f"{ASSIGNMENTS}{node}/{job}"


def assignments_of(node: str) -> str:
    """The prefix that an agent follows."""
    return f"{ASSIGNMENTS}{node}/"
