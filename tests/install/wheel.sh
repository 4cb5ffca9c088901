#!/usr/bin/env bash
# Builds the wheel and tries it: wheel.sh PYTHON TORCH_FOLDER. The package must
# find LibTorch beside itself, and import from outside the source tree.
set -euo pipefail
python=$1 torch=$2
source=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset PYTHONPATH LUNA_LIBRARY

# Beside build/release and by the same compiler name, so that ccache knows what
# that has compiled already.
CXX=${CXX-c++} "$python" -m pip install -q --disable-pip-version-check --no-deps \
  --no-build-isolation --config-settings=build-dir="$source/build/wheel" \
  --target "$work/site" "$source"
test ! -e "$work/site/bin/luna"

# As in site-packages: torch and the CUDA libraries next to luna.
ln -s "$torch" "$work/site/torch"
ln -s "$torch/../nvidia" "$work/site/nvidia"
cd "$work"
"$python" -c "import ctypes; ctypes.CDLL('$work/site/luna/libluna.so')"
PYTHONPATH=$work/site "$python" -c "
import luna
assert luna.__file__.startswith('$work'), luna.__file__
print('luna', luna.__version__)"
