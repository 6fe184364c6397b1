import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat
from training_examples import (
    RECORDS,
    cifar_records,
    dump,
    dump_as_python2,
    write_binary,
    write_idx,
    write_python,
)

from hpcps.data.sets import Cifar10, Cifar100, Digits, FashionMnist, Mnist, Svhn, digits
from hpcps.errors import DataError
from hpcps.inputs import read_gzip

LAYOUTS = {
    "binary": ("cifar-10-batches-bin", write_binary),
    "python 2": ("cifar-10-batches-py", lambda folder: write_python(folder, dump_as_python2)),
    "python protocol 2": ("cifar-10-batches-py", lambda folder: write_python(folder, dump(2))),
    "python protocol 4": ("cifar-10-batches-py", lambda folder: write_python(folder, dump(4))),
    "python protocol 5": ("cifar-10-batches-py", lambda folder: write_python(folder, dump(5))),
}


@pytest.fixture(autouse=True)
def small_sets(monkeypatch):
    monkeypatch.setattr(Cifar10, "facts", replace(Cifar10.facts, train=5 * RECORDS, test=RECORDS))
    for data in (Cifar100, Mnist, FashionMnist, Svhn):
        monkeypatch.setattr(data, "facts", replace(data.facts, train=20, test=6))
    monkeypatch.delenv("HPCPS_DATA", raising=False)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("inside", [True, False], ids=["folder itself", "sub-folder"])
def test_cifar_is_read_in_every_layout(tmp_path, layout, inside):
    folder, write = LAYOUTS[layout]
    write(tmp_path / folder)
    train, test = Cifar10(dir=str(tmp_path / folder if inside else tmp_path)).open()
    expected = [cifar_records(number) for number in range(6)]
    assert train.labels().tolist() == np.concatenate([labels for labels, _ in expected[:5]]).tolist()
    places = np.array([19, 0, 7, 6])
    samples = train.read(places)
    pixels = np.concatenate([pixels for _, pixels in expected[:5]])
    assert np.array_equal(samples.images, pixels[places].reshape(4, 3, 32, 32))
    assert samples.images[2, 1, 3, 5] == pixels[7, 1024 + 3 * 32 + 5]  # the green plane, row by row
    assert np.array_equal(samples.labels, train.labels()[places])
    assert np.array_equal(test.read(np.arange(4)).labels, expected[5][0])


def cifar100_records(count):
    """Coarse labels, fine labels and pixels."""
    generator = np.random.default_rng(count)
    coarse, fine = generator.integers(0, 20, count, np.uint8), generator.integers(0, 100, count, np.uint8)
    return coarse, fine, generator.integers(0, 256, (count, 3072), np.uint8)


def write_cifar100(folder, layout):
    folder.mkdir()
    for name, count in (("train", 20), ("test", 6)):
        coarse, fine, pixels = cifar100_records(count)
        if layout == "binary":
            (folder / f"{name}.bin").write_bytes(np.hstack([coarse[:, None], fine[:, None], pixels]).tobytes())
        else:
            table = {b"coarse_labels": coarse.tolist(), b"fine_labels": fine.tolist(), b"data": pixels}
            (folder / name).write_bytes(pickle.dumps(table, protocol=2))


@pytest.mark.parametrize("layout", ["binary", "python"])
def test_cifar100_is_read_in_both_layouts_with_its_fine_labels(tmp_path, layout):
    write_cifar100(tmp_path / f"cifar-100-{layout}", layout)
    train, test = Cifar100(dir=str(tmp_path)).open()
    places = np.array([19, 0, 7])
    samples = train.read(places)
    _, fine, pixels = cifar100_records(20)
    assert np.array_equal(samples.images, pixels[places].reshape(3, 3, 32, 32))
    assert np.array_equal(samples.labels, fine[places])
    assert np.array_equal(train.labels(), fine)
    assert np.array_equal(test.labels(), cifar100_records(6)[1])


def svhn_variables(count):
    generator = np.random.default_rng(count)
    images = generator.integers(0, 256, (32, 32, 3, count), np.uint8)
    return {"X": images, "y": generator.permutation(np.arange(count) % 10 + 1).astype(np.uint8)[:, None]}


@pytest.fixture
def svhn(tmp_path):
    (tmp_path / "svhn").mkdir()
    for name, count in (("train_32x32.mat", 20), ("test_32x32.mat", 6)):
        savemat(tmp_path / "svhn" / name, svhn_variables(count), do_compression=True)
    return tmp_path


def test_svhn_is_read_and_its_label_10_is_the_digit_0(svhn):
    train, test = Svhn(dir=str(svhn)).open()
    variables = svhn_variables(20)
    samples = train.read(np.array([19, 2]))
    assert samples.images.shape == (2, 3, 32, 32)
    assert np.array_equal(samples.images[0], variables["X"][:, :, :, 19].transpose(2, 0, 1))
    assert np.array_equal(train.labels(), variables["y"][:, 0] % 10)
    assert set(train.labels()) == set(range(10))
    assert np.array_equal(samples.labels, train.labels()[[19, 2]])
    assert len(test.labels()) == 6


@pytest.mark.parametrize("damage", ["half", "empty", "byte", "shape", "label", "text"])
def test_a_damaged_svhn_file_is_named(svhn, damage):
    path = svhn / "svhn" / "train_32x32.mat"
    content, variables = bytearray(path.read_bytes()), svhn_variables(20)
    content[len(content) // 2] ^= 0xFF
    changed = {"shape": {"X": variables["X"][..., 1:]}, "label": {"y": variables["y"] + 1}}
    if damage in changed:
        savemat(path, {**variables, **changed[damage]}, do_compression=True)
    else:
        path.write_bytes({"half": content[: len(content) // 2], "empty": b"", "byte": content, "text": b"no"}[damage])
    train, _ = Svhn(dir=str(svhn)).open()
    with pytest.raises(DataError, match=f"{path}: .*; replace it with `hpcps data svhn --dir {svhn}`"):
        train.read(np.array([0]))


def test_a_missing_svhn_file_is_named(svhn):
    (svhn / "svhn" / "test_32x32.mat").unlink()
    with pytest.raises(DataError, match=r"test_32x32\.mat: missing, although other files"):
        Svhn(dir=str(svhn)).open()


@pytest.mark.parametrize("layout", ["binary", "python 2", "python protocol 4"])
def test_a_truncated_cifar_file_is_named(tmp_path, layout):
    folder, write = LAYOUTS[layout]
    write(tmp_path / folder)
    path = sorted((tmp_path / folder).iterdir())[2]
    os.truncate(path, path.stat().st_size // 2)
    train, _ = Cifar10(dir=str(tmp_path)).open()
    assert len(train.read(np.arange(8))) == 8  # the other files are right
    with pytest.raises(DataError) as caught:
        train.read(np.array([9]))
    assert str(caught.value).startswith(f"{path}: truncated")
    assert str(caught.value).endswith(f"replace it with `hpcps data cifar10 --dir {tmp_path}`")


@pytest.mark.parametrize("layout", ["binary", "python 2"])
def test_a_missing_cifar_file_is_named(tmp_path, layout):
    folder, write = LAYOUTS[layout]
    write(tmp_path / folder)
    path = sorted((tmp_path / folder).iterdir())[-1]
    path.unlink()
    with pytest.raises(
        DataError, match=f"{path}: missing, although other files .* `hpcps data cifar10 --dir {tmp_path}`"
    ):
        Cifar10(dir=str(tmp_path)).open()


def test_a_corrupt_label_is_found(tmp_path):
    write_binary(tmp_path)
    with (tmp_path / "data_batch_2.bin").open("r+b") as file:
        file.write(b"\x0b")
    train, _ = Cifar10(dir=str(tmp_path)).open()
    with pytest.raises(DataError, match=r"data_batch_2.bin: corrupt: a label is 11, not 0 to 9"):
        train.read(np.arange(20))


class Evil:
    def __reduce__(self):
        return (os.mkdir, (os.environ["EVIL_FOLDER"],))


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps([1, 2]),
        pickle.dumps({"data": 3, "labels": [1]}),
        pickle.dumps({"labels": [1]}),
        pickle.dumps({b"data": np.zeros((4, 3072)), b"labels": [1] * 4}),
        pickle.dumps({b"data": np.zeros((4, 3072), np.uint8), b"labels": [1, 2, 3, "x"]}),
        pickle.dumps({b"data": np.zeros((4, 3072), np.uint8), b"labels": [1, 2, 3]}),
        pickle.dumps({b"data": np.zeros((4, 30), np.uint8), b"labels": [1, 2, 3, 4]}),
        b"",
        b"not a pickle",
    ],
)
def test_a_python_file_that_is_something_else_is_named(tmp_path, content):
    write_python(tmp_path, dump(4))
    (tmp_path / "data_batch_1").write_bytes(content)
    train, _ = Cifar10(dir=str(tmp_path)).open()
    with pytest.raises(DataError, match=f"{tmp_path / 'data_batch_1'}: "):
        train.labels()


def test_a_pickle_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("EVIL_FOLDER", str(tmp_path / "evil"))
    write_python(tmp_path, dump(4))
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}))
    _, test = Cifar10(dir=str(tmp_path)).open()
    with pytest.raises(DataError, match=r"test_batch: truncated or corrupt \(it refers to posix.mkdir"):
        test.labels()
    assert not (tmp_path / "evil").exists()


def test_data_that_is_nowhere_says_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"no cifar10 in data or .* get it with `hpcps data cifar10 --dir data`"):
        Cifar10(dir=None).open()
    monkeypatch.setenv("HPCPS_DATA", str(tmp_path / "sets"))
    with pytest.raises(DataError, match=f"no mnist in {tmp_path}/sets or its sub-folders mnist and MNIST/raw"):
        Mnist(dir=None).open()


def test_the_folder_is_data_dir_else_the_variable_else_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("explicit", "variable", "data"):
        write_binary(tmp_path / name / "cifar-10-batches-bin")
    assert "data/" in str(Cifar10(dir=None).open()[0].paths[0])
    monkeypatch.setenv("HPCPS_DATA", "variable")
    assert "variable/" in str(Cifar10(dir=None).open()[0].paths[0])
    assert "explicit/" in str(Cifar10(dir="explicit").open()[0].paths[0])


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw", ""])
def test_idx_files_are_read(tmp_path, compressed, folder):
    arrays = write_idx(tmp_path / folder, 20, 6, compressed=compressed)
    train, test = Mnist(dir=str(tmp_path)).open()
    samples = train.read(np.array([19, 2]))
    assert np.array_equal(samples.images[:, 0], arrays["train-images-idx3-ubyte"][[19, 2]])
    assert np.array_equal(samples.labels, arrays["train-labels-idx1-ubyte"][[19, 2]])
    assert np.array_equal(test.labels(), arrays["t10k-labels-idx1-ubyte"])


def test_mnist_is_not_taken_for_fashion_mnist(tmp_path, monkeypatch):
    write_idx(tmp_path, 20, 6, compressed=True)
    monkeypatch.setenv("HPCPS_DATA", str(tmp_path))
    with pytest.raises(DataError, match="no fashion_mnist"):
        FashionMnist(dir=None).open()
    FashionMnist(dir=str(tmp_path)).open()  # whoever names the folder knows what it holds


@pytest.mark.parametrize(
    ("name", "compressed", "damage"),
    [
        (name, compressed, damage)
        for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
        for compressed in (True, False)
        for damage in ("half", "empty", "byte", "header")
        if compressed or damage != "byte" or "labels" in name  # a pixel is a pixel
    ],
)
def test_a_damaged_idx_file_is_named(tmp_path, name, compressed, damage):
    write_idx(tmp_path / "mnist", 20, 6, compressed=compressed)
    path = tmp_path / "mnist" / (f"{name}.gz" if compressed else name)
    content = bytearray(path.read_bytes())
    if damage == "byte":
        content[-1 if not compressed else len(content) // 2] ^= 0xFF
    elif damage == "header":
        content[2] ^= 0xFF
    path.write_bytes({"half": content[: len(content) // 2], "empty": b""}.get(damage, content))
    train, _ = Mnist(dir=str(tmp_path)).open()
    with pytest.raises(DataError, match=f"{path}: .*replace it with `hpcps data mnist --dir {tmp_path}`"):
        train.read(np.array([0]))


def test_a_missing_idx_file_is_named(tmp_path):
    write_idx(tmp_path / "mnist", 20, 6, compressed=True)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte: missing, although other files"):
        Mnist(dir=str(tmp_path)).open()


@pytest.mark.parametrize("content", [b"", b"\x1f\x8bnonsense"], ids=["empty", "corrupt"])
def test_damaged_digits_are_named(tmp_path, monkeypatch, content):
    path = tmp_path / "digits.csv.gz"
    path.write_bytes(content)
    monkeypatch.setattr(digits, "digits_file", lambda: path)
    with pytest.raises(DataError, match=f"{path}: corrupt .*pip install --force-reinstall scikit-learn"):
        Digits().open()


def test_digits_that_the_system_does_not_open_are_not_called_corrupt(tmp_path, monkeypatch):
    monkeypatch.setattr(digits, "digits_file", lambda: tmp_path)
    with pytest.raises(DataError, match=f"{tmp_path}: Is a directory$"):
        Digits().open()


def test_the_roles_of_a_process_read_the_digits_once_unless_their_file_changes(tmp_path, monkeypatch):
    path, read = Path(shutil.copy(digits.digits_file(), tmp_path)), []
    monkeypatch.setattr(digits, "digits_file", lambda: path)
    monkeypatch.setattr(digits, "read_gzip", lambda *args: read.append(args) or read_gzip(*args))
    (first, _), (second, _) = Digits().open(), Digits().open()
    assert len(read) == 1
    samples = first.read(np.arange(3))
    samples.images[:] = 0
    assert second.read(np.arange(3)).images.any(), "no role changes what another reads"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="corrupt"):
        Digits().open()
