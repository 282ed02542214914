"""Opening a study's data: which kind of source its files are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from inosgd.study.reading import StudyFile
from inosgd.study.schema import ArrayData, ImageData, MappedData, TableData
from inosgd.study.sources import Progress, Source, open_arrays, open_images, open_table
from inosgd.study.stored import open_stored_arrays, open_stored_table


def open_source(study: StudyFile, *, held_out: bool = False, progress: Progress | None = None) -> Source:
    """The study's training data, or the data that it keeps apart as held out."""
    data = study.schema.data
    apart = (data.held_out.path or []) if held_out else None
    if isinstance(data, TableData):
        return _table(study, data, data.path if apart is None else apart)
    if isinstance(data, ImageData):
        index = data.held_out.index if held_out else data.index
        return open_images(study, data, data.path if apart is None else apart[0], index, progress)
    return _arrays(study, data, data.path if apart is None else apart[0])


def open_source_at(study: StudyFile, path: Path) -> Source:
    """Data of the study's kind at ``path``, which is not in the study: what owners who join bring.

    Images that a table lists come as a folder with the table in it, called as in the study; the files that it names are
    looked for in the same folder.
    """
    data, name = study.schema.data, str(path.absolute())
    if isinstance(data, TableData):
        return _table(study, data, [name])
    if isinstance(data, ArrayData):
        return _arrays(study, data, name)
    index = None if data.index is None else str(path.absolute() / Path(data.index).name)
    return open_images(study, data, name, index, None)


def _table(study: StudyFile, data: TableData, names: Sequence[str]) -> Source:
    if data.on_disk:
        return open_stored_table(study.schema, data, [study.locate(name) for name in names])
    return open_table(study, data, names)


def _arrays(study: StudyFile, data: ArrayData, name: str) -> Source:
    if isinstance(data, MappedData):
        return open_stored_arrays(study.schema, data, study.locate(name))
    return open_arrays(study, data, name)
