"""Files of measured times: one of each format, with made-up numbers, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from qdq_passes.errors import ModelError, QdqError, UsageError

from qdqtool.cost.reading import read_rows
from qdqtool.cost.rows import Row

GENIEX = {
    "schema_version": "4", "cell_id": "Nimbus-3B-qairt-npu-c4096", "plugin": "qairt", "device": "npu",
    "model_path": "C:\\models\\nimbus-3b-w4a16", "params": {"n_prompt": 512, "n_gen": 100, "n_ctx": 4096},
    "agg": {"prefill_tps": {"median": 640.0}, "decode_tps": {"median": 20.0}, "prompt_tokens": {"median": 512.0},
            "gen_tokens": {"median": 100.0}},
}  # fmt: skip
LLAMA: list[dict[str, Any]] = [
    {"backends": "HTP", "model_type": "nimbus 3B Q4_K - Medium", "n_prompt": 512, "n_gen": 0, "n_depth": 1024, "avg_ts": 200.0,
     "test_time": "2026-03-01T10:00:00Z"},
    {"backends": "HTP", "model_type": "nimbus 3B Q4_K - Medium", "n_prompt": 0, "n_gen": 128, "n_depth": 1024, "avg_ts": 10.5,
     "test_time": "2026-03-01T10:01:00Z"},
    {"backends": "HTP", "model_type": "nimbus 3B Q4_K - Medium", "n_prompt": 512, "n_gen": 128, "n_depth": 0, "avg_ts": 40.0,
     "test_time": "2026-03-01T10:02:00Z"},
]  # fmt: skip
LLAMA_CSV = "\n".join(
    ",".join(f'"{cell}"' for cell in line) for line in [list(LLAMA[0]), *(list(row.values()) for row in LLAMA)]
)
LLAMA_MD = """
| model                   |     size | backend | ngl |            test |           t/s |
| ----------------------- | -------: | ------- | --: | --------------: | ------------: |
| nimbus 3B Q4_K - Medium | 2.00 GiB | HTP     |  99 |   pp512 @ d1024 | 200.00 ± 1.00 |
| nimbus 3B Q4_K - Medium | 2.00 GiB | HTP     |  99 |   tg128 @ d1024 |  10.50 ± 0.10 |
| nimbus 3B Q4_K - Medium | 2.00 GiB | HTP     |  99 |     pp512+tg128 |  40.00 ± 0.10 |
"""
FLM = "context_length_k,ttft_avg_s,prefill_avg_toks_per_s,decoding_avg_toks_per_s\n1,0.5,1000.00,50.00\n2,0.9,0.00,45.00\n"
PERF = """
precisions:
  w8a8:
    components:
      Nimbus-Net:
        performance_metrics:
          Board A (Proxy):
            tflite: {job_id: j1, job_status: Passed, inference_time_milliseconds: 2.5, layer_counts: {total: 9, npu: 6, cpu: 3}}
            onnx: {job_id: j2, job_status: Failed}
  w4a16:
    components:
      Nimbus-Net:
        performance_metrics:
          Board B:
            genie:
              llm_metrics:
              - {context_length: 4096, tokens_per_second: 16.0,
                 time_to_first_token_range_milliseconds: {min: 80.0, max: 2560.0}}
"""
PERF_2024 = """
models:
- name: Encoder
  performance_metrics:
  - reference_device_info: {name: Board A, os: '14', chipset: Snapdragon 1}
    torchscript_onnx_qnn: {inference_time: 1500.0, precision: fp16, layer_info: {layers_on_npu: 5, layers_on_gpu: 2, layers_on_cpu: 0}}
    torchscript_onnx_tflite: {inference_time: 'null', precision: fp16}
- name: Decoder
  performance_metrics:
  - reference_device_info: {name: Board A, os: '14', chipset: Snapdragon 1}
    torchscript_onnx_qnn:
      inference_time: 'null'
      llm_metrics: {time_to_first_token_range: {min: 90000, max: 900000}, tokens_per_second: 8.0}
"""
EVENTS: list[dict[str, Any]] = [
    {"cat": "Session", "dur": 900, "ts": 1, "ph": "X", "name": "session_initialization", "args": {}},
    {"cat": "Node", "dur": 5, "ts": 2, "ph": "X", "name": "n", "args": {"provider": "QNNExecutionProvider"}},
    *(
        {"cat": "Session", "dur": dur, "ts": 3, "ph": "X", "name": "model_run", "args": {}}
        for dur in (9000, 2000, 4000, 3000)
    ),
]
QNN = (
    "Profile Reader\nMsg Timestamp,Message,Time,Unit of Measurement,Timing Source,Event Level,Event Identifier\n"
    + "".join(
        f"{run},EXECUTE,{us + 90},US,NETRUN,ROOT,Graph 0: nimbus\n"
        f"{run},EXECUTE,{us + 50},US,BACKEND,ROOT,QNN (execute) time\n"
        f"{run},EXECUTE,{us},US,BACKEND,ROOT,Accelerator (execute) time\n"
        f"{run},EXECUTE,{us * 700},CYCLES,BACKEND,ROOT,Accelerator (execute) time (cycles)\n"
        for run, us in enumerate((5000, 1000, 1200))
    )
)
OWN = "ID,model,ms,tok_s,phase,seq_len,stack\na,net,12.3 ms,,,,genie\na,net,4.5 s,,,,\n,net,830 us,,,,\n,llm,,25 tok/s,decode,64,\n"
#: Means over a data set, of whose lengths a range is told, or none.
MEANS = """ms,metric,phase,dataset,seq_range,out_range,out_tokens
4620,,prefill,quiz,1451-1672,2-5,
700,latency_total,decode,quiz,,2 – 5,
700,,decode,quiz,,5-2,
700,latency,decode,quiz,,2-5,
900,latency_total,decode,,,2-9,7
900,latency_total,decode,,,,7
"""

COLUMNS: dict[str, Callable[[Row], object]] = {
    "id": lambda row: row.id,
    "ms": lambda row: round(row.ms, 6),
    "about": lambda row: (row.model, row.component, row.stack, row.precision, row.device, row.chip, row.month),
    "tokens": lambda row: (row.phase, row.seq_len, row.ctx),
    "off_npu": lambda row: row.off_npu,
    "lengths": lambda row: (row.seq_len, row.out_tokens, row.dataset, row.length_range),
}
LLAMA_ROWS = [("prefill", 512, 1536, 2560.0), ("decode", 1088, 0, 95.238095)]


def read(tmp_path: Path, text: str, name: str = "times", **given: Any) -> list[Row]:
    """The rows of a file with ``text``."""
    (tmp_path / name).write_text(text)
    return read_rows(tmp_path / name, **given)


@pytest.mark.parametrize(
    ("text", "about"),
    [
        (json.dumps(LLAMA), ("2026-03",)),
        ("\n".join(map(json.dumps, LLAMA)), ("2026-03",)),
        (LLAMA_CSV, ("2026-03",)),
        (f"load_backend: HTP\n{LLAMA_MD}\nbuild: 1\n", ("",)),
    ],
    ids=["json", "jsonl", "csv", "md"],
)
def test_llama_bench_in_all_of_its_outputs(tmp_path: Path, text: str, about: tuple[str]) -> None:
    """A prefill attends over its depth; a decode stands in its middle; a test of both is left out."""
    rows = read(tmp_path, text)
    assert [(row.phase, row.seq_len, row.ctx, round(row.ms, 6)) for row in rows] == LLAMA_ROWS
    assert {COLUMNS["about"](row) for row in rows} == {("nimbus 3B", "", "llama.cpp HTP", "Q4_K_M", "", "", *about)}


@pytest.mark.parametrize(
    ("text", "name", "column", "expected"),
    [
        (OWN, "", "id", ["a", "a (2)", "row 3", "row 4"]),
        (OWN, "", "ms", [12.3, 4500.0, 0.83, 40.0]),
        (json.dumps({"rows": [{"id": 7, "value": 3, "kind": "graph"}, {"kind": "spec"}]}), "", "id", ["7"]),
        ('[{"value": "2 us", "batch": 4}]', "", "ms", [0.002]),
        ("value;unit;metric;out_tokens\n6;s;latency_total;20\n", "", "ms", [6000.0]),
        (MEANS, "", "lengths",
         [(1561, 3.5, "quiz", (1451, 1672)), *[(0, 3.5, "quiz", (2, 5))] * 2, (0, 3.5, "quiz", None), *[(0, 7, "", None)] * 2]),
        (json.dumps([{"ms": 9, "phase": "prefill", "seq_range": [90, 110]}]), "", "lengths", [(100, 0, "", (90, 110))]),
        (json.dumps(GENIEX), "", "ms", [800.0, 50.0]),
        (json.dumps(GENIEX), "", "tokens", [("prefill", 512, 4096), ("decode", 562, 4096)]),
        (json.dumps(GENIEX), "", "about", [("Nimbus-3B", "", "geniex_qairt", "w4a16", "", "", "")] * 2),
        (FLM, "bench_nimbus_3b_20260401_Chip_7.csv", "ms", [1024.0, 20.0, 22.222222]),
        (FLM, "bench_nimbus_3b_20260401_Chip_7.csv", "tokens",
         [("prefill", 1024, 0), ("decode", 1024, 0), ("decode", 2048, 0)]),
        (FLM, "bench_nimbus_3b_20260401_Chip_7.csv", "about",
         [("nimbus_3b", "", "FastFlowLM", "", "Chip_7", "", "2026-04")] * 3),
        (PERF, "", "ms", [2.5, 80.0, 62.5]),
        (PERF, "", "tokens", [("", 0, 0), ("prefill", 128, 4096), ("decode", 4096, 4096)]),
        (PERF, "", "about", [("Nimbus-Net", "", "tflite", "w8a8", "Board A (Proxy)", "", "")]
         + [("Nimbus-Net", "", "genie", "w4a16", "Board B", "", "")] * 2),
        (PERF, "", "off_npu", [3, 0, 0]),
        (PERF_2024, "", "off_npu", [2, 0, 0]),
        (PERF_2024, "", "ms", [1.5, 90.0, 125.0]),
        (PERF_2024, "", "about", [("", name, "qnn_dlc", precision, "Board A", "Snapdragon 1", "")
                                  for name, precision in [("Encoder", "fp16"), ("Decoder", ""), ("Decoder", "")]]),
        (json.dumps(EVENTS), "", "ms", [3.0]),
        (json.dumps({"traceEvents": EVENTS}), "", "about", [("", "", "onnxruntime QNN", "", "", "", "")]),
        (QNN, "", "ms", [1.15]),
        (QNN, "", "about", [("nimbus", "", "", "", "", "", "")]),
        (QNN.replace("QNN (execute)", "RPC (execute)"), "", "ms", [1.1]),
    ],
)  # fmt: skip
def test_each_format(tmp_path: Path, text: str, name: str, column: str, expected: list[object]) -> None:
    """What the rows of a file say in one column; the same a second time."""
    for _ in range(2):
        assert [COLUMNS[column](row) for row in read(tmp_path, text, name or "times")] == expected


def test_what_is_missing_is_taken_from_the_caller(tmp_path: Path) -> None:
    """Not what the file tells; a chip is not given to several boards."""
    rows = read(tmp_path, OWN, chip="C", stack="qnn_dlc", precision="w8a8", model="other")
    assert {(row.chip, row.precision) for row in rows} == {("C", "w8a8")}
    assert [row.stack for row in rows] == ["genie", *["qnn_dlc"] * 3]
    assert rows[0].model == "net"
    assert rows[0].source == "times"
    with pytest.raises(UsageError, match="one chip 'C' for rows of 2 boards"):
        read(tmp_path, PERF, chip="C")
    with pytest.raises(UsageError, match="unknown phase"):
        read(tmp_path, OWN, phase="both")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "no measured times of a known format; a CSV or JSON list needs the column value"),
        ('{"a": 1}', "no measured times of a known format"),
        ("{", "is not JSON"),
        ("id,ms\na,1\nb,fast\n", "line 3: ms is 'fast', no positive finite number"),
        ("id,ms\na,-1\n", "line 2: ms is '-1'"),
        ("id,ms\na,1e999\n", "line 2: ms is '1e999'"),
        ('[{"ms": 1}, {"ms": true}]', "row 2: ms is 'True'"),
        ("id,ms\na,1 GB\n", "line 2: ms has the unit 'GB'"),
        ("id,ms,ms\na,1,2\n", "line 1: the column 'ms' stands twice"),
        ("id,ms\na,1,2\n", "line 2: 3 cells under 2 columns"),
        ("ms,tok_s\n1,2\n", "line 2: has both ms and tok_s"),
        ("ms,seq_len\n1,many\n", "line 2: seq_len is 'many', no whole number"),
        ("ms,phase\n1,warm\n", "line 2: phase is 'warm'"),
        ("ms,out_range\n1,4\n", "line 2: out_range is '4'; write the least, from 1, and the most, as 2-4"),
        ("ms,seq_range\n1,2-x\n", "line 2: seq_range is '2-x'"),
        ("ms,seq_range\n1,0-4\n", "line 2: seq_range is '0-4'"),
        ('[{"ms": 1, "seq_range": [1, 1e308]}]', "row 1: seq_range is '[1, 1e+308]'"),
        ('[{"ms": 1, "seq_range": [true, 4]}]', "row 1: seq_range is '[True, 4]'"),
        ("ms,phase,seq_range,seq_len\n1,prefill,90-110,300\n", "line 2: seq_len is 300, outside of 90-110"),
        ("ms,out_range\n1,2-4\n", "row 1: the length of answers, of a network; give it the phase decode"),
        ('[{"ms": 1, "dataset": "a\\nb"}]', "row 1: dataset is 'a\\nb'; give it a name of one line"),
        ("tok_s,metric\n1,latency\n", "line 2: metric is 'latency' in tok/s"),
        ("tok_s,phase\n1,prefill\n", "row 1: tokens a second of a prefill of unknown length; give it a seq_len"),
        ("value,metric\n1,latency_total\n", "the time of a whole decode of unknown length"),
        (json.dumps(EVENTS[:2]), "no model_run among them"),
        (json.dumps([{**EVENTS[2], "dur": 0}]), "event 1: dur is '0'"),
        (json.dumps([LLAMA[0] | {"avg_ts": 0}]), "row 1: avg_ts is '0'"),
        (json.dumps(LLAMA[2:]), "holds no measured time; give a file of a run that succeeded"),
        (QNN.replace(",US,", ",CYCLES,"), "count cycles, of an unknown clock; profile with --profiling_level basic"),
        (QNN.replace("1050", "soon"), "line 8: Time is 'soon'"),
        (PERF.replace("2.5", "-2.5"), "Board A (Proxy) tflite: inference_time_milliseconds is '-2.5'"),
        ("performance_metrics: &a [*a]", "anchors and tags are not read"),
        ("performance_metrics: " + "[" * 99, "nested too deeply"),
        ("performance_metrics: {", "is no YAML"),
        (f"performance_metrics: 0x{'f' * 4000}", "'0xffffffffffffffffff' is not read: a number of too many digits"),
        (f"performance_metrics: 1{':1' * 4000}", "a number of too many digits"),
        (f"performance_metrics: {2**64}", "a whole number is beyond 64 bits"),
        ("performance_metrics: {<<: {a: 1}}", "'<<' is not read"),
        ("models: [{performance_metrics: [{1: {inference_time: no}}]}]\nperformance_metrics:", "1: inference_time is 'False'"),
        (",".join(f"c{at}" for at in range(8000)) + ",ms\n", "1 rows of 8,001 columns, more than 100,000 of 1,000"),
        ("ms\n" + "1\n" * 100_001, "the table: 100,002 rows of 1 columns"),
        (f"[{'1,' * 100_001}1]", "the document: 100,002 rows, more than 100,000"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """One line that names the file and the place."""
    with pytest.raises(QdqError) as caught:
        read(tmp_path, text)
    assert isinstance(caught.value, ModelError)
    assert str(caught.value).startswith(str(tmp_path / "times"))
    assert said in str(caught.value)


def test_a_file_that_would_take_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is taken apart; the variable lifts the bound."""
    monkeypatch.setenv("QDQTOOL_MAX_BYTES", "100")
    with pytest.raises(ModelError, match="QDQTOOL_MAX_BYTES="):
        read(tmp_path, OWN)
