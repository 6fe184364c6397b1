import argparse
import functools
import hashlib
import http.server
import io
import tarfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from training_examples import RECORDS, write_binary, write_idx

from hpcps.cli import data as command
from hpcps.data.sets import Cifar10, FashionMnist, Mnist
from hpcps.errors import DataError

ARCHIVE = "cifar-10-binary.tar.gz"


def md5(content):
    return hashlib.md5(content).hexdigest()


class Mirror(http.server.SimpleHTTPRequestHandler):
    """Serves a folder; a file named in `cut` breaks off after half of it."""

    cut: tuple[str, ...] = ()
    asked: list[str]

    def do_GET(self):
        self.asked.append(self.path)
        if self.path.lstrip("/") not in self.cut:
            return super().do_GET()
        content = Path(self.translate_path(self.path)).read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2])

    def log_message(self, *_):
        pass


@pytest.fixture
def mirror(tmp_path):
    """An HTTP server of `tmp_path/mirror`: (its address, its handler's class)."""
    (tmp_path / "mirror").mkdir()
    handler = type("Handler", (Mirror,), {"asked": []})
    serve = functools.partial(handler, directory=str(tmp_path / "mirror"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", handler
        server.shutdown()
        thread.join()


@pytest.fixture
def archive(tmp_path, mirror, monkeypatch):
    """A small CIFAR-10 in the mirror, under its official name, with things in it that nobody wants."""
    monkeypatch.setattr(Cifar10, "facts", replace(Cifar10.facts, train=5 * RECORDS, test=RECORDS))
    write_binary(tmp_path / "source" / "cifar-10-batches-bin")
    path = tmp_path / "mirror" / ARCHIVE
    with tarfile.open(path, "w:gz") as tar:
        link = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        tar.add(tmp_path / "source" / "cifar-10-batches-bin", "cifar-10-batches-bin")
        for name in ("../../outside", "/tmp/outside", "readme.html"):
            member = tarfile.TarInfo(name)
            member.size = 3
            tar.addfile(member, io.BytesIO(b"bad"))
    official = Cifar10.source
    entry = replace(official.archives[ARCHIVE], md5=md5(path.read_bytes()))
    monkeypatch.setattr(Cifar10, "source", replace(official, mirrors=(mirror[0],), archives={ARCHIVE: entry}))
    return path


def hpcps_data(*arguments):
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    args = parser.parse_args(["data", *map(str, arguments)])
    return args.handler(args)


def test_cifar_is_downloaded_verified_unpacked_and_found(tmp_path, mirror, archive, capsys):
    root = tmp_path / "data"
    assert hpcps_data("cifar10", "--dir", root) == 0
    captured = capsys.readouterr()
    assert captured.out.count(": checksum right\n") == 6
    assert f"{ARCHIVE}: 0.1 of 0.1 MB" in captured.err
    files = [path.relative_to(root).as_posix() for path in sorted(root.rglob("*")) if not path.is_dir()]
    names = ["MD5SUMS", *(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]
    assert files == [f"cifar-10-batches-bin/{name}" for name in names]
    assert not (tmp_path / "outside").exists()

    hpcps_data("cifar10", "--dir", root)
    assert mirror[1].asked == [f"/{ARCHIVE}"]  # not asked again


def test_a_flipped_byte_is_found_and_replaced(tmp_path, archive):
    root = tmp_path / "data"
    hpcps_data("cifar10", "--dir", root)
    path = root / "cifar-10-batches-bin" / "data_batch_3.bin"
    intact = path.read_bytes()
    path.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
    with pytest.raises(DataError, match=f"{path}: not the official file: .*; replace it with"):
        hpcps_data("cifar10", "--dir", root, "--check")
    hpcps_data("cifar10", "--dir", root)
    assert path.read_bytes() == intact


def test_an_interrupted_download_leaves_no_archive(tmp_path, mirror, archive):
    mirror[1].cut = (ARCHIVE,)
    root = tmp_path / "data"
    with pytest.raises(DataError, match=rf"cannot download {ARCHIVE}:\n  http.*interrupted after [\d,]+ "):
        hpcps_data("cifar10", "--dir", root)
    assert [path.name for path in root.iterdir()] == [f"{ARCHIVE}.part"]
    mirror[1].cut = ()
    hpcps_data("cifar10", "--dir", root)
    assert [path.name for path in root.iterdir()] == ["cifar-10-batches-bin"]


def test_a_wrong_checksum_is_refused_and_said(tmp_path, archive):
    archive.write_bytes(archive.read_bytes() + b"x")
    with pytest.raises(DataError, match=f"wrong checksum: its MD5 is {md5(archive.read_bytes())}, not "):
        hpcps_data("cifar10", "--dir", tmp_path / "data")
    assert not (tmp_path / "data" / ARCHIVE).exists()


def test_an_archive_that_is_there_is_used(tmp_path, mirror, archive):
    root = tmp_path / "data"
    root.mkdir()
    (root / ARCHIVE).write_bytes(archive.read_bytes())
    hpcps_data("cifar10", "--dir", root)
    assert mirror[1].asked == []
    assert (root / ARCHIVE).exists()  # whoever put it there may want it


def test_another_address_is_taken_and_every_failure_is_told(tmp_path, mirror, archive):
    root = tmp_path / "data"
    with pytest.raises(DataError) as caught:
        hpcps_data("cifar10", "--dir", root, "--from", f"{mirror[0]}/nowhere")
    assert f"{mirror[0]}/nowhere/{ARCHIVE}: HTTP Error 404" in str(caught.value)
    assert f"copy it to {root}, and run this again" in str(caught.value)
    hpcps_data("cifar10", "--dir", root, "--from", archive.parent.as_uri())
    assert mirror[1].asked == [f"/nowhere/{ARCHIVE}"]


@pytest.mark.parametrize("data", [Mnist, FashionMnist])
def test_idx_files_come_one_by_one_from_the_first_mirror_that_has_them(tmp_path, mirror, monkeypatch, data):
    name = data.model_fields["name"].default
    monkeypatch.setattr(data, "facts", replace(data.facts, train=20, test=6))
    write_idx(tmp_path / "mirror", 20, 6, compressed=True)
    files = {path.name: md5(path.read_bytes()) for path in (tmp_path / "mirror").iterdir()}
    mirrors = (f"{mirror[0]}/gone", mirror[0])
    assert files.keys() == data.source.files.keys(), "the official names"
    monkeypatch.setattr(data, "source", replace(data.source, mirrors=mirrors, files=files))
    root = tmp_path / "data"
    hpcps_data(name, "--dir", root)
    assert sorted(path.name for path in (root / name).iterdir()) == sorted(files)

    broken = root / name / "train-labels-idx1-ubyte.gz"
    broken.write_bytes(b"")
    (root / name / "t10k-labels-idx1-ubyte").write_bytes(b"broken, and preferred to the right .gz")
    mirror[1].asked.clear()
    hpcps_data(name, "--dir", root)
    assert mirror[1].asked == ["/gone/train-labels-idx1-ubyte.gz", "/train-labels-idx1-ubyte.gz"]
    assert hpcps_data(name, "--dir", root, "--check") == 0


def test_fashion_mnist_has_its_published_checksums():
    """Those in the README of its repository; MNIST's files have the same names and other checksums."""
    assert FashionMnist.source.files == {
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    }
    assert not set(FashionMnist.source.files.values()) & set(Mnist.source.files.values())


def test_a_folder_that_cannot_be_written_is_named(tmp_path, archive):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=f"{tmp_path}/file/data: Not a directory; choose another folder with --dir"):
        hpcps_data("cifar10", "--dir", tmp_path / "file" / "data")
