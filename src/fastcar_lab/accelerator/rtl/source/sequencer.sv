// The sequencer of a core: holds QUEUE packets and runs the instructions of the first on three in-order
// units side by side, the memory port, the MAC array and the vector unit.
//
// Instruction word: [2:0] operation, [31:3] cycles its unit is busy, [47:32] and [63:48] what must be done
// before, counted within the row: [47:32] multiplies before a load or an operation of the vector unit, and loads before a
// multiply; [63:48] operations of the vector unit. Operations: 0 load, 1 multiply, 2 .. 5 vector unit (isa.py).
// Header word: [15:0] instructions, [23:16] row, [39:24] loads, [55:40] multiplies; the rest is the vector unit's.
//
// Where the cores of a round share one stream of tiles, one asks for all of them (LOADS), and counts the others' tiles
// as its own. The vector unit sees a multiply DRAIN cycles after it is done, when its sums are through, and any unit an
// operation of the vector unit SETTLE cycles after. `needs`, `may_load` and `may_end` come from outside. A core alone has its own there.
`default_nettype none
module sequencer #(
    parameter int QUEUE = 2,
    parameter int WINDOW = 2,       // tiles that the weight buffer holds
    parameter int LOADS = 1,        // asks for tiles; without it another core does
    parameter int LOAD_BITS = 8,    // log2 of the instructions that each unit's memory holds
    parameter int MAC_BITS = 8,
    parameter int VECTOR_BITS = 8,
    parameter int DRAIN = 0,
    parameter int SETTLE = 0
) (
    input  wire logic        clk,
    input  wire logic        rst,
    input  wire logic        in_valid,
    input  wire logic        in_head,
    input  wire logic        in_last,
    input  wire logic [63:0] in_word,
    output wire logic        room,
    output wire logic        there,
    output wire logic        idle,
    input  wire logic        go,
    input  wire logic        opens,        // the row, or its round: nothing of it is done yet
    output      logic [7:0]  row,          // that runs
    output wire logic        through,      // nothing is left of the row
    input  wire logic        may_end,      // a row that is through
    output wire logic        finished,     // in the first cycle after the row's last
    output wire logic        empty,

    output wire logic [15:0] load_needs,   // multiplies that must be done before the next tile is requested
    input  wire logic [15:0] needs,        // the same of the core that asks
    output wire logic        has_room,     // so many are done here
    input  wire logic        may_load,
    output wire logic        load_valid,
    output wire logic [28:0] load_cycles,
    input  wire logic        load_done,    // in the last cycle in which beats of a load pass
    output wire logic        mac_run,      // a cycle of a multiply
    output wire logic        mac_activated, // of one that waited for the vector unit
    output wire logic        mac_done,     // its last
    output wire logic        vector_run,   // a cycle of an operation of the vector unit, `vector_begin` its first
    output wire logic        vector_begin,
    output wire logic [2:0]  vector_operation
);
  localparam int QUEUE_BITS = QUEUE > 1 ? $clog2(QUEUE) : 1;
  localparam int HELD_BITS = $clog2(QUEUE + 1);
  localparam int OUT_BITS = $clog2(WINDOW + 1);

  // Packets held, the running one included, and those that wait as a whole.
  logic [HELD_BITS-1:0]  held, waiting;
  logic [55:0]           heads [QUEUE];
  logic [QUEUE_BITS-1:0] head_in, head_out;
  logic                  running;

  function automatic logic [QUEUE_BITS-1:0] after(input logic [QUEUE_BITS-1:0] at);
    after = at == QUEUE_BITS'(QUEUE - 1) ? '0 : at + 1'b1;
  endfunction

  wire logic [55:0] head = heads[head_out];
  wire logic        take_head = in_valid && in_head;
  wire logic        packet_whole = in_valid && in_last;

  logic [15:0] loads_left, macs_left, vectors_left;   // to begin
  logic [15:0] loads_done, macs_done, macs_seen, vectors_seen;
  logic [OUT_BITS-1:0] loads_out;                     // requested and not done
  logic [28:0] mac_busy, vector_busy;                 // cycles still to come

  assign through = running && loads_left == '0 && macs_left == '0 && vectors_left == '0 && loads_out == '0
                   && mac_busy == '0 && vector_busy == '0;
  assign finished = through && may_end;
  assign idle  = !running || finished;
  assign room  = held != HELD_BITS'(QUEUE) || finished;
  assign there = waiting != '0;
  assign empty = idle && held == (finished ? HELD_BITS'(1) : '0);

  wire logic        is_load = in_word[2:0] == 3'd0;
  wire logic        is_mac = in_word[2:0] == 3'd1;
  wire logic        body = in_valid && !in_head;
  wire logic [63:0] next_load, next_mac, next_vector;
  logic             begin_load, begin_mac, begin_vector;

  if (LOADS != 0) begin : asks
    instructions #(.BITS(LOAD_BITS)) load_memory (
        .clk, .rst, .write(body && is_load), .word(in_word), .next(begin_load), .first(next_load));
  end else begin : asks_not
    assign next_load = '0;
  end
  instructions #(.BITS(MAC_BITS)) mac_memory (
      .clk, .rst, .write(body && is_mac), .word(in_word), .next(begin_mac), .first(next_mac));
  instructions #(.BITS(VECTOR_BITS)) vector_memory (
      .clk, .rst, .write(body && !is_load && !is_mac), .word(in_word), .next(begin_vector), .first(next_vector));

  wire logic unused = &{1'b0, next_load[63:48], next_load[2:0], next_mac[2:0]};
  always_comb begin
    begin_load   = running && loads_left != '0 && may_load;
    begin_mac    = running && macs_left != '0 && mac_busy == '0
                   && loads_done >= next_mac[47:32] && vectors_seen >= next_mac[63:48];
    begin_vector = running && vectors_left != '0 && vector_busy == '0
                   && macs_seen >= next_vector[47:32] && vectors_seen >= next_vector[63:48];
  end
  assign load_needs  = next_load[47:32];
  assign has_room    = macs_done >= needs;
  assign load_valid  = begin_load;
  assign load_cycles = next_load[31:3];

  logic waited;
  assign mac_run = begin_mac || mac_busy != '0;
  assign mac_activated = begin_mac ? next_mac[63:48] != '0 : waited;
  always_ff @(posedge clk) waited <= mac_activated;

  // An instruction of one cycle is done in the cycle it begins.
  assign mac_done = begin_mac ? next_mac[31:3] == 29'd1 : mac_busy == 29'd1;
  wire logic vector_done = begin_vector ? next_vector[31:3] == 29'd1 : vector_busy == 29'd1;

  logic [2:0] operation;
  assign vector_begin = begin_vector;
  assign vector_run = begin_vector || vector_busy != '0;
  assign vector_operation = begin_vector ? next_vector[2:0] : operation;
  always_ff @(posedge clk) operation <= vector_operation;

  wire logic mac_through, vector_through;
  late #(.CYCLES(DRAIN)) drain (.clk, .clear(rst || opens), .in(mac_done), .out(mac_through));
  late #(.CYCLES(SETTLE)) settle (.clk, .clear(rst || opens), .in(vector_done), .out(vector_through));

  always_ff @(posedge clk) if (take_head) heads[head_in] <= in_word[55:0];

  always_ff @(posedge clk) begin
    if (rst) begin
      {held, waiting, head_in, head_out, running, row} <= '0;
      {loads_left, macs_left, vectors_left, loads_done, macs_done, macs_seen, vectors_seen} <= '0;
      {loads_out, mac_busy, vector_busy} <= '0;
    end else begin
      held    <= held + HELD_BITS'(take_head) - HELD_BITS'(finished);
      waiting <= waiting + HELD_BITS'(packet_whole) - HELD_BITS'(go);
      if (take_head) head_in <= after(head_in);
      if (finished) running <= 1'b0;

      if (begin_load) loads_left <= loads_left - 1'b1;
      if (begin_mac) macs_left <= macs_left - 1'b1;
      if (begin_vector) vectors_left <= vectors_left - 1'b1;
      if (load_done) loads_done <= loads_done + 1'b1;
      if (mac_done) macs_done <= macs_done + 1'b1;
      if (mac_through) macs_seen <= macs_seen + 1'b1;
      if (vector_through) vectors_seen <= vectors_seen + 1'b1;
      if (LOADS != 0) loads_out <= loads_out + OUT_BITS'(begin_load) - OUT_BITS'(load_done);
      if (begin_mac) mac_busy <= next_mac[31:3] - 1'b1;
      else if (mac_busy != '0) mac_busy <= mac_busy - 1'b1;
      if (begin_vector) vector_busy <= next_vector[31:3] - 1'b1;
      else if (vector_busy != '0) vector_busy <= vector_busy - 1'b1;

      if (go) begin
        running      <= 1'b1;
        head_out     <= after(head_out);
        row          <= head[23:16];
        loads_left   <= LOADS != 0 ? head[39:24] : '0;
        macs_left    <= head[55:40];
        vectors_left <= head[15:0] - head[39:24] - head[55:40];
      end
      if (opens) {loads_done, macs_done, macs_seen, vectors_seen} <= '0;
    end
  end
endmodule
`default_nettype wire
