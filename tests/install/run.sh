#!/usr/bin/env bash
# Installs a build to a fresh folder, then builds and runs the README's C++
# example against it: run.sh BUILD_FOLDER TORCH_FOLDER.
set -euo pipefail
build=$1 torch=$2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" >"$work/log" || {
  cat "$work/log"
  exit 1
}
# The first ```cpp block of the README.
cp "$here/CMakeLists.txt" "$work/"
awk '/^```cpp$/ { on = 1; next } /^```$/ { if (on) exit } on' \
  "$here/../../README.md" >"$work/example.cpp"
launcher=()
if command -v ccache >/dev/null; then
  launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  export CCACHE_BASEDIR=$work CCACHE_NOHASHDIR=1
fi
cmake -S "$work" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$work/prefix" -DLUNA_TORCH_DIR="$torch" \
  ${launcher[@]+"${launcher[@]}"}
cmake --build "$work/build"
"$work/build/example"
if [[ -x $work/prefix/bin/luna ]]; then
  "$work/prefix/bin/luna" --version
fi
