"""The official layout, the excerpt's, damaged records, labels, folds, standardisation, download."""

from __future__ import annotations

import csv
import hashlib
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from lethe.ecg.download import SUMS, fetch
from lethe.ecg.ptbxl import CLASSES, TEST, TRAIN, VALIDATION, DataError, load, superclasses
from lethe.ecg.synthetic import generate


@pytest.fixture(scope="module")
def official(tmp_path_factory):
    return generate(tmp_path_factory.mktemp("official"), 20)


@pytest.fixture
def folder(tmp_path):
    """A folder that a test may damage."""
    return generate(tmp_path / "data", 20)


def signal_file(folder: Path, ecg_id: int, kind: str = "dat") -> Path:
    return folder / f"records100/00000/{ecg_id:05d}_lr.{kind}"


def as_excerpt(folder: Path) -> Path:
    """The same records with a manifest instead of the database."""
    records = load(folder)
    with (folder / "manifest.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["ecg_id", "file", "dat_sha256", "patient_id", "strat_fold", *CLASSES])
        for ecg_id, labels, fold in zip(records.ids, records.labels, records.folds, strict=True):
            name = f"records100/00000/{int(ecg_id):05d}_lr"
            digest = hashlib.sha256((folder / f"{name}.dat").read_bytes()).hexdigest()
            table.writerow([ecg_id, name, digest, ecg_id, f"{fold}.0", *labels])
    (folder / "ptbxl_database.csv").unlink()
    return folder


def test_the_official_layout(official):
    records = load(official)
    assert records.signals.shape == (20, 12, 1000) and records.labels.shape == (20, 5)
    assert records.ids == tuple(str(i) for i in range(1, 21))
    assert records.folds.tolist() == [*range(1, 11), *range(1, 11)]
    assert records.generated and not records.skipped
    parts = [set(records.fold(f).tolist()) for f in (TRAIN, VALIDATION, TEST)]
    assert [len(p) for p in parts] == [16, 2, 2] and len(set.union(*parts)) == 20


def test_an_excerpt_and_an_archive_of_it_hold_the_same(folder, tmp_path):
    before = load(folder)
    excerpt = as_excerpt(folder)
    archive = tmp_path / "excerpt.tar.xz"
    with tarfile.open(archive, "w:xz") as file:
        file.add(excerpt, "some_name")
    for path in (excerpt, archive):
        records = load(path)
        np.testing.assert_array_equal(records.signals, before.signals)
        np.testing.assert_array_equal(records.labels, before.labels)
        np.testing.assert_array_equal(records.folds, before.folds)


def test_statements_are_aggregated_whatever_their_likelihood(folder):
    table = folder / "ptbxl_database.csv"
    rows = list(csv.DictReader(table.open()))
    rows[0]["scp_codes"] = "{'LVH': 0.0, 'IMI': 50.0, 'SR': 100.0, 'UNHEARD': 1.0}"
    rows[1]["scp_codes"] = "{'SR': 100.0}"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    records = load(folder)
    assert dict(zip(CLASSES, records.labels[0], strict=True)) == {
        "NORM": 0, "MI": 1, "STTC": 0, "CD": 0, "HYP": 1,
    }  # fmt: skip
    assert [(s.ecg_id, s.why) for s in records.skipped] == [("2", "it has no diagnostic superclass")]


def test_only_diagnostic_statements_have_a_superclass():
    text = ",diagnostic,diagnostic_class\nNDT,1.0,STTC\nSR,,\nPVC,0.0,CD\n"
    assert superclasses(text) == {"NDT": "STTC"}


def test_damaged_records_are_named_counted_and_left_out(folder):
    whole = load(folder)
    cut = signal_file(folder, 3)
    cut.write_bytes(cut.read_bytes()[:-100])
    wrong = signal_file(folder, 5)
    data = bytearray(wrong.read_bytes())
    data[1234] ^= 4
    wrong.write_bytes(data)
    signal_file(folder, 7).unlink()
    signal_file(folder, 8, "hea").write_text("nothing\n")
    signal_file(folder, 9, "hea").write_bytes(b"\xff\xfe\x00")
    records = load(folder)
    assert {s.ecg_id for s in records.skipped} == {"3", "5", "7", "8", "9"}
    reasons = {s.ecg_id: s.why for s in records.skipped}
    assert "23900 bytes, not 24000" in reasons["3"]
    assert "checksum" in reasons["5"] and "missing" in reasons["7"]
    kept = [i for i, name in enumerate(whole.ids) if name not in reasons]
    np.testing.assert_array_equal(records.signals, whole.signals[kept])
    assert "5 skipped (3, 5, 7, 8, 9)" in records.told()


def test_a_manifest_knows_its_files(folder):
    excerpt = as_excerpt(folder)
    data, other = signal_file(excerpt, 4), signal_file(excerpt, 6)
    data.write_bytes(other.read_bytes())
    signal_file(excerpt, 4, "hea").write_text(
        signal_file(excerpt, 6, "hea").read_text().replace("00006_lr", "00004_lr")
    )
    assert [(s.ecg_id, s.why) for s in load(excerpt).skipped] == [
        ("4", "its signal file does not have the manifest's sha256")
    ]


def test_standardised_on_the_training_folds_alone(official):
    records = load(official)
    done = records.standardised()
    train = done.signals[done.fold(TRAIN)].astype(np.float64)
    # n values of float32: the mean of a standardised lead is zero within the rounding of each value
    assert np.abs(train.mean((0, 2))).max() < np.finfo(np.float32).eps * np.abs(train).max()
    assert np.abs(train.std((0, 2)) - 1).max() < 4 * np.finfo(np.float32).eps * np.abs(train).max()
    louder = records.signals.copy()
    louder[records.fold(TEST)] *= 100
    from dataclasses import replace

    again = replace(records, signals=louder).standardised()
    np.testing.assert_array_equal(again.signals[done.fold(TRAIN)], done.signals[done.fold(TRAIN)])


@pytest.mark.parametrize(
    ("break_it", "why"),
    [
        (lambda f: (f / "ptbxl_database.csv").unlink(), "neither ptbxl_database.csv nor manifest.csv"),
        (lambda f: (f / "scp_statements.csv").unlink(), "no scp_statements.csv"),
        (lambda f: (f / "ptbxl_database.csv").write_text("a,b\n1,2\n"), "is not PTB-XL's"),
        (lambda f: [p.unlink() for p in f.rglob("*.dat")], "no usable record"),
    ],
    ids=["no-table", "no-statements", "another-table", "no-signals"],
)
def test_unusable_data_is_one_sentence(folder, break_it, why):
    break_it(folder)
    with pytest.raises(DataError, match=why) as error:
        load(folder)
    assert "\n" not in str(error.value)


def test_a_path_that_is_nothing(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        load(tmp_path / "nowhere")
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(DataError, match="neither a folder nor a whole tar archive"):
        load(tmp_path / "text")
    with pytest.raises(DataError, match="100 and 500 Hz"):
        load(tmp_path, rate=250)


# --- download ---------------------------------------------------------------------------------


@pytest.fixture
def release(folder):
    """A release on this machine: the layout and its list of checksums."""
    (folder / "LICENSE.txt").write_text("CC BY 4.0\n")
    files = [p for p in sorted(folder.rglob("*")) if p.is_file()]
    lines = [f"{hashlib.sha256(p.read_bytes()).hexdigest()} {p.relative_to(folder)}" for p in files]
    (folder / SUMS).write_text("\n".join(lines) + "\n")
    return folder


def test_fetch_checks_resumes_and_loads(release, tmp_path):
    got = fetch(tmp_path / "got", release=release.as_uri(), limit=12, tell=lambda _: None)
    records = load(got)
    np.testing.assert_array_equal(records.signals, load(release).signals[:12])
    assert all(s.why == "a file of it is missing" for s in records.skipped) and len(records.skipped) == 8
    stamp = os.stat(signal_file(got, 1)).st_mtime_ns
    signal_file(got, 2).write_bytes(b"broken")
    fetch(got, release=release.as_uri(), limit=12, tell=lambda _: None)
    assert os.stat(signal_file(got, 1)).st_mtime_ns == stamp
    assert signal_file(got, 2).read_bytes() == signal_file(release, 2).read_bytes()


def test_fetch_keeps_nothing_whose_checksum_differs(release, tmp_path):
    file = signal_file(release, 3)
    file.write_bytes(file.read_bytes()[:-1] + b"\x55")
    with pytest.raises(DataError, match=r"00003_lr\.dat has sha256 .* it was not kept"):
        fetch(tmp_path / "got", release=release.as_uri(), tell=lambda _: None)
    assert not signal_file(tmp_path / "got", 3).exists()


def test_fetch_without_a_connection_is_one_sentence(tmp_path):
    with pytest.raises(DataError, match="cannot be reached") as error:
        fetch(tmp_path / "got", release=(tmp_path / "nothing").as_uri(), tell=lambda _: None)
    assert "\n" not in str(error.value)


EXCERPT = os.environ.get("LETHE_PTBXL")


@pytest.mark.skipif(not EXCERPT, reason="LETHE_PTBXL does not name PTB-XL or an excerpt of it")
def test_the_real_records():
    records = load(EXCERPT)
    assert records.signals.shape[1:] == (12, 1000) and not records.generated
    assert not any("checksum" in s.why or "bytes" in s.why for s in records.skipped)
    # Einthoven: II = I + III, to the digital unit in which each of the three was rounded
    gap = np.abs(records.signals[:, 1] - records.signals[:, 0] - records.signals[:, 2])
    assert np.quantile(gap, 0.99) <= 2e-3
