"""Images: whose they are, what they show, and their pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from inosgd.data.image_folder import ImageFormat, find_images, inside, list_images, read_images, scaled_pixels
from inosgd.errors import InvalidArgumentError


def save(path, mode="L", size=(6, 4), value=200):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)
    return path


def test_folders_name_owner_and_class(tmp_path):
    save(tmp_path / "b/cat/1.png")
    save(tmp_path / "a/dog/2.jpg")
    save(tmp_path / "a/dog/.hidden/3.png")
    (tmp_path / "a/dog/Thumbs.db").touch()
    found = [(image.owner, image.target, image.path.name) for image in list_images(tmp_path, "owner/class")]
    assert found == [("a", "dog", "2.jpg"), ("b", "cat", "1.png")]
    turned = [(image.owner, image.target) for image in list_images(tmp_path, "class/owner")]
    assert turned == [("dog", "a"), ("cat", "b")]
    assert len(find_images(tmp_path)) == 2


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB"), (1, "RGBA"), (3, "P"), (1, "1")])
def test_pixels_are_channels_first_bytes(tmp_path, channels, mode):
    path = save(tmp_path / "x.png", mode)
    pixels = read_images([path], 1, ImageFormat(height=4, width=6, channels=channels))
    assert pixels.shape == (1, channels, 4, 6)
    assert pixels.dtype == torch.uint8


def test_the_range_of_a_byte_is_scaled_to_one():
    assert scaled_pixels(torch.tensor([0, 255], dtype=torch.uint8)).tolist() == [-1.0, 1.0]


def test_a_picture_arrives_the_right_way_up(tmp_path):
    rows = np.arange(24, dtype=np.uint8).reshape(4, 6)
    Image.fromarray(rows).save(tmp_path / "x.png")
    assert read_images([tmp_path / "x.png"], 1, ImageFormat(4, 6, 1))[0, 0].tolist() == rows.tolist()


def test_other_sizes_are_refused_or_resized(tmp_path):
    path = save(tmp_path / "x.png", size=(12, 8))
    with pytest.raises(InvalidArgumentError, match=r"x\.png: 8 x 12 pixels, where data\.size declares 4 x 6"):
        read_images([path], 1, ImageFormat(4, 6, 1))
    resized = read_images([path], 1, ImageFormat(4, 6, 1, resize=True))
    assert resized.shape == (1, 1, 4, 6)
    assert (resized == 200).all()


def test_names_in_a_table_may_not_lead_out_of_the_folder(tmp_path):
    save(tmp_path / "in/x.png")
    save(tmp_path / "out.png")
    assert inside(tmp_path / "in", ["x.png"], tmp_path / "t.csv") == [tmp_path / "in/x.png"]
    for name, words in (("../out.png", "is outside"), (str(tmp_path / "out.png"), "is outside"), ("y.png", "no file")):
        with pytest.raises(InvalidArgumentError, match=words):
            inside(tmp_path / "in", ["x.png", name], tmp_path / "t.csv")


def test_formats_that_are_none():
    with pytest.raises(InvalidArgumentError, match="channels=2"):
        ImageFormat(4, 4, 2)
    with pytest.raises(InvalidArgumentError, match="height=0"):
        ImageFormat(0, 4, 1)
