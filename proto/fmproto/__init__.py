"""What fmsched's processes agree on: messages, the key layout, the connection to etcd, channel settings."""

__version__ = "0.1.0"
