"""Measurements. Each prints a table of what it measured in one run, and with --json one object last."""
