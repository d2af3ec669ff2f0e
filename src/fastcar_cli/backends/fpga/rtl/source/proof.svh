// What prove.sh proves of drs.sv, for every Index Register word and every number of rows: packets of two words,
// all there, every core with room. The reference counts in its own way, and knows no state of DRS.
`default_nettype none
module proof #(
    parameter int CORES = 3,
    parameter int REMAP = 32,
    parameter int DROP = 2,
    parameter int STREAM = 0
) (
    input wire logic        clk,
    input wire logic [31:0] any_index,
    input wire logic [5:0]  any_rows
);
  logic [9:0]  cycle;      // of the layer
  logic        started;
  logic [31:0] index;
  logic [5:0]  rows;
  wire logic   start = !started;

  wire logic             idle, in_ready, skip, head, last;
  wire logic [5:0]       computing;
  wire logic [63:0]      word;
  wire logic [CORES-1:0] sent;
  logic                  second;   // of a packet's words comes next
  wire logic [63:0]      in_word = second ? 64'h8 : 64'h1;
  logic                  present;  // a packet is there
  wire logic             take = present && in_ready;

  drs #(.CORES(CORES), .REMAP(REMAP), .DROP(DROP), .STREAM(STREAM)) dut (
      .clk, .rst(1'b0), .start, .index_in(any_index), .rows_in(any_rows), .idle, .computing,
      .in_valid(present), .in_ready, .in_word, .skip,
      .out_valid(sent), .out_head(head), .out_last(last), .out_word(word), .room({CORES{1'b1}}));

  logic [5:0] row;                 // rows that have passed
  logic [CORES-1:0] next;          // the core whose turn it is, one bit a core
  logic [5:0] ones;                // rows that compute, of those dealt so far
  logic [9:0] due;                 // cycle in which the next header must be taken
  initial {started, cycle, index, rows, second, row, due, ones, next} = '0;
  wire logic       computes = index[row[4:0]];
  wire logic [9:0] takes = computes || STREAM != 0 ? 10'd2 : 10'(DROP);
  wire logic       header = take && !second;
  always_comb present = started && row < rows;

  always_ff @(posedge clk) begin
    started <= 1'b1;
    cycle   <= start ? 10'd1 : cycle + 10'd1;
    if (start) begin
      index  <= any_index;
      rows   <= any_rows;
      row    <= '0;
      next   <= CORES'(1);
      ones   <= '0;
      second <= 1'b0;
      due    <= 10'(1 + REMAP);
    end else if (take) begin
      if (header) due <= due + takes;
      if (header && (computes || STREAM != 0)) second <= 1'b1;
      else begin
        second <= 1'b0;
        row    <= row + 6'd1;
        if (computes) next <= {next, next[CORES-1]};
      end
    end
    if (started && cycle <= 10'd32) ones <= ones + 6'(index[5'(cycle - 10'd1)]);
  end

  always_comb begin
    if (start) assume (any_rows >= 6'd1 && any_rows <= 6'd32);
    if (started) begin
      // A header is taken in the cycle it is due, and in no other.
      if (!second) assert (take == (row < rows && cycle == due));
      else assert (take);
      // A row that computes goes to the next core in turn, both words; a dropped one to none.
      assert (sent == (take && computes ? next : '0));
      assert (skip == (header && !computes && STREAM == 0));
      if (take && computes) assert (head == !second && last == second && word == in_word);
      // The layer's packets are through when the last is, to the cycle.
      assert (idle == (row == rows && cycle >= due));
      assert (computing == ones);
    end
  end
endmodule
`default_nettype wire
