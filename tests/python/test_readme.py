"""The Python examples of the README run as they stand there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"


def test_python_examples_run():
    if not README.is_file():
        pytest.skip("README.md IS NOT WRITTEN YET: its example was not run")
    examples = re.findall(
        r"^```python\n(.*?)^```", README.read_text(), re.S | re.M
    )
    assert examples, "README.md has no ```python example"
    for example in examples:
        result = subprocess.run(
            [sys.executable, "-c", example], capture_output=True, text=True
        )
        assert result.returncode == 0, f"{example}\n{result.stderr}"
