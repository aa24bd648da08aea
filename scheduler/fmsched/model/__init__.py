"""Frozen values that decisions are made of. No behaviour that touches the outside; nothing here imports from other floors."""
