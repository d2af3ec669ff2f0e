// Who may start. LOCKSTEP: the cores of a round start together, when each has its packet and all are idle.
// Otherwise each starts when it is idle and has a packet.
`default_nettype none
module barrier #(
    parameter int CORES = 2,
    parameter int LOCKSTEP = 1
) (
    input  wire logic             clk,
    input  wire logic             rst,
    input  wire logic             dealt,      // the mapping is made: `computing` rows will come
    input  wire logic [5:0]       computing,
    input  wire logic [CORES-1:0] there,      // a whole packet waits
    input  wire logic [CORES-1:0] core_idle,
    output wire logic [CORES-1:0] go
);
  if (LOCKSTEP != 0) begin : together
    logic [5:0]       left;
    logic [CORES-1:0] want;
    always_comb for (int c = 0; c < CORES; c++) want[c] = left > 6'(c);
    wire logic start = left != 6'd0 && (there & want) == want && (&core_idle);
    assign go = start ? want : '0;
    always_ff @(posedge clk) begin
      if (rst) left <= '0;
      else if (dealt) left <= computing;
      else if (start) left <= left > 6'(CORES) ? left - 6'(CORES) : '0;
    end
  end else begin : alone
    wire logic unused = &{1'b0, clk, rst, dealt, computing};
    assign go = there & core_idle;
  end
endmodule
`default_nettype wire
