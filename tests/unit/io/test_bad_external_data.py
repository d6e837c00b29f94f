"""External data that must not be read: every published ONNX advisory on it is a case.

The advisories on onnx.hub and on downloaded test data (CVE-2024-5187, CVE-2024-7776, CVE-2026-28500) concern archives and
downloads, which qdqtool never opens."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from qdq_passes.errors import ModelError

from qdqtool.io.models.load import load, model_of
from qdqtool.io.models.save import save, serialize
from tests.cases.io_helpers import parsed, refused, write
from tests.golden_messages.refusal import refusal


def external(folder: Path, *entries: tuple[str, str]) -> Path:
    """A model whose weight w (8 bytes) has the given external data entries; data.bin with 16 bytes lies beside it."""
    (folder / "data.bin").write_bytes(np.array([1, 2, 3, 4], np.float32).tobytes())
    proto = parsed()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries:
        tensor.external_data.add(key=key, value=value)
    return write(folder, proto)


LOCATION = ("location", "data.bin")


@pytest.mark.parametrize(
    ("entries", "word"),
    [
        # CVE-2022-25882, and CVE-2024-27318, which got around its fix
        ([("location", "../secret")], "leaves the model's folder"),
        ([("location", "../../../../../../etc/passwd")], "leaves the model's folder"),
        ([("location", "sub/../../secret")], "leaves the model's folder"),
        ([("location", "sub/..")], "leaves the model's folder"),
        ([("location", "..")], "leaves the model's folder"),
        ([("location", "..\\secret")], "leaves the model's folder"),
        ([("location", "/etc/passwd")], "is absolute"),
        ([("location", "C:\\secret")], "is absolute"),
        ([("location", "\\\\server\\share")], "is absolute"),
        ([("location", "")], "without a location"),
        ([("location", "data.bin\0.txt")], "without a location"),
        ([], "without a location"),
        ([("location", ".")], "not a regular file"),
        ([("location", "gone.bin")], "is missing"),
        ([("location", "data.bin/below")], "data.bin/below"),
        # CVE-2026-34445: entries that set attributes, lengths that eat the memory
        ([LOCATION, ("__class__", "x")], "unknown external data key"),
        ([LOCATION, ("numpy", "x")], "unknown external data key"),
        ([LOCATION, ("location", "other.bin")], "given twice"),
        ([LOCATION, ("offset", "-1")], "'-1' is not a number of bytes"),
        ([LOCATION, ("length", "-8")], "'-8' is not a number of bytes"),
        ([LOCATION, ("offset", "1e3")], "is not a number of bytes"),
        ([LOCATION, ("offset", "9" * 30)], "is not a number of bytes"),
        ([LOCATION, ("length", "９")], "is not a number of bytes"),
        ([LOCATION, ("offset", "999999999999999999")], "is too short"),
        ([LOCATION, ("offset", "12")], "is too short"),
        ([LOCATION, ("length", "999999999999")], "a length of 999999999999 bytes where type and shape need 8"),
        ([LOCATION, ("checksum", "00" * 20)], "another SHA-1 than the model says"),
        ([LOCATION, ("length", "4")], "a length of 4 bytes where type and shape need 8"),
    ],
)
def test_external_data_entries(tmp_path: Path, entries: list[tuple[str, str]], word: str) -> None:
    (tmp_path / "secret").write_bytes(bytes(64))
    (tmp_path / "in" / "sub").mkdir(parents=True)
    refused(external(tmp_path / "in", *entries), "tensor 'w'", word)


def test_external_data_that_is_fine(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    external(tmp_path, LOCATION)
    digest = hashlib.sha1((tmp_path / "data.bin").read_bytes()).hexdigest().upper()
    path = external(tmp_path, ("location", "./data.bin"), ("offset", "8"), ("length", "8"), ("checksum", digest))
    tensor = load(path).graph.initializers["w"].const_value
    assert tensor is not None
    assert tensor.numpy().tolist() == [3, 4]


def test_symbolic_links(tmp_path: Path) -> None:
    """CVE-2026-27489, CVE-2026-34447: the file itself, or a folder on the way; also inside of the model's own folder."""
    path = external(tmp_path, ("location", "link.bin"))
    (tmp_path / "link.bin").symlink_to(tmp_path / "data.bin")
    refused(path, "symbolic link", "cp -L")
    path = external(tmp_path, ("location", "folder/data.bin"))
    (tmp_path / "folder").symlink_to(tmp_path)
    refused(path, "symbolic link", "cp -L")
    path = external(tmp_path, ("location", "dangling.bin"))
    (tmp_path / "dangling.bin").symlink_to("/nowhere")
    refused(path, "symbolic link", "cp -L")


def test_a_model_that_is_a_link_itself(tmp_path: Path) -> None:
    """The person named it, so it is followed; its data is looked for beside the link, as onnx does."""
    (tmp_path / "real").mkdir()
    (tmp_path / "m.onnx").symlink_to(external(tmp_path / "real", LOCATION))
    refused(tmp_path / "m.onnx", "is missing")


def test_hard_links(tmp_path: Path) -> None:
    """CVE-2026-34446."""
    path = external(tmp_path, LOCATION)
    os.link(tmp_path / "data.bin", tmp_path / "second.bin")
    refused(path, "2 hard links", "cp -L")


def test_data_that_is_no_file(tmp_path: Path) -> None:
    path = external(tmp_path, ("location", "pipe"))
    os.mkfifo(tmp_path / "pipe")
    refused(path, "not a regular file")


def test_data_that_is_swapped_after_loading(tmp_path: Path) -> None:
    """GHSA-q56x-g2fj-4rj6: what was checked at load is examined again when it is opened to be copied."""
    model = load(external(tmp_path, LOCATION))
    (tmp_path / "secret").write_bytes(bytes(16))
    (tmp_path / "data.bin").unlink()
    (tmp_path / "data.bin").symlink_to(tmp_path / "secret")
    for target in (tmp_path / "n.onnx", tmp_path / "out" / "n.onnx"):
        with refusal(ModelError):
            save(model, target)
        assert not target.parent.joinpath("n.onnx").exists()
    assert stat.S_ISLNK(os.lstat(tmp_path / "data.bin").st_mode)
    assert not (tmp_path / "out").exists()


def test_strings_and_lists_in_files(tmp_path: Path) -> None:
    proto = onnx.load(external(tmp_path, LOCATION), load_external_data=False)
    proto.graph.initializer[0].data_type = TensorProto.STRING
    refused(write(tmp_path, proto), "strings cannot be external data")
    proto = onnx.load(external(tmp_path, LOCATION), load_external_data=False)
    proto.graph.node[0].attribute.append(helper.make_attribute("many", [proto.graph.initializer[0]]))
    refused(write(tmp_path, proto), "external data in the list 'many'", unsupported=True)


def test_external_data_without_a_folder(tmp_path: Path) -> None:
    proto = onnx.load(external(tmp_path, LOCATION), load_external_data=False)
    with refusal(ModelError):
        model_of(proto)


def test_serialized_models_keep_their_references(tmp_path: Path) -> None:
    proto = serialize(load(external(tmp_path, LOCATION, ("offset", "8"))))
    assert {e.key: e.value for e in proto.graph.initializer[0].external_data} == {"location": "data.bin", "offset": "8"}
