"""Images as feeds: each option against pixels known by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from qdq_passes.errors import ModelError, SetupError, UnsupportedError, UsageError

from qdqtool.io.feeds.feeds import Feeds, open_feeds
from qdqtool.io.feeds.image_options import Fit, ImageOptions, Layout, Order
from qdqtool.io.feeds.spec import Dims, InputSpec
from tests.golden_messages.refusal import refusal

RED, GREEN = (255, 0, 0), (0, 255, 0)


def spec(*shape: int | str, dtype: Any = np.float32) -> InputSpec:
    return InputSpec("x", np.dtype(dtype), shape)


def picture(folder: Path, name: str, rows: Any) -> None:
    Image.fromarray(np.array(rows, np.uint8)).save(folder / name)


def first(feeds: Feeds) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = next(iter(feeds))["x"]
    return array


@pytest.fixture
def red_green(tmp_path: Path) -> Path:
    """One image, 2 wide and 1 high: red, green."""
    picture(tmp_path, "a.png", [[RED, GREEN]])
    return tmp_path


def test_defaults_follow_the_model(red_green: Path) -> None:
    feeds = open_feeds(red_green, [spec("N", 3, 1, 2)])
    assert first(feeds).tolist() == [[[[1, 0]], [[0, 1]], [[0, 0]]]]
    assert feeds.count == 1
    assert feeds.warnings == [
        "images: pixels divided by 255, no mean or std; see --image-scale, --image-mean, --image-std"
    ]


def test_nhwc_bgr_and_scale(red_green: Path) -> None:
    options = ImageOptions(order=Order.BGR, scale=1.0, layout=Layout.NHWC)
    assert first(open_feeds(red_green, [spec(1, 1, 2, 3)], image=options)).tolist() == [[[[0, 0, 255], [0, 255, 0]]]]


def test_mean_and_std_apply_after_scale(red_green: Path) -> None:
    options = ImageOptions(mean=(0.5, 0.0, 0.25), std=(0.5, 1.0, 2.0))
    feeds = open_feeds(red_green, [spec(1, 3, 1, 2)], image=options)
    assert first(feeds)[0].tolist() == [[[1, -1]], [[0, 1]], [[-0.125, -0.125]]]
    assert feeds.warnings == []


def test_integer_models_get_pixels(red_green: Path) -> None:
    pixels = ImageOptions(layout=Layout.NHWC)
    found = first(open_feeds(red_green, [spec(1, 1, 2, 3, dtype=np.uint8)], image=pixels))
    assert found.tolist() == [[[[255, 0, 0], [0, 255, 0]]]]
    signed = ImageOptions(mean=(128.0,), layout=Layout.NHWC)
    assert first(open_feeds(red_green, [spec(1, 1, 2, 3, dtype=np.int8)], image=signed))[0, 0, 0].tolist() == [
        127,
        -128,
        -128,
    ]


def test_gray_where_the_model_has_one_channel(tmp_path: Path) -> None:
    picture(tmp_path, "a.png", [[10, 20]])
    options = ImageOptions(scale=1.0)
    assert first(
        open_feeds(tmp_path, [spec(1, 1, 1, 2)], image=ImageOptions(scale=1.0, layout=Layout.NCHW))
    ).tolist() == [[[[10, 20]]]]
    assert first(open_feeds(tmp_path, [spec(1, 3, 1, 2)], image=options))[0, :, 0].tolist() == [[10, 20]] * 3


def test_fits(tmp_path: Path) -> None:
    picture(tmp_path, "a.png", np.full((2, 4, 3), 200))  # 4 wide, 2 high
    for fit, column in ((Fit.STRETCH, [200] * 4), (Fit.LETTERBOX, [114, 200, 200, 114]), (Fit.CENTER_CROP, [200] * 4)):
        found = first(open_feeds(tmp_path, [spec(1, 3, 4, 4)], image=ImageOptions(scale=1.0, fit=fit)))
        assert found.shape == (1, 3, 4, 4)
        assert found[0, 0, :, 0].tolist() == column, fit


def test_center_crop_keeps_the_middle(tmp_path: Path) -> None:
    picture(tmp_path, "a.png", [[RED, GREEN, GREEN, RED]] * 2)
    options = ImageOptions(scale=1.0, fit=Fit.CENTER_CROP)
    assert first(open_feeds(tmp_path, [spec(1, 3, 2, 2)], image=options))[0, 0].tolist() == [[0, 0], [0, 0]]


def test_dynamic_sizes_need_options(red_green: Path) -> None:
    with refusal(UsageError):
        open_feeds(red_green, [spec("N", 3, "H", "W")])
    found = first(open_feeds(red_green, [spec("N", 3, "H", "W")], image=ImageOptions(size=(4, 6))))
    assert found.shape == (1, 3, 4, 6)
    with refusal(UsageError):
        open_feeds(red_green, [spec("N", "a", "b", "c")], image=ImageOptions(size=(4, 6)))
    options = ImageOptions(size=(4, 6), layout=Layout.NHWC)
    assert first(open_feeds(red_green, [spec("N", "a", "b", "c")], image=options)).shape == (1, 4, 6, 3)


def test_a_size_against_the_model_is_refused(red_green: Path) -> None:
    feeds = open_feeds(red_green, [spec(1, 3, 2, 2)], image=ImageOptions(size=(4, 4)))
    with refusal(UsageError):
        list(feeds)


def test_batches_are_filled_in_the_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    for index, name in enumerate(["b.png", "a.bmp", "class/c.png", "d.webp", ".hidden.png"]):
        picture(tmp_path, name, np.full((2, 2, 3), index * 10))
    feeds = open_feeds(tmp_path, [spec(3, 3, 2, 2)], image=ImageOptions(scale=1.0))
    assert first(feeds)[:, 0, 0, 0].tolist() == [10, 0, 20]
    assert feeds.count == 1
    assert feeds.warnings == ["the last 1 of 4 images do not fill a batch of 3: dropped"]
    with refusal(UsageError):
        open_feeds(tmp_path, [spec(8, 3, 2, 2)])


def test_jpeg_and_palette_and_alpha(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8), (10, 20, 30)).save(tmp_path / "a.jpg", quality=100)
    Image.new("RGBA", (8, 8), (10, 20, 30, 0)).save(tmp_path / "b.png")
    Image.new("P", (8, 8)).save(tmp_path / "c.png")
    feeds = open_feeds(tmp_path, [spec(1, 3, 8, 8)], image=ImageOptions(scale=1.0))
    corners = [feed["x"][0, :, 0, 0] for feed in feeds]
    assert np.allclose(corners, [[10, 20, 30], [10, 20, 30], [0, 0, 0]], atol=2)


@pytest.mark.parametrize(
    "shape", [(1, 3), (1, 4, 8, 8), (1, 3, 8, 3)], ids=["no image", "four channels", "three at both ends"]
)
def test_inputs_that_are_no_image(red_green: Path, shape: Dims) -> None:
    with refusal(UsageError):
        open_feeds(red_green, [InputSpec("x", np.dtype(np.float32), shape)])


def test_options_that_do_not_fit(red_green: Path) -> None:
    with refusal(UnsupportedError):
        open_feeds(red_green, [spec(1, 4, 8, 8)], image=ImageOptions(layout=Layout.NCHW))
    with refusal(UsageError):
        open_feeds(red_green, [spec(1, 3, 8, 8)], image=ImageOptions(mean=(1.0, 2.0)))
    with refusal(UsageError):
        ImageOptions(std=(0.0,))
    with refusal(UsageError):
        ImageOptions(size=(0, 4))
    assert ImageOptions(size=(1, 4)).size == (1, 4)
    with refusal(UsageError):
        open_feeds(red_green, [spec(1, 3, 8, 8)] * 2)


def test_broken_and_deep_images_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    with pytest.raises(ModelError, match=r"a\.png: cannot be read as an image"):
        list(open_feeds(tmp_path, [spec(1, 3, 8, 8)]))
    Image.fromarray(np.full((2, 2), 40000, np.uint16)).save(tmp_path / "a.png")
    with pytest.raises(UnsupportedError, match=r"a\.png: pixels of mode I"):
        list(open_feeds(tmp_path, [spec(1, 3, 8, 8)]))


def test_both_kinds_in_a_folder_are_refused(red_green: Path) -> None:
    np.savez(red_green / "a.npz", x=np.zeros(3))
    with refusal(UsageError):
        open_feeds(red_green, [spec(1, 3, 8, 8)])


def test_without_pillow_the_extra_is_named(red_green: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with refusal(SetupError):
        open_feeds(red_green, [spec(1, 3, 1, 2)])
