from pathlib import Path

import pytest

from hpcps.errors import LaunchError
from hpcps.launch.hostfile import STYLES, Host, read_hostfile


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


def test_a_chunk_of_pbs_has_the_slots_and_the_gpus_of_its_resources(write):
    path = write("n1:ncpus=36:mpiprocs=36\nn2:ncpus=8:ngpus=2:mpiprocs=4:mem=64gb\nn3:ncpus=8\n")
    assert [(host.name, host.slots, host.gpu_count) for host in read_hostfile(path)] == [
        ("n1", 36, 0),
        ("n2", 4, 2),
        ("n3", 1, 0),
    ]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("2:ncpus=36", "'2' is a number of chunks"),
        ("n1:ncpus=36:mpiprocs", "'mpiprocs' is no resource of a chunk"),
        ("n1:mpiprocs=0", "'0' is no number of slots"),
        ("n1:ngpus=many", "'many' is no number of GPUs"),
        ("n1:ncpus=8:ncpus=9", "'ncpus=9' is no resource"),
        ("n1:ncpus=36 slots=4", "'slots=4' after a chunk of PBS"),
    ],
)
def test_what_is_wrong_in_a_chunk_of_pbs(write, line, what):
    with pytest.raises(LaunchError, match=rf":1: {what}"):
        read_hostfile(write(f"{line}\n"))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("address", ["::1", "fe80::1%eth0", "2001:db8::7", "[::1]", "[2001:db8::7]:4"])
def test_an_ipv6_address_is_said_to_be_unsupported(write, address, style):
    with pytest.raises(LaunchError, match=r":2: .* is an IPv6 address, which is not supported") as caught:
        read_hostfile(write(f"n1\n{address}\n"), style)
    assert "gpus=" not in str(caught.value)


@pytest.mark.parametrize(
    ("slots", "hint"),
    [("0", "gpus=0"), ("0,1", "gpus=0,1"), ("GPU-8a1", "gpus=GPU-8a1"), ("four", ""), ("", ""), ("70000", "")],
)
def test_a_gpu_is_advised_only_where_the_text_is_one(write, slots, hint):
    with pytest.raises(LaunchError, match="is no number of slots") as caught:
        read_hostfile(write(f"n1:{slots}\n"))
    assert str(caught.value).partition("for a GPU write ")[2] == hint


def test_names_in_other_letters_are_one_host(write):
    assert read_hostfile(write("Node1\nnode2\nNODE1\n")) == (Host("Node1", 2), Host("node2", 1))
    assert read_hostfile(write("N1:0\nn1:1\n"), "zenops") == (Host("N1", 2, slot_gpus=("0", "1")),)
    assert read_hostfile(write("LocalHost slots=2\n")) == (Host("localhost", 2),)
    with pytest.raises(LaunchError, match="GPU 0 of n1 is named already in line 1"):
        read_hostfile(write("N1:0\nn1:0\n"), "zenops")
    with pytest.raises(LaunchError, match="n1 is already in line 1"):
        read_hostfile(write("N1:2\nn1:2\n"))


def test_a_byte_order_mark_is_skipped(write):
    assert read_hostfile(write("\ufeffn1 slots=2\n")) == (Host("n1", 2),)


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
    with pytest.raises(LaunchError, match="hosts: not UTF-8 text"):
        read_hostfile(path)
