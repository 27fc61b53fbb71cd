# Grants: what a connection's client has been allowed, so that the native lanes need not ask again.
#
# The rules are Python's (broker/gatekeeper.py). A request that a lane could take, and whose client has not been allowed
# all that it names, goes to Python; what Python allows is noted here. Rules never change: new ones are another object,
# and what was granted under others counts for nothing.
#
# Ownership: a ServerConnection has the grants of its client. Thread rule: any thread, with the GIL.

cdef class Grants:
    cdef readonly object rules
    cdef readonly set writable           # topics' names, as in the bytes of requests
    cdef readonly set readable           # topics' names and ids, as in the bytes of requests
    cdef readonly set transactional_ids  # as bytes, in UTF-8
    cdef public bint is_node             # it may do what nodes do
