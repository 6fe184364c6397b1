"""Text: its windows, its splits, own files, and the errors that name them."""

import os

import numpy as np
import pytest

from hpcps.data.parts import open_parts
from hpcps.data.shards import all_shards, shard_size
from hpcps.errors import DataError, HpcpsError
from hpcps.registry import active
from hpcps.spec.identity import run_id
from hpcps.spec.schema import Run
from hpcps.spec.validate import validate

SENTENCE = "The café opens at nine.\n"


def text(**keys):
    return active().of("datasets")["text"](**keys)


def spelled(data, codes):
    return bytes(data.corpus.vocabulary[code] for code in np.asarray(codes, np.int64))


def tables(**data):
    return {
        "name": "text",
        "topology": {"workers": 3},
        "model": {"name": "decoder", "layers": 1, "width": 16, "heads": 2},
        "data": {"name": "text", **data},
        "train": {"epochs": 1, "batch_size": 4},
    }


@pytest.fixture
def own(tmp_path):
    (tmp_path / "b.txt").write_text(SENTENCE * 40, newline="\r\n")
    (tmp_path / "a.txt").write_text("First of all. " * 20)
    (tmp_path / "notes.md").write_text("Ignored.")
    return tmp_path


def test_the_novel_is_whole_and_its_windows_are_all_of_it():
    data = text(length=100)
    train, test = open_parts(data)
    facts = data.facts
    assert (facts.classes, len(data.corpus.codes)) == (75, 684_768)
    windows, rest = train.read(np.arange(facts.train)), test.read(np.arange(facts.test))
    whole = spelled(data, data.corpus.codes)
    assert whole.startswith(b"PRIDE AND PREJUDICE\n\nBy Jane Austen\n")
    in_order = np.argsort([whole.index(spelled(data, codes)) for codes in windows.images[:50]])
    assert in_order.tolist() != sorted(in_order), "training windows are shuffled"
    assert sorted(map(bytes, windows.images)) == sorted(
        bytes(data.corpus.codes[n * 100 : n * 100 + 100]) for n in range(facts.train)
    )
    assert spelled(data, rest.images.reshape(-1)) == whole[684_768 * 9 // 10 :][: facts.test * 100]


def test_the_labels_of_a_window_are_the_next_bytes():
    data = text(length=16)
    for part in open_parts(data):
        samples = part.read(np.arange(5))
        assert samples.images.shape == samples.labels.shape == (5, 16)
        assert np.array_equal(samples.images[:, 1:], samples.labels[:, :-1])
        assert len(samples.take(np.array([1, 3]))) == 2
    # Without shuffling, the last label of a window is the first byte of the next one.
    assert np.array_equal(samples.labels[:-1, -1], samples.images[1:, 0])


def test_own_files_are_read_in_the_order_of_their_names(own):
    data = text(dir=str(own), length=8)
    assert spelled(data, data.corpus.codes).decode() == "First of all. " * 20 + SENTENCE * 40
    assert data.facts.classes == len(set(("First of all. " + SENTENCE).encode()))


def test_splits_by_class_deal_tenths_of_the_text():
    data = text(length=64, shards=5, split=active().of("splits")["by_class"]())
    labels = open_parts(data)[0].labels
    shards = all_shards(data, shard_size(data, 4), 1, labels, held_out=False)
    # Shards are a little smaller than two tenths, because the remainder is left out.
    counts = [np.bincount(labels()[shard], minlength=10) for shard in shards]
    assert all(count[[2 * n, 2 * n + 1]].sum() >= 0.99 * count.sum() for n, count in enumerate(counts))


def test_runs_on_different_texts_have_different_ids(own):
    ids, checksums = [], []
    for words in (SENTENCE, SENTENCE.upper(), SENTENCE):
        (own / "b.txt").write_text(words * 40)
        run, problems = validate(tables(dir=str(own), length=8))
        assert problems == []
        ids.append(run_id(run))
        checksums.append(run.data.checksum)
    assert ids[0] != ids[1]
    assert ids[0] == ids[2]
    (own / "b.txt").write_text("Quite another text. " * 40)
    with pytest.raises(DataError, match=r"the text has changed.*not [0-9a-f]{16}"):
        Run.model_validate(tables(dir=str(own), length=8, checksum=checksums[0]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read (No such file or directory)"),
        (b"", "no file *.txt with text in it"),
        (b"fine\nbut \xff\xfe not this", "a.txt:2: not UTF-8 text"),
        (b"short", "too few for windows of 128 bytes"),
    ],
)
def test_text_that_cannot_be_used_is_named(tmp_path, content, message):
    if content is not None:
        (tmp_path / "a.txt").write_bytes(content)
    folder = tmp_path if content is not None else tmp_path / "nowhere"
    with pytest.raises(HpcpsError) as caught:
        text(dir=str(folder))
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (os.mkfifo, "b.txt: not a regular file"),
        (lambda path: path.symlink_to("nowhere"), "b.txt: cannot be read (No such file or directory)"),
    ],
    ids=["fifo", "link"],
)
def test_what_is_no_file_is_named_and_not_waited_for(own, make, message):
    (own / "b.txt").unlink()
    make(own / "b.txt")
    with pytest.raises(HpcpsError) as caught:
        text(dir=str(own))
    assert f"{own}/{message}" in str(caught.value)


def test_a_text_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("hpcps.data.sets.text.MOST", 1000)
    (tmp_path / "a.txt").write_text("a" * 600)
    (tmp_path / "b.txt").write_text("b" * 600)
    with pytest.raises(HpcpsError, match=r"b\.txt"):
        text(dir=str(tmp_path))


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        ({"model": {"name": "mlp"}}, "model.name", "mlp predicts one label for a sample, but samples of text have 128"),
        ({"data": {"name": "digits"}}, "model.name", "decoder predicts a label for each element of a sample"),
        ({"model": {"name": "decoder", "backend": "mxnet"}}, "model.name", "decoder is not among the models of"),
        ({"model": {"name": "decoder", "width": 30}}, "model", "width = 30 is not divisible by heads = 4"),
        ({"data": {"name": "text", "augment": True}}, "data.augment", "only for cifar10"),
        ({"data": {"name": "text", "resize": 32}}, "data.resize", "only for images"),
        ({"data": {"name": "text", "checksum": "0" * 16}}, "data", "checksum is only for own text"),
        ({"data": {"name": "text", "dir": "/nowhere/at/all"}}, "data", "/nowhere/at/all: cannot be read"),
    ],
)
def test_what_makes_no_sense_with_text_is_refused(change, path, words):
    _, problems = validate({**tables(), **change})
    found = {".".join(map(str, problem.path)): problem.message for problem in problems}
    assert words in found.get(path, ""), found
