#!/usr/bin/env bash
# Installs a finished build, then configures, builds and runs examples/consumer against what was installed.
#   tests/consumer/run.sh BUILD_DIR SOURCE_DIR
set -euo pipefail

build="$(cd "$1" && pwd)"
source="$(cd "$2" && pwd)"
# Beside the build and always at the same place, so that a compiler cache works.
work="$build/consumer"
prefix="$work/prefix"

fail() {
  echo "consumer: $*" >&2
  exit 1
}
cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }

unset DESTDIR LD_LIBRARY_PATH CMAKE_PREFIX_PATH
rm -rf "$work"
mkdir -p "$work"
cmake --install "$build" --prefix "$prefix" >"$work/install.log" || fail "the installation failed"

targets="$(find "$prefix" -name 'snugTargets*.cmake')"
[[ -n "$targets" ]] || fail "no snugTargets.cmake was installed"
# A path begins there: the tree may be called as a folder of the installation is.
# shellcheck disable=SC2086
if grep -nP "(?<![\\w.})/-])(\\Q$build\\E|\\Q$source\\E)(?![\\w.-])" $targets; then
  fail "installed targets name the build or the source tree"
fi

launcher="$(command -v ccache || true)"
cmake -S "$source/examples/consumer" -B "$work/build" -G "$(cached CMAKE_GENERATOR)" \
  -DCMAKE_BUILD_TYPE="$(cached CMAKE_BUILD_TYPE)" -DCMAKE_CXX_COMPILER="$(cached CMAKE_CXX_COMPILER)" \
  -DCMAKE_CXX_FLAGS="$(cached CMAKE_CXX_FLAGS)" -DCMAKE_EXE_LINKER_FLAGS="$(cached CMAKE_EXE_LINKER_FLAGS)" \
  -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher" -DCMAKE_PREFIX_PATH="$prefix"
cmake --build "$work/build"

cd /
output="$("$work/build/consumer")"
echo "$output"
grep -Eq '^loss [0-9]+(\.[0-9]+)?' <<<"$output" || fail "no finite loss was printed"
grep -Eq '^predicted peak [0-9.]+ [KM]iB of 64\.0 MiB$' <<<"$output" || fail "no predicted peak was printed"

if [[ -x "$prefix/bin/snug" ]]; then
  "$prefix/bin/snug" --help >/dev/null || fail "the installed command does not start"
fi
