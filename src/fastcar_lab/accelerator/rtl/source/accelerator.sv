// The accelerator as far as layer.py times it: DRS, the barrier, a sequencer a core, and with MEMORY the weight streams;
// without it `ask`, `load_cycles` and `load_there` are its memory's. layer.sv has the arithmetic that it drives.
//
// Cycle contract of a layer, counted from the cycle in which `start` is 1: docs/rtl.md.
`default_nettype none
module accelerator #(
    parameter int CORES = 2,
    parameter int REMAP = 32,
    parameter int DROP = 16,
    parameter int STREAM = 0,
    parameter int DISPATCH = 0,
    parameter int WEIGHTS = 1,       // barrier.sv says which is which
    parameter int WINDOW = 2,
    parameter int QUEUE = 2,
    parameter int LATENCY = 64,
    parameter int LOAD_BITS = 8,
    parameter int MAC_BITS = 8,
    parameter int VECTOR_BITS = 8,
    parameter int MEMORY = 1,
    parameter int DRAIN = 0,
    parameter int SETTLE = 0
) (
    input  wire logic               clk,
    input  wire logic               rst,
    input  wire logic               start,
    input  wire logic [31:0]        index,
    input  wire logic [5:0]         rows,
    output wire logic               done,      // in the first cycle after the layer's last
    input  wire logic               in_valid,
    output wire logic               in_ready,
    input  wire logic [63:0]        in_word,
    output wire logic               skip,
    // What a watcher sees: widths of the registers, a word going to a core, cores started, rows finished, a core
    // out of step.
    output wire logic [7:0]         index_bits, mapping_bits,
    output wire logic [CORES-1:0]   sent,
    output wire logic [CORES-1:0]   go,
    output wire logic [CORES-1:0]   finished,
    output wire logic [8*CORES-1:0] row,
    output wire logic               out_of_step,

    output wire logic [CORES-1:0]   ask,        // a tile, for all of a round from core 0 but with private weights
    output wire logic [29*CORES-1:0] load_cycles,
    input  wire logic [CORES-1:0]   load_there, // in the last cycle in which beats of it pass
    output wire logic [CORES-1:0]   member,     // cores of the round that runs
    output wire logic [CORES-1:0]   mac_run, mac_activated, mac_done, vector_run, vector_begin,
    output wire logic [3*CORES-1:0] vector_operation
);
  wire logic             head, last, idle;
  wire logic [5:0]       computing;
  wire logic [63:0]      word;
  wire logic [CORES-1:0] room, there, core_idle, empty, opens, through, may_end, has_room, may_load;
  wire logic [15:0]      load_needs [CORES], needs [CORES];
  wire logic [28:0]      cycles [CORES];
  logic                  was_dealing, in_layer;
  wire logic [CORES-1:0] load_done;

  drs #(.CORES(CORES), .REMAP(REMAP), .DROP(DROP), .STREAM(STREAM), .DISPATCH(DISPATCH)) scheduler (
      .clk, .rst, .start, .index_in(index), .rows_in(rows), .idle, .computing,
      .index_bits, .mapping_bits, .in_valid, .in_ready, .in_word, .skip,
      .out_valid(sent), .out_head(head), .out_last(last), .out_word(word), .room);

  // The rounds are known once all 32 rows are dealt; the barrier needs that before the first packet is whole.
  localparam int AGE_BITS = 6;
  logic [AGE_BITS-1:0] age;
  wire logic dealt = was_dealing && age == AGE_BITS'(33);
  always_ff @(posedge clk) begin
    if (rst) begin
      {was_dealing, in_layer, age} <= '0;
    end else if (start) begin
      {was_dealing, in_layer} <= 2'b11;
      age <= AGE_BITS'(1);
    end else begin
      if (dealt) was_dealing <= 1'b0;
      else if (was_dealing) age <= age + 1'b1;
      if (done) in_layer <= 1'b0;
    end
  end

  barrier #(.CORES(CORES), .WEIGHTS(WEIGHTS)) gate (
      .clk, .rst, .dealt, .computing, .there, .core_idle, .go, .opens, .member);

  for (genvar c = 0; c < CORES; c++) begin : core
    // Core 0 has a row in every round: under multicast it asks for the tiles of all.
    sequencer #(.QUEUE(QUEUE), .WINDOW(WINDOW), .LOADS(WEIGHTS != 2 || c == 0 ? 1 : 0), .LOAD_BITS(LOAD_BITS),
                .MAC_BITS(MAC_BITS), .VECTOR_BITS(VECTOR_BITS), .DRAIN(DRAIN), .SETTLE(SETTLE)) sequence_ (
        .clk, .rst, .in_valid(sent[c]), .in_head(head), .in_last(last), .in_word(word),
        .room(room[c]), .there(there[c]), .idle(core_idle[c]), .go(go[c]), .opens(opens[c]),
        .row(row[8*c+:8]), .through(through[c]), .may_end(may_end[c]), .finished(finished[c]), .empty(empty[c]),
        .load_needs(load_needs[c]), .needs(needs[c]), .has_room(has_room[c]), .may_load(may_load[c]),
        .load_valid(ask[c]), .load_cycles(cycles[c]), .load_done(load_done[c]),
        .mac_run(mac_run[c]), .mac_activated(mac_activated[c]), .mac_done(mac_done[c]), .vector_run(vector_run[c]),
        .vector_begin(vector_begin[c]), .vector_operation(vector_operation[3*c+:3]));
    assign load_cycles[29*c+:29] = cycles[c];
  end

  if (MEMORY == 0) begin : outside
    assign load_done = WEIGHTS == 0 ? load_there : load_there[0] ? member : '0;
  end else if (WEIGHTS != 0) begin : shared
    wire logic whole;
    stream #(.LATENCY(LATENCY), .DEPTH(WINDOW)) weights (.clk, .rst, .ask(ask[0]), .cycles(cycles[0]), .done(whole));
    wire logic unused = &{1'b0, load_there};
    assign load_done = whole ? member : '0;
  end else begin : each
    wire logic unused = &{1'b0, load_there};
    for (genvar c = 0; c < CORES; c++) begin : port
      stream #(.LATENCY(LATENCY), .DEPTH(WINDOW)) weights (
          .clk, .rst, .ask(ask[c]), .cycles(cycles[c]), .done(load_done[c]));
    end
  end

  if (WEIGHTS == 2) begin : credits
    // A tile is sent when every core of the round has room for it, those included that have not started yet.
    wire logic room_for_tile = &(~member | has_room);
    // A core that has not started is not through.
    wire logic round_over = &(~member | through);
    wire logic unused = &{1'b0, ask};
    for (genvar c = 0; c < CORES; c++) begin : of
      assign needs[c] = load_needs[0];
    end
    assign may_load = {CORES{room_for_tile}};
    assign may_end = {CORES{round_over}};
  end else begin : own
    wire logic unused = &{1'b0, through, member};
    for (genvar c = 0; c < CORES; c++) begin : of
      assign needs[c] = load_needs[c];
    end
    assign may_load = has_room;
    assign may_end = '1;
  end

  if (WEIGHTS == 1) begin : watch
    logic differs;
    always_comb begin
      differs = 1'b0;
      for (int c = 1; c < CORES; c++)
        if (member[c] && (ask[c] != ask[0] || (ask[c] && cycles[c] != cycles[0]))) differs = 1'b1;
    end
    assign out_of_step = differs;
  end else begin : watch_not
    assign out_of_step = 1'b0;
  end

  assign done = in_layer && idle && (&empty);
endmodule
`default_nettype wire
