"""Run counterexample scripts as a stranger would, but many of them for the price of one start.

    python -I run_scripts.py < jobs.json > results.json

Jobs are lists of a script and its arguments. torch and triton are imported once; every script then runs
from its file in a process forked for it, in which importing lethe fails. Results are ``[exit status,
what it printed]``; a script that dies by a signal has the negative signal number.
"""

import json
import os
import runpy
import sys
import tempfile
import traceback

os.environ["TRITON_INTERPRET"] = "1"
import torch
import triton  # noqa: F401 (imported for the scripts)

torch.set_num_threads(1)


def run(job: list[str]) -> list:
    with tempfile.TemporaryFile("w+") as out:
        child = os.fork()
        if child == 0:
            status = 70
            try:
                os.dup2(out.fileno(), 1)
                os.dup2(out.fileno(), 2)
                sys.modules["lethe"] = None  # type: ignore[assignment]
                sys.argv = job
                runpy.run_path(job[0], run_name="__main__")
            except SystemExit as e:
                status = e.code if isinstance(e.code, int) else 70
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(status)
        _, ended = os.waitpid(child, 0)
        out.seek(0)
        return [os.waitstatus_to_exitcode(ended), out.read()]


if __name__ == "__main__":
    jobs = json.load(sys.stdin)
    print(json.dumps([run(job) for job in jobs]))
