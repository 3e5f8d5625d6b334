"""Builds the libraries of this source tree: `python -m kernels.build`. Only what has changed is compiled."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from kernels import resources

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "kernels"
"""Folder in which the compilers work."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kernels.build", description=__doc__)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="compilers at a time")
    parser.add_argument("--no-cuda", action="store_true", help="leave the CUDA bodies out even where nvcc is")
    parser.add_argument("--resources", action="store_true", help="then print what each CUDA kernel takes of a GPU")
    arguments = parser.parse_args()
    # The environment's own cmake and ninja come first: its programs need not be on the PATH.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    cmake = shutil.which("cmake")
    if cmake is None:
        sys.exit("kernels: cmake is missing; install it with: pip install cmake ninja")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    configure = [cmake, "-S", str(ROOT), "-B", str(BUILD), *generator, f"-DPython_EXECUTABLE={sys.executable}"]
    configure += [f"-DROUNDHOUSE_CUDA={'OFF' if arguments.no_cuda else 'AUTO'}", "-DROUNDHOUSE_STRICT=ON"]
    configure += ["-DROUNDHOUSE_EMULATOR=ON", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]
    configure += ["-DCMAKE_MESSAGE_LOG_LEVEL=WARNING"]
    for command in (
        configure,
        [cmake, "--build", str(BUILD), "--parallel", str(arguments.jobs)],
        [cmake, "--install", str(BUILD), "--prefix", str(ROOT)],
    ):
        if subprocess.run(command).returncode != 0:
            sys.exit("kernels: the build failed (see above)")
    if arguments.resources:
        print(resources.markdown(resources.built(BUILD)))


if __name__ == "__main__":
    main()
