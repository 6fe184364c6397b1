"""`hpcps doctor --hostfile` finds what is planted on hosts: network namespaces, and hosts of batch systems."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
from cluster import make_cluster
from environments import ROOT, interpreter
from host_namespaces import HostNamespaces

from hpcps.cli.main import main
from hpcps.launch.doctor.hosts import rounds

pytestmark = pytest.mark.usefixtures("starts_processes")

CALL = """
import sys
from hpcps.cli.main import main
from hpcps.launch.doctor import hosts
hosts.FACTS_SECONDS = 8.0
sys.exit(main(["doctor", *sys.argv[1:]]))
"""


@pytest.fixture
def spaces(tmp_path):
    """Make hosts; each test says how many."""
    made = []

    def make(count):
        made.append(HostNamespaces(tmp_path, count))
        made[0].start()
        (tmp_path / "hosts").write_text("".join(f"{name}\n" for name in made[0].names))
        return made[0]

    yield make
    for each in made:
        each.stop()


def doctor(spaces, folder, *arguments):
    """Call `hpcps doctor` on the first host; return its exit status and output."""
    done = subprocess.run(
        [*spaces.enter, sys.executable, "-c", CALL, "--hostfile", folder / "hosts", *arguments],
        env={"PATH": f"{spaces.path}:{os.environ['PATH']}", "HOME": str(folder), "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert "Traceback" not in done.stdout + done.stderr
    return done.returncode, done.stdout, done.stderr


def metadata(package):
    """Return the file with the metadata of a package."""
    found = distribution(package)
    (file,) = [file for file in found.files if file.name == "METADATA" and ".dist-info" in str(file)]
    return Path(found.locate_file(file))


def other_python():
    """Return another version of Python than this one; skip the test without one."""
    for path in (Path("/usr/bin/python3"), Path("/usr/local/bin/python3")):
        if path.exists():
            said = subprocess.run([path, "--version"], capture_output=True, text=True).stdout.split()[-1]
            if said != sys.version.split()[0]:
                return path, said
    pytest.skip("there is no second version of Python here")


def test_each_planted_difference_is_found_with_its_host(spaces, tmp_path):
    hosts = spaces(10)
    python, version = other_python()
    torch = metadata("torch")
    (tmp_path / "torch").write_text(re.sub(r"(?m)^Version: .*", "Version: 1.0.0", torch.read_text()))
    (tmp_path / "seeds.py").write_text("# other code\n")
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock/sitecustomize.py").write_text("import time\nt = time.time\ntime.time = lambda: t() + 90\n")
    meminfo = re.sub(r"(MemAvailable:\s+)\d+", r"\g<1>1000", Path("/proc/meminfo").read_text())
    (tmp_path / "meminfo").write_text(meminfo)
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu/nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA H200, 570.86'\necho 'NVIDIA H200, 570.86'\n")
    (tmp_path / "gpu/nvidia-smi").chmod(0o755)
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    hosts.plant(2, f"mount --bind {tmp_path}/python {Path(sys.executable).resolve()}")
    hosts.plant(3, f"mount --bind {tmp_path}/torch '{torch}'; mount --bind {tmp_path}/seeds.py {ROOT}/hpcps/seeds.py")
    # The command begins with `env PYTHONPATH=…`.
    hosts.plant(4, f'env() {{ w=$1; shift; command env PYTHONPATH={tmp_path}/clock:"${{w#*=}}" "$@"; }}')
    hosts.plant(5, f"mount -t tmpfs none {tmp_path}/results")
    hosts.plant(6, f"mount --bind {tmp_path}/meminfo /proc/meminfo; mount -t tmpfs -o size=1m none /dev/shm")
    hosts.plant(7, f"PATH={tmp_path}/gpu:$PATH")
    hosts.limit(8, "100mbit")
    hosts.plant(9, "sleep 60")
    hosts.plant(10, f"mount -t tmpfs none {Path(sys.executable).parent}")
    (tmp_path / "results").mkdir()
    status, printed, _ = doctor(hosts, tmp_path, "--json")
    found = json.loads(printed)
    problems = {}
    for each in found["problems"]:
        number = int(each["host"].rpartition(".")[2])
        if each["column"] != "bandwidth" or number == 8:  # 45 pairs share two cores
            problems.setdefault(number, {})[each["column"]] = each["text"]
    assert status == 69
    own, cores = sys.version.split()[0], len(os.sched_getaffinity(0))
    assert problems[2]["python"] == f"Python: {version}, and {own} on 7 hosts"
    assert problems[3]["torch"].startswith("torch: 1.0.0, and ")
    assert re.fullmatch(r"hpcps: \S+ \(\w{6}\), and \S+ \(\w{6}\) on 7 hosts", problems[3]["hpcps"])
    assert problems[4] == {"clock": "the clock is 90.0 s ahead of the others: synchronize it (chrony, ntpd)"}
    assert "all hosts have to share the results folder" in problems[5]["shared"]
    assert problems[6]["memory"].startswith("0.0 GB of memory are free")
    assert problems[6]["shm"].startswith("MPI may need 17.4 MB of /dev/shm for 1 process on one host")
    assert problems[7]["gpus"] == "GPUs: 2 x NVIDIA H200 (driver 570.86), and none on 7 hosts"
    assert re.match(r"sends 1\d\.\d MB/s to ", problems[8]["bandwidth"])
    assert problems[9]["host"].startswith("does not answer within 8 s: it has to be up, and `ssh ")
    assert problems[10]["host"].startswith("ended with status 127: ")
    assert sys.executable in problems[10]["host"]
    assert 1 not in problems
    facts = {int(each["host"].rpartition(".")[2]): each["facts"] for each in found["hosts"]}
    assert facts[1]["cores"] == cores
    assert not facts[9]
    assert list(tmp_path.glob("**/.doctor-*")) == []


def test_a_table_has_a_row_for_each_host_and_marks_the_odd_one_out(spaces, tmp_path):
    hosts = spaces(3)
    hosts.plant(3, "echo 'ssh: connect to host node3 port 22: No route to host' >&2; exit 255")
    status, printed, said = doctor(hosts, tmp_path)
    assert (status, said) == (69, "examining 3 hosts ...\n")
    lines = printed.splitlines()
    assert lines[0].startswith(f"on all hosts: Python {sys.version.split()[0]}, hpcps ")
    rows = {line.split()[0]: line.split()[1:] for line in lines[2:6]}
    assert list(rows) == ["host", *hosts.names[:2], f"{hosts.names[2]}*"]
    assert rows["host"][:5] == ["free", "memory", "/dev/shm", "/tmp", "shared"]
    assert "+0.0" in printed or "-0.0" in printed
    assert lines[-2] == "* 1 problem of 1 host:"
    assert lines[-1] == (
        f"  {hosts.names[2]}: ended with status 255: ssh: connect to host node3 port 22: No route to host: it has to "
        f"be up, and `ssh {hosts.names[2]} true` to work without a password"
    )


def test_hosts_that_cannot_reach_each_other_are_named(spaces, tmp_path):
    hosts = spaces(3)
    hosts.plant(3, f"ip route replace unreachable {hosts.names[1]}")
    _, printed, _ = doctor(hosts, tmp_path, "--json")
    (problem,) = [each for each in json.loads(printed)["problems"] if each["column"] == "bandwidth"]
    assert {problem["host"], problem["text"].split()[3].rstrip(":")} == set(hosts.names[1:])
    assert "No route to host" in problem["text"] or "timed out" in problem["text"]


def test_without_a_file_the_hosts_of_the_job_are_compared_through_the_batch_system(tmp_path):
    cluster = make_cluster(tmp_path, hosts=3)
    command = [*cluster.enter, interpreter("mpich"), "-m", "hpcps", "doctor", "--hostfile", "--json"]
    done = subprocess.run(command, env=cluster.of_job, cwd=tmp_path, capture_output=True, text=True, timeout=90)
    found = json.loads(done.stdout)
    assert [(each["host"], each["facts"]["name"]) for each in found["hosts"]] == [
        (name, name) for name in cluster.names
    ]
    assert len(found["links"]) == 6
    assert all(abs(each["ahead"]) < 0.5 and each["shares"] for each in found["hosts"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hostfile"], "takes the hosts of the batch job: this is no job; name a host file"),
        (["--hostfile", "nowhere"], "there is no host file nowhere"),
        (["--hostfile", "hosts", "--set", "seed=1"], "--hostfile compares hosts, and FILE, --set and --only are about"),
        (["--hostfile", "hosts", "--results", "/proc/x"], "/proc/x cannot be written (/proc: "),
        (["--hostfile", "hosts", "--results", "hosts"], "/hosts: Not a directory): choose another"),
    ],
)
def test_mistakes_are_one_sentence(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts").write_text("localhost\n")
    assert main(["doctor", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_every_pair_is_measured_once_and_a_host_is_in_one_pair_of_a_round(count):
    names = [f"n{number}" for number in range(count)]
    made = list(rounds(names))
    pairs = [frozenset(pair) for each in made for pair in each]
    assert len(pairs) == len(set(pairs)) == count * (count - 1) // 2
    assert all(len(set(sum(each, ()))) == 2 * len(each) for each in made)
