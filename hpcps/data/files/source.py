"""The source of the official files of a data set, and their published MD5 checksums."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Archive:
    """An archive of a data set.

    Attributes:
        md5: its checksum.
        folder: the folder to which it unpacks.
        files: the files in it that the data set uses.
    """

    md5: str
    folder: str
    files: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Source:
    """The source of a data set.

    Attributes:
        folders: the sub-folders, in the folder for all data sets, that may hold the files; `hpcps data` writes to the
            first.
        unmistakable: whether no other data set has files with the same names.
        mirrors: the addresses of folders that hold the files, in the order in which to try them.
        archives: the archives by file name; one of them is enough, and the first is downloaded.
        files: single files and their checksums; all are downloaded if there are no archives.
    """

    folders: tuple[str, ...]
    unmistakable: bool = True
    mirrors: tuple[str, ...]
    archives: dict[str, Archive] = field(default_factory=dict)
    files: dict[str, str]
