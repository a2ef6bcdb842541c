"""The rows to read by hand: what is drawn, what is kept, and that nothing stays unread unnoticed."""

from __future__ import annotations

import json

import pytest

from lethe.audit import agreement, report, review
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


def test_a_fingerprint_changes_with_what_speaks_against_a_row():
    (a, b) = report.frame(
        [with_findings(0, ("EXC-01", "minted", "T")), with_findings(0, ("EXC-01", "swallowed", "T"))]
    ).to_dict("records")
    assert review.fingerprint(a) != review.fingerprint(b)
    assert review.fingerprint(report.frame([line(0)]).iloc[0]) == review.fingerprint(
        report.frame([line(0)]).iloc[0]
    )
