#!/usr/bin/env bash
# Run tests on an emulated arm64 processor: `benchmarks/aarch64.sh [TESTS ...]` on a Debian machine, as root. Hours.
#
# An arm64 Python is unpacked from Debian's packages into a folder, the wheels of what the tests need beside it, and both
# run under qemu's user mode; nothing is installed but qemu and debootstrap. numba compiles under emulation, too, 40 to
# 60 seconds a loop, and keeps what it compiled in the folder, so that a second run is faster. Every file is a run of its
# own, with its outcome in a log. The processor has a name, as OpenBLAS takes qemu's default one for one with SME, and
# multiplies matrices wrongly there.
set -euo pipefail
cd "$(dirname "$0")/.."

work=${AARCH64:-/var/tmp/agentmerge-aarch64}
mkdir -p "$work/site" "$work/log"

if [ ! -e "$work/root/usr/bin/python3.11" ]; then
  apt-get update -qq && apt-get install -y -qq debootstrap qemu-user-static >/dev/null
  debootstrap --arch=arm64 --foreign --variant=minbase --include=python3 bookworm "$work/root" >"$work/log/debootstrap"
  for package in "$work"/root/var/cache/apt/archives/*.deb; do dpkg-deb -x "$package" "$work/root"; done
fi

if [ ! -e "$work/site/numba" ]; then
  mapfile -t needed < <(python3 - <<'PY'
import tomllib

project = tomllib.load(open("pyproject.toml", "rb"))["project"]
print(*project["dependencies"], *project["optional-dependencies"]["test"], sep="\n")
PY
  )
  python3 -m pip install -q --target "$work/site" --python-version 3.11 --only-binary=:all: \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_17_aarch64 "${needed[@]}"
fi

# What sys.executable names, so that tests which start a process start an emulated one.
cat >"$work/python" <<PY
#!/bin/sh
export PYTHONHOME=$work/root/usr PYTHONPATH=$work/site:$PWD/src PYTHONDONTWRITEBYTECODE=1
exec qemu-aarch64-static -cpu neoverse-n1 -0 $work/python -L $work/root $work/root/usr/bin/python3.11 "\$@"
PY
chmod +x "$work/python"
export NUMBA_CACHE_DIR=$work/cache

"$work/python" -c 'import platform; assert platform.machine() == "aarch64"'
[ $# -gt 0 ] || set -- tests/kernels/test_*.py tests/survey/test_*.py tests/methods/test_*.py tests/testing/test_*.py \
  tests/test_randomness.py tests/test_tensors.py
failed=0
for file in "$@"; do
  log=$work/log/$(basename "$file" .py)-$(echo "$file" | cksum | cut -c1-6)
  nice "$work/python" -m pytest -p no:cacheprovider "$file" >"$log" 2>&1 || failed=1
  echo "$file: $(tail -1 "$log")"
done
exit $failed
