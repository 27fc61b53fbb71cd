"""A limit of OpenSSL that Python's module ssl does not offer: the longest chain of certificates of a peer.

OpenSSL reserves as much memory as a peer announces for its chain, up to 100 KiB, before the peer has proved
anything. The limit is a field of the SSL_CTX, which is the first field of CPython's object behind an
SSLContext. No state; any thread.
"""

from __future__ import annotations

import ctypes
import ssl
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

# The versions whose layout of an SSLContext is known.
KNOWN_PYTHONS = ((3, 11), (3, 14))
# SSL_CTRL_GET_MAX_CERT_LIST, SSL_CTRL_SET_MAX_CERT_LIST and OpenSSL's default of the limit.
GET_LIMIT, SET_LIMIT, DEFAULT_LIMIT = 50, 51, 102_400

Control = Callable[[ctypes.c_void_p, int, int, None], int]


def limit_chain(context: ssl.SSLContext, most_bytes: int) -> bool:
    """Refuse a longer chain of certificates from peers; return whether that is possible.

    It is not where OpenSSL is part of the interpreter, or the interpreter is not a known CPython.
    """
    control = _control()
    if control is None:
        return False
    pointer = ctypes.c_void_p.from_address(id(context) + object.__basicsize__)
    if control(pointer, GET_LIMIT, 0, None) != DEFAULT_LIMIT:
        return False
    control(pointer, SET_LIMIT, most_bytes, None)
    return control(pointer, GET_LIMIT, 0, None) == most_bytes


@lru_cache(None)
def _control() -> Control | None:
    """Return OpenSSL's SSL_CTX_ctrl, of the library that the module ssl uses."""
    low, high = KNOWN_PYTHONS
    if sys.implementation.name != "cpython" or not low <= sys.version_info[:2] <= high:
        return None
    path = getattr(sys.modules["_ssl"], "__file__", None)
    if path is None:
        return None
    try:
        control: Any = ctypes.CDLL(path).SSL_CTX_ctrl
    except (OSError, AttributeError):
        return None
    control.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_void_p]
    control.restype = ctypes.c_long
    return cast(Control, control)
