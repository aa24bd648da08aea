"""Commands that need no service: what fmctl finds by the entry points fmctl.offline, and a whole cluster on one machine (local.py)."""
