"""What only a process of its own shows: signals, pipes, terminals, imports, the page that `view` serves, and the demo."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import numpy as np
import onnx
import pytest

from tests.cases.cli_helpers import (
    CALIB,
    DEMO,
    DIGITS,
    SAMPLES,
    accepted,
    cli,
    command_line,
    environment,
    outputs,
    process,
)
from tests.cases.waiting import PATIENCE

SLOW = """
import sys, time
import numpy as np

def feeds():
    for _ in range(1000):
        yield {"input": np.zeros((1, 1, 8, 8), np.float32)}
        print("fed", flush=True)
        time.sleep(0.05)
"""


def hear_interrupts() -> None:
    """In the child: a shell that starts the tests in the background lets them, and all their children, ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_interrupted(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    data = f"{tmp_path}/slow.py:feeds"
    command = command_line("quantize", DIGITS, "--preset", "xint8", "--data", data, "-o", tmp_path / "q" / "q.onnx")
    running = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        preexec_fn=hear_interrupts,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "fed\n"
    running.send_signal(signal.SIGINT)
    _, error = running.communicate(timeout=PATIENCE)
    assert (running.returncode, error.strip()) == (130, "interrupted; nothing was written")
    assert [p.name for p in tmp_path.iterdir() if p.name != "__pycache__"] == ["slow.py"]


@pytest.mark.parametrize("body", [
    "exec('hear()')", "class Gone: __del__ = lambda self: hear()\n    Gone()\n    time.sleep(0.1)", "atexit.register(hear)",
    "try: hear()\n    except KeyboardInterrupt: raise ImportError('numpy failed to import')",
    "pass\ntry: hear()\nexcept KeyboardInterrupt: pass", "try: hear()\n    finally: hear()",
])  # fmt: skip
def test_an_interrupt_at_any_moment(body: str, tmp_path: Path) -> None:
    """In code that is run from a text, where nothing is raised, at the end, as another error, while a module is imported, twice."""
    (tmp_path / "commands").mkdir()
    head = '"""A command."""\nimport atexit, click, signal, time\nhear = lambda: signal.raise_signal(signal.SIGINT)\n'
    (tmp_path / "commands" / "cmd_hear.py").write_text(f"{head}@click.command()\ndef command():\n    {body}\n")
    found = subprocess.run(
        command_line("--path", tmp_path, "hear"), env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False,
        preexec_fn=hear_interrupts,
    )  # fmt: skip
    assert found.returncode == 130
    assert found.stderr.strip() in ("interrupted; nothing was written", "interrupted", "")


@pytest.mark.parametrize("again", ["pass", "signal.raise_signal(signal.SIGHUP)"], ids=["once", "twice"])
def test_a_terminal_that_closes(again: str, tmp_path: Path) -> None:
    """Its signal interrupts as Ctrl-C does; what lies under a hidden name goes, even where the process ends at once."""
    (tmp_path / "commands").mkdir()
    (tmp_path / "commands" / "cmd_hear.py").write_text(
        '"""A command."""\nimport click, signal\nfrom qdqtool.io.files.atomic import HiddenFile\n@click.command()\ndef command():\n'
        f"    HiddenFile({str(tmp_path)!r}, 'a')\n"
        f"    try: signal.raise_signal(signal.SIGHUP)\n    finally: {again}\n"
    )
    found = subprocess.run(
        command_line("--path", tmp_path, "hear"), env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )  # fmt: skip
    assert found.returncode == 128 + signal.SIGHUP
    assert [path.name for path in tmp_path.iterdir()] == ["commands"]


@pytest.mark.parametrize(("left", "printed"), [
    ("", "done, at the end, "), ("threading.Timer(0.2, lambda: print('waited for', end=', ')).start()", "done, waited for, at the end, gone, "),
])  # fmt: skip
def test_the_end_of_a_process(left: str, printed: str, tmp_path: Path) -> None:
    """What is registered for the end runs, and all is written; objects are not taken apart, unless a thread is waited for."""
    (tmp_path / "commands").mkdir()
    (tmp_path / "commands" / "cmd_end.py").write_text(
        '"""A command."""\nimport atexit, click, threading\n'
        "class Kept: __del__ = lambda self, print=print: print('gone', end=', ')\nkept = Kept()\n"
        "@click.command()\ndef command():\n"
        f"    atexit.register(print, 'at the end', end=', ')\n    print('done', end=', ')\n    {left}\n"
    )
    found = subprocess.run(
        command_line("--path", tmp_path, "end"), env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    assert (found.stdout, found.stderr) == (printed, "")


def test_several_commands_in_one_process() -> None:
    """The end of one is not the end of the process: whoever calls `main` goes on, with the garbage collector as it was."""
    code = (
        "import gc\n"
        "from qdqtool.cli.main import main\n"
        "gc.set_threshold(701, 11, 12)\n"
        "for arguments in (['--version'], ['list', 'foo'], ['--version']):\n"
        "    try:\n"
        "        main(arguments)\n"
        "    except SystemExit as error:\n"
        "        print('exit', error.code, *gc.get_threshold())\n"
    )
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, env=environment(), timeout=PATIENCE, check=True)
    ends = [line for line in done.stdout.splitlines() if line.startswith("exit")]
    assert ends == [f"exit {code} 701 11 12" for code in (0, 2, 0)]


@pytest.mark.product(extra=3)
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["inspect", DIGITS], 0),
        (["inspect", DIGITS, "--json"], 0),
        (["list", "passes"], 0),
        (["diff", DIGITS, str(SAMPLES / "detector.onnx")], 1),
        (["--help"], 0),
    ],
    ids=lambda value: " ".join(value[:1]) if isinstance(value, list) else "",
)
def test_a_reader_that_goes_away(arguments: list[str], code: int) -> None:
    """Quiet, and the exit code is that of the command: the pipe is closed before the first line is written."""
    reading, writing = os.pipe()
    running = subprocess.Popen(command_line(*arguments), stdout=writing, stderr=subprocess.PIPE, env=environment())
    os.close(reading)
    os.close(writing)
    _, error = running.communicate(timeout=PATIENCE)
    assert (running.returncode, error) == (code, b"")


def test_no_stdout_at_all() -> None:
    command = " ".join([*command_line("inspect", DIGITS), ">&-"])
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, env=environment(), check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_disk() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command_line("inspect", DIGITS),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            check=False,
        )
    assert (done.returncode, done.stderr) == (2, "error: No space left on device\n")


def on_a_terminal(*arguments: str | Path, columns: int = 200) -> str:
    """What a person sees, stdout and stderr together."""
    master, slave = pty.openpty()
    running = subprocess.Popen(
        command_line(*arguments), stdin=slave, stdout=slave, stderr=slave,
        env=environment(TERM="xterm", COLUMNS=str(columns), LINES="50"),
    )  # fmt: skip
    os.close(slave)
    shown = b""
    while select.select([master], [], [], PATIENCE)[0]:
        try:
            chunk = os.read(master, 65536)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
    os.close(master)
    assert running.wait(PATIENCE) == 0
    return shown.decode()


def test_tables_and_progress_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW.replace("1000", "10").replace('print("fed", flush=True)', "pass"))
    slow = f"{tmp_path}/slow.py:feeds"
    shown = on_a_terminal("quantize", DIGITS, "--data", slow, "-o", tmp_path / "q.onnx")
    assert re.search(r"calibrating .*\d/\?", shown)
    assert "wrote" in shown
    quiet = on_a_terminal(
        "quantize", DIGITS, "--data", CALIB, "-o", tmp_path / "p.onnx", "-q", "--preset", "xint8", "--samples", "2"
    )
    assert quiet == ""
    document = on_a_terminal("inspect", DIGITS, "--json")
    assert json.loads(document)["parameters"] == 38242


def test_a_table_that_is_too_wide_keeps_names_whole(tmp_path: Path) -> None:
    cli("quantize", DIGITS, "--data", CALIB, "--samples", "4", "-o", tmp_path / "q.onnx")
    wide, narrow = (on_a_terminal("qdq", "list", tmp_path / "q.onnx", columns=c) for c in (200, 60))
    assert "─" in wide
    assert "─" not in narrow
    for shown in (wide, narrow):
        assert "/block1/conv1/bn_output_0_weight" in shown


def fetch(url: str | Request) -> bytes:
    with build_opener(ProxyHandler({})).open(url, timeout=PATIENCE) as answer:
        body: bytes = answer.read()
        return body


def test_view_serves_the_annotated_model(tmp_path: Path) -> None:
    cli("quantize", DIGITS, "--data", CALIB, "--samples", "4", "-o", tmp_path / "q.onnx")
    running = subprocess.Popen(
        command_line("view", tmp_path / "q.onnx", "--no-browser"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(TMPDIR=str(tmp_path)), preexec_fn=hear_interrupts,
    )  # fmt: skip
    try:
        assert running.stdout is not None
        url = running.stdout.readline().split()[0]
        assert url.startswith("http://127.0.0.1:")
        with pytest.raises(HTTPError, match="403"):
            fetch(Request(url, headers={"Host": url.replace("http://127.0.0.1", "stranger.example")}))
        page = fetch(url).decode()
        assert "/data/q.onnx" in page
        model = onnx.load_from_string(fetch(f"{url}/data/q.onnx"))
        noted = {p.key: p.value for n in model.graph.node if n.op_type == "DequantizeLinear" for p in n.metadata_props}
        assert (noted["qdq.dtype"], noted["qdq.zero_point"]) == ("int8", "0")
        assert {a.tensor_name for a in model.graph.quantization_annotation} >= {"input", "input_QuantizeLinear_Output"}
    finally:
        running.send_signal(signal.SIGINT)
        _, error = running.communicate(timeout=PATIENCE)
    assert (running.returncode, error) == (0, "")
    assert not list(tmp_path.glob("qdqtool-view-*"))


def test_view_cleans_up_when_it_is_terminated(tmp_path: Path) -> None:
    running = subprocess.Popen(
        command_line("view", SAMPLES / "external_data.onnx", "--no-browser", "--json"), stdout=subprocess.PIPE, text=True,
        env=environment(TMPDIR=str(tmp_path)),
    )  # fmt: skip
    assert running.stdout is not None
    running.stdout.readline()
    url = running.stdout.readline().split('"')[3]
    data = SAMPLES / "external_data.onnx.data"
    assert fetch(f"{url}/data/{data.name}") == data.read_bytes()
    running.terminate()
    running.communicate(timeout=PATIENCE)
    assert not list(tmp_path.glob("qdqtool-view-*"))


def test_view_once(tmp_path: Path) -> None:
    done = process("view", DIGITS, "--once", "--no-browser", "--json", TMPDIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["url"].startswith("http://127.0.0.1:")
    assert not list(tmp_path.iterdir())


def test_the_demo(tmp_path: Path) -> None:
    """The accuracy that it claims, measured here again; within a point of the float model."""
    output = tmp_path / "new" / "digits_int8.onnx"
    done = process("demo", "-o", output, "--json")
    claimed = json.loads(done.stdout)["accuracy"]
    with np.load(DEMO / "test.npz") as data:
        images, labels = data["input"], data["labels"]
    for name, path in (("fp32", DIGITS), ("int8", output)):
        measured = (outputs(path, {"input": images})["logits"].argmax(axis=1) == labels).mean()
        assert claimed[name] == pytest.approx(measured)
    assert claimed["fp32"] >= 0.985
    assert claimed["int8"] >= claimed["fp32"] - 0.01
    accepted(output)
    cli("demo", "-o", output, code=2)
    shown = cli("demo", "-o", output, "--overwrite").out
    assert re.search(r"digits, int8 power-of-two +99\.\d\d% +597 +27", shown)
