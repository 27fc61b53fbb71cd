"""The locks that code below runtime/ and sim/ may hold.

Starting a thread is the business of runtime/; guarding a field against other threads is everybody's. So the
rest of the package takes its locks from here and never imports `threading`, and a look at who imports this
module shows every lock there is. Each is declared beside the fields it guards, with a comment naming them.

- `Lock`: short sections that call nothing which locks again. The default.
- `RLock`: the log's lock and others whose holder calls methods of its own object that take it too.
- `Condition`: a wait for another thread's progress, with a timeout; group commit is the example.

Order, outermost first, where two are held at once: a manager's lock, a partition's, a log's, a file's.
"""

import threading
from operator import attrgetter
from threading import Lock, RLock


class Condition(threading.Condition):
    """As threading's, with `with` in one call of C for each end.

    threading's takes the lock in a method in Python. An exception from outside, Ctrl-C say, can come there
    between the lock and the block, and nothing would release it.
    """

    __enter__ = property(attrgetter("_lock.__enter__"))
    __exit__ = property(attrgetter("_lock.__exit__"))


__all__ = ["Condition", "Lock", "RLock"]
