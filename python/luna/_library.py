"""Finds libluna, checks that it fits this torch, and loads it."""

import hashlib
import json
import os
from pathlib import Path

import torch
import torch.compiler.config as compiler

_NAME = "libluna.so"


def _find() -> Path:
    """The library of LUNA_LIBRARY, of this package, or of the build tree."""
    chosen = os.environ.get("LUNA_LIBRARY")
    here = Path(__file__).resolve().parent
    places = (
        [Path(chosen)]
        if chosen
        else [here / _NAME, here.parents[1] / "build" / "release" / _NAME]
    )
    for place in places:
        if place.is_file():
            return place
    raise ImportError(
        f"luna: expected {_NAME} at {' or '.join(map(str, places))}, found "
        "none; run scripts/build, or `pip install .`, or point LUNA_LIBRARY "
        "at it"
    )


def _build_info(library: Path) -> dict[str, str]:
    """What the build wrote beside the library: its version and its torch's.

    It has to be read from a file: a library built for another torch may not
    even load.
    """
    path = library.with_suffix(".json")
    try:
        info = json.loads(path.read_text())
        return {key: str(info[key]) for key in ("version", "torch")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ImportError(
            f"luna: expected versions in {path} (written by the build, beside "
            f"the library), got {error!r}; build again"
        ) from error


def _cache_tag(library: Path) -> str:
    """Names this very build of the library in torch.compile's caches."""
    digest = hashlib.blake2b(library.read_bytes(), digest_size=8)
    return f"luna-{digest.hexdigest()}"


def load() -> str:
    """Loads the library and returns luna's version."""
    library = _find()
    info = _build_info(library)
    # "2.11.0+cu130" and "2.11.0" have the same C++ interface.
    here = str(torch.__version__)
    if here.split("+")[0] != info["torch"]:
        raise ImportError(
            f"luna {info['version']} was built for torch {info['torch']}, got "
            f"torch {here}: install torch=={info['torch']}, or build luna "
            "again in this environment"
        )
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        raise ImportError(
            f"luna: {library} could not be loaded with torch {here}: "
            f"{error.__cause__ or error}"
        ) from error
    # torch.compile keeps graphs on disk by the names of the ops they call.
    # Another build's ops may lay out what they return in another way, and a
    # graph compiled for them would fail, or read the wrong elements.
    compiler.cache_key_tag += _cache_tag(library)
    return info["version"]
