"""The rows to read by hand: what is drawn, what is kept, and that nothing stays unread unnoticed."""

from __future__ import annotations

import json

import pytest

from lethe.audit import agreement, lines, measured, report, review, review_kit
from lethe.audit.corpora import ListedCorpus
from lethe.audit.run import run
from lethe.paper.differential_tables import judge_of
from tests.audit import fakes
from tests.audit.test_robustness import with_findings
from tests.paper.lines import line

VARIANT = "48642c5c"


def check_line(made: dict, accepted: bool | None) -> dict:
    return {
        "schema": "lethe.differential/1",
        **{k: made[k] for k in ("id", "corpus", "problem", "family", "accepted")},
        "variant": VARIANT,
        "implementation": "theirs",
        "precision": "float32",
        "candidate_sha256": "1",
        "problem_sha256": "0",
        "outcome": {
            "accepted": accepted,
            "status": "judged",
            "passed": 5,
            "message": "" if accepted else "off by up to 3",
            "seconds": 1.0,
        },
    }


def campaign() -> tuple:
    """60 convicted rows that the check accepts (six of them in a rare channel), 3 clean ones it rejects."""
    value = [with_findings(i, ("CMP-01", "value", "B"), problem=f"p{i % 7}") for i in range(30)]
    masks = [with_findings(i, ("EXC-01", "minted", "T"), ("CMP-01", "value", "B")) for i in range(30, 54)]
    rare = [with_findings(i, ("ORD-02", "aliasing", "T")) for i in range(54, 60)]
    clean = [with_findings(i) for i in range(60, 70)]
    rows = [*value, *masks, *rare, *clean]
    checks = [check_line(m, True) for m in rows[:60]]
    checks += [check_line(m, i >= 3) for i, m in enumerate(clean)]
    return report.frame(rows), agreement.frame(checks)


def test_rare_channels_are_read_and_the_reverse_cell_whole():
    audit, checks = campaign()
    drawn = review.draw(audit, checks)
    cells = [r["cell"] for r in drawn]
    assert cells.count(review.LOAD_BEARING) == review.ROWS and cells.count(review.REVERSE) == 3
    channels = [r["channel"] for r in drawn[: review.ROWS]]
    assert {c: channels.count(c) for c in set(channels)} == {"CMP-01": 20, "EXC-01": 16, "aliasing": 4}
    assert review.draw(audit, checks) == drawn
    again = audit.sample(frac=1.0, random_state=1)
    assert {r["id"] for r in review.draw(again, checks)} == {r["id"] for r in drawn}


@pytest.mark.parametrize(
    ("sizes", "rows", "expected"),
    [
        ({"a": 3, "b": 1}, 40, {"a": 3, "b": 1}),
        ({"a": 100, "b": 1, "c": 5}, 10, {"a": 7, "b": 1, "c": 2}),
        ({"a": 5, "b": 5, "c": 5}, 4, {"a": 2, "b": 1, "c": 1}),
        ({}, 40, {}),
    ],
)
def test_allocation(sizes, rows, expected):
    assert review.allocation(sizes, rows) == expected


def test_a_class_is_kept_while_the_verdict_is_the_same(tmp_path):
    audit, checks = campaign()
    drawn = review.draw(audit, checks)
    file = tmp_path / "review.json"
    read = [{**row, "class": "broken", "sentence": "It is."} for row in drawn]
    review.save(file, read)
    assert review.load(file) == read
    assert review.problems(drawn, review.load(file)) == []
    assert review.keep(drawn, read) == read
    moved = [{**drawn[0], "fingerprint": "0" * 12}, *drawn[1:]]
    assert review.keep(moved, read)[0]["class"] is None
    assert review.problems(moved, read) == [f"{drawn[0]['id']} was read for another verdict than today's"]
    table = review.summary(read).set_index("class")
    assert table.loc["broken", review.LOAD_BEARING] == 40 and table.loc["not read yet", review.REVERSE] == 0


def test_what_is_missing_is_told_row_by_row():
    audit, checks = campaign()
    drawn = review.draw(audit, checks)
    read = [{**row, "class": "broken", "sentence": "It is."} for row in drawn]
    read[0]["class"] = None
    read[1]["class"] = "wrong"
    read[2]["sentence"] = " "
    found = review.problems(drawn, read[:-1])
    assert [f.split(" ", 1)[1].split(",")[0].split(";")[0] for f in found] == [
        "is not classified yet",
        "(reverse) was drawn",
        "has the class 'wrong'",
        "has a class",
    ]


def test_the_command_draws_writes_a_sheet_and_checks(tmp_path, capsys):
    rows = [with_findings(0, ("EXC-01", "minted", "T")), with_findings(1)]
    audit, checks, data = tmp_path / "audit.jsonl", tmp_path / "checks.jsonl", tmp_path / "review.json"
    audit.write_text("".join(json.dumps(r, sort_keys=True) + "\n" for r in rows))
    checks.write_text("".join(json.dumps(check_line(r, r is rows[0])) + "\n" for r in rows))
    given = ["--audit", str(audit), "--data", str(data)]
    also = ["--differential", str(checks)]
    assert review.main(["draw", *given, *also]) == 0
    assert review.main(["check", *given, *also]) == 1
    assert "row0 is not classified yet" in capsys.readouterr().out
    sheet = tmp_path / "sheet.md"
    assert review.main(["sheet", *given, "--out", str(sheet)]) == 0
    text = sheet.read_text()
    assert "lethe audit --row row0" in text and "* EXC-01 (T, minted) c: m" in text
    review.save(data, [{**r, "class": "broken", "sentence": "Seen."} for r in review.load(data)])
    assert review.main(["check", *given, *also]) == 0
    assert review.main(["check", "--audit", str(audit), "--data", str(tmp_path / "no"), *also]) == 2


def test_every_drawn_row_of_the_recorded_campaign_was_read():
    run = measured.choose([measured.FOLDER / "h200", measured.FOLDER / "cpu"])
    data = measured.FOLDER.parent / "review" / "rigor_gap.json"
    checks = run.checks("dlblas", "cuda_l1")
    assert data.is_file() == bool(len(checks)), "drawn rows and recorded checks come together"
    if data.is_file():
        audit = run.audit("dlblas_accepted", "cuda_l1")
        drawn = review.draw(audit, checks, implementation=judge_of(checks))
        assert review.problems(drawn, review.load(data)) == []


def test_the_kit_holds_what_there_is_to_read(tmp_path, monkeypatch, capsys):
    rows = [fakes.row(f"r{i}", f"# r{i}\n# fail EXC-01\n") for i in range(2)]
    corpus = ListedCorpus("fake", rows)
    monkeypatch.setattr(review_kit.Plan, "open", lambda plan, name: corpus)
    recorded = tmp_path / "audit.jsonl"
    run(corpus, recorded, settings=fakes.SETTINGS, workers=0)
    made = list(lines.read(recorded))
    checks = tmp_path / "checks.jsonl"
    checks.write_text("".join(json.dumps(check_line(m, True)) + "\n" for m in made))
    data, out = tmp_path / "review.json", tmp_path / "kit"
    given = ["--audit", str(recorded), "--differential", str(checks), "--data", str(data)]
    assert review.main(["draw", *given]) == 0
    assert review_kit.main([*given, "--out", str(out)]) == 0
    assert "2 rows to read" in capsys.readouterr().out
    (first, second) = sorted(p for p in out.iterdir() if p.is_dir())
    assert (first / "candidate.py").read_text() == corpus.get(first.name[3:]).candidate.source
    assert (first / "reference.py").read_text() == fakes.REFERENCE
    text = (second / "findings.md").read_text()
    assert "* EXC-01 (T, swallowed) nan:first: finite" in text and "48642c5c (theirs) accepts" in text
    assert review_kit.NOT_AGAIN in text

    script = out / "counterexamples" / "r0-0000" / "counterexample.py"
    script.parent.mkdir(parents=True)
    script.write_text("print()\n")
    again = review_kit.judge(review.load(data), {"fake": corpus}, out, {"fake": fakes.SETTINGS}, 0)
    texts = again.read_text().replace(
        '"counterexample": null', '"counterexample": "/elsewhere/r0-0000/c.py"', 1
    )
    again.write_text(texts)
    assert review_kit.main([*given, "--out", str(out)]) == 0
    assert "the second verdict is the recorded one" in (first / "findings.md").read_text()
    assert [p.name for p in out.rglob("counterexample.py")].count("counterexample.py") == 2


def test_a_fingerprint_changes_with_what_speaks_against_a_row():
    (a, b) = report.frame(
        [with_findings(0, ("EXC-01", "minted", "T")), with_findings(0, ("EXC-01", "swallowed", "T"))]
    ).to_dict("records")
    assert review.fingerprint(a) != review.fingerprint(b)
    assert review.fingerprint(report.frame([line(0)]).iloc[0]) == review.fingerprint(
        report.frame([line(0)]).iloc[0]
    )
