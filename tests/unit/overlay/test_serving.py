"""The server of `view --overlay`: this machine alone, and edits only with the key of the page; what the file says is on it."""

from __future__ import annotations

import io
import json
import re
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from qdq_passes.errors import UsageError

from qdqtool.overlay.asked import NEEDED, View
from qdqtool.overlay.editing import Chosen
from qdqtool.overlay.models import Overlay
from qdqtool.overlay.netron_beside import Netron
from qdqtool.overlay.serving import LARGEST, Server
from tests.cases.cli_helpers import CALIB, DIGITS, cli
from tests.cases.overlays import deep
from tests.cases.waiting import PATIENCE


@pytest.fixture(scope="module")
def int8(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("serving") / "int8.onnx"
    cli("quantize", DIGITS, "--preset", "xint8", "--data", CALIB, "-o", path, "-q")
    return str(path)


@pytest.fixture
def overlay(int8: str) -> Iterator[Overlay]:
    found = View([int8], overlay="type").run()
    yield found
    found.close()


@pytest.fixture
def server(overlay: Overlay, tmp_path: Path) -> Iterator[Server]:
    found = Server(overlay, str(tmp_path))
    yield found
    found.stop()


def ask(server: Server, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
    connection = HTTPConnection(server.url.removeprefix("http://"), timeout=PATIENCE)
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def key_of(server: Server) -> str:
    found = re.search(r'"key":"([^"]+)"', ask(server, "GET", "/")[1])
    assert found is not None
    return found[1]


EDIT = {"command": "qdq set", "options": {"scales": [0.03125]}, "tensors": ["/head/pool_output_0"]}


def test_an_edit_needs_the_key_of_the_page(server: Server, overlay: Overlay) -> None:
    status, text = ask(server, "POST", "/edit", EDIT)
    assert (status, json.loads(text)["hint"]) == (403, "load it again")
    assert ask(server, "POST", "/edit", EDIT, **{"X-Key": "ü"})[0] == 403
    assert overlay.editor.edits == []
    status, text = ask(server, "POST", "/edit", EDIT, **{"X-Key": key_of(server)})
    state = json.loads(text)
    assert (status, len(state["edits"])) == (200, 1)
    tensor = next(one for one in state["models"][0]["tensors"] if one["n"] == "/head/pool_output_0")
    assert tensor["g"] == "int8, scale 2^-5, zero point 0"


def test_a_strangers_page_is_refused(server: Server) -> None:
    """A name that leads here, as another page may have it."""
    assert ask(server, "GET", "/", Host="evil.example")[0] == 403
    assert ask(server, "POST", "/edit", EDIT, Host="evil.example", **{"X-Key": key_of(server)})[0] == 403


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        ("/edit", {**EDIT, "tensors": "x"}, 400, "tensors is no list of names"),
        ("/edit", {**EDIT, "options": []}, 400, "options is no object"),
        ("/edit", [], 400, "the request is no object"),
        ("/edit", {}, 400, "'' is no edit"),
        ("/undo", {}, 400, "there is no edit to take back"),
        ("/measure", {}, 400, "nothing to measure on"),
        ("/select", {"text": "op:Nothing"}, 400, "selector 'op:Nothing' matches nothing"),
        ("/nowhere", {}, 404, "there is no /nowhere"),
    ],
)
def test_what_is_asked_wrongly_is_told(server: Server, path: str, body: Any, status: int, error: str) -> None:
    found, text = ask(server, "POST", path, body, **{"X-Key": key_of(server)})
    assert (found, json.loads(text)["error"]) == (status, error)


def test_no_json_and_too_much(server: Server) -> None:
    connection = HTTPConnection(server.url.removeprefix("http://"), timeout=PATIENCE)
    connection.request("POST", "/edit", "{", {"X-Key": key_of(server)})
    assert "is no JSON" in connection.getresponse().read().decode()
    connection.request("POST", "/edit", headers={"X-Key": "k", "Content-Length": str(LARGEST + 1)})
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.parametrize("length", ["-1", "abc", "", "1.5", "٣", "9" * 5000])
def test_a_length_that_is_none(server: Server, length: str) -> None:
    answer = server.answer("/edit", key_of(server), length, lambda size: pytest.fail(f"{size} bytes were read"))
    assert answer[0] == 400


def test_no_length_and_the_key_before_the_body(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=PATIENCE) as connection:
        host = server.url.removeprefix("http://")
        connection.sendall(f"POST /edit HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        assert connection.recv(1 << 16).split()[1] == b"400"
    no_body = lambda size: pytest.fail(f"{size} bytes were read without the key")  # noqa: E731
    assert server.answer("/edit", "k", "5", no_body)[0] == 403


def test_each_answer_has_a_policy(server: Server) -> None:
    for address, path in [
        (server.url, "/"),
        (server.url, "/x"),
        (server.netron(), "/"),
        (server.netron(), "/index.js"),
    ]:
        connection = HTTPConnection(address.removeprefix("http://"), timeout=PATIENCE)
        connection.request("GET", path)
        policy = connection.getresponse().headers["Content-Security-Policy"]
        assert policy.startswith("default-src")
        assert "frame-ancestors 'none'" in policy
        assert "'unsafe-inline'" not in policy.replace("style-src 'self' 'unsafe-inline'", "")
        connection.close()


@pytest.mark.parametrize("name", ['m"><img src=x>', "a#b?c%41&d", "ü (2)"])
def test_netron_finds_a_file_of_any_name(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    shutil.copy(DIGITS, tmp_path / f"{name}.onnx")
    shown = Netron(str(tmp_path / f"{name}.onnx"), str(tmp_path_factory.mktemp("shown")))
    try:
        with urlopen(shown.url) as answer:
            page = answer.read().decode()
        assert "<img" not in page
        file = re.search('<meta name="file" content="(.*)">', page)
        assert file is not None
        with urlopen(shown.url + quote(file[1], safe="/%?#")) as answer:
            assert answer.read() == Path(shown.shown).read_bytes()
    finally:
        shown.stop()


def test_what_is_refused_names_where(server: Server, overlay: Overlay, monkeypatch: pytest.MonkeyPatch) -> None:
    def undo() -> None:
        raise UsageError("has the scale inf", where="/stem/q", hint="calibrate again")

    monkeypatch.setattr(overlay, "undo", undo)
    status, text = ask(server, "POST", "/undo", {}, **{"X-Key": key_of(server)})
    assert (status, json.loads(text)) == (400, {"error": "/stem/q: has the scale inf", "hint": "calibrate again"})


def test_an_error_of_another_kind_is_told(server: Server, overlay: Overlay, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime raises what it likes; the page is answered."""

    def measure() -> None:
        raise RuntimeError("node /x is odd")

    monkeypatch.setattr(overlay, "measure", measure)
    status, text = ask(server, "POST", "/measure", {}, **{"X-Key": key_of(server)})
    assert (status, json.loads(text)["error"]) == (500, "RuntimeError: node /x is odd")


def test_the_end_waits_for_the_edit_that_runs(
    server: Server, overlay: Overlay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is removed under an edit comes back with it, and a process that ends in an edit may end in a crash."""
    begun, ended, key = Event(), Event(), key_of(server)

    def undo() -> None:
        begun.set()
        time.sleep(0.3)
        ended.set()

    monkeypatch.setattr(overlay, "undo", undo)
    edit = Thread(target=lambda: server.answer("/undo", key, "2", io.BytesIO(b"{}").read))
    edit.start()
    assert begun.wait(PATIENCE)
    server.stop()
    assert ended.is_set()
    edit.join()
    assert server.answer("/undo", key, "2", io.BytesIO(b"{}").read)[1]["error"] == "`qdqtool view` was stopped"


def test_a_port_that_another_has(int8: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        for more in (["--overlay", "type"], []):
            done = cli("view", int8, "--once", "--port", port, *more, code=2)
            told = f"port {port} cannot be had (Address already in use); give another --port, or none for a free one"
            assert done.error == told


def test_a_record_needs_a_page(int8: str, tmp_path: Path) -> None:
    done = cli("view", int8, "--once", "--record", tmp_path / "edits.toml", code=2)
    assert done.error == "--record needs --overlay; Netron edits nothing; give --overlay type too"


@pytest.mark.parametrize(
    "given", [("--data", CALIB), ("--float", DIGITS), ("--target", "vitis_xint8"), ("--chip", "8 Elite")]
)
def test_what_is_measured_needs_a_page(int8: str, given: tuple[str, str]) -> None:
    said = cli("view", int8, *given, "--once", "--no-browser", code=2).err
    assert f"{given[0]} needs --overlay" in said


def test_netron_shows_the_edited_model(server: Server, overlay: Overlay) -> None:
    status, _ = ask(server, "GET", "/netron")
    assert status == 303
    server.netron()
    before = Path(server._netron.shown).read_bytes()  # type: ignore[union-attr]
    ask(server, "POST", "/edit", EDIT, **{"X-Key": key_of(server)})
    server.netron()
    assert Path(server._netron.shown).read_bytes() != before  # type: ignore[union-attr]


def test_a_selector_finds_nodes_and_what_is_quantized(overlay: Overlay) -> None:
    found = overlay.hit("op:Gemm")
    assert found["nodes"] == ["/head/fc"]
    assert set(found["tensors"]) == {"logits", "head.fc.weight", "head.fc.bias"}


def test_lines_go_from_who_writes_to_who_reads(tmp_path: Path) -> None:
    """Pairs are no nodes; what stands on a line is their tensor; a stored weight, named as `qdq list` names it, is its reader's."""
    found = View([str(deep(tmp_path / "deep.onnx", 12))], overlay="type").run()
    nodes = {node["n"]: node for node in found.state()["models"][0]["graph"]["nodes"]}
    listed = list(nodes)
    assert listed[0] == "x"
    assert listed[-1] == "y"
    lines = [(listed[at], tensor, quantized) for at, tensor, quantized in nodes["/b0/add"]["i"]]
    assert lines == [("/b0/mul", "b0.mul", 1), ("x", "x", 1)]
    assert nodes["/b0/conv"]["w"] == ["b0.w_q"]
    assert nodes["/b0/relu"]["i"] == [[listed.index("/b0/conv"), "b0.conv", 0]]
    found.close()


@pytest.mark.parametrize(("metric", "needed"), sorted(NEEDED.items()))
def test_a_metric_says_what_it_needs(int8: str, metric: Any, needed: str) -> None:
    with pytest.raises(UsageError, match=f"--overlay {metric} needs --{needed}"):
        View([int8], overlay=metric).run()


def test_how_many_models(int8: str) -> None:
    with pytest.raises(UsageError, match="is of several models"):
        View([int8], overlay="changes").run()
    with pytest.raises(UsageError, match="4 models side by side"):
        View([int8] * 4, overlay="type").run()
    done = cli("view", int8, int8, "--once", "--no-browser", code=2)
    assert done.error == "Netron shows one model; give --overlay changes for several side by side"


def test_the_same_model_twice_has_two_names(int8: str) -> None:
    found = View([int8, int8], overlay="changes").run()
    assert [model["label"] for model in found.state()["models"]] == ["int8.onnx", "int8.onnx (2)"]
    found.edit("qdq set", {"scales": [0.03125]}, Chosen(tensors=["/head/pool_output_0"]))
    tensors = [{one["n"]: one["g"] for one in model["tensors"]} for model in found.state()["models"]]
    assert [name for name in tensors[0] if tensors[0][name] != tensors[1][name]] == ["/head/pool_output_0"]
    found.close()


def test_what_is_advised_after_an_edit_names_no_file_of_ours(int8: str) -> None:
    """The model as it is edited lies in a folder that goes away: commands name it as the list of edits does."""
    test = Path(DIGITS).with_name("test.npz")
    found = View([int8], overlay="price", data=str(test), float_model=DIGITS, samples=2).run()
    found.edit("qdq remove", {}, Chosen(tensors=["/stem/relu_output_0"]))
    found.measure()
    advice = found.state()["models"][0]["advice"][0]
    kind, command, _ = advice["edits"][0]
    first = int8.replace(".onnx", "_1.onnx")
    assert command.startswith(f"qdqtool qdq set {first} --output mended.onnx")
    found.mend(advice["n"], kind)
    made = [one["command"] for one in found.state()["edits"]]
    assert f" {int8} --output {first} " in made[0]
    assert f" {first} --output {int8.replace('.onnx', '_2.onnx')} " in made[1]
    with pytest.raises(UsageError, match="no edit 'set' of nothing was measured"):
        found.mend("nothing", "set")
    # what was advised before an edit and is made behind it reads what that wrote
    mends = [(one["n"], edit[0]) for one in found.state()["models"][0]["advice"] for edit in one["edits"]]
    for name, kind in mends:
        with suppress(UsageError):
            found.mend(name, kind)
    made = [one["command"] for one in found.state()["edits"]]
    assert len(made) > 2
    for number, command in enumerate(made[1:], 1):
        files = [int8.replace(".onnx", f"_{at}.onnx") for at in (number, number + 1)]
        assert f" {files[0]} --output {files[1]} " in command
    found.close()
