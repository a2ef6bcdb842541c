"""What is generated into the book besides notebooks."""

from __future__ import annotations

import json

import pytest
import yaml

from lethe.paper import pages
from lethe.verifier.catalog import CONTRACTS
from lethe.verifier.fairness import RULES
from lethe.verifier.verdict import Status
from tests.paper.lines import line, write


def test_every_contract_has_its_eight_parts_on_the_page():
    text = pages.verifier_pages()["contracts"]
    for contract in CONTRACTS:
        assert f"(sec-{contract.identifier.lower()})=" in text
        assert f"## {contract.identifier}, {contract.name}" in text
    for _, title in pages.PARTS:
        assert text.count(f"\n{title}\n: ") == len(CONTRACTS)


def test_every_rule_and_every_status_has_a_row():
    made = pages.verifier_pages()
    for number, rule in RULES.items():
        assert f"| {number} | `{rule.name}` |" in made["fairness"]
    for status in Status:
        assert f"| {status.value.replace('_', ' ')} |" in made["statuses"]
    assert "|  |" not in made["statuses"], "a status has no meaning written beside it"


def test_the_configuration_carries_the_numbers():
    config = yaml.safe_load(pages.config({"pub": {"rate": "62.1%"}}))
    assert config["sphinx"]["config"]["myst_substitutions"]["pub"]["rate"] == "62.1%"
    assert config["sphinx"]["config"]["numfig"] is True


@pytest.fixture
def audits(tmp_path):
    """Two audits: one of made-up rows without counterexamples, one row with one, of unknown acceptance."""
    counterexample = tmp_path / "run" / "counterexample.py"
    counterexample.parent.mkdir()
    counterexample.write_text("raise SystemExit(1)\n")
    mine = line(0) | {"corpus": "directory", "id": "mine/kernel", "accepted": None}
    mine["timing"]["counterexample"] = str(counterexample)
    other = tmp_path / "directory.jsonl"
    other.write_text(json.dumps(mine) + "\n")
    return [write(tmp_path / "house.jsonl", rows=20), other]


def test_rows_link_to_copies_of_their_counterexamples(audits, tmp_path):
    extra = tmp_path / "extra"
    pages.spot_check(audits, extra)
    text = (extra / "rows.js").read_text()
    rows = json.loads(text.removeprefix("window.LETHE_ROWS = ").rstrip().removesuffix(";"))
    assert len(rows) == 21
    linked = [r for r in rows if r["counterexample"]]
    assert [r["id"] for r in linked] == ["mine/kernel"]
    assert linked[0]["accepted"] == "unknown"
    assert (extra / linked[0]["counterexample"]).read_text() == "raise SystemExit(1)\n"


def test_published_and_recorded_rows_stand_beside_those_of_this_build(audits, tmp_path):
    published = tmp_path / "published.jsonl"
    row = {"id": 179, "status": "gated", "op_class": "scan", "final_speedup": 2.0, "gates": {}}
    published.write_text(json.dumps(row) + "\n")
    recorded = tmp_path / "recorded.jsonl"
    ours = json.loads(audits[0].read_text().splitlines()[0])
    recorded.write_text(
        "".join(json.dumps(r, sort_keys=True) + "\n" for r in (ours, {**ours, "corpus": "dlblas", "id": "x"}))
    )
    extra = tmp_path / "extra"
    pages.spot_check(audits, extra, published, [recorded])
    text = (extra / "rows.js").read_text()
    rows = json.loads(text.removeprefix("window.LETHE_ROWS = ").rstrip().removesuffix(";"))
    assert len(rows) == 21 + 1 + 1
    assert [(r["corpus"], r["id"]) for r in rows[-2:]] == [("dlblas", "x"), ("published", "179")]
    assert all(set(r) == set(rows[0]) for r in rows)


def test_a_measurement_that_cannot_be_read_is_shown_and_does_not_stop_the_book(tmp_path, monkeypatch):
    file = tmp_path / "h200" / "old.json"
    file.parent.mkdir()
    file.write_text("{}")
    monkeypatch.setattr(pages.provenance, "measured_files", lambda: [file])
    assert (
        "| old | h200 | – | – | – | **not readable**: holds schema None"
        in pages.provenance_pages({})["measured"]
    )
