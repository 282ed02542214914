"""What owners who join bring, of each kind of data."""

from __future__ import annotations

import pytest
import torch

from inosgd.owners import Budget
from inosgd.study.data import joined_data, load_data
from inosgd.study.fingerprints import fingerprint, refuse_changes
from inosgd.study.reading import read_study
from tests.study.writers import IMAGE_STUDY, write_images

JOINING = {"newcomer": Budget(epsilon=5.0, delta=1e-5)}


def write_list(folder, pictures, owner: str | None = None) -> None:
    """A table of the images in ``pictures``; they belong to ``owner``, or to those whose folders they lie in."""
    lines = ["file,label,who"]
    for path in sorted(pictures.rglob("*.png")):
        name = path.relative_to(pictures)
        lines.append(f"{name},{name.parts[1]},{owner or name.parts[0]}")
    (folder / "list.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture
def study(tmp_path):
    """Images that a table lists, and a folder with more of them and a table of its own."""
    write_images(tmp_path / "pictures", count=60, classes=2)
    write_list(tmp_path, tmp_path / "pictures")
    listed = 'index = "list.csv"\ntarget = "label"\nowner = "who"'
    (tmp_path / "study.toml").write_text(IMAGE_STUDY.replace('layout = "owner/class"', listed))
    write_images(tmp_path / "more", count=20, classes=2)
    write_list(tmp_path / "more", tmp_path / "more", owner="newcomer")
    return read_study(tmp_path / "study.toml")


def test_images_that_a_table_lists_join_with_a_table_of_their_own(study):
    data = load_data(study)
    extra = joined_data(study, data, study.folder / "more", JOINING)
    assert extra.owners.table.names == ("newcomer",)
    assert len(extra.examples) + len(extra.held_out) == 20
    first = data.examples.followed_by(extra.examples)
    torch.testing.assert_close(first.inputs[len(data.examples) :], extra.examples.inputs[:])


def test_a_folder_without_the_table_is_refused(study):
    (study.folder / "more" / "list.csv").rename(study.folder / "more" / "other.csv")
    with pytest.raises(ValueError, match=r"more/list.csv: there is no such file"):
        joined_data(study, load_data(study), study.folder / "more", JOINING)


def test_the_fingerprint_of_what_joins_covers_table_and_images(study):
    place = study.folder / "more"
    before = fingerprint(place)
    text = (place / "list.csv").read_text()
    (place / "list.csv").write_text(text.replace("class_1", "class_0", 1))
    with pytest.raises(ValueError, match="is not the file that this run began with"):
        refuse_changes({"more": before}, {"more": fingerprint(place)})
    (place / "list.csv").write_text(text)
    refuse_changes({"more": before}, {"more": fingerprint(place)})
    image = next(place.rglob("*.png"))
    image.write_bytes(image.read_bytes() + b"\0")
    with pytest.raises(ValueError, match="is not the file that this run began with"):
        refuse_changes({"more": before}, {"more": fingerprint(place)})
