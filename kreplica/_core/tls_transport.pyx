"""TLS over a plain transport; purpose, ownership and thread rule: tls_transport.pxd."""

import ssl

from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int64_t

from kreplica._core.frame_reader cimport ReceiveBuffer
from kreplica._core.task_queue cimport TaskQueue

cdef enum:
    RECORD_BYTES = 16384               # the most that TLS encrypts at once
    PIECE_BYTES = 4096                 # what a peer that is not trusted may leave in `incoming`
    OUTGOING_BYTES = 65536             # more is taken out of `outgoing` in between
    MOST_HANDSHAKE_BYTES = 32768       # with a chain of certificates it is a few KiB
    RECORD_HEADER_BYTES = 5
    MESSAGE_HEADER_BYTES = 4
    CHANGE_CIPHER_SPEC = 20
    HANDSHAKE = 22
    CLIENT_HELLO = 1

# A ServerHello with this random number asks for another ClientHello (RFC 8446, 4.1.3). Before it come the two
# headers and the version.
RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
RETRY_AT = RECORD_HEADER_BYTES + MESSAGE_HEADER_BYTES + 2

cdef object WantRead = ssl.SSLWantReadError
cdef object MemoryBIO = ssl.MemoryBIO


cdef class ClientHello:
    """A client's first flight: one record with one whole ClientHello, and nothing behind it.

    Every client sends it like that. A claim of more makes OpenSSL reserve up to 128 KiB.
    """

    def __cinit__(self):
        self.taken = b""

    cdef bytes take(self, object piece):
        cdef bytes taken = self.taken + bytes(piece)
        cdef int64_t at = 0, length, message
        self.taken = taken
        if not taken or taken[0] not in (HANDSHAKE, CHANGE_CIPHER_SPEC):
            return taken  # OpenSSL names the error
        if self.is_second and taken[0] == CHANGE_CIPHER_SPEC:
            # In front of the second ClientHello clients send this record of one byte, for old proxies.
            at = RECORD_HEADER_BYTES + 1
        if len(taken) < at + RECORD_HEADER_BYTES + MESSAGE_HEADER_BYTES:
            return None
        length = int.from_bytes(taken[at + 3 : at + 5], "big")
        message = int.from_bytes(taken[at + 6 : at + 9], "big")
        if taken[at] != HANDSHAKE or taken[at + 5] != CLIENT_HELLO or message + MESSAGE_HEADER_BYTES != length:
            raise ConnectionAbortedError("a handshake does not begin with one whole ClientHello")
        at += RECORD_HEADER_BYTES + length
        if len(taken) > at:
            raise ConnectionAbortedError("more than a ClientHello came before its answer")
        return taken if len(taken) == at else None


cdef class TlsTransport:
    """TLS over a plain transport: the protocol of that one, and the transport of `protocol`.

    `context`: an ssl.SSLContext. `received`: the buffer of the loop for what comes encrypted. A subclass overrides
    `handshake_done()`, which returns the protocol; and `handshake_failed(error)`, called once if there is no
    connection; after it the socket is closed.
    """

    def __init__(self, context, ReceiveBuffer received not None, TaskQueue tasks not None, *, bint is_server,
                 server_hostname=None):
        self.context = context
        self.received = received
        self.tasks = tasks
        self.is_server = is_server
        self.server_hostname = server_hostname
        self.hello = ClientHello() if is_server else None
        if not is_server:
            self.start()

    # ---- the protocol of the plain transport -----------------------------------------------------------------

    def connection_made(self, plain):
        self.plain = plain
        if not self.is_server:
            self.shake_hands()

    def get_buffer(self, _size_hint):
        self.received.used = 0
        return self.received

    def buffer_updated(self, int64_t nbytes):
        if not self.is_closing:
            self.feed(nbytes)

    def pause_writing(self):
        if self.is_open:
            self.protocol.pause_writing()

    def resume_writing(self):
        if self.is_open:
            self.protocol.resume_writing()

    def eof_received(self):
        if self.is_open and not self.is_closing:
            self.protocol.eof_received()

    def connection_lost(self, error):
        cdef object protocol = self.protocol
        cdef bint was_open = self.is_open
        cdef bint was_closing = self.is_closing
        self.is_closing = True
        self.is_open = False
        self.protocol = self.tls = self.context = None
        if was_open:
            protocol.connection_lost(error)
        elif not was_closing:
            self.handshake_failed(error or ConnectionResetError("the peer left during the handshake"))

    # ---- the transport of the protocol -----------------------------------------------------------------------

    def write(self, data):
        if self.is_open and not self.is_closing:
            self.encrypt(data, None)
            self.flush()

    def writelines(self, buffers):
        cdef list small = []
        cdef list full = []
        cdef int64_t size = 0
        cdef int64_t length
        if not self.is_open or self.is_closing:
            return
        for data in buffers:
            length = len(data)
            if length < RECORD_BYTES:
                # Each record costs: what is small shares one.
                small.append(data)
                size += length
                if size < RECORD_BYTES:
                    continue
                data = b"".join(small)
            elif small:
                self.encrypt(b"".join(small), full)
            small = []
            size = 0
            self.encrypt(data, full)
        if small:
            self.encrypt(small[0] if len(small) == 1 else b"".join(small), full)
        if full:
            full.append(self.outgoing.read())
            self.plain.writelines(full)
        else:
            self.flush()

    def pause_reading(self):
        self.is_paused = True
        self.plain.pause_reading()

    def resume_reading(self):
        self.is_paused = False
        if self.is_open and not self.is_closing:
            self.plain.resume_reading()
            if self.incoming.pending or self.tls.pending():
                # Not directly: the protocol may be in the middle of something.
                self.tasks.post(self.go_on)

    def go_on(self):
        """Deliver what came before a pause."""
        if self.is_open and not self.is_closing:
            self.deliver()

    def close(self):
        if self.is_closing:
            return
        self.is_closing = True
        if self.is_open:
            try:
                self.tls.unwrap()
            except ssl.SSLError:
                pass  # the peer does not have to answer
            self.flush()
        self.plain.close()

    def abort(self):
        self.is_closing = True
        self.plain.abort()

    def get_write_buffer_size(self):
        return self.plain.get_write_buffer_size()

    def set_write_buffer_limits(self, high=None, low=None):
        self.plain.set_write_buffer_limits(high=high, low=low)

    def get_extra_info(self, name, default=None):
        return self.tls if name == "ssl_object" else self.plain.get_extra_info(name, default)

    # ---- what comes ------------------------------------------------------------------------------------------

    cdef int feed(self, int64_t size) except -1:
        cdef int64_t at = 0
        cdef int64_t length
        while at < size and not self.is_closing:
            length = size - at
            if length > PIECE_BYTES and not (self.is_trusted or self.is_paused):
                length = PIECE_BYTES
            piece = PyMemoryView_FromMemory(<char *> self.received.data + at, length, PyBUF_READ)
            at += length
            if self.is_open:
                self.incoming.write(piece)
                if not self.is_paused:
                    self.deliver()
            else:
                self.handshake_bytes += length
                self.take_handshake(piece)
        return 0

    def take_handshake(self, piece):
        """Take a piece of the handshake, and of what comes directly behind it."""
        cdef bytes hello
        if self.hello is not None:
            try:
                hello = self.hello.take(piece)
            except ConnectionAbortedError as error:
                self.end(error)
                return
            if hello is None:
                return
            self.hello = None
            piece = hello
        if self.tls is None:
            self.start()
        self.incoming.write(piece)
        if self.shake_hands():
            self.deliver()
        elif self.handshake_bytes > MOST_HANDSHAKE_BYTES and not self.is_closing:
            self.end(ConnectionAbortedError(f"a handshake of more than {MOST_HANDSHAKE_BYTES} bytes"))

    cdef int start(self) except -1:
        self.incoming, self.outgoing = MemoryBIO(), MemoryBIO()
        self.tls = self.context.wrap_bio(
            self.incoming, self.outgoing, server_side=self.is_server, server_hostname=self.server_hostname)
        return 0

    cdef bint shake_hands(self) except -1:
        # Return whether the protocol can get what came.
        cdef bytes answer
        try:
            self.tls.do_handshake()
        except WantRead:
            answer = self.outgoing.read()
            if answer:
                self.plain.write(answer)
            if self.is_server and answer[RETRY_AT : RETRY_AT + len(RETRY)] == RETRY:
                self.hello = ClientHello()
                self.hello.is_second = True
            return False
        except ssl.SSLError as error:
            self.flush()
            self.end(error)
            return False
        self.flush()
        self.is_open = True
        self.protocol = self.handshake_done()
        return not self.is_closing and not self.is_paused

    cdef int deliver(self) except -1:
        cdef object buffer, view, problem = None
        cdef int64_t filled, size, got = -1
        cdef bint has_more = True
        while has_more and not self.is_paused and not self.is_closing:
            buffer = self.protocol.get_buffer(-1)
            view = memoryview(buffer)
            size = len(view)
            filled = 0
            while filled < size:
                try:
                    got = self.tls.read(size - filled, view[filled:] if filled else view)
                except WantRead:
                    has_more = False
                    break
                except ssl.SSLError as error:
                    problem = error
                    has_more = False
                    break
                if not got:
                    has_more = False
                    break
                filled += got
                if not self.incoming.pending and not self.tls.pending():
                    has_more = False
                    break
            view = None
            self.flush()  # a message of TLS may have to be answered
            if filled:
                self.protocol.buffer_updated(filled)
        if problem is not None:
            self.end(problem)
        elif not got and not self.is_closing:
            # The peer has said that it ends.
            self.protocol.eof_received()
            self.close()
        return 0

    cdef int end(self, object error) except -1:
        # Close the connection because of an error. An alert of TLS for the peer is sent before.
        cdef bint was_closing = self.is_closing
        self.is_closing = True
        if not self.is_open and not was_closing:
            self.handshake_failed(error)
        self.plain.close()
        return 0

    # ---- what leaves -----------------------------------------------------------------------------------------

    cdef int encrypt(self, object data, list full) except -1:
        # `full`: takes what is ready, so that `outgoing` remains small; None: that is not needed.
        cdef int64_t size = len(data)
        cdef int64_t at = 0
        if size <= RECORD_BYTES:
            if size:
                self.tls.write(data)
            return 0
        view = memoryview(data).cast("B")
        while at < size:
            at += <int64_t> self.tls.write(view[at : at + RECORD_BYTES])
            if self.outgoing.pending >= OUTGOING_BYTES:
                ready = self.outgoing.read()
                if full is None:
                    self.plain.write(ready)
                else:
                    full.append(ready)
        return 0

    cdef int flush(self) except -1:
        if self.outgoing is not None and self.outgoing.pending:
            self.plain.write(self.outgoing.read())
        return 0
