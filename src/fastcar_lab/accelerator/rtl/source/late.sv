// A pulse, CYCLES cycles later; `clear` drops those under way.
`default_nettype none
module late #(
    parameter int CYCLES = 0
) (
    input  wire logic clk,
    input  wire logic clear,
    input  wire logic in,
    output wire logic out
);
  if (CYCLES == 0) begin : now
    wire logic unused = &{1'b0, clk, clear};
    assign out = in;
  end else begin : later
    logic [CYCLES-1:0] under_way;
    always_ff @(posedge clk) under_way <= clear ? '0 : CYCLES'({under_way, in});
    assign out = under_way[CYCLES-1];
  end
endmodule
`default_nettype wire
