"""gRPC channel and server options that must agree between both ends, in one place.

A client that pings more often than the server allows is cut off with GOAWAY too_many_pings (grpc/grpc#25722). etcd allows a ping
every 5 s (--grpc-keepalive-min-time) and our own servers are set to the same, so every client of ours pings at 10 s.
"""

from __future__ import annotations

CLIENT_PING_MS = 10_000
CLIENT_PING_TIMEOUT_MS = 5_000
SERVER_PING_MIN_MS = 5_000
MESSAGE_BYTES_MAX = 64 * 1024 * 1024

Options = list[tuple[str, int]]


def client_options() -> Options:
    return [
        ("grpc.keepalive_time_ms", CLIENT_PING_MS),
        ("grpc.keepalive_timeout_ms", CLIENT_PING_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),
    ]


def server_options() -> Options:
    return [
        ("grpc.http2.min_ping_interval_without_data_ms", SERVER_PING_MIN_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        # Two servers on one port would each get half of the callers.
        ("grpc.so_reuseport", 0),
    ]
