"""Where gangs go: pure functions of a snapshot and a request. Start in solve.py; check.py is the naive judge of every answer."""
