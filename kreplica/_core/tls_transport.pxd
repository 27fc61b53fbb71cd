# TlsTransport: TLS between a plain transport of asyncio and a BufferedProtocol.
#
#     socket --> ReceiveBuffer, shared --pieces--> incoming --decrypt--> the protocol's own buffer
#     socket <-- transport <----------------------- outgoing <--encrypt-- write, writelines
#
# It is the protocol of the one and the transport of the other. The encryption is that of Python's module ssl, over two
# memory BIOs. A BIO keeps the size that it once had, so a client that is not trusted yet gets small ones: it is fed in
# pieces of 4 KiB. A silent connection has no TLS object at all. What a client may announce is bounded as well
# (ClientHello): OpenSSL clears as much memory as the header of a message claims.
#
# Ownership: the transport owns its TLS object; the loop's ReceiveBuffer is shared by all connections, and is empty at
# the end of each callback. When the connection is lost, it lets go of the protocol, so that both are freed at once.
# Thread rule: the thread of the event loop.

from libc.stdint cimport int64_t

from kreplica._core.frame_reader cimport ReceiveBuffer
from kreplica._core.task_queue cimport TaskQueue


cdef class ClientHello:
    # The bytes of the client's flight so far; and whether the one behind a HelloRetryRequest is expected.
    cdef bytes taken
    cdef bint is_second

    # Return the flight once it is complete, None before. Raises ConnectionAbortedError.
    cdef bytes take(self, object piece)


cdef class TlsTransport:
    cdef public object protocol   # from the end of the handshake until the connection is lost
    cdef object plain
    cdef object context
    cdef bint is_server
    cdef object server_hostname
    cdef ReceiveBuffer received
    cdef TaskQueue tasks
    cdef object tls               # the ssl.SSLObject, from the first bytes on
    cdef object incoming
    cdef object outgoing
    cdef ClientHello hello        # what a client's first bytes have to be; None once they were
    cdef int64_t handshake_bytes  # received before the end of the handshake
    cdef public bint is_trusted   # whether the peer may have large buffers
    cdef bint is_open             # the handshake is done
    cdef bint is_paused           # the protocol takes no more for now
    cdef bint is_closing

    cdef int feed(self, int64_t size) except -1
    cdef int start(self) except -1
    cdef bint shake_hands(self) except -1
    cdef int deliver(self) except -1
    cdef int end(self, object error) except -1
    cdef int encrypt(self, object data, list full) except -1
    cdef int flush(self) except -1
