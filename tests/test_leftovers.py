"""Tests leave nothing behind, also when they are ended early."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

WAITS = """
def test_waits(redis_url):
    print("begun", flush=True)
    import time; time.sleep(120)
"""


def test_tests_that_are_terminated_stop_their_redis_and_remove_its_folder() -> None:
    with tempfile.TemporaryDirectory(prefix="rh-") as folder:  # socket paths are short
        file, left = Path(folder) / "test_waits.py", Path(folder) / "temporary"
        file.write_text(WAITS)
        left.mkdir()
        command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", "-p", "tests.conftest", str(file)]
        with subprocess.Popen(
            command, env={**os.environ, "TMPDIR": str(left)}, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert any("begun" in line for line in process.stdout)
            assert list(left.glob("rh-redis-*/redis.sock"))
            process.send_signal(signal.SIGTERM)
            process.stdout.read()
        assert list(left.glob("rh-*")) == []
