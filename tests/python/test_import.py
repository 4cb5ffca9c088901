"""Loading the library: where it is looked for, and what is refused."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import luna
import pytest
import torch
from luna import _library

BUILT = _library._find()


def import_luna(code="import luna; print(luna.__version__)", **environment):
    """`import luna` in a process of its own, outside the source tree."""
    package = Path(luna.__file__).parents[1]
    env = {**os.environ, "PYTHONPATH": str(package), **environment}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        cwd="/",
        capture_output=True,
        text=True,
    )


def test_version_is_the_librarys():
    info = json.loads(BUILT.with_suffix(".json").read_text())
    assert luna.__version__ == info["version"]
    assert torch.__version__.split("+")[0] == info["torch"]


def test_every_public_name_is_there_and_explained():
    for name in luna.__all__:
        thing = getattr(luna, name)
        assert thing.__doc__, name
        if name != "nn":
            assert "Example::" in thing.__doc__, name
    assert (Path(luna.__file__).parent / "py.typed").is_file()


def test_graphs_compiled_for_another_build_are_not_taken_up(tmp_path):
    other = tmp_path / "libluna.so"
    other.write_bytes(BUILT.read_bytes() + b"changed")
    shutil.copy(BUILT.with_suffix(".json"), tmp_path)
    code = "import luna, torch; print(torch.compiler.config.cache_key_tag)"
    tags = {
        library: import_luna(
            code, LUNA_LIBRARY=str(library), TORCH_COMPILE_CACHE_KEY_TAG="mine-"
        ).stdout
        for library in (BUILT, other)
    }
    assert tags[BUILT] != tags[other]
    assert all(tag.startswith("mine-luna-") for tag in tags.values()), tags


def test_other_torch_is_refused_before_loading(tmp_path):
    # Not a library at all: it must not be touched.
    (tmp_path / "libluna.so").write_bytes(b"built for another torch")
    info = {"version": "0.1.0", "torch": "2.3.1"}
    (tmp_path / "libluna.json").write_text(json.dumps(info))
    result = import_luna(LUNA_LIBRARY=str(tmp_path / "libluna.so"))
    assert result.returncode != 0
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: luna 0.1.0 was built for torch 2.3.1")
    assert torch.__version__ in last


def test_other_torch_at_run_time(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.12.0+cpu")
    with pytest.raises(ImportError, match=r"torch 2\.11.*got torch 2\.12\.0"):
        _library.load()


def test_missing_library_says_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("LUNA_LIBRARY", str(tmp_path / "libluna.so"))
    with pytest.raises(ImportError, match=str(tmp_path)):
        _library.load()


def test_missing_versions_are_an_error(tmp_path, monkeypatch):
    library = tmp_path / "libluna.so"
    library.write_bytes(b"")
    monkeypatch.setenv("LUNA_LIBRARY", str(library))
    for text in (None, "{", '{"version": "0.1.0"}', "[]"):
        if text is not None:
            library.with_suffix(".json").write_text(text)
        with pytest.raises(ImportError, match=r"libluna\.json"):
            _library.load()


def test_broken_library_is_an_import_error(tmp_path, monkeypatch):
    library = tmp_path / "libluna.so"
    library.write_bytes(b"no library")
    shutil.copy(BUILT.with_suffix(".json"), tmp_path)
    monkeypatch.setenv("LUNA_LIBRARY", str(library))
    with pytest.raises(ImportError, match="could not be loaded"):
        _library.load()


def test_library_beside_the_package_is_found(tmp_path, monkeypatch):
    monkeypatch.delenv("LUNA_LIBRARY", raising=False)
    package = tmp_path / "luna"
    package.mkdir()
    (package / "libluna.so").touch()
    monkeypatch.setattr(_library, "__file__", str(package / "_library.py"))
    assert _library._find() == package / "libluna.so"
    (package / "libluna.so").unlink()
    built = tmp_path.parent / "build" / "release" / "libluna.so"
    with pytest.raises(ImportError, match=str(built)):
        _library._find()
