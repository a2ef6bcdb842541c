"""``python -m lethe.ptx.examples build [NAME ...]`` compiles and records; ``list`` shows what is recorded."""

from __future__ import annotations

import sys
from pathlib import Path

from lethe.ptx.examples import build, record


def main(arguments: list[str]) -> int:
    match arguments:
        case ["build", *names]:
            from lethe.ptx.examples import triton_kernels

            of_triton = [n for n in names if n.startswith("triton_")]
            of_cute = [n for n in names if n not in of_triton]
            if of_cute or not names:
                build.build(of_cute)
            if of_triton or not names:
                triton_kernels.build(of_triton)
        case ["build-arch", arch, folder, *names]:
            build.build_arch(arch, Path(folder), names)
        case ["list"] | []:
            for name in record.names():
                loaded = record.load(name)
                print(f"{name:28} {loaded.origin['arch']:8} {loaded.about}")
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
