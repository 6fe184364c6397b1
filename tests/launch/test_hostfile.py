from pathlib import Path

import pytest

from hpcps.errors import LaunchError
from hpcps.launch.hostfile import Host, read_hostfile


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "hosts"
        path.write_text(text)
        return path

    return write


def test_every_form_of_a_line(write):
    path = write(
        "# two racks\n\na\nb:4\nc slots=2   # old\nd.example.org slots=3 gpus=0,1\ne gpus=GPU-8a1,GPU-9b2\n10.0.0.7\n"
    )
    assert read_hostfile(path) == (
        Host("a", 1),
        Host("b", 4),
        Host("c", 2),
        Host("d.example.org", 3, ("0", "1")),
        Host("e", 2, ("GPU-8a1", "GPU-9b2")),
        Host("10.0.0.7", 1),
    )


def test_a_pbs_nodefile_repeats_a_host_for_each_of_its_slots(write):
    assert read_hostfile(write("n1\nn2\nn1\nn2\nn2\n")) == (Host("n1", 2), Host("n2", 3))


def test_zenops_lines_are_a_process_each(write):
    hosts = read_hostfile(write("n1:0\nn1:1\nn2:0\nn3\n"), "zenops")
    assert hosts == (
        Host("n1", 2, slot_gpus=("0", "1")),
        Host("n2", 1, slot_gpus=("0",)),
        Host("n3", 1, slot_gpus=(None,)),
    )


@pytest.mark.parametrize("name", ["localhost", "localhost.localdomain", "127.0.0.1"])
def test_a_name_that_every_machine_has_is_refused_among_several(write, name):
    with pytest.raises(LaunchError, match=f":2: {name} is each machine's name for itself"):
        read_hostfile(write(f"n1\n{name} slots=2\n"))
    assert read_hostfile(write(f"{name}\n{name}\n")) == (Host(name, 2),)


def test_all_mistakes_are_listed_with_their_lines(write):
    path = write(
        "n1 slots=0\nn2 cores=4\nn3 gpus=0,0\nn4:2\nn4\nn5:2 slots=2\n-x\nn6 gpus=0,,1\nn7 gpus=0 gpus=1\nn8:four\n"
    )
    with pytest.raises(LaunchError) as caught:
        read_hostfile(path)
    lines = str(caught.value).splitlines()
    assert [line.removeprefix(f"{path}:").split(":")[0] for line in lines] == [*list("1235678"), "9", "10"]
    for text, line in zip(
        ("number of slots", "cores=4", "twice in this line", "already in line 4", "given twice", "no host name"),
        lines,
        strict=False,
    ):
        assert text in line


def test_a_gpu_named_twice_in_two_lines(write):
    path = write("n1:0\nn2:0\nn1:0\n")
    with pytest.raises(LaunchError, match=f"{path}:3: GPU 0 of n1 is named already in line 1"):
        read_hostfile(path, "zenops")


@pytest.mark.parametrize("text", ["", "\n# nobody\n"])
def test_an_empty_file(write, text):
    with pytest.raises(LaunchError, match="is empty"):
        read_hostfile(write(text))


def test_a_missing_file(tmp_path):
    with pytest.raises(LaunchError, match=r"there is no host file .*nowhere"):
        read_hostfile(tmp_path / "nowhere")


def test_a_file_that_is_no_text(tmp_path):
    path = Path(tmp_path / "hosts")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(LaunchError, match="cannot be read"):
        read_hostfile(path)
