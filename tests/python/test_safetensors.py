"""luna's safetensors beside PyPI's: each reads what the other wrote."""

import functools
import json
import struct
import subprocess
import sys
import zlib

import program
import pytest
import safetensors
import safetensors.torch
import torch
from program import needs_program

pytestmark = needs_program

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.float4_e2m1fn_x2: "F4",
}


luna = functools.partial(program.luna, timeout=60)


def random_tensor(dtype, *shape):
    """Every bit pattern the type has, NaNs included."""
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, dtype=dtype)
    *outer, last = shape
    raw = torch.randint(0, 256, (*outer, last * dtype.itemsize))
    return raw.to(torch.uint8).view(dtype)


def split(path):
    """The header and the tensors' bytes of a file, by the format's rules."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    metadata = header.pop("__metadata__", None)
    start = 8 + size
    bytes_of = {
        name: data[start + entry["data_offsets"][0] :][
            : entry["data_offsets"][1] - entry["data_offsets"][0]
        ]
        for name, entry in header.items()
    }
    return metadata, header, bytes_of


@pytest.fixture
def theirs(tmp_path):
    """A file by PyPI's safetensors with all types, shapes and odd names."""
    tensors = {str(d): random_tensor(d, 3, 5) for d in DTYPES}
    tensors["scalar"] = torch.tensor(2.5)
    tensors["empty"] = torch.empty(2, 0, 3, dtype=torch.bfloat16)
    tensors['a "quoted"\n\x7f\x01 näme 😀'] = torch.arange(7)
    path = tmp_path / "theirs.safetensors"
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    return path


def test_a_copy_of_theirs_is_the_same_file(theirs, tmp_path):
    ours = tmp_path / "ours.safetensors"
    luna("weights", theirs, "--out", ours)
    assert ours.read_bytes() == theirs.read_bytes()


def test_listing_agrees_with_theirs(theirs):
    listed = json.loads(luna("weights", theirs, "--json", "--checksum").stdout)
    _, header, bytes_of = split(theirs)
    assert [t["name"] for t in listed["tensors"]] == list(header)
    assert listed["metadata"] == {"format": "pt"}
    for tensor in listed["tensors"]:
        name = tensor["name"]
        shape = list(header[name]["shape"])
        if tensor["dtype"] == "F4":  # two to a byte
            shape[-1] //= 2
        assert tensor["dtype"] == header[name]["dtype"]
        assert tensor["shape"] == shape
        assert tensor["bytes"] == len(bytes_of[name])
        assert tensor["crc32"] == f"{zlib.crc32(bytes_of[name]):08x}"
    assert {t["dtype"] for t in listed["tensors"]} == set(DTYPES.values())


def test_they_read_ours(theirs, tmp_path):
    # Out of their order and not aligned, so that luna's writer must sort and
    # pad by itself; many metadata keys, whose order is free.
    metadata, header, bytes_of = split(theirs)
    metadata |= {f"key {i}": "ä\n" * i for i in range(9)}
    names = sorted(header)
    end = 0
    for name in names:
        header[name]["data_offsets"] = [end, end + len(bytes_of[name])]
        end += len(bytes_of[name])
    text = json.dumps({"__metadata__": metadata} | header).encode() + b" \n"
    mixed = tmp_path / "mixed.safetensors"
    mixed.write_bytes(
        struct.pack("<Q", len(text))
        + text
        + b"".join(bytes_of[name] for name in names)
    )
    ours = tmp_path / "ours.safetensors"
    luna("weights", mixed, "--out", ours)

    our_metadata, our_header, our_bytes = split(ours)
    assert list(our_header) == list(header)
    assert our_bytes == bytes_of
    with safetensors.safe_open(ours, "pt") as file:
        assert file.metadata() == metadata == our_metadata
        assert set(file.keys()) == set(header)
        for name in header:
            assert file.get_slice(name).get_shape() == header[name]["shape"]
            tensor = file.get_tensor(name)
            if tensor.numel():
                raw = tensor.reshape(-1).view(torch.uint8)
                assert bytes(raw.tolist()) == bytes_of[name]


def test_shards_become_one_file(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    parts = {
        "model-00001-of-00002.safetensors": {"a": torch.rand(2, 3)},
        "model-00002-of-00002.safetensors": {"b": torch.rand(4)},
    }
    for name, tensors in parts.items():
        safetensors.torch.save_file(tensors, folder / name, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(
        json.dumps(
            {
                "metadata": {"total_size": 40},
                "weight_map": {
                    t: name for name, part in parts.items() for t in part
                },
            }
        )
    )
    one = tmp_path / "one.safetensors"
    text = luna("weights", folder, "--out", one).stdout
    assert "2 tensors, 40 bytes" in text
    merged = safetensors.torch.load_file(one)
    for part in parts.values():
        for name, tensor in part.items():
            assert torch.equal(merged[name], tensor)


def test_pickles_are_refused_and_the_hint_works(tmp_path):
    pickled = tmp_path / "pytorch_model.bin"
    weights = {"a": torch.rand(3), "b": torch.rand(2, 2).t()}
    torch.save(weights, pickled)
    error = luna("weights", pickled, code=1).stderr
    assert str(pickled) in error
    # what the message says to run, run
    command = error[error.index("python -c") :].strip()
    subprocess.run(
        command.replace("python -c", f"{sys.executable} -c", 1),
        shell=True,
        check=True,
    )
    converted = tmp_path / "model.safetensors"
    names = json.loads(luna("weights", converted, "--json").stdout)["tensors"]
    assert [t["name"] for t in names] == ["a", "b"]


def test_a_broken_file_is_one_line_that_names_it(theirs):
    theirs.write_bytes(theirs.read_bytes()[:-1])
    done = luna("weights", theirs, code=1)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert str(theirs) in done.stderr
    assert "file size" in done.stderr
