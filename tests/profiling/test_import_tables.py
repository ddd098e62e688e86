"""``profile --import`` of files and folders: what is taken, what is said, what is written, and what never is."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, command
from helpers.foreign_tables import Rows, aic, stats, table, take

from inferometer import BadFile, BadValue, UnknownName, profile
from inferometer.profiling import machine
from inferometer.profiling.import_tables import import_tables
from inferometer.profiling.importers import formats

HAS_PYARROW = importlib.util.find_spec("pyarrow") is not None


def gemm(device: str = "NVIDIA H200", m: int = 1, latency: float = 0.01) -> list[dict[str, Any]]:
    return aic("gemm", {"gemm_dtype": "bfloat16", "m": m, "n": 64, "k": 64, "latency": latency}, device=device)


def test_the_files_of_the_folder_are_the_formats() -> None:
    assert set(formats()) == {"aiconfigurator", "vidur", "llmservingsim", "llmprofile"}


def test_a_folder_takes_what_it_knows_and_says_what_it_does_not(tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    table(folder / "deep" / "gemm_perf.txt", gemm())
    table(
        folder / "layers.csv",
        [
            {
                "hardware": "H200",
                "model": "llama-3.1-8b",
                "layer_name": "o_proj",
                "input": 2,
                "kv_cache": 0,
                "latency(ns)": 9000,
            }
        ],
    )
    table(folder / "other.csv", [{"a": 1, "b": 2}])
    table(folder / "no_rows.csv", [])
    (folder / "no_rows.csv").write_text("op_name,kernel_source,latency\n")
    table(folder / "profile.csv", [dict.fromkeys(("kind", "dtype", "shape", "seconds", "source"), "x")])
    (folder / "empty.csv").write_text("")
    (folder / "README.txt").write_text("A folder, with tables\nand a line, that, has, commas\n")
    (folder / "lfs.txt").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    (folder / "notes.md").write_text("not a table")
    (folder / "bytes.csv").write_bytes(b"\xff\xfe\x00\x01")
    rows, counts, said = take(folder)
    assert set(rows) == {("linear", "m=1 n=64 k=64"), ("linear", "m=2 n=4096 k=4096")}
    assert counts["tables"] == 2 and counts["passed_over"] == 7
    passed = "\n".join(line for line in said if line.startswith("skipped: "))
    for word in (
        "other.csv is not a table of",
        "its columns are 'a, b'",
        "no_rows.csv has a header but no rows",
        "profile.csv is a kernel profile",
        "empty.csv is empty",
        "README.txt is not a table",
        "git lfs pull",
        "bytes.csv is UTF-16 text",
    ):
        assert word in passed, word


def test_broken_tables_are_a_sentence_and_nothing_is_written(tmp_path: Path) -> None:
    output = tmp_path / "out.csv"
    take(table(tmp_path / "good.csv", gemm()))
    before = output.read_text(), output.with_suffix(".json").read_text()
    path = table(tmp_path / "bad.csv", [*gemm(), gemm(m=2)[0] | {"latency": "soon"}])
    with pytest.raises(BadFile, match=r"bad\.csv, line 3: latency must be a number .*, not 'soon'"):
        take(path)
    with pytest.raises(BadFile, match=r"bad\.csv, line 2: m must be a whole number .*, not '1\.5'"):
        take(table(tmp_path / "bad.csv", [gemm()[0] | {"m": 1.5}]))
    with pytest.raises(BadFile, match=r"bad\.csv lacks the column 'latency'"):
        take(table(tmp_path / "bad.csv", [{k: v for k, v in gemm()[0].items() if k != "latency"}]))
    path.write_text("op_name,kernel_source,gemm_dtype,m,n,k,latency\ngemm,k,bfloat16,1,2,3\n")
    with pytest.raises(BadFile, match=r"bad\.csv, line 2: 6 cells where the header has 7"):
        take(path)
    with pytest.raises(BadFile, match=r"attention\.csv, line 2: is_prefill must be True or False, not 'maybe'"):
        take(
            table(
                tmp_path / "attention.csv",
                [
                    stats(attn_prefill=1)
                    | dict.fromkeys(
                        (
                            "n_embd",
                            "n_q_head",
                            "n_kv_head",
                            "num_tensor_parallel_workers",
                            "batch_size",
                            "prefill_chunk_size",
                            "kv_cache_size",
                        ),
                        1,
                    )
                    | {"is_prefill": "maybe"}
                ],
            )
        )
    with pytest.raises(BadFile, match="no such file or folder"):
        import_tables(str(tmp_path / "nothing"), None, gpu=None, say=print)
    (tmp_path / "void").mkdir()
    with pytest.raises(BadFile, match=r"void has no tables: no files that end in \.csv"):
        import_tables(str(tmp_path / "void"), str(output), gpu=None, say=print)
    assert (output.read_text(), output.with_suffix(".json").read_text()) == before
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]  # nothing half-written lies about


def test_a_profile_is_of_one_device(tmp_path: Path) -> None:
    folder = tmp_path / "both"
    table(folder / "a.csv", gemm("NVIDIA H200"))
    table(folder / "b.csv", gemm("NVIDIA A100-SXM4-80GB", m=2))
    with pytest.raises(BadValue, match=r"has tables of a100-sxm-80gb, h200: .* choose it with gpu"):
        take(folder)
    rows, counts, said = take(folder, gpu="A100")
    assert list(rows) == [("linear", "m=2 n=64 k=64")] and counts["passed_over"] == 1
    assert "skipped: 1 tables of h200" in said
    with pytest.raises(BadValue, match=r"a\.csv was measured on h200, not on b200"):
        take(folder / "a.csv", gpu="b200", output="x.csv")
    vidur = {"rank": 0, "num_workers": 2, "size": 64, "collective": "all_reduce", "devices_per_node": 8}
    for name, size in (("a100_dgx", 64), ("h100_dgx", 128)):  # tables that only their folders tell apart
        table(tmp_path / "network" / name / "all_reduce.csv", [stats(all_reduce=0.02) | vidur | {"size": size}])
    with pytest.raises(BadValue, match="has tables of a100-sxm-80gb, h100-sxm"):
        take(tmp_path / "network")
    assert list(take(tmp_path / "network", gpu="h100")[0]) == [("all_reduce", "bytes=128 ranks=2")]
    alone = tmp_path / "network" / "a100_dgx" / "all_reduce.csv"  # what a folder is called gives way to --gpu
    assert "of b200" in take(alone, gpu="b200")[2][0]
    assert json.loads(alone.with_name("out.json").read_text())["gpu"] == "b200"
    with pytest.raises(UnknownName, match="unknown GPU 'h20x'"):
        take(folder / "a.csv", gpu="h20x", output="x.csv")
    with pytest.raises(BadFile, match="has rows of 'NVIDIA A100-SXM4-80GB', but this is 'NVIDIA H200'"):
        import_tables(str(folder / "a.csv"), str(tmp_path / "both-out.csv"), gpu=None, say=print)


def test_rows_that_are_there_stay_or_are_replaced(tmp_path: Path) -> None:
    output = tmp_path / "out.csv"
    head = "kind,dtype,shape,seconds,source\n"
    output.write_text(f"{head}copy,bf16,bytes=4096,1.0e-06,torch\ncopy,bf16,bytes=81")  # a run that was cut off
    output.with_suffix(".json").write_text(json.dumps({"device": "NVIDIA H200", "torch": "2.13", "runs": [{"a": 1}]}))
    path = table(tmp_path / "t.csv", gemm() + gemm(m=2))
    assert {k: v for k, v in take(path)[1].items() if v} == {"tables": 1, "imported": 2, "kept": 1}
    again = table(tmp_path / "t.csv", gemm(latency=0.02))
    rows, counts, _ = take_again(again, output)
    assert rows["linear", "m=1 n=64 k=64"][1] == 2e-5 and len(rows) == 3
    assert counts["replaced"] == 1 and counts["kept"] == 2
    record = json.loads(output.with_suffix(".json").read_text())
    assert record["torch"] == "2.13" and record["device"] == "NVIDIA H200" and len(record["runs"]) == 3
    assert record["runs"][1]["imported"][0] == {
        "file": "t.csv",
        "format": "aiconfigurator gemm",
        "device": "NVIDIA H200",
        "rows": 2,
        "skipped": {},
        "versions": {"vllm": "0.24.0"},
    }
    output.write_text("a,b\n1,2\n")
    with pytest.raises(BadFile, match=r"out\.csv exists and is not a kernel profile: it begins with 'a,b'"):
        take(path)
    assert output.read_text() == "a,b\n1,2\n"
    with pytest.raises(BadFile, match="cannot be written"):
        import_tables(str(path), str(tmp_path / "no" / "such" / "out.csv"), gpu=None, say=print)


def take_again(path: Path, output: Path) -> tuple[Rows, dict[str, int], list[str]]:
    counts = import_tables(str(path), str(output), gpu=None, say=lambda line: None)
    with output.open(newline="", encoding="utf-8") as file:
        rows = {(r["kind"], r["shape"]): (r["dtype"], float(r["seconds"]), r["source"]) for r in csv.DictReader(file)}
    return rows, counts, []


def test_the_command(tmp_path: Path) -> None:
    path, output = table(tmp_path / "gemm.csv", gemm()), str(tmp_path / "k.csv")
    ran = command("profile", "--import", str(path), "-o", output, "--json")
    assert ran.code == 0 and ran.json["imported"] == 1 and "gemm.csv: aiconfigurator gemm, 1 rows of h200" in ran.err
    ran = command("profile", "--import", str(path), "-o", output, "--gpu", "b200")
    assert ran.code == 2 and "was measured on h200, not on b200" in ran.err and "Traceback" not in ran.err


def test_the_output_is_named_after_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = table(tmp_path / "from" / "gemm_perf.csv", gemm())
    import_tables(str(path), None, gpu=None, say=lambda line: None)
    record = json.loads((tmp_path / "gemm_perf.kernels.json").read_text())
    assert (tmp_path / "gemm_perf.kernels.csv").exists() and record["gpu"] == "h200" and record["compute_units"] == 132


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("AMD Instinct MI300X", "mi300x"),
        ("h200_sxm", "h200"),
        ("RTX3090", "rtx3090"),
        ("h100_dgx", "h100-sxm"),
        ("my laptop", None),
        ("", None),
    ],
)
def test_devices_are_known_by_many_names(text: str, name: str | None) -> None:
    assert machine.recognise(text) == name


# ------------------------------------------------------------------ real tables


@pytest.mark.slow
@pytest.mark.skipif(not HAS_PYARROW, reason="pyarrow is not installed")
@pytest.mark.parametrize(
    ("name", "kinds", "imported", "skipped", "floor", "most_roof"),
    [
        ("h200_sxm__vllm_0.24.0__gemm_perf", {"linear"}, 13404, 0, range(3_200, 3_800), 2),
        ("a100_sxm__vllm_0.14.0__context_attention_perf", {"prefill_attention"}, 5457, 0, range(1), 0),
        ("a100_sxm__vllm_0.14.0__generation_attention_perf", {"decode_attention"}, 5431, 0, range(1), 0),
        ("a100_sxm__vllm_0.14.0__moe_perf", {"moe"}, 5580, 780, range(1), 0),
        ("h200_sxm__trtllm_1.3.0rc20__context_mla_perf", {"mla_prefill"}, 1760, 0, range(1), 0),
        ("h200_sxm__trtllm_1.3.0rc20__generation_mla_perf", {"mla_decode"}, 2896, 0, range(1), 0),
        ("h200_sxm__vllm_0.24.0__custom_allreduce_perf", {"all_reduce"}, 138, 0, range(35, 50), 2),
        (
            "b200_sxm__nccl_2.29.2__nccl_perf",
            {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"},
            504,
            0,
            range(1),
            0,
        ),
        ("h100_sxm__sglang_0.5.12__wideep_deepep_ll_perf", {"all_to_all"}, 352, 0, range(1), 0),
        ("h200_sxm__vllm_0.24.0__scale_matrix_perf", {"quantize"}, 1628, 0, range(1), 5),
    ],
)
def test_real_tables(
    tmp_path: Path, shared: Path, name: str, kinds: set[str], imported: int, skipped: int, floor: range, most_roof: int
) -> None:
    path = shared / "measured" / "kernel_tables" / f"{name}.parquet"
    if imported > 10_000:  # every eighth row is enough
        whole = importlib.import_module("pyarrow.parquet").read_table(path)
        (tmp_path / "manifest.json").write_bytes((path.parent / "manifest.json").read_bytes())
        path = tmp_path / path.name
        importlib.import_module("pyarrow.parquet").write_table(whole.take(list(range(0, whole.num_rows, 8))), path)
    counts = import_tables(str(path), str(tmp_path / "k.csv"), gpu=None, say=lambda line: None)
    assert counts["imported"] + counts["repeated"] == imported and counts["skipped"] == skipped
    assert counts["floor"] in floor and counts["roof"] <= most_roof
    with (tmp_path / "k.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["kind"] for row in rows} == kinds and len(rows) == counts["imported"]
    marked = {row["dtype"] for row in rows if "!floor" in row["source"]}
    assert not marked or marked == ({"fp8-block"} if "gemm" in name else {"bf16"})


def test_from_python(tmp_path: Path) -> None:
    said: list[str] = []
    output = tmp_path / "k.csv"
    path = table(tmp_path / "gemm_perf.csv", gemm())
    assert profile(tables=str(path), output=str(output), say=said.append)["imported"] == 1 and said
    assert "m=1 n=64 k=64" in output.read_text()
    for words, sentence in (
        ({}, "not nothing"),
        ({"model": "llama-3.1-8b", "kernels": True}, "not a model and kern"),
        ({"tables": str(path), "repeat": 5}, "repeat belongs to the layers of a mod"),
    ):
        with pytest.raises(BadValue, match=sentence):
            profile(**words)


def test_a_shipped_profile_whose_tables_are_elsewhere_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    fit_kernels = importlib.import_module("fit_kernels")
    monkeypatch.setenv("INFEROMETER_SHARED", str(tmp_path))
    monkeypatch.setattr(fit_kernels, "DATA", tmp_path)
    path = tmp_path / "profiles" / "h200" / "sglang.json"
    path.parent.mkdir(parents=True)
    path.write_text("as it was")
    fit_kernels.fit_tables("h200", "sglang", "h200_sxm__sglang_0.5.14", [])
    assert path.read_text() == "as it was"
    assert "h200_sxm__sglang_0.5.14__moe_perf not found" in capsys.readouterr().out
