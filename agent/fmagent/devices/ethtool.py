"""How fast a network interface can go, by the link modes that its driver says it supports (ETHTOOL_GLINKSETTINGS; no privilege needed).
What linux/include/uapi/linux/ethtool.h numbers and lays out."""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct

_SIOCETHTOOL = 0x8946  # linux/sockios.h
_GLINKSETTINGS = 0x4C
_HEADER_BYTES = 48  # struct ethtool_link_settings without its masks
_WORDS_AT = 15  # of link_mode_masks_nwords in it
_NAME_BYTES_MAX = 15

# (first bit, last bit, Gb/s) of enum ethtool_link_mode_bit_indices, from 10 Gb/s on; what lies between is slower, or no mode.
_MODES = (
    (12, 12, 10), (18, 20, 10), (21, 22, 20), (23, 26, 40), (27, 30, 56), (31, 33, 25), (34, 35, 50), (36, 39, 100), (40, 40, 50),
    (42, 46, 10), (52, 56, 50), (57, 61, 100), (62, 66, 200), (69, 73, 400), (75, 79, 100), (80, 84, 200), (85, 89, 400), (93, 98, 800),
    (103, 108, 200), (109, 114, 400), (115, 120, 800), (121, 124, 1600),
)  # fmt: skip


def max_gbps(interface: str) -> float:
    """The fastest mode that the interface supports, Gb/s; 0 where its driver names none (a bond, a virtual one) or it is slower than 10."""
    name = interface.encode(errors="replace")
    if not name or len(name) > _NAME_BYTES_MAX:
        return 0.0
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # Asked with no room for masks, the kernel answers how many words each has, negative.
            words = -struct.unpack_from("b", _ask(probe, name, 0), _WORDS_AT)[0]
            if not 0 < words <= 127:
                return 0.0
            answer = _ask(probe, name, words)
    except (OSError, ValueError):
        return 0.0
    return fastest_gbps(int.from_bytes(answer[_HEADER_BYTES : _HEADER_BYTES + 4 * words], "little"))


def fastest_gbps(supported: int) -> float:
    """Of a mask of link modes, bit 0 the first. Pure."""
    return float(
        max((gbps for first, last, gbps in _MODES if supported >> first & (1 << (last - first + 1)) - 1), default=0)
    )


def _ask(probe: socket.socket, name: bytes, words: int) -> bytes:
    """Raises OSError where the driver does not answer."""
    room = ctypes.create_string_buffer(struct.pack("<I11xb", _GLINKSETTINGS, words), _HEADER_BYTES + 3 * 4 * max(words, 1))
    request = struct.pack("16sP16x", name, ctypes.addressof(room))
    fcntl.ioctl(probe.fileno(), _SIOCETHTOOL, request)
    return room.raw
