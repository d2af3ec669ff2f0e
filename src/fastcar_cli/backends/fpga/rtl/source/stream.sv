// A weight stream: the timing of a memory port, without the memory. Two requests wait their latency side by
// side; beats pass in the order of the requests. It stands where a board has its HBM controller.
`default_nettype none
module stream #(
    parameter int LATENCY = 64
) (
    input  wire logic        clk,
    input  wire logic        rst,
    input  wire logic        ask,
    input  wire logic [28:0] cycles,
    output wire logic        done     // in the last cycle in which beats of a request pass
);
  localparam int BITS = $clog2(LATENCY + 1);
  logic            busy0, busy1;
  logic [BITS-1:0] wait0, wait1;
  logic [28:0]     left0, left1;
  wire logic       passing = busy0 && wait0 == '0;
  assign done = passing && left0 == 29'd1;

  always_ff @(posedge clk) begin
    if (rst) begin
      {busy0, busy1, wait0, wait1, left0, left1} <= '0;
    end else begin
      if (wait0 != '0) wait0 <= wait0 - 1'b1;
      if (wait1 != '0) wait1 <= wait1 - 1'b1;
      if (passing) left0 <= left0 - 1'b1;
      if (done) begin
        busy0 <= busy1;
        busy1 <= 1'b0;
        left0 <= left1;
        wait0 <= wait1 != '0 ? wait1 - 1'b1 : '0;
      end
      if (ask) begin
        if (!busy0 || (done && !busy1)) begin
          busy0 <= 1'b1;
          wait0 <= BITS'(LATENCY - 1);
          left0 <= cycles;
        end else begin
          busy1 <= 1'b1;
          wait1 <= BITS'(LATENCY - 1);
          left1 <= cycles;
        end
      end
    end
  end
endmodule
`default_nettype wire
