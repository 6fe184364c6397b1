import json
import math
import os

import numpy as np
import pytest

from hpcps.errors import RunError
from hpcps.records.files import decode_all, read_lines
from hpcps.records.writer import RecordWriter


def writer(folder, clock=lambda: 0.0):
    return RecordWriter(folder, "abc0123456", "worker", 3, "n01", clock=clock)


def test_a_line_is_as_documented(tmp_path):
    seconds = iter([100.0, 101.5, 102.25])
    with writer(tmp_path, lambda: next(seconds)) as record:
        record.write("start", pid=7)
        record.write("round", round=0, loss=0.5, participated=True, absent=[1, 2])
    head = '"run": "abc0123456", "role": "worker", "index": 3, "host": "n01", '
    first, second = (tmp_path / "records" / "worker-3.jsonl").read_text().splitlines()
    assert first == '{"event": "start", ' + head + '"time": 1.5, "pid": 7, "attempt": 1}'
    tail = '"time": 2.25, "round": 0, "loss": 0.5, "participated": true, "absent": [1, 2]}'
    assert second == '{"event": "round", ' + head + tail


def test_each_line_is_in_the_file_when_write_returns(tmp_path):
    record = writer(tmp_path)
    for n in range(3):
        record.write("round", round=n)
        assert len(read_lines(record.path).lines) == n + 1
    record.close()
    record.close()


def test_numpy_values_and_numbers_that_are_not_finite(tmp_path):
    with writer(tmp_path) as record:
        record.write(
            "round",
            a=np.float32(0.5), b=np.int64(7), c=np.bool_(True), d=np.arange(3),
            e=float("inf"), f=np.float32("nan"), g=[1.0, -math.inf], h={"x": math.nan}, i=np.array([np.inf, 1.0]),
        )  # fmt: skip

    def refuse(name):
        raise AssertionError(f"{name} is not strict JSON")

    line = json.loads(record.path.read_text(), parse_constant=refuse)
    assert (line["a"], line["b"], line["c"], line["d"]) == (0.5, 7, True, [0, 1, 2])
    assert (line["e"], line["f"], line["g"], line["h"]) == ("inf", "nan", [1.0, "-inf"], {"x": "nan"})
    assert line["i"] == ["inf", 1.0]
    (read,) = read_lines(record.path).lines
    assert read["e"] == math.inf
    assert math.isnan(read["f"])


@pytest.mark.parametrize("torn", ['{"event": "rou', "{", "x" * 200_000])
def test_a_torn_line_is_cut_off_by_the_next_attempt(tmp_path, torn):
    with writer(tmp_path) as record:
        record.write("start")
        record.write("round", round=0)
    whole = record.path.read_text()
    with record.path.open("a") as file:
        file.write(torn)
    assert read_lines(record.path).damaged == 1
    with writer(tmp_path) as record:
        assert record.path.read_text() == whole
        assert record.attempt == 2
        record.write("start")
    read = read_lines(record.path)
    assert read.damaged == 0
    assert [line.get("attempt") for line in read.lines] == [1, None, 2]


def test_a_file_of_nothing_but_a_torn_line_becomes_empty(tmp_path):
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "worker-3.jsonl").write_text('{"ev')
    with writer(tmp_path) as record:
        assert record.path.read_bytes() == b""
        assert record.attempt == 1


def test_damaged_lines_are_counted_wherever_they_are():
    read = decode_all(b'{"a": 1}\nnonsense\n\xff\xfe\n[1]\n{"b": "inf"}\n{"c"')
    assert read.lines == [{"a": 1}, {"b": math.inf}]
    assert read.damaged == 4


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full plays the full disk")
def test_a_full_disk_is_said(tmp_path):
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "worker-3.jsonl").symlink_to("/dev/full")
    record = writer(tmp_path)
    with pytest.raises(RunError, match=r"worker-3\.jsonl: No space left on device; free disk space"):
        record.write("round", round=0)
    record.close()


def test_a_line_cut_short_is_said(tmp_path, monkeypatch):
    record = writer(tmp_path)
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, line: write(file, line[:10]))
    with pytest.raises(RunError, match="is truncated: the disk is full"):
        record.write("round", round=0)
    record.close()


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "records").write_text("a file where the folder should be")
    with pytest.raises(RunError, match="cannot open the record"):
        writer(tmp_path)
