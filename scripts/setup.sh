#!/usr/bin/env bash
# Gets a machine ready to build snug: system packages, then LibTorch. Safe to run again, and quick when all is there.
#
#   setup.sh [WHAT...]  beside what the command is built from: tests (with clang-format and clang-tidy), benchmarks, fuzzers
#                       (clang)
#   SNUG_LIBTORCH=DIR   use this LibTorch (a folder with include/ and lib/) and install none
#
# Otherwise LibTorch is the torch package of the active Python environment (2.11 to 2.15), or else of .venv in the
# repository, which is made here where it has none: with the newest of these releases that pip finds a build for the CPU of,
# as the tests of the simulated GPU need one, or else with the newest. pip's own settings and variables (PIP_INDEX_URL,
# PIP_EXTRA_INDEX_URL, ...) apply; PyTorch's builds for the CPU are at https://download.pytorch.org/whl/cpu.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
readonly root
readonly oldest_torch=2.11 newest_torch=2.15.0 unknown_torch=2.16

say() { echo "setup: $*"; }
fail() {
  echo "setup: $*" >&2
  exit 1
}

# --- system packages ------------------------------------------------------------------------------

# A tool counts when its command is there, wherever it came from; a library only as a package.
tools=(g++:c++ cmake ninja-build:ninja make python3 git ccache mold pkg-config)
libraries=(libfmt-dev nlohmann-json3-dev libtomlplusplus-dev libcli11-dev libboost-dev
           libxxhash-dev libpcre2-dev libutf8proc-dev libsentencepiece-dev libjpeg-dev libpng-dev liburing-dev)
python_headers=false
for what in "$@"; do
  case "$what" in
    tests)
      tools+=(clang-format clang-tidy)
      libraries+=(libgtest-dev libgmock-dev librapidcheck-dev)
      python_headers=true
      ;;
    benchmarks) libraries+=(libbenchmark-dev) ;;
    fuzzers)
      tools+=(clang:clang++)
      libraries+=(libclang-rt-dev)
      ;;
    *) fail "unknown argument $what; there are: tests, benchmarks, fuzzers" ;;
  esac
done
readonly python_headers
readonly tools libraries

missing_packages() {
  local tool package installed
  for tool in "${tools[@]}"; do
    command -v "${tool#*:}" >/dev/null || echo "${tool%%:*}"
  done
  installed=" $(dpkg-query -W -f '${db:Status-Status} ${Package}\n' python3-venv "${libraries[@]}" 2>/dev/null |
    awk '$1 == "installed" { printf "%s ", $2 }' || true)"
  for package in "${libraries[@]}"; do
    [[ "$installed" == *" $package "* ]] || echo "$package"
  done
  # Its headers, for the package that tests run in a Python process.
  if $python_headers && ! python3 -c 'import os, sysconfig; assert os.path.exists(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null; then
    echo python3-dev
  fi
  # A Python that did not come from Debian brings venv along.
  if [[ "$installed" != *" python3-venv "* ]] && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    echo python3-venv
  fi
}

install_packages() {
  local missing
  mapfile -t missing < <(missing_packages)
  [[ ${#missing[@]} -gt 0 ]] || return 0
  if ! command -v apt-get >/dev/null; then
    fail "missing: ${missing[*]} (Debian's names). There is no apt-get here: install them with this system's package" \
      "manager and run cmake --preset release yourself"
  fi
  if [[ $EUID -ne 0 ]]; then
    fail "packages are missing; run: sudo apt-get install -y --no-install-recommends ${missing[*]}"
  fi
  say "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq -o DPkg::Lock::Timeout=300 update
  apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${missing[@]}" >/dev/null
}

# --- LibTorch -------------------------------------------------------------------------------------

is_libtorch() { [[ -f "$1/include/ATen/ATen.h" && -f "$1/lib/libtorch_cpu.so" ]]; }

# The version of a package that a Python has; nothing when it has none.
version_of() { "$1" -c 'import sys; from importlib.metadata import version; print(version(sys.argv[1]))' "$2" 2>/dev/null || true; }
torch_of() { version_of "$1" torch; }

at_least() { [[ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" == "$1" ]]; }

is_supported() { at_least "$oldest_torch" "$1" && ! at_least "$unknown_torch" "$1"; }

# Whether an active Python environment has a LibTorch that will do. CMake looks there first, so one that will not stands in
# the way.
active_environment_has_torch() {
  local environment version
  for environment in "${VIRTUAL_ENV:-}" "${CONDA_PREFIX:-}"; do
    [[ -n "$environment" && -x "$environment/bin/python" && ! "$environment" -ef "$root/.venv" ]] || continue
    version="$(torch_of "$environment/bin/python")"
    [[ -n "$version" ]] || continue
    at_least "$oldest_torch" "$version" ||
      fail "the active Python environment ($environment) has torch $version; snug needs $oldest_torch or newer:" \
        "upgrade it, or deactivate it"
    ! at_least "$unknown_torch" "$version" ||
      fail "the active Python environment ($environment) has torch $version; snug knows those before $unknown_torch:" \
        "take an older one, or deactivate it"
    return 0
  done
  return 1
}

readonly venv="$root/.venv"
readonly stamp="$venv/.snug-torch"

venv_is_stamped() { [[ -f "$stamp" && -x "$venv/bin/python" ]] && compgen -G \
  "$venv/lib/python*/site-packages/torch/lib/libtorch_cpu.so" >/dev/null; }

venv_works() {
  "$venv/bin/python" -c 'import numpy, torch' 2>/dev/null && is_supported "$(torch_of "$venv/bin/python")"
}

# What to install, for pip.
chosen_torch() {
  local version
  while read -r version; do
    if is_supported "$version"; then
      echo "$version"
      return
    fi
  done < <("$venv/bin/python" -m pip index versions --disable-pip-version-check torch 2>/dev/null |
    grep -oE '[0-9]+\.[0-9]+\.[0-9]+\+cpu' | sort -rVu)
  echo "$newest_torch"
}

pip_install() {
  local attempt
  for attempt in 1 2 3; do
    if "$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off "$@"; then
      return 0
    fi
    [[ $attempt -eq 3 ]] || { say "pip failed; trying again in $((attempt * 5)) s" && sleep $((attempt * 5)); }
  done
  fail "pip could not install $*. With a LibTorch of your own, set SNUG_LIBTORCH to its folder and run this again"
}

make_venv() {
  local version
  rm -f "$venv"/.snug-torch*
  if [[ -e "$venv" ]] && venv_works; then
    touch "$stamp"
    return
  fi
  if [[ ! -e "$venv" ]]; then
    say "making a Python environment in .venv"
    python3 -m venv "$venv"
  elif ! "$venv/bin/python" -m pip --version >/dev/null 2>&1 ||
    is_supported "$(torch_of "$venv/bin/python")"; then
    say "making .venv anew: it is incomplete"
    python3 -m venv --clear "$venv"
  fi
  version="$(chosen_torch)"
  say "installing torch $version into .venv (a few minutes)"
  pip_install "torch==$version" numpy
  venv_works || fail "torch is in .venv but cannot be imported:" \
    "$("$venv/bin/python" -c 'import numpy, torch' 2>&1 | tail -n 1)"
  touch "$stamp"
}

# A LibTorch for CUDA comes without a part of the headers that its own include.
add_cuda_headers() {
  local runtime
  compgen -G "$venv/lib/python*/site-packages/torch/lib/libtorch_cuda.so" >/dev/null || return 0
  ! compgen -G "$venv/lib/python*/site-packages/nvidia/*/include/crt/host_defines.h" >/dev/null || return 0
  runtime="$(version_of "$venv/bin/python" nvidia-cuda-runtime)"
  [[ -z "$runtime" ]] || pip_install "nvidia-cuda-crt==${runtime%.*}.*"
}

find_libtorch() {
  if [[ -n "${SNUG_LIBTORCH:-}" ]]; then
    is_libtorch "$SNUG_LIBTORCH" ||
      fail "SNUG_LIBTORCH=$SNUG_LIBTORCH is not a LibTorch: include/ATen/ATen.h or lib/libtorch_cpu.so is missing"
  elif ! active_environment_has_torch; then
    venv_is_stamped || make_venv
    add_cuda_headers
  fi
}

# One at a time: a second run waits for the first, and then finds the work done. The lock is on this file.
exec 9<"$root/scripts/setup.sh"
if ! flock -n 9; then
  say "waiting for another setup to finish"
  flock 9
fi
install_packages
find_libtorch
