"""Files of one kind below a folder: one sub-folder per class or a flat folder, labels by folder or from a CSV file.

Labels come from a CSV file (name of the sub-folder, or of the file in a flat folder, to class index). Without one, the
sub-folders of all sources together are numbered in sorted order, and a flat folder is unlabeled.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.labels import read_groups, read_labels
from quantpipe.errors import DataError, nearest

log = logging.getLogger(__name__)

FILE_OF_GROUPS = "a CSV file with a header line, whose first column names a file or sub-folder and the second its group"
"""What `dataset.groups` takes for folders."""


class ClassFolder:
    """The files of one folder, in an order that is stable and takes turns among the sub-folders.

    First the first file (by name) of each sub-folder, then the second of each: so that the first N samples show as many
    classes as they can. `classes` maps names of sub-folders (or files) to labels, None without labels. `kind` is how
    messages call the files. `labels` is int64 `[len(files)]` or None.
    """

    def __init__(
        self,
        folder: Path,
        suffixes: Collection[str],
        kind: str,
        classes: Mapping[str, int] | None,
        *,
        by_csv: bool,
        groups: str | None = None,
    ) -> None:
        self._folder = folder
        by_name = _by_sub_folder(folder, suffixes, kind)
        if not by_csv and "" in by_name and len(by_name) > 1:
            raise DataError(
                f"mixes {kind} ({by_name[''][0].name}, …) with sub-folders of {kind}; put every file into the "
                "sub-folder of its class, or give dataset.labels.",
                stage="data",
                where=str(folder),
            )
        turns = zip_longest(*(by_name[name] for name in sorted(by_name)))
        self.files = [path for turn in turns for path in turn if path is not None]
        self.labels = self._find_labels(classes, by_csv)
        self.groups = None if groups is None else self._find_groups(read_groups(Path(groups).expanduser()), groups)
        self.class_names = () if self.labels is None or "" in by_name else names_in_order(classes or {})

    def _find_labels(self, classes: Mapping[str, int] | None, by_csv: bool) -> NDArray[np.int64] | None:
        if classes is None or (not by_csv and all(path.parent == self._folder for path in self.files)):
            return None
        return np.array([self._label(path, classes) for path in self.files], dtype=np.int64)

    def _find_groups(self, known: Mapping[str, str], where: str) -> NDArray[np.str_]:
        """Return the group of each file: by its path in the folder, its name, its stem, or its sub-folder."""
        found = []
        for path in self.files:
            inside = path.relative_to(self._folder)
            names = (inside.as_posix(), path.name, path.stem, inside.parts[0])
            group = next((known[name] for name in names if name in known), None)
            if group is None:
                raise DataError(
                    f"has no row for {inside.as_posix()!r}{nearest(path.name, known)} (dataset.groups); add one for "
                    "the file or its sub-folder.",
                    stage="data",
                    where=where,
                )
            found.append(group)
        return np.asarray(found, dtype=np.str_)

    def _label(self, path: Path, classes: Mapping[str, int]) -> int:
        """Return the label by the sub-folder's name, or, in a flat folder, the file's with or without its ending."""
        parts = path.relative_to(self._folder).parts
        names = (parts[0],) if len(parts) > 1 else (path.name, path.stem)
        for name in names:
            if name in classes:
                return classes[name]
        raise DataError(
            f"dataset.labels has no row for {names[0]!r}{nearest(names[0], classes)}; add one, or name other columns "
            "in dataset.label_columns=[NAME,INDEX].",
            stage="data",
            where=str(path),
        )


def _by_sub_folder(folder: Path, suffixes: Collection[str], kind: str) -> dict[str, list[Path]]:
    """Name of the sub-folder ("" for the folder itself) -> its files, sorted. What is hidden does not count."""
    if not folder.is_dir():
        raise DataError(f"is a file; legal is a folder of {kind}.", stage="data", where=str(folder))
    groups: dict[str, list[Path]] = {}
    for entry in sorted(folder.iterdir()):
        for path in sorted(entry.rglob("*")) if entry.is_dir() else [entry]:
            hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
            if path.suffix.lower() in suffixes and path.is_file() and not hidden:
                groups.setdefault(entry.name if entry.is_dir() else "", []).append(path)
    if not groups:
        raise DataError(
            f"holds no {kind}; legal endings are {', '.join(sorted(suffixes))}.", stage="data", where=str(folder)
        )
    return groups


def names_in_order(classes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the names of the classes by index; none where an index has no name, or several."""
    names = {index: name for name, index in classes.items()}
    whole = len(names) == len(classes) and set(names) == set(range(len(names)))
    return tuple(names[index] for index in range(len(names))) if whole else ()


def classes_of(
    folders: Sequence[Path], labels: str | None, columns: Sequence[str], outputs_classes: int | None
) -> dict[str, int] | None:
    """Return the class index of each name; None where there are no classes.

    The names are those in the CSV file `labels`, else the names of the sub-folders of all folders. `outputs_classes` is
    the model's number of classes, if known.
    """
    if labels is not None:
        return read_labels(Path(str(labels)).expanduser(), columns)
    classes = sub_folder_classes(folders)
    if classes is not None and outputs_classes is not None and len(classes) < outputs_classes:
        log.warning(
            "there are %d sub-folders for %d classes; they are numbered in sorted order. If the model has another "
            "order, give dataset.labels=FILE.csv",
            len(classes),
            outputs_classes,
        )
    return classes


def sub_folder_classes(folders: Iterable[Path]) -> dict[str, int] | None:
    """Return the sub-folders of all folders together, by name, with their position in sorted order.

    Without sub-folders it returns None.
    """
    names = {p.name for f in folders if f.is_dir() for p in f.iterdir() if p.is_dir() and not p.name.startswith(".")}
    return {name: i for i, name in enumerate(sorted(names))} or None
