"""What a connection's client has been allowed; the contract: grants.pxd."""

cdef enum:
    MOST_NAMES = 10000                # more than a client usually has; then it is asked again


cdef class Grants:
    """What was allowed under `rules`."""

    def __init__(self, rules):
        self.rules = rules
        self.writable = set()
        self.readable = set()
        self.transactional_ids = set()

    def add(self, set names not None, bytes name not None):
        """Note a name in one of the sets."""
        if len(names) >= MOST_NAMES:
            names.clear()
        names.add(name)
