"""Where the official files are, and their published MD5 checksums."""

from __future__ import annotations

from dataclasses import dataclass, field

from hpcps.training.data import cifar, folders


@dataclass(frozen=True, kw_only=True)
class Archive:
    """An archive of a data set.

    Attributes:
        md5: its checksum.
        folder: what it unpacks to.
        files: what is wanted from it.
    """

    md5: str
    folder: str
    files: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a data set comes from.

    Attributes:
        mirrors: addresses of folders that hold the files, in the order in which to try them.
        archives: by file name; one of them is enough, and the first is downloaded.
        files: single files and their checksums; all are downloaded if there are no archives.
    """

    mirrors: tuple[str, ...]
    archives: dict[str, Archive] = field(default_factory=dict)
    files: dict[str, str]


def _idx(*checksums: str) -> dict[str, str]:
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    return {f"{name}.gz": md5 for name, md5 in zip(names, checksums, strict=True)}


SOURCES = {
    "cifar10": Source(
        mirrors=("https://www.cs.toronto.edu/~kriz",),
        archives={
            "cifar-10-binary.tar.gz": Archive(
                md5="c32a1d4ab5d03f1284b67883e8d87530",
                folder=folders.FOLDERS["cifar10"][0],
                files=(*cifar.BINARY.train, cifar.BINARY.test),
            ),
            "cifar-10-python.tar.gz": Archive(
                md5="c58f30108f718f92721af3b95e74349a",
                folder=folders.FOLDERS["cifar10"][1],
                files=(*cifar.PYTHON.train, cifar.PYTHON.test),
            ),
        },
        files={
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        },
    ),
    "mnist": Source(
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "https://storage.googleapis.com/cvdf-datasets/mnist",
        ),
        files=_idx(
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    "fashion_mnist": Source(
        mirrors=(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        ),
        files=_idx(
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
}
