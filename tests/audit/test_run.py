"""The audit's machinery: resuming, shards, dying workers, files that are not ours."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lethe.audit import lines
from lethe.audit.corpora import CorpusError, ListedCorpus, in_shard, open_corpus, stratified
from lethe.audit.lines import Log, LogError
from lethe.audit.pool import JudgeSettings
from lethe.audit.run import Selection, Summary, merge, run, write
from tests.audit import fakes

REPOSITORY = Path(__file__).resolve().parents[2]


def canonical(path: Path) -> list[str]:
    return [lines.canonical(line) for line in merge([path])]


SLOW = "# sleep 0.25\n# fail EXC-01\n"
QUICK = "# fail EXC-01\n"


def undisturbed(path: Path, source: str) -> list[str]:
    run(fakes.corpus(4, source), path, settings=fakes.SETTINGS, workers=0)
    return canonical(path)


def audit_process(path: Path, workers: int) -> subprocess.Popen[bytes]:
    arguments = [str(path), "4", str(workers), SLOW]
    return subprocess.Popen([sys.executable, "-m", "tests.audit.fakes", *arguments], cwd=REPOSITORY)


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def lines_in(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize("workers", [0, 2], ids=["in-process", "two-workers"])
def test_killed_three_times_and_resumed_gives_the_undisturbed_lines(tmp_path: Path, workers: int) -> None:
    path = tmp_path / "audit.jsonl"
    chance = random.Random(workers)
    for kill in range(3):
        process = audit_process(path, workers)
        assert wait_for(lambda n=kill: lines_in(path) >= n)  # type: ignore[misc]
        time.sleep(chance.uniform(0.0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.wait()
    summary = run(fakes.corpus(4, SLOW), path, settings=fakes.SETTINGS, workers=0)
    assert summary.complete and summary.done_before >= 2
    assert canonical(path) == undisturbed(tmp_path / "undisturbed.jsonl", SLOW)


def resume(path: Path) -> Summary:
    return run(fakes.corpus(4, QUICK), path, settings=fakes.SETTINGS, workers=0)


def test_workers_of_a_killed_audit_end_by_themselves(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    process = audit_process(path, 2)
    assert wait_for(lambda: lines_in(path) >= 1)
    workers = {json.loads(text)["timing"]["environment"]["pid"] for text in path.read_text().splitlines()}
    process.kill()
    process.wait()
    assert workers and process.pid not in workers
    assert wait_for(lambda: not any(alive(pid) for pid in workers), 10.0)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("cut", [1, 2, 40, 400], ids="cut-{}".format)
def test_a_torn_last_line_is_judged_again(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "audit.jsonl"
    resume(path)
    data = path.read_bytes()
    path.write_bytes(data[:-cut])
    assert len(merge([path])) == 3
    assert resume(path).judged == 1
    assert canonical(path) == undisturbed(tmp_path / "undisturbed.jsonl", QUICK)


def test_second_run_judges_nothing_and_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    resume(path)
    before = path.read_bytes()
    summary = resume(path)
    assert (summary.judged, summary.done_before, summary.complete) == (0, 4, True)
    assert path.read_bytes() == before


def test_rows_that_nobody_could_judge_are_judged_again_where_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    corpus = ListedCorpus(
        "fake", [fakes.row("kept"), fakes.row("broken", "# fail EXC-01"), fakes.row("open", "# raise")]
    )
    ask = {"settings": fakes.SETTINGS, "workers": 0}
    assert run(corpus, path, **ask).judged == 3
    assert run(corpus, path, **ask).judged == 0
    summary = run(corpus, path, **ask, undecided=True)
    assert (summary.judged, summary.done_before, summary.complete) == (1, 2, True)
    assert [line["id"] for line in lines.read(path)] == ["kept", "broken", "open", "open"]


def test_again_appends_and_the_last_line_wins(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    resume(path)
    corpus = fakes.corpus(4, QUICK)
    run(corpus, path, settings=fakes.SETTINGS, selection=Selection(rows=("r2",)), workers=0, again=True)
    assert len(path.read_text().splitlines()) == 5
    assert [line["id"] for line in merge([path])] == ["r0", "r1", "r2", "r3"]


def test_a_changed_source_is_judged_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    run(ListedCorpus("fake", [fakes.row("a"), fakes.row("b")]), path, settings=fakes.SETTINGS, workers=0)
    changed = ListedCorpus("fake", [fakes.row("a"), fakes.row("b", "# new\n# fail CMP-01\n")])
    assert run(changed, path, settings=fakes.SETTINGS, workers=0).judged == 1
    assert [bool(lines.verdict_of(line).failed) for line in merge([path])] == [False, True]


def test_shards_cover_every_row_once_and_merge_in_corpus_order(tmp_path: Path) -> None:
    corpus = fakes.corpus(12)
    shards = []
    for shard in (3, 1, 2):
        shards.append(tmp_path / f"{shard}.jsonl")
        run(corpus, shards[-1], settings=fakes.SETTINGS, selection=Selection(shard, 3), workers=0)
    whole = tmp_path / "whole.jsonl"
    run(corpus, whole, settings=fakes.SETTINGS, workers=0)
    merged = merge(shards)
    assert [line["order"] for line in merged] == list(range(12))
    assert [lines.canonical(line) for line in merged] == canonical(whole)
    write(tmp_path / "merged.jsonl", merged)
    assert canonical(tmp_path / "merged.jsonl") == canonical(whole)


def test_a_row_stays_in_its_shard_when_the_corpus_grows() -> None:
    assert [i for i in range(1, 5) if in_shard("softmax_row__a", i, 4)] == [4]


def test_a_row_that_kills_its_judge_is_tried_again_in_a_fresh_worker(tmp_path: Path) -> None:
    corpus = ListedCorpus(
        "fake",
        [
            fakes.row("always", "# die\n"),
            fakes.row("once", f"# die once {tmp_path / 'marker'}\n"),
            fakes.row("fine", "# fail EXC-01\n"),
            fakes.row("bug", "# raise\n"),
        ],
    )
    path = tmp_path / "audit.jsonl"
    assert run(corpus, path, settings=fakes.SETTINGS, workers=2).complete
    got = {line["id"]: line["verdict"] for line in merge([path])}
    assert got["always"]["status"] == "harness_failed" and "twice" in got["always"]["message"]
    assert got["once"]["status"] == "judged"
    assert [g["gate"] for g in got["fine"]["gates"] if g["status"] == "fail"] == ["EXC-01"]
    assert got["bug"]["status"] == "harness_failed" and "a bug of the judge" in got["bug"]["message"]


@pytest.mark.parametrize("workers", [0, 1], ids=["in-process", "one-worker"])
def test_a_judge_that_cannot_be_made_stops_the_audit(tmp_path: Path, workers: int) -> None:
    settings = replace(fakes.SETTINGS, device="cuda")
    with pytest.raises(ValueError, match="no CUDA device"):
        run(fakes.corpus(2), tmp_path / "audit.jsonl", settings=settings, workers=workers)
    assert (tmp_path / "audit.jsonl").read_bytes() == b""


def test_interrupt_keeps_what_was_judged(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    process = audit_process(path, 2)
    assert wait_for(lambda: lines_in(path) >= 1)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(timeout=15) == 0
    assert path.read_bytes().endswith(b"\n")
    assert 1 <= len(merge([path])) <= 4


def test_other_settings_do_not_mix_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    run(fakes.corpus(1), path, settings=fakes.SETTINGS, workers=0)
    with pytest.raises(LogError, match='profile="derived", this run has "paper"'):
        run(fakes.corpus(2), path, settings=replace(fakes.SETTINGS, profile="paper"), workers=0)


def test_two_audits_cannot_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with Log(path), pytest.raises(LogError, match="another audit is writing"):
        Log(path)


@pytest.mark.parametrize("content", ["my thesis", "my thesis\n", '{"a": 1}\n', '{"a": 1}'])
def test_a_file_that_is_not_an_audit_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_text(content)
    with pytest.raises(LogError):
        run(fakes.corpus(1), path, settings=fakes.SETTINGS, workers=0)
    assert path.read_text() == content


def test_selection_names_what_does_not_exist() -> None:
    corpus = fakes.corpus(3)
    with pytest.raises(CorpusError, match="did you mean r1"):
        Selection(rows=("r1x",)).of(corpus)
    with pytest.raises(CorpusError, match="no shard 4 of 3"):
        Selection(4, 3).of(corpus)
    with pytest.raises(CorpusError, match="unknown order"):
        Selection(order="random").of(corpus)


def test_any_prefix_of_the_stratified_order_is_proportional() -> None:
    rows = [fakes.row(f"a{i}", family="a") for i in range(300)] + [
        fakes.row(f"b{i}", family="b") for i in range(100)
    ]
    ordered = stratified(rows)
    assert sorted(r.id for r in ordered) == sorted(r.id for r in rows)
    for n in (20, 40, 100, 333):
        share = sum(r.family == "b" for r in ordered[:n])
        assert abs(share - n / 4) <= 1
    assert [r.id for r in ordered if r.family == "a"][:20] != [f"a{i}" for i in range(20)]
    assert stratified(reversed(rows)) == ordered


def test_a_line_gives_back_its_verdict(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    run(fakes.corpus(1, "# fail EXC-01\n"), path, settings=fakes.SETTINGS, workers=0)
    (line,) = merge([path])
    verdict = lines.verdict_of(line)
    assert verdict.failed == ("EXC-01",)
    assert verdict.environment["pid"] == os.getpid()
    assert json.loads(verdict.canonical()) == line["verdict"]
    assert "elapsed" not in json.dumps(line["verdict"])


@pytest.mark.slow
def test_the_real_judge_over_house_rows(tmp_path: Path) -> None:
    """Two workers and one process, with the verifier's own judge, give the same lines."""
    corpus = open_corpus("house")
    selection = Selection(rows=("activation_leaky_relu__a", "reduction_max__cpp"))
    settings = JudgeSettings(device="cpu", quick=True, gates=("EXC-01", "RES-01"))
    run(corpus, tmp_path / "two.jsonl", settings=settings, selection=selection, workers=2)
    run(corpus, tmp_path / "one.jsonl", settings=settings, selection=selection, workers=0)
    assert canonical(tmp_path / "two.jsonl") == canonical(tmp_path / "one.jsonl")
    assert {line["verdict"]["status"] for line in merge([tmp_path / "one.jsonl"])} == {"judged"}


def test_a_line_that_lacks_what_every_line_holds_is_named(tmp_path):
    (tmp_path / "house.jsonl").write_text('{"schema": "lethe.audit/1", "id": "a"}\n')
    with pytest.raises(lines.LogError, match=r"line 1 of .* lacks corpus, settings, verdict, timing"):
        list(lines.read(tmp_path / "house.jsonl"))
