"""The program as the tests call it."""

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(
    os.environ.get("LUNA_PROGRAM", ROOT / "build" / "release" / "luna")
)

needs_program = pytest.mark.skipif(
    not PROGRAM.exists(), reason=f"{PROGRAM} was not built"
)


def luna(*arguments, code=0, env=None, timeout=300, text=None):
    """Runs it; code: the exit code it must have, None: any. A variable of env
    that is None is unset; text: what it reads from stdin."""
    environment = os.environ | (env or {})
    done = subprocess.run(
        [PROGRAM, *map(str, arguments)],
        input=text,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={k: v for k, v in environment.items() if v is not None},
    )
    assert code is None or done.returncode == code, done.stderr
    return done
