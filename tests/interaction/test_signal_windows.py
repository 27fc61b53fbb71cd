"""Signals that reach `kreplica serve` between two steps, where they are rare: each step is held for them."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.support.ports import free_ports
from tests.support.serving import Command

# A supervisor whose nodes go on with their lives only once SIGTERM has come to them.
NODES_WAIT_FOR_IT = """
import os, signal, time
from kreplica.cli import main

leave_group = os.setpgid
def left_late(*arguments):
    while signal.SIGTERM not in signal.sigpending():
        time.sleep(0.001)
    leave_group(*arguments)
os.setpgid = left_late
main()
"""

# A supervisor in whose group Ctrl-C comes while its only node is still in it, and which itself goes on only
# when the node is at its work or has died.
NODE_GETS_CTRL_C = """
import os, signal
from kreplica.cli import main, serve

fork, leave_group, be_node = os.fork, os.setpgid, serve.run
at_work, at_work_of_node = os.pipe()
def fork_and_wait():
    process = fork()
    if process:
        os.close(at_work_of_node)
        os.read(at_work, 1)
    return process
def left_late(*arguments):
    os.killpg(os.getpgrp(), signal.SIGINT)
    leave_group(*arguments)
def tell_and_be(*arguments):
    os.write(at_work_of_node, b"!")
    be_node(*arguments)
os.fork, os.setpgid, serve.run = fork_and_wait, left_late, tell_and_be
main()
"""

# SIGTERM before each step of the wait in turn. A wait that has fewer steps is ended by the alarm.
SIGNAL_AT_EACH_STEP = """
import signal, sys
from kreplica.cli.serve import _End

def ended_at(step):
    end, seen = _End(), 0
    def trace(frame, event, argument):
        nonlocal seen
        frame.f_trace_opcodes = True
        seen += 1
        if seen == step:
            signal.raise_signal(signal.SIGTERM)
        return trace
    end.take_signals()
    end.has_started()
    signal.signal(signal.SIGALRM, lambda *_: end.fail(TimeoutError()))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    sys.settrace(trace)
    end.wait()
    sys.settrace(None)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return end.failure is None

step = 1
while ended_at(step):
    step += 1
print(step)
"""

# SIGTERM comes to another thread than the one that waits, as the system may decide.
SIGNAL_TO_ANOTHER_THREAD = """
import signal, sys, threading
from kreplica.cli.serve import _End

end, main = _End(), threading.main_thread()
end.take_signals()
end.has_started()
def send():
    while sys._current_frames()[main.ident].f_code is not _End.wait.__code__:
        pass
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
threading.Thread(target=send).start()
end.wait()
print("ended")
"""


def test_a_node_that_gets_sigterm_before_it_has_handlers(tmp_path: Path) -> None:
    arguments = ["serve", "--brokers", 3, "--directory", tmp_path / "d", "--listen", f":{free_ports(6)}"]
    with Command(*arguments, program=NODES_WAIT_FOR_IT) as cluster:
        children = cluster.wait_for_children(3)
        code, out, err = cluster.end(signal.SIGTERM)
    assert (code, out) == (128 + signal.SIGTERM, ""), err
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_ctrl_c_that_reaches_a_node_before_it_has_left_the_group(tmp_path: Path) -> None:
    arguments = ["serve", "--brokers", 1, "--directory", tmp_path / "d", "--listen", f":{free_ports(2)}"]
    with Command(*arguments, program=NODE_GETS_CTRL_C) as cluster:
        code, _, err = cluster.end()
    assert "before it was ready" not in err
    # The supervisor passes its own on as SIGTERM, which the node, at its work by then, may have handlers for.
    assert code in {0, 128 + signal.SIGTERM}, err


def test_a_signal_at_any_step_of_the_wait_for_one() -> None:
    with Command(program=SIGNAL_AT_EACH_STEP) as process:
        code, out, err = process.end()
    assert code == 0, err
    assert int(out) > 3


def test_a_signal_that_the_system_gives_to_another_thread() -> None:
    with Command(program=SIGNAL_TO_ANOTHER_THREAD) as process:
        assert process.end() == (0, "ended\n", "")
