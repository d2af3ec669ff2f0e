// One layer's MLPs from packets to outputs: accelerator.sv, and the arithmetic of each core. Memory is outside: a port for
// all cores, or with private weights (WEIGHTS 0) one a core. The cycles are those of docs/rtl.md.
`default_nettype none
module layer #(
    parameter int CORES = 2,
    parameter int REMAP = 32,
    parameter int DROP = 16,
    parameter int STREAM = 0,
    parameter int DISPATCH = 0,
    parameter int WEIGHTS = 1,
    parameter int WINDOW = 2,
    parameter int QUEUE = 2,
    parameter int LOAD_BITS = 8,
    parameter int MAC_BITS = 8,
    parameter int VECTOR_BITS = 8,
    parameter int MACS = 64,
    parameter int LANES = 8,
    parameter int BUFFER_BITS = 9,
    parameter int INPUT_BITS = 4,
    parameter int NUMBER_BITS = 10,
    parameter     TABLE = "logistic.hex",
    localparam int PORTS = WEIGHTS == 0 ? CORES : 1
) (
    input  wire logic                       clk,
    input  wire logic                       rst,
    input  wire logic                       start,
    input  wire logic [31:0]                index,
    input  wire logic [5:0]                 rows,
    output wire logic                       done,
    input  wire logic                       in_valid,
    output wire logic                       in_ready,
    input  wire logic [63:0]                in_word,
    output wire logic                       skip,
    output wire logic [CORES-1:0]           sent,
    output wire logic [CORES-1:0]           go,
    output wire logic [CORES-1:0]           finished,
    output wire logic [8*CORES-1:0]         row,
    output wire logic                       out_of_step,

    output wire logic [PORTS-1:0]           ask,
    output wire logic [29*CORES-1:0]        load_cycles,
    input  wire logic [PORTS-1:0]           load_done,     // in the cycle of a tile's last word
    input  wire logic [PORTS-1:0]           weight_valid,
    input  wire logic [8*MACS*PORTS-1:0]    weight_word,

    // What a layer reads, for all cores (datapath.sv).
    input  wire logic                       write,
    input  wire logic [1:0]                 what,
    input  wire logic [4:0]                 write_row,
    input  wire logic [NUMBER_BITS-1:0]     write_at,
    input  wire logic [8*MACS-1:0]          write_word,
    input  wire logic [INPUT_BITS:0]        own_words,
    input  wire logic [INPUT_BITS:0]        code_words,
    input  wire logic [17:0]                shifts,

    output wire logic [CORES-1:0]           out_valid,
    output wire logic [32*LANES*CORES-1:0]  out
);
  wire logic [7:0]         index_bits, mapping_bits;
  wire logic [CORES-1:0]   asks, member, mac_run, mac_activated, mac_done, vector_run, vector_begin;
  wire logic [3*CORES-1:0] vector_operation;
  wire logic               unused = &{1'b0, index_bits, mapping_bits, asks, row};
  assign ask = asks[PORTS-1:0];

  accelerator #(
      .CORES(CORES), .REMAP(REMAP), .DROP(DROP), .STREAM(STREAM), .DISPATCH(DISPATCH), .WEIGHTS(WEIGHTS), .WINDOW(WINDOW),
      .QUEUE(QUEUE), .LOAD_BITS(LOAD_BITS), .MAC_BITS(MAC_BITS), .VECTOR_BITS(VECTOR_BITS), .MEMORY(0),
      .DRAIN($clog2(MACS) + 9), .SETTLE(10)) control (
      .clk, .rst, .start, .index, .rows, .done, .in_valid, .in_ready, .in_word, .skip, .index_bits, .mapping_bits, .sent, .go,
      .finished, .row, .out_of_step, .ask(asks), .load_cycles, .load_there(CORES'(load_done)), .member,
      .mac_run, .mac_activated, .mac_done, .vector_run, .vector_begin, .vector_operation);

  for (genvar c = 0; c < CORES; c++) begin : core
    localparam int P = WEIGHTS == 0 ? c : 0;
    datapath #(
        .MACS(MACS), .LANES(LANES), .BUFFER_BITS(BUFFER_BITS), .INPUT_BITS(INPUT_BITS), .NUMBER_BITS(NUMBER_BITS),
        .TABLE(TABLE)) arithmetic (
        .clk, .rst, .write, .what, .write_row, .write_at, .write_word, .own_words, .code_words, .shifts,
        .begins(go[c]), .row(row[8*c+:5]), .mac_run(mac_run[c]), .mac_activated(mac_activated[c]), .mac_done(mac_done[c]),
        .vector_run(vector_run[c]), .vector_begin(vector_begin[c]), .vector_operation(vector_operation[3*c+:3]),
        .weight_valid(weight_valid[P] && member[c]), .weight_word(weight_word[8*MACS*P+:8*MACS]),
        .out_valid(out_valid[c]), .out(out[32*LANES*c+:32*LANES]));
  end
endmodule
`default_nettype wire
