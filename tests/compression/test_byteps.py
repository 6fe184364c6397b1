"""The bytes of BytePS's compressors: its sources from the package index, compiled, against these."""

import io
import struct
import subprocess
import sys
import sysconfig
import tarfile
from itertools import product

import numpy as np
import pytest

from hpcps.compression import Dithering, Onebit, Randomk, Topk

PROGRAM = """
#include <cstdio>
#include <vector>
#include "compressor/compressor_registry.h"
using namespace byteps::common;
namespace byteps { namespace common { int getDataTypeLength(int) { return 4; } } }
int main(int argc, char** argv) {
  compressor::kwargs_t keys;
  for (int i = 1; i + 1 < argc; i += 2) keys[argv[i]] = argv[i + 1];
  unsigned n;
  std::unique_ptr<compressor::Compressor> made;
  while (fread(&n, 4, 1, stdin) == 1) {
    std::vector<float> values((n / 32 + 2) * 32, 0.0f);
    if (fread(values.data(), 4, n, stdin) != n) return 1;
    if (!made) made = compressor::CompressorRegistry::Create(keys, 4 * n, BYTEPS_FLOAT32);
    compressor::tensor_t code = made->Compress(compressor::tensor_t(values.data(), 4 * n, BYTEPS_FLOAT32));
    unsigned size = code.size;
    fwrite(&size, 4, 1, stdout);
    fwrite(code.data, 1, size, stdout);
  }
}
"""
PARTITIONS, NORMS = ("linear", "natural"), ("max", "l2")
GENERATOR = np.random.default_rng(1)
VECTORS = [GENERATOR.standard_normal(n).astype(np.float32) for n in (40, 333, 1000, 5000, 64, 2049)]
VECTORS += [np.round(values * 2) for values in VECTORS]  # many equal values


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("byteps")
    fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "byteps==0.2.5.post15"]
    subprocess.run([*fetch, "--no-build-isolation"], cwd=folder, check=True)
    (archive,) = folder.glob("byteps*.tar.gz")
    with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as tar:
        tar.extractall(folder, filter="data")
    (common,) = folder.glob("byteps*/byteps/common")
    (common / "program.cc").write_text(PROGRAM)
    sources = ["program.cc", "logging.cc", "compressor/compressor_registry.cc"]
    sources += [f"compressor/impl/{name}.cc" for name in ("onebit", "topk", "randomk", "dithering")]
    flags = ["-std=c++14", "-O1", "-mf16c", "-I.", f"-I{sysconfig.get_paths()['include']}", "-DBYTEPS_BUILDING_SERVER"]
    subprocess.run(["g++", *flags, *sources, "-o", "program"], cwd=common, check=True)
    return common / "program"


def theirs(program, vectors, **keys):
    """Return the codes of successive vectors."""
    arguments = [str(part) for pair in keys.items() for part in pair]
    given = b"".join(struct.pack("<I", len(values)) + values.tobytes() for values in vectors)
    out = subprocess.run([program, *arguments], input=given, capture_output=True, check=True).stdout
    codes = []
    while out:
        (size,) = struct.unpack_from("<I", out)
        codes.append(out[4 : 4 + size])
        out = out[4 + size :]
    return codes


@pytest.mark.soak
def test_the_bytes_are_equal(program):
    for values in VECTORS:
        assert theirs(program, [values], compressor_type="onebit", compressor_onebit_scaling="true") == [
            Onebit().encode(values).tobytes()
        ]
        for k in (0.01, 0.1, 0.3, 7, 1):
            assert theirs(program, [values], compressor_type="topk", compressor_k=k) == [
                Topk(k=k, order="heap").encode(values).tobytes()
            ]
            compressor, kept = Randomk(k=k, seed=2021), {}
            expected = theirs(program, [values] * 3, compressor_type="randomk", compressor_k=k, seed=2021)
            assert [compressor.encode(values, kept).tobytes() for _ in range(3)] == expected
        for k, (partition, name), (norm, of) in product((1, 5, 16), enumerate(PARTITIONS), enumerate(NORMS)):
            keys = {"compressor_k": k, "seed": 7, "dithering_partition": partition, "dithering_normalize": norm}
            expected = theirs(program, [values] * 3, compressor_type="dithering", **keys)
            compressor, kept = Dithering(k=k, seed=7, partition=name, norm=of), {}
            assert [compressor.encode(values, kept).tobytes() for _ in range(3)] == expected
