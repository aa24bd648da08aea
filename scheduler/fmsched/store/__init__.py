"""Durable state: codec (messages to values and back), mirror (the store's picture in memory), ledger (guarded writes), election, and
the memory adapter of the store port.
"""
