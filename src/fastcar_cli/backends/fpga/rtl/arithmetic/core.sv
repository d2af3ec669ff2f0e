// A core whose sequencer drives its MAC array: packets in, weights in from the memory, sums out.
//
// A multiply of n cycles takes n words of MACS weights from the weight buffer, in the order in which they came, and the words
// of an input vector over and over, once an output. A multiply that waits for the vector unit reads the activated
// vector, another the row's own. Both vectors are written from outside, by what would be the vector unit and the norm. Tiles
// hold whole words; gate and up hold whole outputs.
//
// The sum of an output comes LATENCY cycles after the cycle in which the multiply takes its last word.
`default_nettype none
module core #(
    parameter int MACS = 64,
    parameter int WINDOW = 2,
    parameter int QUEUE = 2,
    parameter int LOAD_BITS = 8,
    parameter int MAC_BITS = 8,
    parameter int VECTOR_BITS = 8,
    parameter int BUFFER_BITS = 9,      // log2 of the words that the weight buffer holds
    parameter int INPUT_BITS = 4        // log2 of the words of the longer vector
) (
    input  wire logic                  clk,
    input  wire logic                  rst,
    input  wire logic                  in_valid,
    input  wire logic                  in_head,
    input  wire logic                  in_last,
    input  wire logic [63:0]           in_word,
    output wire logic                  finished,

    input  wire logic [INPUT_BITS:0]   own_words,    // of the row's own vector
    input  wire logic [INPUT_BITS:0]   activated_words,
    input  wire logic                  vector_valid,
    input  wire logic                  vector_of,
    input  wire logic [INPUT_BITS-1:0] vector_at,
    input  wire logic [8*MACS-1:0]     vector_word,

    output wire logic                  load_valid,
    output wire logic [28:0]           load_cycles,
    input  wire logic                  load_done,    // in the last cycle in which beats of a load pass
    input  wire logic                  weight_valid,
    input  wire logic [8*MACS-1:0]     weight_word,

    output wire logic                  begins,       // a row begins in the next cycle
    output wire logic                  sum_valid,
    output wire logic signed [31:0]    sum
);
  wire logic        there, idle, has_room, mac_run, mac_activated;
  wire logic [15:0] needs;
  assign begins = there && idle;

  wire logic       room, through, empty;
  wire logic [7:0] row;
  wire logic       unused = &{1'b0, room, through, empty, row};
  sequencer #(.QUEUE(QUEUE), .WINDOW(WINDOW), .LOAD_BITS(LOAD_BITS), .MAC_BITS(MAC_BITS), .VECTOR_BITS(VECTOR_BITS))
  sequence_ (
      .clk, .rst, .in_valid, .in_head, .in_last, .in_word, .room, .there, .idle, .go(begins), .opens(begins),
      .row, .through, .may_end(1'b1), .finished, .empty, .load_needs(needs), .needs, .has_room, .may_load(has_room),
      .load_valid, .load_cycles, .load_done, .mac_run, .mac_activated);

  logic [8*MACS-1:0]      weights [2**BUFFER_BITS];
  logic [8*MACS-1:0]      vectors [2**(INPUT_BITS+1)];
  logic [8*MACS-1:0]      weight, x;
  logic [BUFFER_BITS-1:0] write_at, read_at;
  logic [INPUT_BITS-1:0]  term;
  logic                   valid, first, last;
  wire logic              whole = {1'b0, term} == (mac_activated ? activated_words : own_words) - 1'b1;

  always_ff @(posedge clk) begin
    if (weight_valid) weights[write_at] <= weight_word;
    if (vector_valid) vectors[{vector_of, vector_at}] <= vector_word;
    weight <= weights[read_at];
    x <= vectors[{mac_activated, term}];
    first <= term == '0;
    last <= whole;
  end

  always_ff @(posedge clk) begin
    if (rst) begin
      {write_at, read_at, term, valid} <= '0;
    end else begin
      if (weight_valid) write_at <= write_at + 1'b1;
      if (mac_run) begin
        read_at <= read_at + 1'b1;
        term <= whole ? '0 : term + 1'b1;
      end
      valid <= mac_run;
    end
  end

  mac_array #(.MACS(MACS)) array (
      .clk, .reset(rst), .valid, .first, .last, .x, .weights(weight), .done(sum_valid), .sum);
endmodule
`default_nettype wire
