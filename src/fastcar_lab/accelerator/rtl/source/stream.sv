// A weight stream: the timing of a memory port, without the memory. DEPTH requests wait their latency side by
// side; beats pass in the order of the requests. A board has its HBM controller here.
`default_nettype none
module stream #(
    parameter int LATENCY = 64,
    parameter int DEPTH = 2
) (
    input  wire logic        clk,
    input  wire logic        rst,
    input  wire logic        ask,
    input  wire logic [28:0] cycles,
    output wire logic        done     // in the last cycle in which beats of a request pass
);
  localparam int BITS = $clog2(LATENCY + 1);
  // The first of those under way is in place 0.
  logic [DEPTH-1:0] busy, busy_next;
  logic [BITS-1:0]  left_to_wait [DEPTH], wait_next [DEPTH];
  logic [28:0]      left [DEPTH], left_next [DEPTH];
  wire logic        passing = busy[0] && left_to_wait[0] == '0;
  assign done = passing && left[0] == 29'd1;

  always_comb begin
    logic placed;
    placed = 1'b0;
    for (int i = 0; i < DEPTH; i++) begin
      int from;
      from = done ? (i + 1) % DEPTH : i;
      busy_next[i] = busy[from] && !(done && i == DEPTH - 1);
      wait_next[i] = left_to_wait[from] == '0 ? '0 : left_to_wait[from] - 1'b1;
      left_next[i] = left[from] - 29'(passing && from == 0);
      if (ask && !placed && !busy_next[i]) begin
        placed = 1'b1;
        busy_next[i] = 1'b1;
        wait_next[i] = BITS'(LATENCY - 1);
        left_next[i] = cycles;
      end
    end
  end

  always_ff @(posedge clk) begin
    busy <= rst ? '0 : busy_next;
    left_to_wait <= wait_next;
    left <= left_next;
  end
endmodule
`default_nettype wire
