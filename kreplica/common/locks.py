"""The locks for code below runtime/ and sim/.

Only runtime/ starts threads, but any module may guard a field against other threads. So the rest of the
package takes its locks from here and never imports `threading`; the importers of this module are the complete
list of lock users. Each lock is declared beside the fields it guards, with a comment naming them.

- `Lock`: short sections that call nothing that takes a lock again. The default.
- `RLock`: for holders that call methods of their own object that take the lock too, such as the log's.
- `Condition`: a wait for another thread's progress, with a timeout, such as a group commit.
- `process_lock()`: for what the whole process shares, such as a field of a module. A forked child keeps using
  it, so the lock is free there.

Lock order, outermost first: a manager's lock, a partition's, a log's, a file's.
"""

import threading
from collections.abc import Callable
from operator import attrgetter
from os import register_at_fork
from threading import Lock, RLock


class Condition(threading.Condition):
    """threading.Condition whose `with` enters and leaves in one C call.

    threading's takes the lock in a Python method. An asynchronous exception (Ctrl-C) can strike there between
    taking the lock and entering the block, and the lock would never be released.
    """

    __enter__ = property(attrgetter("_lock.__enter__"))
    __exit__ = property(attrgetter("_lock.__exit__"))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until notified, or for `timeout` seconds; whether it was notified.

        An exception from outside leaves the block with the lock held, as the block expects it. (threading's
        does not where the exception comes between its release of the lock and its wait.)
        """
        if not self._is_owned():  # type: ignore[attr-defined]
            raise RuntimeError("the lock is not held")
        try:
            return super().wait(timeout)
        except BaseException:
            if not self._is_owned():  # type: ignore[attr-defined]
                self._lock.acquire()  # type: ignore[attr-defined]
            raise


def process_lock(reset: Callable[[], None] | None = None) -> Lock:
    """Return a Lock that is free in a forked child, whichever thread of the parent held it.

    That thread does not exist in the child and would never release it. `reset` runs in the child and mends
    the fields that the lock guards, if their holder may have left them half-changed.
    """
    lock = Lock()
    register_at_fork(after_in_child=lock._at_fork_reinit)  # type: ignore[attr-defined]
    if reset is not None:
        register_at_fork(after_in_child=reset)
    return lock


__all__ = ["Condition", "Lock", "RLock", "process_lock"]
