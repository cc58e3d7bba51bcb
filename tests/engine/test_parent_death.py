from __future__ import annotations

import os
import subprocess
import sys

from headrace.engine.parent_death import is_child_of
from tests.engine.conditions import eventually_sync, is_running

CHILD = """
import threading
from headrace.engine.parent_death import request_death_with_parent
request_death_with_parent()
print("asked", flush=True)
threading.Event().wait()
"""

PARENT = f"""
import subprocess, sys, threading
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
threading.Event().wait()
"""


def test_the_kernel_kills_a_child_that_asked_for_it_when_its_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child_pid = int(parent.stdout.readline())
        assert is_running(child_pid)
        parent.kill()
        parent.wait()
    eventually_sync(lambda: not is_running(child_pid), within_s=5.0)


def test_a_process_knows_its_parent() -> None:
    assert is_child_of(os.getppid())
    assert not is_child_of(os.getpid())
