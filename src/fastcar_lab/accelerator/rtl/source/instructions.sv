// The instructions of one unit, in the order they came; `first` is the next, `next` takes it.
`default_nettype none
module instructions #(
    parameter int BITS = 8
) (
    input  wire logic        clk,
    input  wire logic        rst,
    input  wire logic        write,
    input  wire logic [63:0] word,
    input  wire logic        next,
    output      logic [63:0] first
);
  logic [63:0]     memory [2**BITS];
  logic [BITS-1:0] in, out;
  wire logic [BITS-1:0] out_next = next ? out + 1'b1 : out;
  always_ff @(posedge clk) begin
    if (write) memory[in] <= word;
    first <= memory[out_next];
  end
  always_ff @(posedge clk) begin
    if (rst) {in, out} <= '0;
    else begin
      if (write) in <= in + 1'b1;
      out <= out_next;
    end
  end
endmodule
`default_nettype wire
