"""Runs nvcc, and keeps what ptxas says of registers beside the object: `ptxas_log.py nvcc ... -o OBJECT ...`.

Everything else that nvcc says is passed on.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main() -> int:
    command = sys.argv[1:]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    kept: list[str] = []
    for line in done.stdout.splitlines():
        # What belongs to a line of ptxas' is indented.
        if line.startswith("ptxas info") or (kept and line.startswith("    ") and "bytes stack frame" in line):
            kept.append(line)
        else:
            print(line, file=sys.stderr)
    if done.returncode == 0 and "-o" in command:
        Path(f"{command[command.index('-o') + 1]}.ptxas").write_text("\n".join(kept) + "\n")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
