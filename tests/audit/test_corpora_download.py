"""The downloader against a server of the test's own, and what is made of the files."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lethe.audit import kernelbench, unpack
from lethe.audit.corpora import CorpusError, open_corpus
from lethe.audit.download import SOURCES, File, Source, fetch

BODY = bytes(range(256)) * 4096
SHA256 = hashlib.sha256(BODY).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves BODY: ``/whole`` with ranges, ``/plain`` without, ``/short`` breaking off in the middle."""

    asked: list[str]

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.asked.append(f"{self.path} {wanted}")
        if self.path == "/gone":
            self.send_error(404)
            return
        first = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.path != "/plain" else 0
        if first >= len(BODY):
            self.send_error(416)
            return
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(BODY) - first))
        self.send_header("X-Repo-Commit", "abc123")
        self.end_headers()
        self.wfile.write(BODY[first : len(BODY) // 2] if self.path == "/short" else BODY[first:])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    Handler.asked = []
    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{running.server_port}", Handler.asked
    running.shutdown()
    running.server_close()


def get(url: str, folder: Path, sha256: str = SHA256) -> list[Path]:
    sources = {"it": Source("MIT", (File(url, "it.bin", sha256),))}
    return fetch("it", folder, sources=sources, tell=lambda _: None)


def test_a_file_is_got_once_and_recorded(tmp_path: Path, server: tuple[str, list[str]]) -> None:
    url, asked = server
    (path,) = get(f"{url}/whole", tmp_path / "new")
    assert path.read_bytes() == BODY
    record = json.loads((tmp_path / "new" / "SOURCE-it.json").read_text())
    assert record["licence"] == "MIT"
    (got,) = record["files"]
    assert (got["sha256"], got["bytes"], got["revision"]) == (SHA256, len(BODY), "abc123")
    get(f"{url}/whole", tmp_path / "new")
    assert asked == ["/whole None"]


@pytest.mark.parametrize("path", ["/whole", "/plain"])
def test_a_broken_download_resumes(tmp_path: Path, server: tuple[str, list[str]], path: str) -> None:
    url, asked = server
    with pytest.raises(CorpusError, match="broke off after"):
        get(f"{url}/short", tmp_path)
    part = tmp_path / "it.bin.part"
    assert part.read_bytes() == BODY[: len(BODY) // 2] and not (tmp_path / "it.bin").exists()
    (whole,) = get(f"{url}{path}", tmp_path)
    assert whole.read_bytes() == BODY and not part.exists()
    assert asked[-1] == f"{path} bytes={len(BODY) // 2}-"


def test_a_part_that_is_the_whole_file_is_taken(tmp_path: Path, server: tuple[str, list[str]]) -> None:
    (tmp_path / "it.bin.part").write_bytes(BODY)
    (path,) = get(f"{server[0]}/whole", tmp_path)
    assert path.read_bytes() == BODY


def test_another_checksum_keeps_nothing(tmp_path: Path, server: tuple[str, list[str]]) -> None:
    with pytest.raises(CorpusError, match=f"has sha256 {SHA256}, not 0000; nothing was kept"):
        get(f"{server[0]}/whole", tmp_path, "0000")
    assert list(tmp_path.iterdir()) == []


def test_offline_is_one_sentence_that_says_where_to_put_the_file(tmp_path: Path) -> None:
    with pytest.raises(CorpusError) as e:
        get("http://127.0.0.1:9/nothing", tmp_path)
    assert "cannot be reached" in str(e.value) and str(tmp_path / "it.bin") in str(e.value)
    assert "\n" not in str(e.value)


def test_what_is_gone_and_what_is_unknown(tmp_path: Path, server: tuple[str, list[str]]) -> None:
    with pytest.raises(CorpusError, match="answers 404"):
        get(f"{server[0]}/gone", tmp_path)
    with pytest.raises(CorpusError, match="no source for 'nothing'; there are kernelbench"):
        fetch("nothing", tmp_path)


def test_every_source_is_pinned_or_says_that_it_is_not() -> None:
    for name, source in SOURCES.items():
        for file in source.files:
            pinned = file.sha256 or any(
                len(p) == 40 and int(p, 16) for p in file.url.split("/") if len(p) == 40
            )
            assert pinned or "refs%2Fconvert" in file.url, name
            assert file.url.startswith("https://")


def archive(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as packed:
        for name, text in files.items():
            member = tarfile.TarInfo(f"Repository-abc/{name}")
            member.size = len(text.encode())
            packed.addfile(member, io.BytesIO(text.encode()))
    return path


def program(code: str, stage: str = "success", **facts: Any) -> str:
    return json.dumps(
        {"id": "0123456789", "code": code, "generation": 1, "metrics": {"stage": stage}, **facts}
    )


def test_dlblas_is_made_of_the_final_databases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = "dlblas/kernels/output/level1_19_ReLU/triton_kernel_evolution/programs"
    good, other = "class ModelNew: pass  # 1\n", "class ModelNew: pass  # 2\n"
    packed = archive(
        tmp_path / "a.tar.gz",
        {
            f"{folder}/b.json": program(other, "wrong_answer", id="bbbbbbbb-1"),
            f"{folder}/a.json": program(good),
            f"{folder}/c.json": program(good),
            f"{folder}/d.json": program("x = 1\n"),
            f"{folder}/e.json": program(good + "#", "no_valid_triton_code"),
            folder.replace("triton_kernel_evolution", "checkpoints/checkpoint_3") + "/a.json": program(good),
            "README.md": "text",
        },
    )
    with pytest.raises(CorpusError, match="not those of the pinned commit"):
        unpack.dlblas([packed], tmp_path)
    digest = hashlib.sha256()
    for row_id, accepted, code in (("01234567", True, good), ("bbbbbbbb", False, other)):
        digest.update(
            f"dlblas-oe-L1_19-{row_id}\0{accepted}\0".encode() + hashlib.sha256(code.encode()).digest()
        )
    monkeypatch.setitem(unpack.CONTENT, "dlblas", digest.hexdigest())
    (path,) = unpack.dlblas([packed], tmp_path)
    problems = tmp_path / "bench" / "level1"
    problems.mkdir(parents=True)
    (problems / "19_ReLU.py").write_text("class Model:\n    pass\n")
    rows = list(open_corpus("dlblas", path=path, problems=tmp_path / "bench", any_revision=True).rows())
    assert [(r.id, r.accepted, r.problem.name, r.family) for r in rows] == [
        ("dlblas-oe-L1_19-01234567", True, "level1/19_ReLU", "activation"),
        ("dlblas-oe-L1_19-bbbbbbbb", False, "level1/19_ReLU", "activation"),
    ]


def test_cuda_l1_is_made_of_its_sets_and_kernelbenchs_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {"level_id": 1, "task_id": 19, "ref_code": "class Model:\n    pass\n", "score_default": 2.0}
    sets = tmp_path / "cuda_l1-h100.json"
    sets.write_text(
        "\n".join(
            json.dumps({**record, **changes})
            for changes in (
                {"custom_code": "from torch.utils.cpp_extension import load_inline\n"},
                {"custom_code": "import torch\n", "task_id": 88},
                {"custom_code": None, "task_id": 20},
                {"custom_code": None, "score_default": None, "task_id": 21},
            )
        )
    )
    names = ("19_ReLU", "20_LeakyReLU", "21_Sigmoid", "88_MinGPTNewGelu")
    bench = archive(tmp_path / "k.tar.gz", {f"KernelBench/level1/{n}.py": "pass\n" for n in names})
    made = list(unpack.cuda_l1_records(sets, unpack.problem_names(bench)))
    monkeypatch.setitem(unpack.CONTENT, "cuda_l1", unpack.content(made))
    (path,) = unpack.cuda_l1([sets, bench], tmp_path)
    corpus = open_corpus("cuda_l1", path=path, gpu="h100")
    assert [(r.id, r.problem.name, r.language, r.family) for r in corpus.rows()] == [
        ("cudal1-h100-L1_19", "level1/19_ReLU", "cuda_inline", "activation"),
        ("cudal1-h100-L1_88", "level1/88_MinGPTNewGelu", "torch_only", "activation"),
    ]
    assert corpus.notes == ("1 rows whose program is empty or the text None are left out",)


def test_a_checkout_is_unpacked_once_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = archive(tmp_path / "k.tar.gz", {"KernelBench/level1/19_ReLU.py": "pass\n", "src/eval.py": "x\n"})
    with pytest.raises(CorpusError, match="not those of revision 48642c5c"):
        unpack.kernelbench([packed], tmp_path)
    checkout = tmp_path / "KernelBench-48642c5c"
    monkeypatch.setattr(kernelbench, "CONTENT", kernelbench.content_digest(checkout / "KernelBench"))
    assert unpack.kernelbench([packed], tmp_path) == [checkout]
    assert (checkout / "src" / "eval.py").is_file()
    packed.write_bytes(b"no archive")
    assert unpack.kernelbench([packed], tmp_path) == [checkout]
    with pytest.raises(CorpusError, match="cannot be unpacked"):
        unpack.kernelbench([packed], tmp_path / "elsewhere")
