"""`ssd_gpu` without a GPU: its code on small cases in the interpreter, or its kernels compiled."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from lethe import provenance
from lethe.evidence import elsewhere, ssd_gpu
from lethe.evidence import ssd_gpu_ahead as ahead

Row = dict[str, Any]


def dry(target: int, compile_too: bool) -> int:
    """The whole run but its device: the checks, the search, the speeds and the record, in the interpreter on
    small cases, in a folder that is thrown away; or, with `compile_too`, every kernel of the run compiled."""
    from lethe.verifier.executors import library

    counted = {which: len(list(ahead.launches(which, target))) for which in ahead.SETS}
    print("kernels to compile:", counted, flush=True)
    if compile_too:
        failed = sum(ahead.compile_shard(which, target, 0, 1) for which in counted)
        print("do not compile:", failed, flush=True)
        return int(failed > 0)
    library.use_interpreter()
    for name in [name for name in sys.modules if name.startswith("lethe.kernels.ssd")]:
        del sys.modules[name]  # decorated as compiled functions while the launches were counted
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        elsewhere.note(out, "cpu")
        good = ssd_gpu.checks(out / ssd_gpu.CHECKS, 600.0, device="cpu") == 0
        rehearse(out)
        for part in ssd_gpu.PARTS:
            provenance.write_atomically(out / f"{part}.json", "{}")
        written = ssd_gpu.record(out, out / "measured", out / "table.json")
        print("recorded:", [path.name for path in written], flush=True)
    return int(not good or len(written) != 3)


def rehearse(out: Path) -> None:
    """A sample of the search and a row of the speeds, against a stand-in for the official operator."""
    from dataclasses import replace

    from lethe.kernels.ssd import bench
    from lethe.kernels.ssd import tune as search
    from lethe.kernels.ssd.bound import bind
    from lethe.kernels.ssd.tiles import Tiles

    small = {"batch": 1, "length": 40, "heads": 1, "dtype": "float16"}
    found = []
    for case in search.cases()[:2]:
        for op in ("SSD", "SSD_BWD"):
            base = bind(replace(case, **small), op, "cpu", None)  # type: ignore[arg-type]
            for kernel in sorted(search.searched(case, op)):
                row = search.timed(base, kernel, Tiles(), ("cpu", None), 2)
                about = {"case": case.id, "op": op, "kernel": kernel, "tiles": Tiles().record()}
                found.append({**about, **row})
    _lines(out / ssd_gpu.TUNE, found)
    table = {"rows": search.chosen(found, "a rehearsal")}
    assert len(table["rows"]) == 5, "the search chose nothing"
    provenance.write_atomically(out / ssd_gpu.TILES, json.dumps(table))

    def stand_in(x: Any, *others: Any, **options: Any) -> Any:
        tensors = [t for t in (*others, *options.values()) if hasattr(t, "float")]
        return x * sum(t.float().mean() for t in tensors)

    cases = [replace(case, **small) for case in list(bench.speed())[:2]]  # type: ignore[arg-type]
    rows = list(bench.rows(stand_in, 2, 600.0, ("cpu", None), cases))
    problems = [row.get("error") or row.get("problems") for row in rows]
    assert not any(problems), problems
    _lines(out / ssd_gpu.SPEED, rows)


def _lines(file: Path, rows: list[Row]) -> None:
    provenance.write_atomically(file, "".join(json.dumps(row) + "\n" for row in rows))
